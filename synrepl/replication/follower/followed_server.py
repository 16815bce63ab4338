"""FollowedServer: the conversation of a follower with the server that it is connected to."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from synrepl.base.interfaces import IAllocated, IClock
from synrepl.base.metrics import Metrics
from synrepl.base.tasks import Tasks
from synrepl.errors import GapError, NotConnected, ProtocolError, ReplicationError
from synrepl.replication.connection import Connection
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.epochs import ServerEpochs
from synrepl.replication.follower.events import FollowerEvents
from synrepl.replication.follower.executor import StreamExecutor
from synrepl.replication.follower.followed_streams import FollowedStreams
from synrepl.replication.follower.position_saver import PositionSaver
from synrepl.replication.follower.states import ADVANCED, Disconnected, Report, Reported
from synrepl.replication.follower.updates import FollowerEvent, ICatchUp, MissedFacts, code_of
from synrepl.replication.follower.waits import PositionWaits
from synrepl.replication.strategies import FollowStrategy, following
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import EpochNotice, Error, Position, Rdata, Rewind, Server, UserSync
from synrepl.wire.dialect import Dialect
from synrepl.wire.extension import EpochMark
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun


class FollowedServer:
    """Requests the followed streams of a server, and hands its commands to them.

    It serves their executors: fetches what they miss, and passes on what they report. A transport calls
    `connected`, `received`, `mark_alive`, `disconnected`, `unreachable` and `moved`.
    """

    def __init__(
        self,
        streams: FollowedStreams,
        waits: PositionWaits,
        saver: PositionSaver,
        events: FollowerEvents,
        *,
        clock: FollowerClock,
        tasks: Tasks,
        metrics: Metrics | None,
        catch_up: ICatchUp | None,
        syncing_users: Callable[[], Iterable[UserSync]] | None = None,
    ) -> None:
        self.clock = clock
        self.tasks = tasks
        self.connection: Connection | None = None
        self.is_connected = False
        self.command_subscribers: dict[type[Command], list[Callable[[Any], None]]] = {}
        self.epochs = ServerEpochs(streams, saver, events)
        self.streams = streams
        self._executors = streams.executors
        self.waits = waits
        self.saver = saver
        self.events = events
        self.shared_dialect: Dialect | None = None
        """The release of those who share a channel, as far as it is known: they do not say it."""
        self.catch_up = catch_up
        """Where missing facts are fetched; None if that is not known."""
        self._metrics = metrics
        self._syncing_users = syncing_users
        self._last_received: float | None = None
        self._current_at = -math.inf
        self._strategy: FollowStrategy | None = None
        self._dialect: Dialect | None = None
        self._established = False
        self._full_streams: set[str] = set()
        """The streams that have no space for more: meanwhile nothing is read from the connection."""
        streams.follow(self)

    def complete(
        self, clock: IClock, catch_up: ICatchUp | None = None, allocated: IAllocated | None = None
    ) -> None:
        """Set those of these arguments that the follower was made without."""
        if self.clock.given is None:
            self.clock.given = clock
        if self.catch_up is None:
            self.catch_up = catch_up
        if self.waits.allocation.source is None:
            self.waits.allocation.source = allocated

    # -- called by the connection --------------------------------------------------------------------------

    def connected(
        self, connection: Connection, dialect: Dialect, strategy: FollowStrategy | None = None
    ) -> None:
        """A connection was opened and the handshake is done: request the followed streams.

        `strategy` None means that of the dialect's release.
        """
        streams = self.streams
        streams.connect_caches(dialect if strategy is None else self.shared_dialect)
        self.connection = connection
        self._dialect = dialect
        self._strategy = strategy if strategy is not None else following(dialect)
        self._established = False
        self._full_streams.clear()
        self.is_connected = True
        self._last_received = self.clock.seconds()
        self.waits.connected()
        for name, executor in self._executors.items():
            # Also streams that the release lacks: the server may be of another release.
            executor.handle(streams.connected_event(streams.table[name], dialect, self._strategy))
        known = [stream for stream in streams.table.known_to(dialect) if stream.name in self._executors]
        self._report_unspoken(dialect)
        self.events.emit(FollowerEvent(kind="connected"))
        self._request(connection, [stream.name for stream in known], everything=streams.is_everything)
        self._send_syncing_users(connection)

    def _report_unspoken(self, dialect: Dialect) -> None:
        """Say which streams have a subscriber, and nothing to call it with."""
        names = [name for name in self._executors if dialect.release not in self.streams.table[name].span]
        if names and not self.streams.is_everything:
            text = (
                f"this connection speaks the release {dialect}, which has no stream"
                f" {', '.join(sorted(names))}: nothing of it comes; give both sides a later dialect"
            )
            self.events.emit(FollowerEvent(kind="error", text=text))

    def _send_syncing_users(self, connection: Connection) -> None:
        if self._syncing_users is None:
            return
        try:
            for command in self._syncing_users():
                connection.send(command)
        except Exception as error:  # the worker's own function, or a field that the release lacks
            self.events.report_failure(error, "", "the list of syncing users")

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle commands from the server.

        Raises RemoteProtocolError if one is not allowed, such as too large a batch: nothing more is taken of
        this connection, which the caller ends.
        """
        try:
            self._handle(commands)
        except ProtocolError:
            self._abandon()
            raise

    def _handle(self, commands: Sequence[Command | RdataRun]) -> None:
        executors, clock = self._executors, self.clock.given
        assert clock is not None
        self._last_received = clock.seconds()
        for command in commands:
            if type(command) is Rdata or type(command) is RdataRun or type(command) is Position:
                executor = executors.get(command.stream)
                if executor is None:
                    rows = len(command.rows) if type(command) is RdataRun else 1
                    executor = self.streams.unfollowed(command.stream, rows)
                if executor is not None:
                    executor.handle(command)
                if type(command) is not Position:
                    continue
            elif type(command) is Rewind:
                self.epochs.rewind(command)
            elif isinstance(command, EpochNotice):
                self.epochs.enter(command)
            elif isinstance(command, Server):
                self.events.emit(FollowerEvent(kind="server", text=command.server_name))
            elif isinstance(command, Error):
                text, code = f"the server reports: {command.text}", code_of(command.text)
                self.events.emit(FollowerEvent(kind="error", text=text, code=code))
            assert not isinstance(command, RdataRun)
            for subscriber in self.command_subscribers.get(type(command), ()):
                try:
                    subscriber(command)
                except Exception as error:  # what follows in this read must not depend on it
                    self.events.report_failure(error, "", f"a function for {command.NAME}")
        self._update_current()
        if self.saver.has_new_writer:
            self.saver.save_at_once()

    def mark_alive(self) -> None:
        """The connection works although no command was received: everything sent until now has arrived."""
        self._last_received = self.clock.seconds()
        self._update_current()

    def moved(self, why: str, code: str) -> None:
        """The server says that it must not be followed any more, or not now."""
        self.events.emit(FollowerEvent(kind="moved", text=why))

    def disconnected(self, why: str, code: str = "") -> None:
        """The connection was lost. `code` is that of `FollowerEvent`."""
        self.connection = None
        self.is_connected = False
        self._abandon()
        self.saver.save_at_once()
        self.events.emit(FollowerEvent(kind="disconnected", text=why, code=code))

    def _abandon(self) -> None:
        """Take nothing more of this connection: the next one repeats what was not applied."""
        self.epochs.disconnected()
        for executor in self._executors.values():
            executor.handle(Disconnected())

    def unreachable(self, why: str, code: str = "") -> None:
        """A connection attempt failed; it is retried. `code` is that of `FollowerEvent`."""
        self.events.emit(FollowerEvent(kind="disconnected", text=why, code=code))

    @property
    def epoch(self) -> EpochMark | None:
        """The epoch of the log that was followed last; None if no server has said it."""
        return self.saver.epoch

    # -- called by the streams -----------------------------------------------------------------------------

    def stream_added(self, stream: Stream[Any], executor: StreamExecutor, *, asks: bool) -> None:
        """Begin to follow a stream, perhaps in the middle of a connection. `asks`: request it then."""
        if self.connection is None:
            return
        assert self._strategy is not None
        assert self._dialect is not None
        executor.handle(self.streams.connected_event(stream, self._dialect, self._strategy))
        if asks and self._dialect.release in stream.span:
            self._request(self.connection, [stream.name], everything=False)

    def failed(self, error: ProtocolError) -> None:
        """End the connection: a stream met this error in what it had queued."""
        connection = self.connection
        self._abandon()
        if connection is not None:
            connection.fail(error.why)

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts, and count the request in the metrics.

        Raises what `ICatchUp` raises; `NotConnected` if there is no source.
        """
        if self._metrics is not None:
            self._metrics.catch_up_requests.labels("out").inc()
        try:
            if self.catch_up is None:
                raise NotConnected("no HTTP address is known to fetch missing rows from")
            return await self.catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
        except ReplicationError:
            if self._metrics is not None:
                self._metrics.catch_up_failures.inc()
            raise

    def report(self, stream: str, report: Report) -> None:
        """Handle a report of a stream."""
        if report is ADVANCED:
            if self.epochs.entered is not None:
                self.epochs.complete()
            if not self.saver.is_due:
                self.saver.save_soon()
            if self.waits.waiters.queues:
                self.waits.waiters.wake(stream, self._executors[stream].machine.positions.reported)
            return
        writer, token, metrics = report.writer, report.token, self._metrics
        match report.about:
            case Reported.POSITION:
                self.saver.position_processed(stream, writer)
                self.events.emit(FollowerEvent(kind="position", stream=stream, writer=writer, token=token))
                self._position_processed()
            case Reported.REWOUND:
                self.waits.rewound(stream, writer, token)
                text = (
                    f"the facts of {writer} in {stream} after token {token} are lost: the server's log lacks"
                    " them, although this follower may have received them"
                )
                self.events.emit(
                    FollowerEvent(kind="went_back", stream=stream, writer=writer, token=token, text=text)
                )
            case Reported.BEHIND:
                known = self._executors[stream].machine.positions.tokens.get(writer, token)
                text = (
                    f"the server is behind this follower: {writer} is at {token} in {stream}, and this"
                    f" follower has applied it up to {known}. A replica that lags catches up. If the server's"
                    " log was restored from an older copy or replaced, the facts that it gives the tokens up"
                    f" to {known} may be others, and are not delivered: begin anew from an empty state"
                )
                self.events.emit(
                    FollowerEvent(kind="behind", stream=stream, writer=writer, token=token, text=text)
                )
            case Reported.RESTARTED:
                self.events.emit(FollowerEvent(kind="restarted", stream=stream, writer=writer))
            case Reported.GAP_DETECTED if metrics is not None:
                metrics.gaps_detected.inc()
            case Reported.GAP_REPAIRED if metrics is not None:
                metrics.gaps_repaired.inc()
            case Reported.GAP_LOST:
                assert isinstance(report.error, GapError)
                self.events.gap_lost(report.error)
            case Reported.FACT_LOST:
                assert report.error is not None
                self.events.fact_lost(stream, writer, token, report.error, report.rows)
            case Reported.ERROR:
                assert report.error is not None
                self.events.report_failure(report.error, stream)
            case Reported.FULL:
                self._stream_full(stream)
            case Reported.EMPTY:
                self._stream_empty(stream)

    def _request(self, connection: Connection, streams: list[str], *, everything: bool) -> None:
        assert self._strategy is not None
        catalog = StreamTable.default()
        for command in self._strategy.requests(
            streams,
            named=[name for name in streams if name not in catalog],
            everything=everything,
            token=self._resume_token,
            earliest=self.streams.earliest,
        ):
            connection.send(command)

    def _resume_token(self, name: str) -> int | None:
        """The position to continue a stream from on a server without writer names."""
        return max(self.streams.applied(name).values(), default=None)

    def _position_processed(self) -> None:
        """A POSITION was processed: the connection is established with the first one."""
        if not self._established and self.connection is not None:
            self._established = True
            self.connection.established()

    def _stream_full(self, stream: str) -> None:
        """A stream has no space for more: read nothing."""
        if not self._full_streams and self.connection is not None:
            self.connection.pause_reading()
        self._full_streams.add(stream)

    def _stream_empty(self, stream: str) -> None:
        """A stream has space again: read, if all have."""
        if stream not in self._full_streams:
            return
        self._full_streams.discard(stream)
        if not self._full_streams and self.connection is not None:
            self.connection.resume_reading()

    # -- lag -----------------------------------------------------------------------------------------------

    def lag_seconds(self) -> float:
        """Seconds since the follower was last up to date; infinite if it never was."""
        self._update_current()
        return math.inf if self.clock.given is None else self.clock.seconds() - self._current_at

    def _update_current(self) -> None:
        """If no stream is blocked, the follower is up to date as of the last line received."""
        if not self._established or not self.is_connected or self._last_received is None:
            return
        for executor in self._executors.values():
            if executor.machine.is_blocked:
                return
        self._current_at = self._last_received
