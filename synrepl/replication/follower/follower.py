"""The library's end: a worker's view of the streams."""

import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import (
    ConfigError,
    GapError,
    NeverAllocated,
    NotConnected,
    ReplicationError,
    RowError,
    WaitTimeout,
)
from synrepl.ports.interfaces import IAllocated, ICaches, IClock, IPositionStore
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.allocation import Allocation
from synrepl.replication.follower.applier import ApplyPolicy, StreamApplier
from synrepl.replication.follower.catchup import ICatchUp, MissedFacts, NoCatchUp
from synrepl.replication.follower.listener import SUBSCRIBER
from synrepl.replication.follower.strategy import FollowStrategy, following
from synrepl.replication.follower.updates import Updates
from synrepl.replication.follower.waiters import Waiter, Waiters
from synrepl.streams.batches import Batches
from synrepl.streams.positions import VClock
from synrepl.streams.stream import Stream, row
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.commands import Error, Position, Rdata, Server
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["FollowerEvent", "Follower", "FollowerConnection", "untyped"]

R = TypeVar("R")
C = TypeVar("C", bound=Command)

SAVE_SECONDS: Final = 0.1
"""Positions are saved at most so often; after a kill, what came since is delivered again."""

MAX_UNKNOWN: Final = 1_000
"""Names of unknown streams that are remembered; they come from the peer."""

MAX_LOST: Final = 100
"""Gaps that could not be repaired, and are remembered to be told of."""

Subscriber = Callable[[Updates[R]], Awaitable[None] | None]


class FollowerConnection(Protocol):
    """What a follower needs of its connection."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""

    def established(self) -> None:
        """The first POSITION was applied: this connection is good."""

    def pause_reading(self) -> None:
        """Take nothing more from the server for now."""

    def resume_reading(self) -> None:
        """Go on."""


class FollowerEvent(msgspec.Struct, frozen=True):
    """Something happened that is not a fact.

    `kind` says what: ``connected``, ``disconnected``, ``server`` (`text` is its name), ``position`` (of
    `writer` in `stream`, at `token`), ``restarted`` (`writer` began `stream` anew, and its tokens with it),
    ``went_back`` (`writer` stands at `token`, lower than before) or ``error`` (`text` says what is wrong,
    `error` is the exception if there is one).
    """

    kind: Literal["connected", "disconnected", "server", "position", "restarted", "went_back", "error"]
    text: str = ""
    stream: str = ""
    writer: str = ""
    token: int = 0
    error: Exception | None = None


class Follower:
    """Follows streams, and applies each fact once, whole, in order, to whoever subscribed.

    `instance` is the name of this worker. `positions` keeps where it stands between runs; without, it
    starts anew each time: from now (`start="latest"`) or from the beginning (``earliest``). What was missed
    is pulled from `catch_up`. Streams without a subscriber are not followed. `raw` gives rows as the JSON
    values they came as, in place of typed ones, and knows every stream; `canonical` gives them as the log
    keeps them, JSON texts in the newest shape. The clock comes with the first connection if it is not given.

    `reached` tells, of a stream and a writer, up to where its facts have come here by another way (-1: they
    have not), so that they are not fetched. The other source told no caches of them: with `reached` there can
    be none.

    `caches` are told what to forget: of each fact, after its subscribers and before the position moves and
    whoever waits for it wakes; and of a whole stream, when facts of it may have been missed for good. So what
    is read from them is never older than the positions told here. Their streams are followed, subscribers or
    not; those that are declared when it is connected already, from the next subscription or connection on.
    `allocated` is asked by `wait_for`.
    """

    _logger = Logger()

    def __init__(
        self,
        *,
        instance: str,
        clock: IClock | None = None,
        streams: StreamTable | None = None,
        positions: IPositionStore | None = None,
        catch_up: ICatchUp | None = None,
        start: Literal["latest", "earliest"] = "latest",
        metrics: Metrics | None = None,
        raw: bool = False,
        canonical: bool = False,
        reached: Callable[[str, str], int] | None = None,
        caches: ICaches | None = None,
        allocated: IAllocated | None = None,
    ) -> None:
        if (raw or canonical) and caches is not None:
            raise ConfigError("caches need typed rows: a follower with `raw` or `canonical` cannot have any")
        if reached is not None and caches is not None:
            raise ValueError("`caches` miss what comes by another way: a follower has `reached` or `caches`")
        self.instance = instance
        self._clock = clock
        self.table = streams if streams is not None else StreamTable.default()
        self.is_connected = False
        self.last_heard: float | None = None
        self._in_step_at = -math.inf
        self.lost_gaps: list[tuple[float, GapError]] = []
        self._store = positions
        self.catch_up = catch_up or NoCatchUp()
        self._earliest = start == "earliest"
        self._metrics = metrics
        self._raw = raw
        self._canonical = canonical
        self._reached = reached
        self._everyone: list[Callable[[Updates[Any]], Awaitable[None] | None]] = []
        self._streams: dict[str, StreamApplier] = {}
        self._commands: dict[type[Command], list[Callable[[Any], None]]] = {}
        self._watchers: list[Callable[[FollowerEvent], None]] = []
        self._batches: Batches[bytes] = Batches()
        self._tasks = Tasks(self._logger)
        self._saved = positions.load() if positions is not None else {}
        # The positions that the metrics show.
        self._shown: dict[str, dict[str, int]] = {}
        self._save_timer: Any = None
        self._has_begun = False
        self._caches = caches
        self._waiters = Waiters()
        self._allocation = Allocation(self._waiters, self._tasks.start, self.trouble)
        self._allocation.source = allocated
        self._connections = 0
        self._connection: FollowerConnection | None = None
        self._way: FollowStrategy | None = None
        self._dialect: Dialect | None = None
        self._established = False
        self._slow: set[str] = set()
        if metrics is not None and not canonical:
            # A daemon that follows says by itself who is furthest behind, it or one of its followers.
            metrics.lag_seconds.set_function(self.lag_seconds)
            metrics.lag_rows.set_function(self.lag_rows)
        self._unknown: set[str] = set()
        self._follow_caches()

    # -- subscribing ---------------------------------------------------------------------------------------

    def on(self, stream: Stream[R]) -> Callable[[Subscriber[R]], Subscriber[R]]:
        """Decorator: call this function with each fact of the stream.

        It may be a coroutine function; the stream's next fact waits until it is done. If it raises, it is
        called again with the same fact after a while, and the stream waits.
        """

        def subscribe(subscriber: Subscriber[R]) -> Subscriber[R]:
            self._stream(stream).standing.subscribe(subscriber)
            self._follow_caches()
            return subscriber

        return subscribe

    def on_everything(self, subscriber: Callable[[Updates[Any]], Awaitable[None] | None]) -> None:
        """Call this function with each fact of every stream of the table that the server has."""
        self._everyone.append(subscriber)
        for stream in self.table:
            self._stream(stream).standing.subscribe(subscriber)
        self._follow_caches()

    def on_command(self, command: type[C]) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Decorator: call this function with each command of this type, as REMOTE_SERVER_UP."""

        def subscribe(subscriber: Callable[[C], None]) -> Callable[[C], None]:
            self._commands.setdefault(command, []).append(subscriber)
            return subscriber

        return subscribe

    def on_event(self, watcher: Callable[[FollowerEvent], None]) -> Callable[[FollowerEvent], None]:
        """Decorator: call this function with whatever happens that is not a fact."""
        self._watchers.append(watcher)
        return watcher

    def _stream(self, stream: Stream[Any], *, asks: bool = True) -> StreamApplier:
        if stream.name not in self._streams:
            if stream.name not in self.table:
                self.table = self.table | {stream}
            settings = ApplyPolicy(
                ordered=stream.ordered,
                monotonic=stream.monotonic,
                earliest=self._earliest,
                descends=stream.descends,
                is_kept=self._canonical and stream.monotonic and not stream.ephemeral,
                resumes=self._canonical and bool(self._saved),
            )
            self._streams[stream.name] = StreamApplier(
                stream.name,
                settings,
                self,
                self,
                self._batches,
                dict(self._saved.get(stream.name, {})),
                self._caches if self._caches is not None and stream.name in self._caches.streams else None,
            )
            if self._connection is not None:
                self._join(stream, self._connection if asks else None)
        return self._streams[stream.name]

    def _follow_caches(self) -> None:
        """Follow what invalidates something here."""
        if self._caches is None:
            return
        names = self._caches.streams
        for stream in [stream for stream in self.table if stream.name in names]:
            follower = self._stream(stream)
            if not follower.standing.has_caches:
                # Followed before this was declared, which has heard nothing of what came until now.
                follower.standing.attach(self._caches)
                self._caches.skipped(stream.name)

    def _join(self, stream: Stream[Any], connection: FollowerConnection | None) -> None:
        """Follow a stream while connected already; ask for it on `connection`, unless it comes by itself."""
        assert self._way is not None
        assert self._dialect is not None
        self._streams[stream.name].connected(self._way, self._decoder(stream, self._dialect))
        if connection is not None and self._dialect.release in stream.span:
            for command in self._way.requests(
                [stream.name], everything=False, token=self._resume_token, earliest=self._earliest
            ):
                connection.send(command)

    @property
    def clock(self) -> IClock:
        """What it tells the time by."""
        if self._clock is None:
            raise NotConnected("a follower without a clock gets one from `connect`")
        return self._clock

    @clock.setter
    def clock(self, clock: IClock) -> None:
        self._clock = clock

    @property
    def clock_is_missing(self) -> bool:
        """Whether it still needs one."""
        return self._clock is None

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Pull what a stream missed (`applying` asks)."""
        if self._metrics is not None:
            self._metrics.catch_up_requests.labels("out").inc()
        try:
            return await self.catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
        except ReplicationError:
            if self._metrics is not None:
                self._metrics.catch_up_failures.inc()
            raise

    # -- asking --------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, dict[str, int]]:
        """Where it stands: ``{stream: {writer: token}}``; every fact up to there was applied."""
        return {
            name: dict(stream.positions()) for name, stream in self._streams.items() if stream.positions()
        }

    @property
    def allocated(self) -> IAllocated | None:
        """Who is asked by `wait_for` whether there is such a token; may be set later."""
        return self._allocation.source

    @allocated.setter
    def allocated(self, allocated: IAllocated | None) -> None:
        self._allocation.source = allocated

    def wait_for(
        self, stream: Stream[Any] | str, positions: Mapping[str, int] | VClock, timeout: float
    ) -> "Deferred[None]":
        """Fires once every fact up to these positions, by writer, was applied and its caches were dropped.

        That is in the same turn of the reactor in which the last of the positions is reached. May be
        cancelled. Fails with `WaitTimeout` after so many seconds, and with `NeverAllocated` if there is no
        such token: whoever knows (`allocated`) is asked if it is ahead of every position of the stream here.
        """
        if isinstance(stream, str):
            stream = self.table[stream]
        if isinstance(positions, VClock):
            positions = positions.to_json().get(stream.name, {})
        waiter = self._wait(stream, positions)
        self._waiters.fail_after(waiter, timeout, self.clock, partial(self._wait_timeout, timeout))
        reached = self._streams[stream.name].positions()
        if max(waiter.lacks.values(), default=-1) > max(reached.values(), default=-1):
            self._allocation.check(stream.name)
        else:
            # The usual wait costs no request: somebody is that far, so the token exists.
            waiter.is_checked = True
        return waiter.done

    def caught_up(self, stream: Stream[Any], *, writer: str, token: int) -> "Deferred[None]":
        """Fires once every fact of this writer up to `token` was applied: `wait_for` without an end."""
        waiter = self._wait(stream, {writer: token})
        waiter.is_checked = True
        return waiter.done

    def _wait(self, stream: Stream[Any], positions: Mapping[str, int]) -> Waiter:
        reached = self._stream(stream).positions()
        return self._waiters.add(stream.name, positions, reached, self._connections)

    def _wait_timeout(self, timeout: float, waiter: Waiter) -> WaitTimeout:
        stream = self._streams[waiter.stream]
        reached = stream.positions()
        return WaitTimeout(
            stream=waiter.stream,
            lacks={writer: (reached.get(writer), want) for writer, want in waiter.lacks.items()},
            timeout=timeout,
            connection="connected" if self.is_connected else "disconnected",
            queued=stream.queued,
        )

    def waiting_streams(self) -> list[str]:
        """The streams that are held up now: facts are missing, or a subscriber is not done."""
        return [name for name, stream in self._streams.items() if stream.is_waiting]

    def lag_seconds(self) -> float:
        """How long ago it had everything; infinite before it ever had.

        The server's PINGs are the heartbeat: what was sent before one has arrived before it, so it is exact
        to about five seconds on an idle line."""
        self._note_in_step()
        if self._clock is None:
            return math.inf
        return self.clock.seconds() - self._in_step_at

    def alive(self) -> None:
        """The connection works, though it may have been quiet: what was told until now has arrived."""
        self.last_heard = self.clock.seconds()
        self._note_in_step()

    def gaps(self) -> list[GapError]:
        """What is missing now and could not be fetched yet."""
        return [gap for stream in self._streams.values() for gap in stream.gaps]

    def lag_rows(self) -> int:
        """How many tokens are known to be missing; 0 when nothing is."""
        return sum(stream.missing for stream in self._streams.values())

    def send(self, command: Command) -> None:
        """Send a command up, as USER_SYNC. Raises `NotConnected`; then it was not, and will not be sent."""
        if self._connection is None:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        self._connection.send(command)

    # -- what the connection says --------------------------------------------------------------------------

    def connected(
        self, connection: FollowerConnection, dialect: Dialect, way: FollowStrategy | None = None
    ) -> None:
        """A connection is open, and greeted: ask for what is wanted, in this `way` (None: the release's)."""
        self._follow_caches()
        self._connection = connection
        self._connections += 1
        self._dialect = dialect
        self._way = way if way is not None else following(dialect)
        self._established = False
        self._slow.clear()
        self.is_connected = True
        self.last_heard = self.clock.seconds()
        self._allocation.forget()
        wanted = [stream for stream in self.table.known_to(dialect) if stream.name in self._streams]
        for stream in wanted:
            self._streams[stream.name].connected(self._way, self._decoder(stream, dialect))
        self._tell(FollowerEvent(kind="connected"))
        for command in self._way.requests(
            [stream.name for stream in wanted],
            everything=bool(self._everyone),
            token=self._resume_token,
            earliest=self._earliest,
        ):
            connection.send(command)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """The server sent these. Raises RemoteProtocolError if it may not, as too large a batch."""
        streams = self._streams
        self.last_heard = self.clock.seconds()
        for command in commands:
            if isinstance(command, (RdataRun, Rdata)):
                stream = streams.get(command.stream) or self._unfollowed(command.stream)
                if stream is None:
                    continue
                if isinstance(command, RdataRun):
                    stream.run(command)
                else:
                    stream.rdata(command)
            else:
                self._received_other(command)
        self._note_in_step()
        if self._has_begun:
            self._save()

    def disconnected(self, why: str) -> None:
        """The connection is gone."""
        self._connection = None
        self.is_connected = False
        for stream in self._streams.values():
            stream.disconnected()
        self._save()
        self._tell(FollowerEvent(kind="disconnected", text=why))

    def unreachable(self, why: str) -> None:
        """A connection could not be made; it will be tried again."""
        self._tell(FollowerEvent(kind="disconnected", text=why))

    def stop(self) -> None:
        """Stop whatever is under way, and save."""
        for stream in self._streams.values():
            stream.disconnected()  # before their work is called off, or what waits for it would be applied
        self._tasks.cancel_all()
        self._save()

    def _note_in_step(self) -> None:
        """If nothing is held up, all that the server had sent by its last line is applied."""
        if not self._established or not self.is_connected or self.last_heard is None:
            return
        if not any(stream.is_waiting for stream in self._streams.values()):
            self._in_step_at = self.last_heard

    def _received_other(self, command: Command) -> None:
        match command:
            case Position():
                stream = self._streams.get(command.stream) or self._unfollowed(command.stream)
                if stream is not None:
                    stream.position(command)
            case Server():
                self._tell(FollowerEvent(kind="server", text=command.server_name))
            case Error():
                self._tell(FollowerEvent(kind="error", text=f"the server reports: {command.text}"))
            case _:
                pass
        for subscriber in self._commands.get(type(command), ()):
            subscriber(command)

    def _resume_token(self, name: str) -> int | None:
        """Where to go on in a stream for a server that knows of no writers."""
        positions = self._streams[name].positions()
        return max(positions.values()) if positions else None

    def _unfollowed(self, name: str) -> StreamApplier | None:
        """A stream that nobody here wants, or that this version does not know; the second is worth a word."""
        if name in self.table or name in self._unknown or len(self._unknown) >= MAX_UNKNOWN:
            return None
        if self._raw and self._everyone:
            follower = self._stream(untyped(name), asks=False)
            for subscriber in self._everyone:
                follower.standing.subscribe(subscriber)
            return follower
        self._unknown.add(name)
        self._tell(
            FollowerEvent(kind="error", stream=name, text=f"the server has a stream unknown here: {name}")
        )
        return None

    def _decoder(self, stream: Stream[Any], dialect: Dialect) -> Callable[[list[bytes]], list[Any]]:
        if self._raw:
            return partial(_decode_raw, stream.name)
        if self._canonical:
            return partial(_canonical, stream, dialect)
        return partial(stream.decode_many, dialect=dialect)

    # -- what a stream says (`hosting.Host`) ---------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None], what: str) -> "Deferred[None]":
        """Own a coroutine, and report if it fails."""
        return self._tasks.start(work, what)

    def moved(self, stream: str) -> None:
        """Positions moved: save and show them soon, wake who waits."""
        if self._save_timer is None:
            self._save_timer = self.clock.callLater(SAVE_SECONDS, self._save)
        if self._waiters:
            self._waiters.wake(stream, self._streams[stream].positions())

    def went_back(self, stream: str, writer: str, token: int) -> None:
        """A writer stands lower than when we connected last: what it wrote beyond is lost."""
        self._allocation.forget(stream)
        for waiter in self._waiters.of(stream):
            want = waiter.wanted.get(writer, token)
            if want <= token:
                continue
            if waiter.connection < self._connections:
                # Who waited before this connection was opened was told of a token that existed then; the
                # writer, asked since, has not got that far. So it was of the history that is lost. It could
                # still come again, as another fact, and to be woken by that would be worse than to be told.
                error = NeverAllocated(stream=stream, writer=writer, want=want, allocated=token)
                self._waiters.fail(waiter, error)
            else:
                # Its token may be of the new history, and only on its way.
                waiter.is_checked = False
        self._allocation.check(stream)
        self._tell(FollowerEvent(kind="went_back", stream=stream, writer=writer, token=token))

    def restarted(self, stream: str, writer: str) -> None:
        """A writer began this stream anew."""
        self._tell(FollowerEvent(kind="restarted", stream=stream, writer=writer))

    def reached(self, stream: str, writer: str) -> int:
        """Up to where somebody else has brought this writer's facts."""
        return -1 if self._reached is None else self._reached(stream, writer)

    def positioned(self, stream: str, writer: str, token: int) -> None:
        """A POSITION was processed."""
        # Where a stream begins is saved at once: forgotten in a kill, it would begin somewhere else.
        self._has_begun |= writer not in self._saved.get(stream, ())
        self._tell(FollowerEvent(kind="position", stream=stream, writer=writer, token=token))
        if not self._established and self._connection is not None:
            self._established = True
            self._connection.established()

    def gap_detected(self) -> None:
        """Facts are missing."""
        if self._metrics is not None:
            self._metrics.gaps_detected.inc()

    def gap_repaired(self) -> None:
        """They were fetched."""
        if self._metrics is not None:
            self._metrics.gaps_repaired.inc()

    def gap_lost(self, gap: GapError) -> None:
        """They cannot be had."""
        self.lost_gaps.append((self.clock.seconds(), gap))
        del self.lost_gaps[:-MAX_LOST]
        if self._metrics is not None:
            self._metrics.gaps_lost.inc()

    def trouble(self, error: Exception, stream: str, whose: str = SUBSCRIBER) -> None:
        """Tell whoever watches; who does not finds it in the log."""
        if isinstance(error, RowError) and self._metrics is not None:
            self._metrics.rows_refused.labels(stream).inc()
        if isinstance(error, ReplicationError):
            writer, token = (error.writer, error.want) if isinstance(error, GapError) else ("", 0)
            self._tell(
                FollowerEvent(
                    kind="error", stream=stream, writer=writer, token=token, text=str(error), error=error
                )
            )
        else:
            self._tell(
                FollowerEvent(kind="error", stream=stream, text=f"{whose} failed: {error!r}", error=error)
            )

    def slow_down(self, stream: str) -> None:
        """Too much of this stream waits: stop reading."""
        if not self._slow and self._connection is not None:
            self._connection.pause_reading()
        self._slow.add(stream)

    def speed_up(self, stream: str) -> None:
        """No longer."""
        if stream in self._slow:
            self._slow.discard(stream)
            if not self._slow and self._connection is not None:
                self._connection.resume_reading()

    def _tell(self, event: FollowerEvent) -> None:
        if event.kind == "error":
            self._logger.warn("{text}", text=event.text, stream=event.stream)
        for watcher in self._watchers:
            watcher(event)

    def _save(self) -> None:
        if self._save_timer is None:
            return
        if self._save_timer.active():
            self._save_timer.cancel()
        self._save_timer = None
        self._has_begun = False
        positions = self.positions()
        if self._store is not None:
            self._saved = self._saved | positions
            self._store.save(self._saved)
        if self._metrics is not None:
            for stream, writers in positions.items():
                if writers != self._shown.get(stream):
                    for writer, token in writers.items():
                        self._metrics.position.labels(stream, writer).set(token)
            self._shown = positions


@row
class _AnyRow:
    """Stands for the rows of a stream unknown here, which are not looked at."""

    value: Any


def untyped(name: str) -> Stream[Any]:
    """A stream of which nothing is known but its name, for a follower that takes rows raw."""
    return Stream(name, _AnyRow)


def _canonical(stream: Stream[Any], dialect: Dialect, rows: list[bytes]) -> list[bytes]:
    return [stream.canonical(row, dialect) for row in rows]


def _decode_raw(stream: str, rows: list[bytes]) -> list[Any]:
    try:
        return [jsontext.loads(row) for row in rows]
    except ValueError as error:
        raise RowError(stream=stream, why=str(error)) from error
