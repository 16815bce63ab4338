"""FollowerEvents: what a follower tells its user and its operator besides facts."""

from collections.abc import Callable, Sequence
from typing import Final

from twisted.logger import Logger

from synrepl.base.limited_logger import RepeatLimit
from synrepl.base.metrics import Metrics
from synrepl.errors import GapError, ReplicationError, RowError
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.updates import FollowerEvent

MAX_LOST_GAPS: Final = 100
"""The number of lost gaps that are remembered, the newest ones."""


class FollowerEvents:
    """Calls the subscribers of a follower with its events, and logs those that are problems."""

    _logger = Logger()

    def __init__(self, clock: FollowerClock, metrics: Metrics | None) -> None:
        self.subscribers: list[Callable[[FollowerEvent], None]] = []
        self.lost_gaps: list[tuple[float, GapError]] = []
        self._clock = clock
        self._metrics = metrics
        self._logged = RepeatLimit(self._seconds)

    def emit(self, event: FollowerEvent) -> None:
        """Call the subscribers with this event. One that raises is logged."""
        # A problem that lasts is met again at each retry.
        if event.kind in ("error", "went_back", "behind", "moved") and self._logged.allows(event.text):
            self._logger.warn("{text}", text=event.text, stream=event.stream)
        for subscriber in self.subscribers:
            try:
                subscriber(event)
            except Exception:
                # What the stream does next must not depend on a subscriber.
                self._logger.failure("a subscriber of {kind} events failed", kind=event.kind)

    def report_failure(
        self, error: Exception, stream: str, owner: str = "", *, writer: str = "", token: int = 0
    ) -> None:
        """Report an error to the operator. `owner` names the code that failed, in words."""
        if isinstance(error, RowError) and self._metrics is not None:
            self._metrics.rows_refused.labels(stream).inc()
        gap, of = error if isinstance(error, GapError) else None, f" of {stream}" if stream else ""
        self.emit(
            FollowerEvent(
                kind="error",
                stream=stream,
                writer=gap.writer if gap is not None else writer,
                token=gap.want if gap is not None else token,
                text=str(error) if isinstance(error, ReplicationError) else f"{owner}{of} failed: {error!r}",
                error=error,
            )
        )

    def facts_refused(self, stream: str, count: int) -> None:
        """Count and report facts of a stream that takes none from a channel or a followed server."""
        if self._metrics is not None:
            self._metrics.facts_refused.labels(stream).inc(count)
        text = (
            f"refused facts of {stream} from a channel or a followed server: a daemon takes them from its own"
            " code or from appends only; whoever sends them is mistaken or forges"
        )
        self.emit(FollowerEvent(kind="error", stream=stream, text=text))

    def gap_lost(self, gap: GapError, rows: Sequence[bytes] = ()) -> None:
        """Remember a gap that was skipped as unrecoverable, count it, and say so. `rows` as in the event."""
        self.lost_gaps.append((self._clock.seconds(), gap))
        del self.lost_gaps[:-MAX_LOST_GAPS]
        if self._metrics is not None:
            self._metrics.gaps_lost.inc()
        self.emit(
            FollowerEvent(
                kind="lost",
                stream=gap.stream,
                writer=gap.writer,
                token=gap.want,
                text=str(gap),
                error=gap,
                rows=rows,
            )
        )

    def fact_lost(
        self, stream: str, writer: str, token: int, error: Exception, rows: Sequence[bytes]
    ) -> None:
        """A fact cannot be decoded, or its source has lost it: report the error, and a gap that is lost.

        `rows` are those of the fact, as they were sent.
        """
        self.report_failure(error, stream, writer=writer, token=token)
        if self._metrics is not None:
            self._metrics.gaps_detected.inc()
        if isinstance(error, GapError):
            self.gap_lost(error)  # the source has lost it: there are no rows
            return
        gap = GapError(stream=stream, writer=writer, have=token - 1, want=token, why=str(error))
        self.gap_lost(gap, rows)

    def _seconds(self) -> float:
        return self._clock.given.seconds() if self._clock.given is not None else 0.0
