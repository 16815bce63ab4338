"""FollowerEngine: the part of a follower behind its public methods; transports feed it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twisted.logger import Logger

from synrepl.caches.registry import CacheRegistry
from synrepl.errors import (
    ConfigError,
    GapError,
    NeverAllocated,
    NotConnected,
    RemoteProtocolError,
    ReplicationError,
    RowError,
)
from synrepl.ports.interfaces import IAllocated, IClock, IPositionStore
from synrepl.ports.limited_logger import RepeatLimit
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.connection import Connection
from synrepl.replication.follower.executor import StreamExecutor
from synrepl.replication.follower.facts import decoder, untyped
from synrepl.replication.follower.history import AppliedPositions, ApplyPolicy, StreamHistory
from synrepl.replication.follower.position_saver import PositionSaver
from synrepl.replication.follower.states import ADVANCED, Connected, Disconnected, Report, Reported, Stopped
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import FollowerEvent, ICatchUp, MissedFacts, Subscriber, code_of
from synrepl.replication.follower.waiters import Allocation, Waiters
from synrepl.replication.strategies import FollowStrategy, following
from synrepl.streams.batches import Batches
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import EpochNotice, Error, Position, Rdata, Rewind, Server
from synrepl.wire.dialect import Dialect
from synrepl.wire.extension import EpochMark
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

MAX_UNKNOWN: Final = 1_000
"""The largest number of unknown stream names that are remembered: the peer chooses the names."""

MAX_LOST_GAPS: Final = 100
"""The number of lost gaps that are remembered, the newest ones."""


@dataclass(eq=False, repr=False, kw_only=True)
class FollowerEngine:
    """Follows all streams of one follower: connects their executors to a connection and to the subscribers.

    A transport calls `connected`, `received`, `mark_alive`, `disconnected` and `unreachable`. The arguments
    are those of `follower.Follower`, some under other names.
    """

    _logger = Logger()
    own_clock: IClock | None
    table: StreamTable
    store: IPositionStore | None
    catch_up: ICatchUp | None
    earliest: bool
    metrics: Metrics | None
    raw: bool
    canonical: bool
    external_position: Callable[[str, str], int] | None
    caches: CacheRegistry | None
    allocated: IAllocated | None

    def __post_init__(self) -> None:
        if (self.raw or self.canonical) and self.caches is not None:
            raise ConfigError("caches need typed rows: leave out `raw` and `canonical`, or the caches")
        if self.external_position is not None and self.caches is not None:
            raise ValueError(
                "a follower cannot have both `external_position` and `caches`: the caches would miss external"
                " facts; leave one out"
            )
        self.connection: Connection | None = None
        self.is_connected = False
        self.lost_gaps: list[tuple[float, GapError]] = []
        self.executors: dict[str, StreamExecutor] = {}
        self.waiters = Waiters()
        self.batches: Batches[bytes] = Batches()
        self.saver = PositionSaver(
            self.store,
            self.metrics,
            self.positions,
            lambda: self.clock,
            lambda error: self.report_failure(error, "", "the position store"),
        )
        self.connections = 0
        self.tasks = Tasks(self._logger)
        self.allocation = Allocation(self.waiters, self.tasks.start, self.report_failure, self.allocated)
        self._last_received: float | None = None
        self._current_at = -math.inf
        self._subscribers: list[Subscriber] = []
        self.command_subscribers: dict[type[Command], list[Callable[[Any], None]]] = {}
        self.event_listeners: list[Callable[[FollowerEvent], None]] = []
        self._has_new_writer = False
        self._strategy: FollowStrategy | None = None
        self._dialect: Dialect | None = None
        self._established = False
        self._paused_streams: set[str] = set()
        self._unknown: set[str] = set()
        self._logged = RepeatLimit(self._own_seconds)
        self._next_epoch: EpochMark | None = None
        """The server's epoch, while rewinds wait: until they are done, the former one must be named again."""
        self._rewound: set[tuple[str, str]] = set()
        """The streams and writers that the server has compared on this connection."""
        self.follow_caches()

    @property
    def clock(self) -> IClock:
        """The clock of this follower. Raises `NotConnected` if it has none yet."""
        if self.own_clock is None:
            raise NotConnected("this follower has no clock: pass `clock`, or call `synrepl.connect` first")
        return self.own_clock

    def _seconds(self) -> float:
        return self.clock.seconds()

    def complete(
        self, clock: IClock, catch_up: ICatchUp | None = None, allocated: IAllocated | None = None
    ) -> None:
        """Set those of these arguments that the follower was made without."""
        if self.own_clock is None:
            self.own_clock = clock
        if self.catch_up is None:
            self.catch_up = catch_up
        if self.allocation.source is None:
            self.allocation.source = allocated

    # -- subscriptions -------------------------------------------------------------------------------------

    def subscribe(self, stream: Stream[Any], subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact of a stream. Raises `ConfigError` if the store refuses."""
        self.saver.check_subscriber(subscriber)
        self.executor(stream).subscribe(subscriber)
        self.follow_caches()

    def subscribe_to_all(self, subscriber: Subscriber) -> None:
        """Do `subscribe` for every stream of the table; with `raw`, for streams outside the table too."""
        self.saver.check_subscriber(subscriber)
        self._subscribers.append(subscriber)
        for stream in self.table:
            self.executor(stream).subscribe(subscriber)
        self.follow_caches()

    def executor(self, stream: Stream[Any], *, asks: bool = True) -> StreamExecutor:
        """The executor that follows this stream. `asks`: request the stream if it is new on a connection."""
        found = self.executors.get(stream.name)
        if found is not None:
            return found
        if stream.name not in self.table:
            self.table = self.table | {stream}
        made = self.executors[stream.name] = self._make_executor(stream)
        if self.connection is not None:
            assert self._strategy is not None
            assert self._dialect is not None
            made.feed(self._connected_event(stream))
            if asks and self._dialect.release in stream.span:
                self._request(self.connection, [stream.name], everything=False)
        return made

    def _make_executor(self, stream: Stream[Any]) -> StreamExecutor:
        name, external = stream.name, self.external_position
        policy = ApplyPolicy(
            ordered=stream.ordered,
            monotonic=stream.monotonic,
            earliest=self.earliest,
            descends=stream.descends,
            is_kept=self.canonical and stream.monotonic and not stream.ephemeral,
            resumes=self.canonical and bool(self.saver.saved),
            external_position=(lambda writer: external(name, writer)) if external is not None else None,
        )
        history = StreamHistory(policy, AppliedPositions(self.saver.saved.get(name, {})))
        machine = StreamMachine(name, history, self.batches, seconds=self._seconds)
        has_caches = self.caches is not None and name in self.caches.streams
        return StreamExecutor(machine, self, self.caches if has_caches else None)

    def _connected_event(self, stream: Stream[Any]) -> Connected:
        assert self._strategy is not None
        assert self._dialect is not None
        decode_many = decoder(stream, self._dialect, raw=self.raw, canonical=self.canonical)
        return Connected(self._strategy, decode_many)

    def follow_caches(self) -> None:
        """Follow the streams that invalidate caches."""
        if self.caches is None:
            return
        names = self.caches.streams
        for stream in [stream for stream in self.table if stream.name in names]:
            executor = self.executor(stream)
            if not executor.machine.history.has_caches:
                # The caches were declared later and missed this stream's facts until now.
                executor.attach_caches(self.caches)
                self.caches.invalidate_stream(stream.name)

    # -- positions and lag ---------------------------------------------------------------------------------

    def positions(self) -> dict[str, dict[str, int]]:
        """The applied positions, by stream and writer (`Follower.positions`)."""
        reported = {name: one.machine.positions.reported for name, one in self.executors.items()}
        return {name: dict(tokens) for name, tokens in reported.items() if tokens}

    def lag_seconds(self) -> float:
        """Seconds since the follower was last up to date; infinite if it never was."""
        self._update_current()
        return math.inf if self.own_clock is None else self.clock.seconds() - self._current_at

    def mark_alive(self) -> None:
        """The connection works although no command was received: everything sent until now has arrived."""
        self._last_received = self.clock.seconds()
        self._update_current()

    def _update_current(self) -> None:
        """If no stream is blocked, the follower is up to date as of the last line received."""
        if not self._established or not self.is_connected or self._last_received is None:
            return
        for executor in self.executors.values():
            if executor.machine.is_blocked:
                return
        self._current_at = self._last_received

    # -- called by the connection --------------------------------------------------------------------------

    def connected(
        self, connection: Connection, dialect: Dialect, strategy: FollowStrategy | None = None
    ) -> None:
        """A connection was opened and the handshake is done: request the followed streams.

        `strategy` None means that of the dialect's release.
        """
        self.follow_caches()
        self.connection = connection
        self.connections += 1
        self._dialect = dialect
        self._strategy = strategy if strategy is not None else following(dialect)
        self._established = False
        self._paused_streams.clear()
        self.is_connected = True
        self._last_received = self.clock.seconds()
        self.allocation.forget()
        for name, executor in self.executors.items():
            # Also streams that the release lacks: the server may be of another release.
            executor.feed(self._connected_event(self.table[name]))
        known = [stream for stream in self.table.known_to(dialect) if stream.name in self.executors]
        self._emit(FollowerEvent(kind="connected"))
        self._request(connection, [stream.name for stream in known], everything=bool(self._subscribers))

    def _request(self, connection: Connection, streams: list[str], *, everything: bool) -> None:
        assert self._strategy is not None
        catalog = StreamTable.default()
        for command in self._strategy.requests(
            streams,
            named=[name for name in streams if name not in catalog],
            everything=everything,
            token=self._resume_token,
            earliest=self.earliest,
        ):
            connection.send(command)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle commands from the server.

        Raises RemoteProtocolError if one is not allowed, such as too large a batch.
        """
        executors = self.executors
        assert self.own_clock is not None
        self._last_received = self.own_clock.seconds()
        for command in commands:
            if type(command) is Rdata or type(command) is RdataRun or type(command) is Position:
                executor = executors.get(command.stream) or self._unfollowed_stream(command.stream)
                if executor is not None:
                    executor.feed(command)
                if type(command) is not Position:
                    continue
            elif type(command) is Rewind:
                self._rewind(command)
            elif isinstance(command, EpochNotice):
                self._enter_epoch(command)
            elif isinstance(command, Server):
                self._emit(FollowerEvent(kind="server", text=command.server_name))
            elif isinstance(command, Error):
                text, code = f"the server reports: {command.text}", code_of(command.text)
                self._emit(FollowerEvent(kind="error", text=text, code=code))
            assert not isinstance(command, RdataRun)
            for subscriber in self.command_subscribers.get(type(command), ()):
                subscriber(command)
        self._update_current()
        if self._has_new_writer:
            self._save()

    @property
    def epoch(self) -> EpochMark | None:
        """The epoch of the log that was followed last; None if no server has said it."""
        return self.saver.epoch

    def _rewind(self, command: Rewind) -> None:
        self._rewound.add((command.stream, command.instance))
        executor = self.executors.get(command.stream)
        if executor is not None:
            executor.feed(command)

    def _enter_epoch(self, command: EpochNotice) -> None:
        mark = EpochMark.parse(command.mark)
        if mark is None:
            raise RemoteProtocolError("EPOCH does not have the epochs of a log")
        known = self.epoch
        if known is not None and known.history != mark.history:
            text = (
                f"the server has another log ({mark.history}) than the one that was followed"
                f" ({known.history}): facts of the two are told apart by their tokens only"
            )
            self._emit(FollowerEvent(kind="error", text=text))
        elif known is not None and self._rewound:
            # Of a writer that was not compared, this log has no fact at all.
            for name, executor in self.executors.items():
                if not self.table[name].ephemeral:
                    for writer in set(executor.machine.positions.tokens):
                        if (name, writer) not in self._rewound:
                            executor.feed(Rewind(stream=name, instance=writer, token=0))
        if known is None or known.history == mark.history:
            for name, executor in self.executors.items():
                executor.machine.history.is_compared = known is not None and not self.table[name].ephemeral
        self._rewound.clear()
        self._next_epoch = mark
        self._complete_epoch()

    def _complete_epoch(self) -> None:
        """Note the epoch of the server once all rewinds are done."""
        if self._next_epoch is None or any(one.machine.is_rewinding for one in self.executors.values()):
            return
        if self._next_epoch != self.saver.epoch:
            self.saver.epoch = self._next_epoch
            self.saver.save_soon()
        self._next_epoch = None

    def moved(self, why: str, code: str) -> None:
        """The server says that it must not be followed any more, or not now."""
        self._emit(FollowerEvent(kind="moved", text=why))

    def disconnected(self, why: str, code: str = "") -> None:
        """The connection was lost. `code` is that of `FollowerEvent`."""
        self.connection = None
        self.is_connected = False
        self._complete_epoch()
        self._next_epoch = None
        self._rewound.clear()
        for executor in self.executors.values():
            executor.feed(Disconnected())
        self._save()
        self._emit(FollowerEvent(kind="disconnected", text=why, code=code))

    def unreachable(self, why: str, code: str = "") -> None:
        """A connection attempt failed; it is retried. `code` is that of `FollowerEvent`."""
        self._emit(FollowerEvent(kind="disconnected", text=why, code=code))

    def stop(self) -> None:
        """Cancel all work and save positions. Raises what the position store raises."""
        for executor in self.executors.values():
            executor.feed(Stopped())
        self.tasks.cancel_all()
        self._has_new_writer = False
        self.saver.stop()

    def _resume_token(self, name: str) -> int | None:
        """The position to continue a stream from on a server without writer names."""
        return max(self.executors[name].machine.positions.reported.values(), default=None)

    def _unfollowed_stream(self, name: str) -> StreamExecutor | None:
        if name in self.table or name in self._unknown or len(self._unknown) >= MAX_UNKNOWN:
            return None
        if self.raw and self._subscribers:
            executor = self.executor(untyped(name), asks=False)
            for subscriber in self._subscribers:
                executor.subscribe(subscriber)
            return executor
        self._unknown.add(name)
        text = f"ignoring the rows of stream {name}: this follower does not know it"
        self._emit(FollowerEvent(kind="error", stream=name, text=text))
        return None

    # -- called by the executors ---------------------------------------------------------------------------

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts, and count the request in the metrics.

        Raises what `catch_up` raises; `NotConnected` without one.
        """
        if self.metrics is not None:
            self.metrics.catch_up_requests.labels("out").inc()
        try:
            if self.catch_up is None:
                raise NotConnected("no HTTP address is known to fetch missing rows from")
            return await self.catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
        except ReplicationError:
            if self.metrics is not None:
                self.metrics.catch_up_failures.inc()
            raise

    def report(self, stream: str, report: Report) -> None:
        """Handle a report of a stream."""
        if report is ADVANCED:
            if self._next_epoch is not None:
                self._complete_epoch()
            if not self.saver.is_due:
                self.saver.save_soon()
            if self.waiters.queues:
                self.waiters.wake(stream, self.executors[stream].machine.positions.reported)
            return
        writer, token, metrics = report.writer, report.token, self.metrics
        match report.about:
            case Reported.POSITION:
                self._position_processed(stream, writer, token)
            case Reported.REWOUND:
                self._writer_rewound(stream, writer, token)
            case Reported.RESTARTED:
                self._emit(FollowerEvent(kind="restarted", stream=stream, writer=writer))
            case Reported.GAP_DETECTED if metrics is not None:
                metrics.gaps_detected.inc()
            case Reported.GAP_REPAIRED if metrics is not None:
                metrics.gaps_repaired.inc()
            case Reported.GAP_LOST:
                assert isinstance(report.error, GapError)
                self.lost_gaps.append((self.clock.seconds(), report.error))
                del self.lost_gaps[:-MAX_LOST_GAPS]
                if metrics is not None:
                    metrics.gaps_lost.inc()
            case Reported.ERROR:
                assert report.error is not None
                self.report_failure(report.error, stream)
            case Reported.FULL:
                if not self._paused_streams and self.connection is not None:
                    self.connection.pause_reading()
                self._paused_streams.add(stream)
            case Reported.EMPTY if stream in self._paused_streams:
                self._paused_streams.discard(stream)
                if not self._paused_streams and self.connection is not None:
                    self.connection.resume_reading()

    def report_failure(self, error: Exception, stream: str, owner: str = "") -> None:
        """Report an error to the operator. `owner` names the code that failed, in words."""
        if isinstance(error, RowError) and self.metrics is not None:
            self.metrics.rows_refused.labels(stream).inc()
        gap, of = error if isinstance(error, GapError) else None, f" of {stream}" if stream else ""
        self._emit(
            FollowerEvent(
                kind="error",
                stream=stream,
                writer=gap.writer if gap is not None else "",
                token=gap.want if gap is not None else 0,
                text=str(error) if isinstance(error, ReplicationError) else f"{owner}{of} failed: {error!r}",
                error=error,
            )
        )

    def _position_processed(self, stream: str, writer: str, token: int) -> None:
        # Save the start of a stream at once: after a kill it would start at another position.
        self._has_new_writer |= writer not in self.saver.saved.get(stream, ())
        self._emit(FollowerEvent(kind="position", stream=stream, writer=writer, token=token))
        if not self._established and self.connection is not None:
            self._established = True
            self.connection.established()

    def _writer_rewound(self, stream: str, writer: str, token: int) -> None:
        self.allocation.forget(stream)
        for waiter in self.waiters.for_stream(stream):
            want = waiter.targets.get(writer, token)
            if want <= token:
                continue
            if waiter.connection < self.connections:
                # Waiters from before the reconnect refer to the old history, which the writer has lost. The
                # token may be allocated again for another fact: fail them rather than wake them for it.
                error = NeverAllocated(stream=stream, writer=writer, want=want, allocated=token)
                self.waiters.fail(waiter, error)
            else:
                # The token may belong to the new history and arrive later.
                waiter.is_checked = False
        self.allocation.check(stream)
        text = (
            f"the facts of {writer} in {stream} after token {token} are lost: the server's log lacks them,"
            " although this follower may have received them"
        )
        self._emit(FollowerEvent(kind="went_back", stream=stream, writer=writer, token=token, text=text))

    def _emit(self, event: FollowerEvent) -> None:
        # A problem that lasts is met again at each retry.
        if event.kind in ("error", "went_back", "moved") and self._logged.allows(event.text):
            self._logger.warn("{text}", text=event.text, stream=event.stream)
        for listener in self.event_listeners:
            try:
                listener(event)
            except Exception:
                # What the stream does next must not depend on a listener.
                self._logger.failure("a listener of {kind} events failed", kind=event.kind)

    def _own_seconds(self) -> float:
        return self.own_clock.seconds() if self.own_clock is not None else 0.0

    def _save(self) -> None:
        self._has_new_writer = False
        self.saver.save()
