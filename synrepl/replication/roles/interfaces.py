"""What is asked of those around a daemon's role: its log, its replica, the other daemons."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.replication.addresses import Address

__all__ = ["Claim", "PeerStatus", "IFollowingReplica", "HandOver", "IHasAddress", "IPeerClient", "RoleLog"]


class Claim(msgspec.Struct, frozen=True):
    """A daemon became primary in this epoch; `uuid` is its own, `address` where it is, and `place` where the
    epoch began."""

    epoch: int
    uuid: str
    address: str
    history: str
    name: str = ""


class HandOver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica asks its primary to take no facts for so many seconds; 0 ends it.

    `uuid` and `address` are those of the replica.
    """

    seconds: float
    uuid: str = ""
    address: str = ""


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of itself when it is asked (``GET /v1/replication``).

    `turns` says where each of its epochs began, `begin` is the serial up to which it was trimmed. It is
    `promoting` while it asks its primary to hand over.
    """

    history: str
    uuid: str
    role: str
    position: LogPosition
    trimmed_upto: int = 0
    epoch_starts: tuple[EpochStart, ...] = ()
    address: str = ""
    primary: str = ""
    promoting: bool = False


class IPeerClient(Protocol):
    """How other daemons are told and asked.

    All of these raise a `ReplicationError` when one cannot be reached, or refuses. Our
    secret is shown to the other daemon only if `trusted` says so.
    """

    async def hand_over(self, address: Address, asked: HandOver) -> LogPosition:
        """Ask a primary to take no more facts for a while; gives where it stands."""

    async def claim(self, address: Address, claim: Claim) -> None:
        """Tell a daemon who is primary now."""

    async def describe(self, address: Address, *, trusted: bool) -> PeerStatus:
        """Ask a daemon what it is."""

    async def digest(self, address: Address, serial: int, *, trusted: bool) -> str | None:
        """Ask a daemon for the digest at this serial; None if it does not have it any more."""


class RoleLog(Protocol):
    """What is asked of the log."""

    write_barrier: Callable[[str], StorageError] | None

    @property
    def epoch(self) -> int: ...

    @property
    def serial(self) -> int: ...

    @property
    def position(self) -> LogPosition: ...

    @property
    def uuid(self) -> str: ...

    @property
    def history(self) -> str: ...

    @property
    def notes(self) -> Mapping[str, str]: ...

    async def note(self, **notes: str | None) -> None: ...

    @property
    def epoch_starts(self) -> Sequence[EpochStart]: ...

    def digest_at(self, serial: int) -> Awaitable[str | None]: ...

    async def next_epoch(
        self, why: str, *, epoch: int | None = None, at_ms: int | None = None
    ) -> EpochStart: ...

    async def flush(self) -> None: ...


class IHasAddress(Protocol):
    """What is asked of an upstream."""

    where: Address


class IFollowingReplica(Protocol):
    """What is asked of a replica."""

    state: str
    why: str

    @property
    def is_whole(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def resync(self) -> bool:
        """Give up what only this copy has: now if that is asked, or as soon as it is."""

    @property
    def upstream(self) -> IHasAddress:
        """Whom it follows."""

    @property
    def primary(self) -> Address:
        """Where the primary at the other end is, as far as it is known."""
