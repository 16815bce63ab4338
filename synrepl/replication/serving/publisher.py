"""Publisher: sends committed facts from the log to followers.

A fact that was committed goes to the socket of a follower in these steps:

1. `Log` (`storage/log.py`) calls its subscribers with each group of facts, once it is committed. `follow_log`
   has made `Publisher._committed` one of them.
2. `Ring.add` (`ring.py`) takes the group. `_pump` follows at once, or within `PUMP_SECONDS`.
3. `pump_all` goes through the senders of all followers. Those that wait at the same place in the ring share
   the bytes of `Ring.lines_after`, which the `Encoder` (`encoder.py`) of their release makes once.
4. `sender.connection` is the `ReplicationProtocol` (`transports/connection.py`) of the follower: its `write`
   counts the bytes and calls what `immediate_write` (`transports/send_buffer.py`) has chosen for the
   transport.
5. On a plain socket that is `write_now`, which calls `send` of the socket, and leaves to Twisted what does
   not fit. With TLS it is the transport's own `write`.

A sender is made when a follower connects: `PublisherFactory` (`transports/tcp.py`) calls `Publisher.attach`,
and `ServedFollower.dialect_known` (`follower.py`) calls `make_sender` once it knows the follower's release.
For a follower that is behind, step 3 calls the loop of `Sender` (`sender.py`) instead, which reads from the
ring or from the log on disk, and writes by steps 4 and 5. While its transport is full, the loop stands still.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.logger import Logger

from synrepl.base.access import LOCAL, Access
from synrepl.base.history import Appended
from synrepl.base.interfaces import IClock
from synrepl.base.metrics import Metrics
from synrepl.base.rights import is_told
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.replication.connection import Connection
from synrepl.replication.hooks import IForwarding, IRole
from synrepl.replication.serving.broadcasts import Broadcasts
from synrepl.replication.serving.commands import FollowerCommands
from synrepl.replication.serving.encoder import Encoder
from synrepl.replication.serving.epoch_comparisons import EpochComparisons
from synrepl.replication.serving.follower import ServedFollower
from synrepl.replication.serving.follower_sender import FollowerSender
from synrepl.replication.serving.lag import Lag
from synrepl.replication.serving.log_waiters import LogWaiters
from synrepl.replication.serving.read_gate import ReadGate
from synrepl.replication.serving.ring import Ring, RingGroup
from synrepl.replication.strategies import serving
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import Error
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import BOTH, BROKER, SERVER, Command

if TYPE_CHECKING:
    from synrepl.storage.log import Log

C = TypeVar("C", bound=Command)

MAX_ENCODERS: Final = 1_000
"""Encoders that are remembered: one for each release and set of streams."""

PUMP_SECONDS: Final = 0.002
"""Facts committed within this time after a write to all followers go together in the next write."""


class Publisher:
    """Sends every committed fact to the followers of its stream that may read it.

    The server side of the library. `log` is a started `synrepl.storage.log.Log`, `instance` the writer name
    of this process. Facts are sent from `follow_log` on, which `synrepl.serve` calls::

        publisher = synrepl.Publisher(
            log,
            synrepl.StreamTable.default(),
            reactor,
            synrepl.Metrics(CollectorRegistry()),
            instance="master",
        )
        synrepl.serve(reactor, "tcp:9092:interface=127.0.0.1", publisher, server_name="hs").startService()
        await publisher.append("push_rules", [[PushRules(user_id="@ada:hs")]])

    A fact is encoded once for all live followers of the same release and streams. A ring of `ring_bytes`
    bytes holds the newest facts; followers that are further behind read from the log. Streams and writers
    that this daemon does not hold (`read_gate`) are not announced. All methods must be called in the
    reactor's thread; call `stop` at shutdown.
    """

    _logger = Logger()

    def __init__(
        self,
        log: "Log",
        table: StreamTable,
        clock: IClock,
        metrics: Metrics,
        *,
        instance: str,
        ring_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self.log = log
        self.table = table
        self.clock = clock
        self.metrics = metrics
        self.instance = instance
        self.read_gate = ReadGate(lambda: log.notes)
        self._ring_bytes = ring_bytes
        self.ring = self._make_ring()
        self.waiters = LogWaiters(log, clock)
        self.follower_commands = FollowerCommands(
            log,
            table,
            clock,
            instance=instance,
            dropped=lambda name: metrics.commands_dropped.labels(name).inc(),
            unread=lambda name: metrics.commands_unread.labels(name).inc(),
        )
        self.broadcast_subscribers: list[Callable[[Command, object], Iterable[None]]] = []
        """Functions that are called with each command of `broadcast` and where it came from (`but`).

        They send one message in each step.
        """
        self._broadcasts = Broadcasts(clock)
        self.followers: list[ServedFollower] = []
        self.channel_senders: list[FollowerSender] = []
        self._encoders: dict[tuple[Dialect, Filter, frozenset[str]], Encoder] = {}
        self.tasks = Tasks(self._logger)
        self.comparisons = EpochComparisons(log, self.tasks)
        self.lag = Lag(log, clock)
        self._pumped_at = -PUMP_SECONDS
        self._pump_timer = Timer(clock, self._pump)
        self._follows_log = False

    def follow_log(self) -> None:
        """Subscribe to the log: whoever makes a publisher calls this once. Idempotent."""
        if self._follows_log:
            return
        self._follows_log = True
        self.ring = self._make_ring()
        log = self.log
        log.subscribe(self._committed)
        # Whoever waits looks at the log before the followers are told.
        log.epochs.on_started(self.waiters.poll)
        log.epochs.on_started(self._on_epoch_started)
        log.copies.on_replaced(self.waiters.poll)

    def use(self, role: IRole, forwarding: IForwarding) -> None:
        """Serve readers as the role allows, and store what followers send where it says."""
        self.read_gate.use(role)
        self.follower_commands.use(forwarding)

    # -- followers -----------------------------------------------------------------------------------------

    def attach(self, connection: Connection, access: Access = LOCAL) -> ServedFollower:
        """Register a connected follower. Its transport calls `ServedFollower.dialect_known` later."""
        follower = ServedFollower(self, connection, access)
        self.followers.append(follower)
        return follower

    def detach(self, follower: ServedFollower) -> None:
        """Remove a follower whose connection was lost."""
        if follower in self.followers:
            self.followers.remove(follower)

    def _on_epoch_started(self) -> None:
        """Tell the followers, unless the epoch began with lost facts: then they are disconnected."""
        log = self.log
        self.comparisons.forget()
        start = log.head.epoch_starts[-1]
        if start.stream:
            return
        positions = None
        if log.head.serial == start.serial:
            positions = [
                (stream, writer, token)
                for stream, writers in log.positions_by_stream().items()
                if stream not in log.ephemeral.names
                for writer, token in writers.items()
            ]
        for follower in list(self.followers):
            follower.epoch_started(positions)

    def encoder_for(
        self, dialect: Dialect, streams: frozenset[str] | None, named: frozenset[str] = frozenset()
    ) -> tuple[Encoder, str]:
        """The encoder for followers that may read these streams (None: all), and what is held here, in words.

        Equal followers share an encoder. `named` are the streams that the follower has requested by name.
        Only streams that this daemon holds are served; if it lacks some writers, a release that cannot tell
        writers apart is served no streams.
        """
        strategy = serving(dialect)
        held, scope = self.read_gate.filter, self.read_gate.describe(streams)
        served = Filter(_intersection(held.streams, streams), held.writers)
        if held.writers is not None and not strategy.pulls:
            served = Filter(frozenset())
            scope = f"{scope}, and the follower's release cannot tell writers apart"
        encoder = self._encoders.get((dialect, served, named))
        if encoder is None:
            if len(self._encoders) >= MAX_ENCODERS:
                self._encoders.clear()
            encoder = self._encoders[dialect, served, named] = Encoder(
                self.table,
                codec_of(dialect, ours=SERVER, theirs=BOTH & ~SERVER),
                strategy,
                withheld=self._note_withheld,
                served=served,
                named=named,
            )
        return encoder, scope

    def stream_added(self, stream: Stream[Any]) -> None:
        """Serve a stream that was added to the table to the followers that have named it."""
        for follower in list(self.followers):
            follower.stream_added(stream)

    def join_channel(self, connection: Connection, writes: Collection[Writer]) -> FollowerSender:
        """Make a sender that publishes only these streams and writers on a shared channel."""
        encoder = Encoder(
            self.table,
            codec_of(NEWEST, ours=BROKER, theirs=BROKER),
            serving(NEWEST),
            withheld=self._note_withheld,
            writes=writes,
        )

        def positions(stream: str) -> dict[str, int]:
            found = self.log.positions(stream)
            return {writer: found.get(writer, 0) for name, writer in writes if name == stream}

        sender = self.make_sender(connection, encoder, positions=positions)
        self.channel_senders.append(sender)
        return sender

    def make_sender(
        self,
        connection: Connection,
        encoder: Encoder,
        *,
        scope: str = "",
        positions: Callable[[str], dict[str, int]] | None = None,
    ) -> FollowerSender:
        """Make the sender of a follower, or of a shared channel. The publisher pumps it after commits."""
        if not self._follows_log:
            raise RuntimeError("this publisher would send nothing: call its follow_log first")
        return FollowerSender(
            self.log,
            self.ring,
            connection,
            encoder,
            metrics=self.metrics,
            positions=positions or self.positions,
            scope=scope,
        )

    def on_channel_command(self, command: Command) -> None:
        """Handle another process's command from a shared channel."""
        self.follower_commands.on_channel_command(command)
        if SERVER in command.SENT_BY and not isinstance(command, Error):
            self.broadcast(command)

    def broadcast(self, command: Command, *, but: object = None) -> None:
        """Send a command to all followers whose release knows it, and to replicas for their followers.

        A peer that may not see the stream which the command concerns is skipped. A command is dropped, and
        counted, if too many of the same peer wait.

        `but` is the `ServedFollower` or the relay that the command came from: it is skipped.
        """
        if not self._broadcasts.add(self._messages(command, but), sender=but):
            self.metrics.commands_dropped.labels(command.NAME).inc()

    def _messages(self, command: Command, but: object) -> Iterator[None]:
        """Send a command to all, one message in each step."""
        for subscriber in self.broadcast_subscribers:
            yield from subscriber(command, but)
        for follower in list(self.followers):
            dialect = follower.dialect
            if follower is but or follower.sender is None or dialect is None:
                continue
            if dialect.release in command.SPAN and is_told(follower.access.streams, type(command)):
                follower.sender.send_command(command)
                yield

    # -- facts ---------------------------------------------------------------------------------------------

    def append(
        self, stream: str, facts: Iterable[Sequence[Any]], *, writer: str | None = None
    ) -> Awaitable[Appended]:
        """Append facts to the log; they are sent once they are committed. Each fact is a sequence of rows.

        A row is an instance of the stream's row class, or a JSON array. `writer` is `instance` by default.
        Raises `UnknownStream`, and `RowError` before anything is appended; awaiting raises `StorageError`.
        """
        canonical = self.table[stream].canonical_fact
        return self.log.append(stream, writer or self.instance, [canonical(rows) for rows in facts])

    # -- what followers say --------------------------------------------------------------------------------

    def on_command(self, command: type[C]) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Decorator: call this function with each command of this type that a follower sends.

        Such as `RemovePusher` of `synrepl.wire.commands`. It is called in the reactor's thread, in the order
        of each follower; what it raises is logged. A command with such a function is not kept for
        ``GET /v1/commands``.
        """

        def subscribe(subscriber: Callable[[C], None]) -> Callable[[C], None]:
            self.follower_commands.subscribers[command].append(subscriber)
            return subscriber

        return subscribe

    def syncing_users(self) -> set[str]:
        """The users that sync at followers of this publisher, and of replicas of its log."""
        return self.follower_commands.syncing.users()

    # -- positions -----------------------------------------------------------------------------------------

    def positions(self, stream: str) -> dict[str, int]:
        """The published position of each writer of this stream that is held here.

        A daemon that holds all writers always includes its own instance.
        """
        positions = {self.instance: 0} | self.log.positions(stream)
        writers = self.read_gate.filter.writers
        if writers is None:
            return positions
        return {writer: token for writer, token in positions.items() if writer in writers}

    def log_replaced(self) -> None:
        """Reset after the log was replaced by another copy.

        The caller closes all followers, since their facts may be invalid.
        """
        self._encoders.clear()
        self.comparisons.forget()
        self.ring = self._make_ring()
        self.lag.restart()

    def _make_ring(self) -> Ring:
        tokens = {
            stream.name: self.log.linear_position(stream.name) for stream in self.table if stream.ephemeral
        }
        return Ring(self._ring_bytes, serial=self.log.head.serial, tokens=tokens)

    def _committed(self, facts: Sequence[Fact]) -> None:
        group = self.ring.add(facts, upto=None if self.read_gate.filter.is_open else self.log.head.serial)
        rows: dict[str, int] = {}
        for fact in facts:
            rows[fact.stream] = rows.get(fact.stream, 0) + jsontext.count_rows(fact.rows)
        for stream, count in rows.items():
            self.metrics.rows.labels(stream).inc(count)
        self.metrics.facts_appended.inc(len(facts))
        self.waiters.committed(group)
        if self._pump_timer.is_active:
            return
        # At most: the clock may have been set back since.
        wait = min(PUMP_SECONDS, self._pumped_at + PUMP_SECONDS - self.clock.seconds())
        if wait <= 0:
            self._pump()
        else:
            self._pump_timer.start(wait)

    def _pump(self) -> None:
        self._pumped_at = self.clock.seconds()
        pump_all(self.ring, [one.sender for one in self.followers if one.sender is not None])
        for sender in list(self.channel_senders):
            sender.pump()

    # -- metrics -------------------------------------------------------------------------------------------

    def _note_withheld(self, fact: Fact, why: str) -> None:
        self.metrics.facts_withheld.labels(fact.stream).inc()
        self._logger.warn(
            "cannot send fact {token} of {writer} in stream {stream} to a follower: {why}",
            stream=fact.stream,
            token=fact.token,
            writer=fact.writer,
            why=why,
        )

    def stop(self) -> None:
        """Stop all timers and tasks. Connections are closed by the services that opened them."""
        self.lag.stop()
        self._pump_timer.stop()
        self._broadcasts.stop()
        self.tasks.cancel_all()
        self.follower_commands.stop()


def _intersection(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Names in both sets; None means all names."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def pump_all(ring: Ring, senders: Iterable[FollowerSender]) -> None:
    """Pump all these senders after a commit: the fast path, beside the loop of `Sender`.

    Most followers wait for the commit at the same place in the ring, and are sent the same. These form a
    group: what is next is looked up once, and each of them costs little more than its write. The others
    are pumped. `Sender.position` is not kept here: the position of a follower is that of its feed.
    """
    place: tuple[int, int, Encoder, frozenset[str] | None] | None = None
    lines: tuple[bytes, RingGroup] | None = None
    for sender in senders:
        feed = sender.feed
        live = feed.live
        if live is None or not feed.is_waiting or sender.is_paused:
            sender.pump()
            continue
        its_place = live.number, live.serial, sender.encoder.release_encoder, live.streams
        if place != its_place:
            place, lines = its_place, None
            # What cannot be encoded ends this follower alone, in its own loop.
            with suppress(Exception):
                lines = ring.lines_after(*its_place)
        if lines is not None:
            data, last = lines
            # As `Feed.sent` does: a call for each follower would cost a twentieth of all this.
            live.number, live.serial, live.last = last.number, last.serial, last
            if data:
                sender.connection.write(data)
        if live.number < ring.newest:
            sender.pump()
