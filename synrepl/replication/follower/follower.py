"""Follower: a worker's typed view of the streams of a server."""

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
"""The shortest time between two saves of positions. After a kill, facts applied since the last save are
delivered again.
"""

MAX_UNKNOWN: Final = 1_000
"""Names of unknown streams that are remembered; the peer chooses them."""

MAX_LOST_GAPS: Final = 100
"""Lost gaps that are remembered for the status."""

Subscriber = Callable[[Updates[R]], Awaitable[None] | None]


class FollowerConnection(Protocol):
    """A follower's connection to its server."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""

    def established(self) -> None:
        """The first POSITION was applied: reset the reconnect backoff."""

    def pause_reading(self) -> None:
        """Stop reading from the server."""

    def resume_reading(self) -> None:
        """Read from the server again."""


class FollowerEvent(msgspec.Struct, frozen=True):
    """An event of a follower other than a fact. `kind` is one of:

    * ``connected``, ``disconnected`` (`text` is the reason);
    * ``server``: the server's name, in `text`;
    * ``position``: a POSITION was processed; `writer` of `stream` is at `token`;
    * ``restarted``: `writer` restarted `stream`, and its tokens begin again;
    * ``went_back``: the position of `writer` in `stream` fell to `token`: its later facts are lost;
    * ``error``: `text` is the message, `error` the exception, if any.
    """

    kind: Literal["connected", "disconnected", "server", "position", "restarted", "went_back", "error"]
    text: str = ""
    stream: str = ""
    writer: str = ""
    token: int = 0
    error: Exception | None = None


class Follower:
    """Follows streams and applies each fact once, complete and in order, by calling subscribers.

    ::

        import synrepl
        from synrepl.streams.catalog import RECEIPTS, Receipt
        from synrepl.storage.position_files import FilePositions

        follower = synrepl.Follower(instance="pusher1", positions=FilePositions("pusher1.positions"))

        @follower.on(RECEIPTS)
        async def wake_pushers(updates: synrepl.Updates[Receipt]) -> None:
            for row in updates.rows:
                print(row.room_id, updates.writer, updates.token)

    `synrepl.connect` returns the service that connects it. All methods must be called in the reactor's
    thread.

    Arguments:

    * `instance`: the name of this worker.
    * `clock`: the reactor, or a test's clock. `connect` sets it if missing.
    * `streams`: the known streams; default `StreamTable.default()`. Only streams with a subscriber or with
      caches are followed.
    * `positions`: stores the applied positions between runs. Delivery is at-least-once: after a kill, facts
      applied since the last save (0.1 seconds at most) are delivered again. Without a store every run starts
      as `start` says.
    * `catch_up`: where missing facts are fetched. `connect` sets it if missing and an HTTP address is known.
      Without it, gaps are reported and stay open.
    * `start`: where to start a stream without a position, ``latest`` (now) or ``earliest`` (its first fact).
    * `metrics`: the metrics to update.
    * `raw`: deliver rows as the JSON values received, including streams that are not in `streams`.
    * `canonical`: deliver rows as the log stores them: JSON texts in the newest shape.
    * `external_position`: returns, for a stream and a writer, the token up to which another source has
      applied the facts (-1: none). Those facts are not fetched. Cannot be combined with `caches`.
    * `caches`: invalidated by each fact after its subscribers and before the position advances and waiters
      wake, so a cached value is never older than the positions reported here. If facts may have been missed,
      everything the stream can invalidate is dropped. Caches declared while connected count from the next
      subscription or connection on.
    * `allocated`: queried by `wait_for` for the highest token. `connect` sets it if missing and `http` is
      given.

    Raises `ConfigError` for `caches` with `raw` or `canonical`, `ValueError` for `caches` with
    `external_position`.
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
        external_position: Callable[[str, str], int] | None = None,
        caches: ICaches | None = None,
        allocated: IAllocated | None = None,
    ) -> None:
        if (raw or canonical) and caches is not None:
            raise ConfigError("caches need typed rows: leave out `raw` and `canonical`, or the caches")
        if external_position is not None and caches is not None:
            raise ValueError(
                "a follower has `external_position` or `caches`: caches would miss external facts"
            )
        self.instance = instance
        self._clock = clock
        self.table = streams if streams is not None else StreamTable.default()
        self.is_connected = False
        self.last_received: float | None = None
        self._current_at = -math.inf
        self.lost_gaps: list[tuple[float, GapError]] = []
        self._store = positions
        self.catch_up = catch_up or NoCatchUp()
        self._earliest = start == "earliest"
        self._metrics = metrics
        self._raw = raw
        self._canonical = canonical
        self._external_position = external_position
        self._all_stream_subscribers: list[Callable[[Updates[Any]], Awaitable[None] | None]] = []
        self._appliers: dict[str, StreamApplier] = {}
        self._commands: dict[type[Command], list[Callable[[Any], None]]] = {}
        self._event_listeners: list[Callable[[FollowerEvent], None]] = []
        self._batches: Batches[bytes] = Batches()
        self._tasks = Tasks(self._logger)
        self._saved = positions.load() if positions is not None else {}
        # The positions shown by the metrics.
        self._metric_positions: dict[str, dict[str, int]] = {}
        self._save_timer: Any = None
        self._has_new_writer = False
        self._caches = caches
        self._waiters = Waiters()
        self._allocation = Allocation(self._waiters, self._tasks.start, self.report_error)
        self._allocation.source = allocated
        self._connections = 0
        self._connection: FollowerConnection | None = None
        self._strategy: FollowStrategy | None = None
        self._dialect: Dialect | None = None
        self._established = False
        self._paused_streams: set[str] = set()
        if metrics is not None and not canonical:
            # A daemon reports the lag of all its followers itself.
            metrics.lag_seconds.set_function(self.lag_seconds)
            metrics.lag_rows.set_function(self.lag_rows)
        self._unknown: set[str] = set()
        self._follow_caches()

    # -- subscriptions -------------------------------------------------------------------------------------

    def on(self, stream: Stream[R]) -> Callable[[Subscriber[R]], Subscriber[R]]:
        """Decorator: call this function with each fact of the stream.

        The function takes an `Updates` and may be a coroutine function; the next fact of the stream waits
        until it is done. If it raises, it is called again with the same fact after a backoff of up to 8
        seconds, and the stream waits. Subscribers of one stream are called in the order of registration::

            @follower.on(RECEIPTS)
            def show(updates: Updates[Receipt]) -> None:
                print(updates.writer, updates.token, updates.rows)
        """

        def subscribe(subscriber: Subscriber[R]) -> Subscriber[R]:
            self._applier(stream).applied.subscribe(subscriber)
            self._follow_caches()
            return subscriber

        return subscribe

    def on_everything(self, subscriber: Callable[[Updates[Any]], Awaitable[None] | None]) -> None:
        """Call this function with each fact of every stream of the table that the server has.

        With `raw`, streams that are not in the table are included.
        """
        self._all_stream_subscribers.append(subscriber)
        for stream in self.table:
            self._applier(stream).applied.subscribe(subscriber)
        self._follow_caches()

    def on_command(self, command: type[C]) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Decorator: call this function with each command of this type, such as `RemoteServerUp`.

        Commands are not stored: those sent while disconnected are lost.
        """

        def subscribe(subscriber: Callable[[C], None]) -> Callable[[C], None]:
            self._commands.setdefault(command, []).append(subscriber)
            return subscriber

        return subscribe

    def on_event(self, watcher: Callable[[FollowerEvent], None]) -> Callable[[FollowerEvent], None]:
        """Decorator: call this function with each `FollowerEvent`."""
        self._event_listeners.append(watcher)
        return watcher

    def _applier(self, stream: Stream[Any], *, asks: bool = True) -> StreamApplier:
        if stream.name not in self._appliers:
            if stream.name not in self.table:
                self.table = self.table | {stream}
            policy = ApplyPolicy(
                ordered=stream.ordered,
                monotonic=stream.monotonic,
                earliest=self._earliest,
                descends=stream.descends,
                is_kept=self._canonical and stream.monotonic and not stream.ephemeral,
                resumes=self._canonical and bool(self._saved),
            )
            self._appliers[stream.name] = StreamApplier(
                stream.name,
                policy,
                self,
                self,
                self._batches,
                dict(self._saved.get(stream.name, {})),
                self._caches if self._caches is not None and stream.name in self._caches.streams else None,
            )
            if self._connection is not None:
                self._follow_while_connected(stream, self._connection if asks else None)
        return self._appliers[stream.name]

    def _follow_caches(self) -> None:
        """Follow the streams that invalidate caches."""
        if self._caches is None:
            return
        names = self._caches.streams
        for stream in [stream for stream in self.table if stream.name in names]:
            applier = self._applier(stream)
            if not applier.applied.has_caches:
                # The caches were declared later and missed this stream's facts until now.
                applier.applied.attach_caches(self._caches)
                self._caches.invalidate_stream(stream.name)

    def _follow_while_connected(self, stream: Stream[Any], connection: FollowerConnection | None) -> None:
        """Follow a new stream on an open connection; request it on `connection` unless that is None."""
        assert self._strategy is not None
        assert self._dialect is not None
        self._appliers[stream.name].connected(self._strategy, self._decoder(stream, self._dialect))
        if connection is not None and self._dialect.release in stream.span:
            for command in self._strategy.requests(
                [stream.name], everything=False, token=self._resume_token, earliest=self._earliest
            ):
                connection.send(command)

    @property
    def clock(self) -> IClock:
        """The clock of this follower. Raises `NotConnected` if it has none yet."""
        if self._clock is None:
            raise NotConnected("a follower without a clock gets one from `connect`")
        return self._clock

    @clock.setter
    def clock(self, clock: IClock) -> None:
        self._clock = clock

    @property
    def clock_is_missing(self) -> bool:
        """Whether the follower has no clock yet."""
        return self._clock is None

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts for an applier (`ICatchUp`), counted in the metrics."""
        if self._metrics is not None:
            self._metrics.catch_up_requests.labels("out").inc()
        try:
            return await self.catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
        except ReplicationError:
            if self._metrics is not None:
                self._metrics.catch_up_failures.inc()
            raise

    # -- positions and lag ---------------------------------------------------------------------------------

    def positions(self) -> dict[str, dict[str, int]]:
        """The applied positions, ``{stream: {writer: token}}``: every fact up to them was applied."""
        return {
            name: dict(stream.positions()) for name, stream in self._appliers.items() if stream.positions()
        }

    @property
    def allocated(self) -> IAllocated | None:
        """The service that `wait_for` queries for the highest token; may be set later."""
        return self._allocation.source

    @allocated.setter
    def allocated(self, allocated: IAllocated | None) -> None:
        self._allocation.source = allocated

    def wait_for(
        self, stream: Stream[Any] | str, positions: Mapping[str, int] | VClock, timeout: float
    ) -> "Deferred[None]":
        """Wait until every fact up to these positions was applied and its caches were invalidated.

        `positions` are the tokens by writer, or a `VClock`. `timeout` is in seconds. The Deferred fires in
        the reactor turn in which the last position is reached; it may be cancelled. It fails with
        `WaitTimeout`, or with `NeverAllocated` if a token does not exist: `allocated` is queried only if the
        token is above every applied position of the stream. Raises `UnknownStream` for the name of an unknown
        stream, `NotConnected` if the follower has no clock yet::

            await follower.wait_for(RECEIPTS, {"master": 54}, timeout=5)
        """
        if isinstance(stream, str):
            stream = self.table[stream]
        if isinstance(positions, VClock):
            positions = positions.to_json().get(stream.name, {})
        waiter = self._add_waiter(stream, positions)
        self._waiters.fail_after(waiter, timeout, self.clock, partial(self._wait_timeout, timeout))
        applied = self._appliers[stream.name].positions()
        if max(waiter.missing.values(), default=-1) > max(applied.values(), default=-1):
            self._allocation.check(stream.name)
        else:
            # The usual wait costs no request: another writer is that far, so the token exists.
            waiter.is_checked = True
        return waiter.done

    def caught_up(self, stream: Stream[Any], *, writer: str, token: int) -> "Deferred[None]":
        """Wait until every fact of this writer up to `token` was applied.

        Unlike `wait_for` there is no timeout and no check that the token exists.
        """
        waiter = self._add_waiter(stream, {writer: token})
        waiter.is_checked = True
        return waiter.done

    def _add_waiter(self, stream: Stream[Any], positions: Mapping[str, int]) -> Waiter:
        applied = self._applier(stream).positions()
        return self._waiters.add(stream.name, positions, applied, self._connections)

    def _wait_timeout(self, timeout: float, waiter: Waiter) -> WaitTimeout:
        stream = self._appliers[waiter.stream]
        applied = stream.positions()
        return WaitTimeout(
            stream=waiter.stream,
            lacks={writer: (applied.get(writer), want) for writer, want in waiter.missing.items()},
            timeout=timeout,
            connection="connected" if self.is_connected else "disconnected",
            queued=stream.queued,
        )

    def waiting_streams(self) -> list[str]:
        """The streams that are blocked now by missing facts or a busy subscriber."""
        return [name for name, stream in self._appliers.items() if stream.is_blocked]

    def lag_seconds(self) -> float:
        """Seconds since the follower was last up to date; infinite if it never was.

        The server's PINGs are heartbeats: everything sent before a PING has arrived before it. So the lag is
        exact to about five seconds on an idle connection.
        """
        self._update_current()
        if self._clock is None:
            return math.inf
        return self.clock.seconds() - self._current_at

    def mark_alive(self) -> None:
        """The connection works although no command was received: everything sent until now has arrived."""
        self.last_received = self.clock.seconds()
        self._update_current()

    def gaps(self) -> list[GapError]:
        """The open gaps: missing facts that could not be fetched yet."""
        return [gap for stream in self._appliers.values() for gap in stream.gaps]

    def lag_rows(self) -> int:
        """The number of tokens that are known to be missing; 0 if none."""
        return sum(stream.missing for stream in self._appliers.values())

    def send(self, command: Command) -> None:
        """Send a command to the server, such as USER_SYNC.

        Raises `NotConnected` without a connection: the command is not queued.
        """
        if self._connection is None:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        self._connection.send(command)

    # -- called by the connection --------------------------------------------------------------------------

    def connected(
        self, connection: FollowerConnection, dialect: Dialect, strategy: FollowStrategy | None = None
    ) -> None:
        """A connection was opened and the handshake is done: request the followed streams.

        `strategy` None means that of the dialect's release.
        """
        self._follow_caches()
        self._connection = connection
        self._connections += 1
        self._dialect = dialect
        self._strategy = strategy if strategy is not None else following(dialect)
        self._established = False
        self._paused_streams.clear()
        self.is_connected = True
        self.last_received = self.clock.seconds()
        self._allocation.forget()
        known = [stream for stream in self.table.known_to(dialect) if stream.name in self._appliers]
        for stream in known:
            self._appliers[stream.name].connected(self._strategy, self._decoder(stream, dialect))
        self._emit(FollowerEvent(kind="connected"))
        for command in self._strategy.requests(
            [stream.name for stream in known],
            everything=bool(self._all_stream_subscribers),
            token=self._resume_token,
            earliest=self._earliest,
        ):
            connection.send(command)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle commands from the server.

        Raises RemoteProtocolError if one is not allowed, such as too large a batch.
        """
        streams = self._appliers
        self.last_received = self.clock.seconds()
        for command in commands:
            if isinstance(command, (RdataRun, Rdata)):
                stream = streams.get(command.stream) or self._unfollowed_stream(command.stream)
                if stream is None:
                    continue
                if isinstance(command, RdataRun):
                    stream.rdata_run(command)
                else:
                    stream.rdata(command)
            else:
                self._handle_command(command)
        self._update_current()
        if self._has_new_writer:
            self._save()

    def disconnected(self, why: str) -> None:
        """The connection was lost."""
        self._connection = None
        self.is_connected = False
        for stream in self._appliers.values():
            stream.disconnected()
        self._save()
        self._emit(FollowerEvent(kind="disconnected", text=why))

    def unreachable(self, why: str) -> None:
        """A connection attempt failed; it is retried."""
        self._emit(FollowerEvent(kind="disconnected", text=why))

    def stop(self) -> None:
        """Cancel all work and save positions."""
        for stream in self._appliers.values():
            stream.disconnected()  # before cancelling, or rows queued behind the work would be applied
        self._tasks.cancel_all()
        self._save()

    def _update_current(self) -> None:
        """If no stream is blocked, the follower is up to date as of the last line received."""
        if not self._established or not self.is_connected or self.last_received is None:
            return
        if not any(stream.is_blocked for stream in self._appliers.values()):
            self._current_at = self.last_received

    def _handle_command(self, command: Command) -> None:
        match command:
            case Position():
                stream = self._appliers.get(command.stream) or self._unfollowed_stream(command.stream)
                if stream is not None:
                    stream.position(command)
            case Server():
                self._emit(FollowerEvent(kind="server", text=command.server_name))
            case Error():
                self._emit(FollowerEvent(kind="error", text=f"the server reports: {command.text}"))
            case _:
                pass
        for subscriber in self._commands.get(type(command), ()):
            subscriber(command)

    def _resume_token(self, name: str) -> int | None:
        """The position to continue a stream from on a server without writer names."""
        positions = self._appliers[name].positions()
        return max(positions.values()) if positions else None

    def _unfollowed_stream(self, name: str) -> StreamApplier | None:
        """Handle a stream that is not followed: follow it if `raw`, report it once if unknown."""
        if name in self.table or name in self._unknown or len(self._unknown) >= MAX_UNKNOWN:
            return None
        if self._raw and self._all_stream_subscribers:
            applier = self._applier(untyped(name), asks=False)
            for subscriber in self._all_stream_subscribers:
                applier.applied.subscribe(subscriber)
            return applier
        self._unknown.add(name)
        self._emit(
            FollowerEvent(kind="error", stream=name, text=f"the server has a stream unknown here: {name}")
        )
        return None

    def _decoder(self, stream: Stream[Any], dialect: Dialect) -> Callable[[list[bytes]], list[Any]]:
        if self._raw:
            return partial(_decode_raw, stream.name)
        if self._canonical:
            return partial(_canonical, stream, dialect)
        return partial(stream.decode_many, dialect=dialect)

    # -- called by the appliers (`listener.ApplierListener`) -----------------------------------------------

    def start(self, work: Coroutine[Any, Any, None], what: str) -> "Deferred[None]":
        """Run a coroutine and log its failure."""
        return self._tasks.start(work, what)

    def positions_changed(self, stream: str) -> None:
        """Save positions and update metrics soon; wake waiters now."""
        if self._save_timer is None:
            self._save_timer = self.clock.callLater(SAVE_SECONDS, self._save)
        if self._waiters:
            self._waiters.wake(stream, self._appliers[stream].positions())

    def writer_rewound(self, stream: str, writer: str, token: int) -> None:
        """The writer's position is lower than on the last connection: its later facts are lost."""
        self._allocation.forget(stream)
        for waiter in self._waiters.for_stream(stream):
            want = waiter.targets.get(writer, token)
            if want <= token:
                continue
            if waiter.connection < self._connections:
                # Waiters from before the reconnect refer to the old history, which the writer has lost. The
                # token may be allocated again for another fact: fail them rather than wake them for it.
                error = NeverAllocated(stream=stream, writer=writer, want=want, allocated=token)
                self._waiters.fail(waiter, error)
            else:
                # The token may belong to the new history and arrive later.
                waiter.is_checked = False
        self._allocation.check(stream)
        self._emit(FollowerEvent(kind="went_back", stream=stream, writer=writer, token=token))

    def writer_restarted(self, stream: str, writer: str) -> None:
        """The writer restarted this stream."""
        self._emit(FollowerEvent(kind="restarted", stream=stream, writer=writer))

    def external_position(self, stream: str, writer: str) -> int:
        """The token up to which another source has applied this writer's facts; -1 if none has."""
        return -1 if self._external_position is None else self._external_position(stream, writer)

    def position_processed(self, stream: str, writer: str, token: int) -> None:
        """A POSITION was processed."""
        # Save the start of a stream at once: after a kill it would start at another position.
        self._has_new_writer |= writer not in self._saved.get(stream, ())
        self._emit(FollowerEvent(kind="position", stream=stream, writer=writer, token=token))
        if not self._established and self._connection is not None:
            self._established = True
            self._connection.established()

    def gap_detected(self) -> None:
        """Facts are missing."""
        if self._metrics is not None:
            self._metrics.gaps_detected.inc()

    def gap_repaired(self) -> None:
        """The missing facts were fetched."""
        if self._metrics is not None:
            self._metrics.gaps_repaired.inc()

    def gap_lost(self, gap: GapError) -> None:
        """The missing facts cannot be fetched."""
        self.lost_gaps.append((self.clock.seconds(), gap))
        del self.lost_gaps[:-MAX_LOST_GAPS]
        if self._metrics is not None:
            self._metrics.gaps_lost.inc()

    def report_error(self, error: Exception, stream: str, owner: str = SUBSCRIBER) -> None:
        """Emit an error event, and log it."""
        if isinstance(error, RowError) and self._metrics is not None:
            self._metrics.rows_refused.labels(stream).inc()
        if isinstance(error, ReplicationError):
            writer, token = (error.writer, error.want) if isinstance(error, GapError) else ("", 0)
            self._emit(
                FollowerEvent(
                    kind="error", stream=stream, writer=writer, token=token, text=str(error), error=error
                )
            )
        else:
            self._emit(
                FollowerEvent(kind="error", stream=stream, text=f"{owner} failed: {error!r}", error=error)
            )

    def pause(self, stream: str) -> None:
        """Stop reading from the server: the queue of this stream is full."""
        if not self._paused_streams and self._connection is not None:
            self._connection.pause_reading()
        self._paused_streams.add(stream)

    def resume(self, stream: str) -> None:
        """Read from the server again once no stream is paused."""
        if stream in self._paused_streams:
            self._paused_streams.discard(stream)
            if not self._paused_streams and self._connection is not None:
                self._connection.resume_reading()

    def _emit(self, event: FollowerEvent) -> None:
        if event.kind == "error":
            self._logger.warn("{text}", text=event.text, stream=event.stream)
        for watcher in self._event_listeners:
            watcher(event)

    def _save(self) -> None:
        if self._save_timer is None:
            return
        if self._save_timer.active():
            self._save_timer.cancel()
        self._save_timer = None
        self._has_new_writer = False
        positions = self.positions()
        if self._store is not None:
            self._saved = self._saved | positions
            self._store.save(self._saved)
        if self._metrics is not None:
            for stream, writers in positions.items():
                if writers != self._metric_positions.get(stream):
                    for writer, token in writers.items():
                        self._metrics.position.labels(stream, writer).set(token)
            self._metric_positions = positions


@row
class _AnyRow:
    """Placeholder for the rows of an unknown stream, which are not decoded."""

    value: Any


def untyped(name: str) -> Stream[Any]:
    """A stream of which only the name is known, for a follower with `raw`."""
    return Stream(name, _AnyRow)


def _canonical(stream: Stream[Any], dialect: Dialect, rows: list[bytes]) -> list[bytes]:
    return [stream.canonical(row, dialect) for row in rows]


def _decode_raw(stream: str, rows: list[bytes]) -> list[Any]:
    try:
        return [jsontext.loads(row) for row in rows]
    except ValueError as error:
        raise RowError(stream=stream, why=str(error)) from error
