"""StreamGaps: the facts of one stream that are known to be missing, and their repair.

A gap is found and filled in these steps:

1. `StreamMachine._judge` (`stream.py`) asks the mode about a POSITION, after all facts that came before it.
   `Pull.judge` (`modes.py`) finds a gap if the follower's token is below the previous token of the POSITION.
2. `StreamGaps.open` notes the gap and makes a `GapRepair`. The stream is FETCHING: commands that come are
   queued.
3. `StreamExecutor._fetch` (`executor.py`) calls `FollowedServer.fetch` (`followed_server.py`), which calls
   `HttpCatchUp.fetch` (`transports/http/catch_up.py`). A daemon answers that in `updates` of
   `transports/http/row_routes.py`, Synapse by its own route of the same form.
4. `GapRepair.received` takes the page. Its facts are applied as others are, then the next page is requested.
5. After the last page `close` and `finish` end the repair, the position advances, and what was queued
   follows.

A request that fails is repeated with backoff (`BACKOFF_SECONDS`), for a gap without end, for facts that may
be gone `MAX_ATTEMPTS` times. Where there is nowhere to ask (`NowhereToFetch`), the repair is given up at
once. Then everything that the facts could invalidate is dropped, and the position advances without them.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from operator import itemgetter
from typing import Final

from synrepl.errors import GapError, ReplicationError
from synrepl.replication.follower.history import AppliedPositions, PositionStep
from synrepl.replication.follower.states import Fetch, Report, Reported
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch

BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)

MAX_ATTEMPTS: Final = 3
"""Failures in a row to fetch facts that may be gone (of a restart, or a recheck), before they are skipped."""

DESCENDING_TOKENS: Final = 50
"""Tokens per request of a stream whose responses descend. Real masters limit these responses to the highest
100 facts and name the lowest of them as the next position: earlier facts would never be requested.
"""


@dataclass(eq=False, repr=False)
class GapRepair:
    """Fetches the facts of `writer` after `after` up to `upto`, page by page.

    `is_recheck`: no fact is known to be missing, so this is a precaution: no gap is reported, and the stream
    continues if the repair fails. `max_attempts`: failures in a row after which the repair ends (None: no
    limit); `NowhereToFetch` ends it at once. `descends`: the tokens of a response descend. `ephemeral`:
    a source that has less than was requested may have begun again, and lost the rest.
    """

    stream: str
    writer: str
    after: int
    upto: int
    _: KW_ONLY
    is_recheck: bool = False
    max_attempts: int | None = None
    descends: bool = False
    ephemeral: bool = False
    failures: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all facts were fetched."""
        return self.after >= self.upto

    def request(self) -> Fetch:
        """The next request."""
        return Fetch(self.writer, self.after, self._request_end)

    @property
    def _request_end(self) -> int:
        return min(self.upto, self.after + DESCENDING_TOKENS) if self.descends else self.upto

    def received(self, page: MissedFacts) -> Sequence[tuple[int, list[bytes]]]:
        """Take a page. Returns its facts in the order to apply them.

        Raises `ReplicationError` if the page makes no progress, as that of a copy which is behind.
        """
        if page.upto <= self.after:
            if self.ephemeral and self.max_attempts is None:
                self.max_attempts = self.failures + MAX_ATTEMPTS
            why = "the source announces more facts" if page.limited else "the source is behind"
            raise ReplicationError(f"{why}, but its page ends at token {page.upto}, not beyond {self.after}")
        self.after = min(page.upto, self._request_end)
        self.failures = 0
        return sorted(page.facts, key=itemgetter(0)) if self.descends else page.facts

    def failed(self, error: Exception) -> float | None:
        """Count a failed request. Returns the seconds until the next; None if the repair ends."""
        self.failures += 1
        if self.failures == self.max_attempts or isinstance(error, NowhereToFetch):
            return None
        return BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS)) - 1]

    def error(self, error: Exception) -> GapError:
        """The failure of a request, as a gap."""
        why = str(error) if isinstance(error, ReplicationError) else f"{error!r} (a bug in the source)"
        return GapError(stream=self.stream, writer=self.writer, have=self.after, want=self.upto, why=why)


class StreamGaps:
    """The gaps of one stream, by writer, and the `repair` of one at a time.

    A gap stays open over disconnects, until it is repaired or given up, and `late` facts are not forgotten.
    The facts of a stream that `descends` are fetched in small steps.
    """

    def __init__(
        self, stream: str, positions: AppliedPositions, *, descends: bool, ephemeral: bool = False
    ) -> None:
        self.repair: GapRepair | None = None
        self.errors: dict[str, GapError] = {}
        """The gaps whose facts could not be fetched yet, with the last reason, by writer."""
        self.late: dict[str, int] = {}
        """By writer, the lowest token of late facts that were dropped, or lost with the connection."""
        self._make_repair = partial(GapRepair, stream, descends=descends, ephemeral=ephemeral)
        self._positions = positions
        self._ends: dict[str, int] = {}

    def missing(self) -> int:
        """The number of tokens that are known to be missing."""
        tokens = self._positions.tokens
        return sum(max(0, upto - tokens.get(writer, 0)) for writer, upto in self._ends.items())

    def open(self, writer: str, after: int, upto: int, *, max_attempts: int | None = None) -> list[Report]:
        """Begin to repair a gap. Returns the reports for the follower."""
        is_new = writer not in self._ends
        self._ends[writer] = upto
        self.repair = self._make_repair(writer, after, upto, max_attempts=max_attempts)
        return [Report(Reported.GAP_DETECTED)] if is_new else []

    def recheck(self, writer: str, after: int, upto: int) -> None:
        """Fetch facts that may have been missed, although no gap is known."""
        self.repair = self._make_repair(writer, after, upto, is_recheck=True, max_attempts=MAX_ATTEMPTS)

    def close(self, writer: str) -> list[Report]:
        """Close the writer's gap, if it has one. Returns the reports for the follower."""
        self.errors.pop(writer, None)
        self.late.pop(writer, None)
        return [] if self._ends.pop(writer, None) is None else [Report(Reported.GAP_REPAIRED)]

    def finish(self) -> PositionStep:
        """End the repair. Returns the step beyond its facts, whether or not all were fetched."""
        repair, self.repair = self.repair, None
        assert repair is not None
        # Real masters return later facts than requested.
        token = max(repair.upto, self._positions.tokens.get(repair.writer, repair.upto))
        return PositionStep(repair.writer, token, is_position=True)

    def failed(self, error: Exception) -> tuple[list[Report], float | None]:
        """A request failed. Returns the reports, and the seconds until the next request; None to give up."""
        repair = self.repair
        assert repair is not None
        gap, seconds = repair.error(error), repair.failed(error)
        if repair.is_recheck:
            is_known = isinstance(error, NowhereToFetch)
            return [] if is_known else [Report(Reported.ERROR, error=error)], seconds
        reports = [Report(Reported.ERROR, error=gap)]
        self.errors[repair.writer] = gap
        if seconds is None:
            self.close(repair.writer)
            reports.append(Report(Reported.GAP_LOST, error=gap))
        return reports, seconds
