"""What is asked of those around a daemon's role: its log, its replica, the other daemons."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import Place, Turn
from synrepl.replication.addresses import Address

__all__ = ["Claim", "Following", "IHasAddress", "ITellOthers", "RoleLog"]


class Claim(msgspec.Struct, frozen=True):
    """A daemon became primary in this epoch; `uuid` is its own, `address` where it is, and `place` where the
    epoch began."""

    epoch: int
    uuid: str
    address: str
    history: str
    name: str = ""


class ITellOthers(Protocol):
    """How other daemons are told; all of these raise a `ReplicationError` when one cannot be reached."""

    async def hand_over(self, address: Address, seconds: float) -> Place:
        """Ask a primary to take no more facts for so long; gives where it stands."""

    async def claim(self, address: Address, claim: Claim) -> None:
        """Tell somebody who is primary now."""


class RoleLog(Protocol):
    """What is asked of the log."""

    sealed: Callable[[str], StorageError] | None

    @property
    def epoch(self) -> int: ...

    @property
    def serial(self) -> int: ...

    @property
    def place(self) -> Place: ...

    @property
    def uuid(self) -> str: ...

    @property
    def history(self) -> str: ...

    @property
    def notes(self) -> Mapping[str, str]: ...

    async def note(self, **notes: str | None) -> None: ...

    @property
    def turns(self) -> Sequence[Turn]: ...

    async def next_epoch(self, why: str, *, epoch: int | None = None, at_ms: int | None = None) -> Turn: ...

    async def settled(self) -> None: ...


class IHasAddress(Protocol):
    """What is asked of an upstream."""

    where: Address


class Following(Protocol):
    """What is asked of a replica."""

    state: str

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
