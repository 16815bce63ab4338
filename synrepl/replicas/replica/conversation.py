"""Messages between a replica and its upstream, independent of what carries them."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from synrepl.base.access import IssuedKey
from synrepl.base.history import AppendReceipt, EpochStart, LogSnapshot
from synrepl.daemon.other_daemons import IChannelConversation
from synrepl.errors import ReplicationError
from synrepl.replicas.command_forwarder import Numbered
from synrepl.replicas.wire.native import Join, Refused, Subscribe, Welcome
from synrepl.replication.addresses import Address
from synrepl.streams.facts import Fact
from synrepl.wire.grammar import Command
from synrepl.wire.position import LogPosition
from synrepl.wire.text import is_address, printable

MAX_MESSAGE: Final = 1_000
"""How many characters of a refusal's message are shown."""


class RefusedByUpstream(ReplicationError):
    """The upstream refused a request, or is of another homeserver. `refusal` is the reason, safe to show."""

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
    """The metadata of the snapshot, after all facts of the snapshot."""

    snapshot: LogSnapshot


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Starts of epochs after the facts sent so far, and receipts of appends whose facts follow."""

    epoch_starts: Sequence[EpochStart]
    receipts: Sequence[AppendReceipt]


class Ephemeral(msgspec.Struct, frozen=True):
    """Ephemeral facts. With `is_all`: all that the upstream holds, then the positions of their writers."""

    facts: Sequence[Fact]
    is_all: bool = False


class UpstreamKeys(msgspec.Struct, frozen=True):
    """All issued keys of the upstream."""

    keys: Sequence[IssuedKey]


Event = Command | UpstreamKeys | Facts | SnapshotFacts | SnapshotMeta | Ephemeral
"""What an upstream sends: native commands and the contents of blocks."""


class IConversation(IChannelConversation, Protocol):
    """A conversation with an upstream after the handshake."""

    welcome: Welcome

    def join(self, request: Join) -> None:
        """Request a copy.

        `Joining` follows, then the snapshot's facts and `SnapshotFacts` (unless the copy has them), newer
        facts and `SnapshotMeta`, and `Joined`. A `Heartbeat` can come between.
        """

    def subscribe(self, request: Subscribe) -> None:
        """Request the facts after a position.

        `Subscribed` follows, then `Facts`, `SnapshotMeta`, `Heartbeat`, `Linked`, `Ephemeral`, `Peers`,
        `Down` and `UpstreamKeys`.
        """

    async def next(self) -> Event:
        """Wait for the next event.

        Raises `RefusedByUpstream`, or if the conversation fails `NotConnected` or `RemoteProtocolError`.
        """

    def ready(self) -> Event | None:
        """Return the next event if it was already received; None if not, or if `next` would raise."""

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Acknowledge that all facts up to `position` are durable. `at_ms` is the last heartbeat's, or 0."""

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward commands of followers; `Taken` follows. WELCOME must have `native.COMMANDS`."""

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Return the upstream's digests at these serials; None if unknown to it. Only before `subscribe`."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class IUpstream(Protocol):
    """Connects to an upstream."""

    where: Address
    """The upstream's address, as shown to operators."""

    async def connect(self, uuid: str, name: str) -> IConversation:
        """Connect and complete the handshake. Raises the errors of `IConversation.next`."""
