"""Hooks: the six questions that the core asks about other daemons of the same log.

A log may have copies, and then every daemon must know whether it accepts facts, where to send those that it
does not accept, for whom an append waits, what must not be trimmed, which keys count, and who may take the
whole log. The core asks these questions of objects, and does not know who answers. Where nobody else does,
the objects of this module answer: those of a daemon alone, a primary for ever. Their answers are the bodies
of the protocols' methods; whoever answers otherwise has all these methods itself.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from synrepl.base.access import Access
from synrepl.base.history import Appended
from synrepl.base.key_authority import AllKeysCount, IKeyAuthority
from synrepl.base.response_errors import NotForwarded
from synrepl.errors import StorageError
from synrepl.replication.addresses import Address
from synrepl.replication.connection import ConnectionOwner
from synrepl.streams.writer import Writer
from synrepl.wire.acks import NO_ACKS, Acks

if TYPE_CHECKING:
    from synrepl.replication.serving.log_waiters import LogWaiters

FORWARD_SECONDS: Final = 10.0
"""How long a forwarded append waits for its answer, unless the request says otherwise."""


# -- may this append go in, and may this reader read -------------------------------------------------------


class ReadRefusal(NamedTuple):
    """Why a reader is not served: a code for programs, empty if no other daemon can help, and a message."""

    code: str
    message: str


class IRole(Protocol):
    """What this daemon is among the daemons of its log.

    Whoever answers also opens and closes the gate of the log (`AppendGate`), and calls `ReadGate.changed`
    when readers may have to leave.
    """

    subscribers: list[Callable[[], object]]
    """Functions to call when the role, or what is known of the upstream, may have changed."""

    @property
    def role(self) -> str:
        """``primary``, or what it is instead."""

    @property
    def is_primary(self) -> bool:
        """Whether this daemon is the one that brings facts into the log."""

    @property
    def is_fenced(self) -> bool:
        """Whether another daemon is primary, and this one serves nobody."""

    @property
    def has_met_upstream(self) -> bool:
        """Whether this daemon copies another one, and has heard from it, now or before."""

    @property
    def is_whole(self) -> bool:
        """False while the copy of the log is not complete."""

    @property
    def is_settled(self) -> bool:
        """False until this daemon knows since its start that it has the primary's log, or why it does not."""

    @property
    def primary(self) -> Address:
        """The address of the daemon that accepts facts, as far as it is known."""

    def reading_refusal(self) -> ReadRefusal | None:
        """Return why no reader is served although there is a log; None if readers are."""
        return None

    def staleness(self) -> str:
        """Return why reads are refused until this daemon is up to date; empty if they are not."""
        return ""

    def state(self) -> str:
        """Return which of `Room.states` of its room this daemon is in; empty if in none."""
        return ""

    def lag_seconds(self) -> float:
        """Return the seconds since this daemon was last up to date with the daemon that it copies."""
        return 0.0

    def lag_rows(self) -> int:
        """Return the number of facts that this daemon is known to lack."""
        return 0


class Alone(IRole):
    """The role of a daemon alone."""

    role = "primary"
    is_primary = True
    is_fenced = False
    has_met_upstream = False
    is_whole = True
    is_settled = True
    primary = Address()

    def __init__(self) -> None:
        self.subscribers = []


# -- where does it go --------------------------------------------------------------------------------------


class PostedPart(msgspec.Struct, frozen=True):
    """Valid facts of a stream, each the text of a JSON array of rows; of this daemon without a writer."""

    stream: str
    facts: Sequence[bytes]
    writer: str | None = None


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    """An append as a client posted it: the facts of one stream, or with `is_batch` parts that are one append.

    `files` are checksums of files to wait for, `hops` the daemons that have forwarded the facts. `query` is
    sent on to the primary. `timeout` is in seconds. `owner` is the owner of the idempotency key, None if the
    client has proved no key: then this daemon's own key at the primary is the owner.
    """

    parts: Sequence[PostedPart]
    is_batch: bool = False
    key: str | None = None
    owner: str | None = None
    files: Collection[str] = ()
    hops: Sequence[str] = ()
    query: Sequence[tuple[bytes, bytes]] = ()
    timeout: float = FORWARD_SECONDS

    @property
    def stream(self) -> str | None:
        """The stream of the facts; None for a batch."""
        return None if self.is_batch else self.parts[0].stream


class IForwarding(Protocol):
    """Where appends to this daemon go."""

    def is_active(self) -> bool:
        """Whether another daemon stores them."""
        return False

    def refusal(self, stream: str) -> StorageError | None:
        """Return why facts of this stream (empty: of several) are not forwarded; None if they are."""
        return None

    async def forward(self, posted: Posted, waiters: "LogWaiters") -> Appended:
        """Have facts stored elsewhere, and wait until they are in this log too.

        Raises `NotForwarded`, or the `refusal`.
        """
        raise NotForwarded("upstream_away", "this daemon has no primary but itself")

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """Have facts stored elsewhere, without waiting for them here. Raises as `forward` does."""
        raise NotForwarded("upstream_away", "this daemon has no primary but itself")


class StoredHere(IForwarding):
    """A daemon alone stores all appends itself."""


# -- when is it answered -----------------------------------------------------------------------------------


class IAcknowledgements(Protocol):
    """For which copies an append waits."""

    def default(self, stream: str) -> Acks:
        """Return whom an append to this stream waits for, unless it says so itself."""
        return NO_ACKS

    def check(self, acks: Acks) -> None:
        """Raises `NotForwarded` if these acknowledgements can never come, before anything is stored."""
        raise NotForwarded("bad_request", "acks: this daemon has no replicas")

    async def promise(self, acks: Acks) -> None:
        """Note with the log that an append is about to wait for these acknowledgements."""
        return

    async def wait(self, acks: Acks, writer: Writer, serial: int, timeout: float) -> None:
        """Wait until the copies have all of this stream and writer up to this serial.

        Raises `NotForwarded` after `timeout` seconds.
        """
        return


class NoCopies(IAcknowledgements):
    """Acknowledgements of a daemon alone: there are none."""


# -- what holds the log ------------------------------------------------------------------------------------


class ILeases(Protocol):
    """Leases: they keep facts that readers still need from being trimmed by age."""

    def lowest(self) -> int | None:
        """Return the serial after which a reader still needs all facts; None without such readers."""
        return None

    def renew(self, reader: str, since: int, wait: float, access: Access) -> None:
        """Keep what a named reader of the changelog needs, which has everything up to `since`.

        `wait` is how many seconds its request may take. Raises a `ReplicationError` that says its response
        (`OwnResponse`) if that cannot be kept.
        """
        return


class NoLeases(ILeases):
    """A daemon alone keeps nothing for anybody: its log is trimmed by age."""


# -- what a HELLO opens ------------------------------------------------------------------------------------


class IHello(Protocol):
    """Serves the peers that say HELLO: they take the log as a whole, and are no followers."""

    opening: ClassVar[Collection[bytes]] = frozenset({b"HELLO"})
    """The names of the commands by which such a peer shows itself."""

    @property
    def connected(self) -> Sequence[Any]:
        """The open connections."""
        return ()

    def serve(self, connection: Any) -> ConnectionOwner:
        """Return the owner of this connection from now on, which serves the peer, or refuses it."""
        connection.fail("this daemon serves no replicas")
        return ConnectionOwner()

    def recheck(self) -> None:
        """Close the connections of peers whose key was revoked or changed."""
        return

    def close(self, why: str) -> None:
        """Send ERROR on every connection, and close it."""
        return


class NoHello(IHello):
    """A daemon alone serves followers only."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Who answers the six questions; by default a daemon alone. `keys` says which issued keys count."""

    role: IRole = field(default_factory=Alone)
    forwarding: IForwarding = field(default_factory=StoredHere)
    acknowledgements: IAcknowledgements = field(default_factory=NoCopies)
    leases: ILeases = field(default_factory=NoLeases)
    keys: IKeyAuthority = field(default_factory=AllKeysCount)
    hello: IHello = field(default_factory=NoHello)
