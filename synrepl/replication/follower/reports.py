"""StreamReports: what the reports of streams mean for the other parts of a follower."""

from synrepl.base.metrics import Metrics
from synrepl.base.tasks import Tasks
from synrepl.errors import GapError, NotConnected, ReplicationError
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.followed_server import FollowedServer
from synrepl.replication.follower.states import ADVANCED, Report, Reported
from synrepl.replication.follower.updates import FollowerEvent, MissedFacts


class StreamReports:
    """Serves the executors of a follower: fetches what they miss, and passes on what they report."""

    def __init__(
        self, server: FollowedServer, *, tasks: Tasks, clock: FollowerClock, metrics: Metrics | None
    ) -> None:
        self.tasks = tasks
        self.clock = clock
        self.report_failure = server.events.report_failure
        self._server = server
        self._executors = server.streams.executors
        self._epochs = server.epochs
        self._waits = server.waits
        self._waiters = server.waits.waiters
        self._saver = server.saver
        self._events = server.events
        self._metrics = metrics

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts, and count the request in the metrics.

        Raises what `ICatchUp` raises; `NotConnected` if there is no source.
        """
        catch_up = self._server.catch_up
        if self._metrics is not None:
            self._metrics.catch_up_requests.labels("out").inc()
        try:
            if catch_up is None:
                raise NotConnected("no HTTP address is known to fetch missing rows from")
            return await catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
        except ReplicationError:
            if self._metrics is not None:
                self._metrics.catch_up_failures.inc()
            raise

    def report(self, stream: str, report: Report) -> None:
        """Handle a report of a stream."""
        if report is ADVANCED:
            if self._epochs.entered is not None:
                self._epochs.complete()
            if not self._saver.is_due:
                self._saver.save_soon()
            if self._waiters.queues:
                self._waiters.wake(stream, self._executors[stream].machine.positions.reported)
            return
        writer, token, metrics = report.writer, report.token, self._metrics
        match report.about:
            case Reported.POSITION:
                self._saver.position_processed(stream, writer)
                self._events.emit(FollowerEvent(kind="position", stream=stream, writer=writer, token=token))
                self._server.position_processed()
            case Reported.REWOUND:
                self._waits.rewound(stream, writer, token)
                text = (
                    f"the facts of {writer} in {stream} after token {token} are lost: the server's log lacks"
                    " them, although this follower may have received them"
                )
                self._events.emit(
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
                self._events.emit(
                    FollowerEvent(kind="behind", stream=stream, writer=writer, token=token, text=text)
                )
            case Reported.RESTARTED:
                self._events.emit(FollowerEvent(kind="restarted", stream=stream, writer=writer))
            case Reported.GAP_DETECTED if metrics is not None:
                metrics.gaps_detected.inc()
            case Reported.GAP_REPAIRED if metrics is not None:
                metrics.gaps_repaired.inc()
            case Reported.GAP_LOST:
                assert isinstance(report.error, GapError)
                self._events.gap_lost(report.error)
            case Reported.FACT_LOST:
                assert report.error is not None
                self._events.fact_lost(stream, writer, token, report.error, report.rows)
            case Reported.ERROR:
                assert report.error is not None
                self.report_failure(report.error, stream)
            case Reported.FULL:
                self._server.stream_full(stream)
            case Reported.EMPTY:
                self._server.stream_empty(stream)
