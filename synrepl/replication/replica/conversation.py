"""What a replica and its upstream say to each other, whatever carries it."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from synrepl.errors import ReplicationError
from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.streams.facts import Fact
from synrepl.wire.native import JoinRequest, Refusal, Subscription, WelcomeBody
from synrepl.wire.peer_names import is_address
from synrepl.wire.text import printable

__all__ = [
    "UpstreamHeartbeat",
    "Ephemeral",
    "Event",
    "Facts",
    "IConversation",
    "IUpstream",
    "JoinStarted",
    "JoinFinished",
    "SnapshotFacts",
    "SnapshotMeta",
    "KnownPeers",
    "RefusedByUpstream",
    "SubscriptionStarted",
    "TakenUpTo",
    "DownstreamCommand",
]


MAX_MESSAGE: Final = 1_000
"""Characters of a refusal that are shown."""


class RefusedByUpstream(ReplicationError):
    """The upstream cannot do what was asked; `refusal` says why, in words that are safe to show."""

    def __init__(self, refusal: Refusal) -> None:
        refusal = msgspec.structs.replace(
            refusal,
            code=printable(refusal.code),
            message=printable(refusal.message, limit=MAX_MESSAGE),
            moved_to=refusal.moved_to if is_address(refusal.moved_to) else "",
        )
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal
        self.retryable = refusal.retryable


class JoinStarted(msgspec.Struct, frozen=True):
    """A snapshot of `place` follows, of a log of this `history` that was trimmed up to `begin`.

    What is staged goes on if it is `resumed`.
    """

    join: str
    history: str
    position: LogPosition
    trimmed_upto: LogPosition
    resumed: bool


class Facts(msgspec.Struct, frozen=True):
    """Facts, in order."""

    facts: Sequence[Fact]


class SnapshotFacts(msgspec.Struct, frozen=True):
    """All that stands beside the snapshot's facts, which were all sent."""

    snapshot: LogSnapshot


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Epochs that begin here, and who got which answer for the facts before."""

    epoch_starts: Sequence[EpochStart]
    receipts: Sequence[AppendReceipt]


class Ephemeral(msgspec.Struct, frozen=True):
    """Facts that nobody keeps; or, with `is_all`, all that is held of them, then where their writers are."""

    facts: Sequence[Fact]
    is_all: bool = False


class JoinFinished(msgspec.Struct, frozen=True):
    """All up to here was sent."""

    position: LogPosition


class SubscriptionStarted(msgspec.Struct, frozen=True):
    """What is lacking follows, then what comes; the upstream stands here."""

    position: LogPosition


class UpstreamHeartbeat(msgspec.Struct, frozen=True):
    """All that was wanted up to `place` was sent; the upstream stands at the serial `head`."""

    position: LogPosition
    head: int
    at_ms: int


class KnownPeers(msgspec.Struct, frozen=True):
    """Where the upstream's other replicas are."""

    addresses: Sequence[str]


class TakenUpTo(msgspec.Struct, frozen=True):
    """The upstream has taken an origin's commands up to `number`; it knows of those from `since` on."""

    origin: str
    number: int
    since: int


class DownstreamCommand(msgspec.Struct, frozen=True):
    """A command for all processes, as a line."""

    line: bytes


Event = (
    JoinStarted
    | Facts
    | SnapshotFacts
    | SnapshotMeta
    | Ephemeral
    | JoinFinished
    | SubscriptionStarted
    | UpstreamHeartbeat
    | KnownPeers
    | TakenUpTo
    | DownstreamCommand
)


class IConversation(Protocol):
    """One connection to an upstream, past the greeting."""

    welcome: WelcomeBody

    def join(self, asked: JoinRequest) -> None:
        """Ask for a copy. The answer is `JoinStarted`, facts, `SnapshotFacts`, facts and `SnapshotMeta`, and
        `JoinFinished`."""

    def subscribe(self, asked: Subscription) -> None:
        """Ask for what comes after a place. `SubscriptionStarted` comes first, then facts, `SnapshotMeta`,
        `UpstreamHeartbeat` and `Ephemeral`."""

    async def next(self) -> Event:
        """The next event. Raises `RefusedByUpstream`; `NotConnected` and `RemoteProtocolError` when there
        will be no more."""

    def ready(self) -> Event | None:
        """The next event, if it is here already."""

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Everything up to there is held here, durably."""

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Say what followers sent up, if the welcome says that it is taken: `TakenUpTo` follows."""

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """The upstream's digests there, as far as it knows them. Not between `subscribe` and the end."""

    def close(self) -> None:
        """End it. Harmless when repeated."""


class IUpstream(Protocol):
    """How an upstream is reached."""

    where: Address
    """Which upstream it is; shown to people."""

    async def connect(self, uuid: str, name: str) -> IConversation:
        """Reach it, and be known to it. Raises as `IConversation.next` does."""
