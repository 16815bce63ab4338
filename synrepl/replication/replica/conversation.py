"""Messages between a replica and its upstream, independent of the transport."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from synrepl.errors import ReplicationError
from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.streams.facts import Fact
from synrepl.wire.grammar import Command
from synrepl.wire.native import Join, Refused, Subscribe, Welcome
from synrepl.wire.text import is_address, printable

MAX_MESSAGE: Final = 1_000
"""How many characters of a refusal are shown."""


class RefusedByUpstream(ReplicationError):
    """The upstream refused the request; `refusal` gives the reason, safe to show."""

    def __init__(self, refusal: Refused) -> None:
        refusal = msgspec.structs.replace(
            refusal,
            code=printable(refusal.code),
            message=printable(refusal.message, limit=MAX_MESSAGE),
            moved_to=refusal.moved_to if is_address(refusal.moved_to) else "",
        )
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal
        self.retryable = refusal.retryable


class Facts(msgspec.Struct, frozen=True):
    """Facts, in order."""

    facts: Sequence[Fact]


class SnapshotFacts(msgspec.Struct, frozen=True):
    """The metadata of the snapshot; all its facts were sent before."""

    snapshot: LogSnapshot


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Epochs that begin at this position, and the receipts of the appends that follow."""

    epoch_starts: Sequence[EpochStart]
    receipts: Sequence[AppendReceipt]


class Ephemeral(msgspec.Struct, frozen=True):
    """Ephemeral facts. With `is_all` they are all facts held, then the positions of their writers."""

    facts: Sequence[Fact]
    is_all: bool = False


Event = Command | Facts | SnapshotFacts | SnapshotMeta | Ephemeral
"""What an upstream sends: native commands and the contents of blocks. HTTP is translated into these."""


class IConversation(Protocol):
    """One connection to an upstream, after the handshake."""

    welcome: Welcome

    def join(self, request: Join) -> None:
        """Request a copy.

        The response is `Joining`, facts, `SnapshotFacts`, facts and `SnapshotMeta`, and `Joined`.
        """

    def subscribe(self, request: Subscribe) -> None:
        """Request the facts after a position.

        The response is `Subscribed`, then facts, `SnapshotMeta`, `Heartbeat` and `Ephemeral`.
        """

    async def next(self) -> Event:
        """Return the next event.

        Raises `RefusedByUpstream`; `NotConnected` and `RemoteProtocolError` when no event can follow.
        """

    def ready(self) -> Event | None:
        """Return the next event if it was already received, else None."""

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Acknowledge that all facts up to this position are durable."""

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward commands of followers, if WELCOME has the capability `native.COMMANDS`. `Taken` follows."""

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Return the upstream's digests at these serials, as far as it has them. Only before `subscribe`."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class IUpstream(Protocol):
    """Connects to an upstream."""

    where: Address
    """The upstream's address, as shown to operators."""

    async def connect(self, uuid: str, name: str) -> IConversation:
        """Connect and complete the handshake. Raises the errors of `IConversation.next`."""
