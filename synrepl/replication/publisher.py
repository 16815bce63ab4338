"""From the log to the followers."""

import bisect
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError
from synrepl.ports.access import LOCAL, Access, Right
from synrepl.ports.interfaces import IClock, ILog
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.command_forwarder import CommandReceiver
from synrepl.replication.encoder import Encoder
from synrepl.replication.follower_commands import FollowerCommands
from synrepl.replication.holdings import Holdings
from synrepl.replication.reader import Reader, ReaderConnection
from synrepl.replication.ring import Ring
from synrepl.replication.serve_strategy import ServeStrategy, serving
from synrepl.streams import jsontext
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import Error, InvalidateCache, Name, RemoteServerUp, Replicate
from synrepl.wire.dialect import Dialect
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import BOTH, BROKER, SERVER, Command
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["FollowerSession", "Publisher"]

CACHES: Final = "caches"

MARK_SECONDS: Final = 1.0
"""How often the log's head is noted, to tell lag in seconds: that is its precision."""

PUMP_SECONDS: Final = 0.002
"""After a write to all followers, what comes within this time goes together in the next one."""

MAX_MARKS: Final = 7_200


class FollowerSession:
    """One connected follower.

    A repeated REPLICATE is answered once in a turn of the reactor, and not before the transport has room:
    an answer can be ten thousand times longer than the question. While one waits for room, the connection is
    not read.
    """

    def __init__(self, publisher: "Publisher", connection: ReaderConnection, access: Access) -> None:
        self.access = access
        self.name = ""
        self.dialect: Dialect | None = None
        self.connected_at = publisher.clock.seconds()
        self.reader: Reader | None = None
        self._publisher = publisher
        self._connection = connection
        self._way: ServeStrategy | None = None
        self._paused = False
        self._answered: set[str | None] = set()
        """The streams of REPLICATE that were answered in this turn."""
        self._asked: dict[str | None, Replicate] = {}
        """The newest REPLICATE of each stream, of those that wait for an answer."""
        self._turn: Any = None
        self._has_stopped_reading = False

    def dialect_known(self, dialect: Dialect) -> None:
        """The follower's dialect has become known: what it may be sent is decided."""
        self.dialect = dialect
        self._way = serving(dialect)
        self.reader = self._publisher.reader(self._connection, dialect, self._way, self.access.streams)
        if self._paused:
            self.reader.pause()
        self._way.start(self.reader)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """The follower sent these."""
        upstream = self._publisher.upstream
        upstream.syncing.heard_from(self._connection)
        for command in commands:
            match command:
                case Name():
                    self.name = command.name
                    upstream.received(self._connection, command)
                case Replicate():
                    self._replicate(command)
                case RemoteServerUp():
                    self._publisher.relay(command, but=self)
                    upstream.received(self._connection, command)
                case InvalidateCache():
                    if why := self.access.lacks(Right.WRITE) or self.access.hides([CACHES]):
                        raise RemoteProtocolError(why)
                    upstream.received(self._connection, command)
                case RdataRun():
                    raise AssertionError("a follower cannot send rows")
                case _:
                    upstream.received(self._connection, command)
        self._read_on_if_answered()

    def _replicate(self, command: Replicate) -> None:
        if self._paused or command.stream in self._answered:
            self._asked[command.stream] = command
        else:
            self._answer(command)

    def _answer(self, command: Replicate) -> None:
        assert self._way is not None
        assert self.reader is not None
        self._answered.add(command.stream)
        if self._turn is None:
            self._turn = self._publisher.clock.callLater(0, self._next_turn)
        self._way.replicate(self.reader, command)

    def _next_turn(self) -> None:
        self._turn = None
        self._answered.clear()
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        while self._asked and not self._paused:
            stream = next(iter(self._asked))
            if stream in self._answered:
                break  # the next turn will come
            self._answer(self._asked.pop(stream))
        self._read_on_if_answered()

    def _read_on_if_answered(self) -> None:
        """Read the connection unless a REPLICATE waits for room."""
        stops = self._paused and bool(self._asked)
        if stops is not self._has_stopped_reading:
            self._has_stopped_reading = stops
            if stops:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    def pause(self) -> None:
        """The transport has enough for now."""
        self._paused = True
        if self.reader is not None:
            self.reader.pause()

    def resume(self) -> None:
        """The transport can take more."""
        self._paused = False
        # First: a reader that is behind fills the transport again at once.
        self._answer_waiting()
        if self.reader is not None:
            self.reader.resume()

    def lost(self, why: str) -> None:
        """It is gone."""
        self._publisher.detach(self)
        self._publisher.upstream.connection_lost(self._connection)
        self._asked.clear()
        if self._turn is not None and self._turn.active():
            self._turn.cancel()
        if self.reader is not None:
            self.reader.stop()


class Publisher:
    """Sends every committed fact to every follower that wants it.

    A fact is encoded once for all followers of a release. What the newest followers share is held in a ring
    of `ring_bytes` bytes; who is further behind reads from the log. Nobody is told of what the `holdings` of
    this daemon lack.
    """

    _logger = Logger()

    def __init__(
        self,
        log: ILog,
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
        self.holdings = Holdings()
        self._ring_bytes = ring_bytes
        self.ring = Ring(ring_bytes, serial=log.serial)
        self.upstream = FollowerCommands(
            log,
            table,
            clock,
            instance=instance,
            dropped=lambda name: metrics.commands_dropped.labels(name).inc(),
            unread=lambda name: metrics.commands_unread.labels(name).inc(),
        )
        self.forwarded = CommandReceiver(self, clock)
        self._relayed: list[Callable[[Command, object], None]] = []
        self.followers: list[FollowerSession] = []
        self._brokers: list[Reader] = []
        self._encoders: dict[tuple[Dialect, Filter], Encoder] = {}
        self._tasks = Tasks(self._logger)
        self._marks: list[tuple[int, float]] = [(log.serial, clock.seconds())]
        self._pumped_at = -PUMP_SECONDS
        self._pump_timer: Any = None
        self._timer: Any = clock.callLater(MARK_SECONDS, self._mark)
        log.subscribe(self._committed)

    # -- followers -----------------------------------------------------------------------------------------

    def attach(self, connection: ReaderConnection, access: Access = LOCAL) -> FollowerSession:
        """Register a connected follower. `FollowerSession.dialect_known` tells its dialect later."""
        follower = FollowerSession(self, connection, access)
        self.followers.append(follower)
        return follower

    def detach(self, follower: FollowerSession) -> None:
        """It has gone."""
        if follower in self.followers:
            self.followers.remove(follower)

    def reader(
        self,
        connection: ReaderConnection,
        dialect: Dialect,
        way: ServeStrategy,
        streams: frozenset[str] | None = None,
    ) -> Reader:
        """A reader for a follower that speaks this dialect, and may see these streams (None: all).

        It is told of those of them that are held here. Where the release cannot tell writers apart, that is
        none of a copy that lacks some writers.
        """
        held, what = self.holdings.filter, self.holdings.describe(streams)
        wanted = Filter(_both(held.streams, streams), held.writers)
        if held.writers is not None and not way.pulls:
            wanted = Filter(frozenset())
            what = f"{what}, and this release cannot tell writers apart"
        return Reader(self, connection, self._encoder(dialect, way, wanted), linear=not way.pulls, held=what)

    def join_broker(
        self, connection: ReaderConnection, writes: Collection[tuple[str, str]], dialect: Dialect
    ) -> Reader:
        """A reader that tells the facts of these streams and writers, and no others, on a shared channel."""
        encoder = Encoder(
            self.table,
            codec_of(dialect, ours=BROKER, theirs=BROKER),
            pulls=True,
            certifies=True,
            withheld=self._note_withheld,
            writes=writes,
        )
        reader = Reader(OwnWritesFeed(self, writes), connection, encoder, linear=False)
        self._brokers.append(reader)
        return reader

    def leave_broker(self, reader: Reader) -> None:
        """It is told nothing more."""
        self._brokers.remove(reader)

    def heard(self, command: Command) -> None:
        """Another process said this on a shared channel."""
        self.upstream.heard(command)
        if SERVER in command.SENT_BY and not isinstance(command, Error):
            self.relay(command)

    def on_relayed(self, watcher: Callable[[Command, object], None]) -> None:
        """Tell `watcher` of each command that is passed on, and of the connection that it came from."""
        self._relayed.append(watcher)

    def relay(self, command: Command, *, but: object = None) -> None:
        """Pass a command on to the followers, but to the one it is from, where their release knows it, and to
        replicas for theirs."""
        for watcher in self._relayed:
            watcher(command, but)
        for follower in list(self.followers):
            dialect = follower.dialect
            if follower is but or follower.reader is None or dialect is None:
                continue
            if dialect.release in command.SPAN:
                follower.reader.relay(command)

    def _encoder(self, dialect: Dialect, way: ServeStrategy, wanted: Filter) -> Encoder:
        encoder = self._encoders.get((dialect, wanted))
        if encoder is None:
            encoder = self._encoders[dialect, wanted] = Encoder(
                self.table,
                codec_of(dialect, ours=SERVER, theirs=BOTH & ~SERVER),
                pulls=way.pulls,
                certifies=way.certifies,
                withheld=self._note_withheld,
                streams=wanted.streams,
                writers=wanted.writers,
            )
        return encoder

    # -- facts (`reader.Feed`) -----------------------------------------------------------------------------

    def positions(self, stream: str) -> dict[str, int]:
        """What was published of this stream, by writer; this instance always among them, and none that is not
        held here.
        """
        reached = {self.instance: 0} | self.log.positions(stream)
        writers = self.holdings.filter.writers
        if writers is None:
            return reached
        return {writer: token for writer, token in reached.items() if writer in writers}

    def linear_position(self, stream: str) -> int:
        """What was published of this stream, whoever wrote it."""
        return self.log.linear_position(stream)

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Own a coroutine, and report if it fails."""
        self._tasks.start(work, what)

    def replaced(self) -> None:
        """The log is another copy now. Followers are to be closed: what they were told may not be true."""
        self._encoders.clear()
        self.ring = Ring(self._ring_bytes, serial=self.log.serial)
        self._marks = [(self.log.serial, self.clock.seconds())]

    def _committed(self, facts: Sequence[Fact]) -> None:
        self.ring.add(facts)
        for name, rows in _count_rows(facts).items():
            self.metrics.rows.labels(name, "in").inc(rows)
        self.metrics.facts_appended.inc(len(facts))
        if self._pump_timer is not None:
            return
        wait = self._pumped_at + PUMP_SECONDS - self.clock.seconds()
        if wait <= 0:
            self._pump()
        else:
            self._pump_timer = self.clock.callLater(wait, self._pump)

    def _pump(self) -> None:
        self._pump_timer = None
        self._pumped_at = self.clock.seconds()
        for follower in list(self.followers):
            if follower.reader is not None:
                follower.reader.pump()
        for reader in list(self._brokers):
            reader.pump()

    # -- what to know about it -----------------------------------------------------------------------------

    def lag_rows(self, reader: Reader) -> int:
        """Facts that this reader was not sent yet."""
        return max(0, self.log.serial - reader.serial)

    def lag_seconds(self, reader: Reader) -> float:
        """How long ago this reader had everything, to a second; 0.0 when it has."""
        return self.lag_seconds_at(reader.serial)

    def lag_seconds_at(self, serial: int) -> float:
        """How long ago the log had nothing beyond this serial, to a second; 0.0 when it still has not."""
        if serial >= self.log.serial:
            return 0.0
        position = bisect.bisect_right(self._marks, serial, key=lambda mark: mark[0])
        return self.clock.seconds() - self._marks[min(position, len(self._marks) - 1)][1]

    def note_demoted(self) -> None:
        """A reader fell out of the ring and reads from the log now."""
        self.metrics.readers_demoted.inc()

    def note_promoted(self) -> None:
        """It is back."""
        self.metrics.readers_promoted.inc()

    def _note_withheld(self, fact: Fact, why: str) -> None:
        self.metrics.facts_withheld.labels(fact.stream).inc()
        self._logger.warn(
            "fact {stream} {token} of {writer} cannot be sent to a follower: {why}",
            stream=fact.stream,
            token=fact.token,
            writer=fact.writer,
            why=why,
        )

    def _mark(self) -> None:
        """Note the head, so that lag can be told in seconds."""
        serial = self.log.serial
        if serial > self._marks[-1][0]:
            self._marks.append((serial, self.clock.seconds()))
            del self._marks[:-MAX_MARKS]
        self._timer = self.clock.callLater(MARK_SECONDS, self._mark)

    def stop(self) -> None:
        """Stop all that is under way; connections are closed by who opened them."""
        for timer in (self._timer, self._pump_timer):
            if timer is not None and timer.active():
                timer.cancel()
        self._tasks.cancel_all()
        self.forwarded.stop()
        self.upstream.stop()


class OwnWritesFeed:
    """What is told on a shared channel: the publisher's feed, of these streams and writers alone."""

    def __init__(self, publisher: Publisher, writes: Collection[tuple[str, str]]) -> None:
        self.log = publisher.log
        self.ring = publisher.ring
        self.start = publisher.start
        self.note_demoted = publisher.note_demoted
        self.note_promoted = publisher.note_promoted
        self.linear_position = publisher.linear_position
        self._writes = frozenset(writes)

    def positions(self, stream: str) -> dict[str, int]:
        """What was published of this stream by those who write it here."""
        reached = self.log.positions(stream)
        return {writer: reached.get(writer, 0) for name, writer in self._writes if name == stream}


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The names in both; None stands for all names."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _count_rows(facts: Sequence[Fact]) -> dict[str, int]:
    """How many rows each stream has in these facts."""
    counts: dict[str, int] = {}
    for fact in facts:
        counts[fact.stream] = counts.get(fact.stream, 0) + len(jsontext.split(fact.rows))
    return counts
