"""Gaps: the facts that are known to be missing, and the repair of one gap."""

from collections.abc import Mapping, Sequence
from typing import Final

from synrepl.errors import GapError, ReplicationError
from synrepl.replication.follower.catchup import MissedFacts, NowhereToFetch
from synrepl.replication.follower.events import Fetch

__all__ = ["MAX_ATTEMPTS", "GapRepair", "OpenGaps", "retry_seconds"]

RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)

MAX_ATTEMPTS: Final = 3
"""Attempts to fetch facts that may be gone, such as those of a restarted writer: then it goes on without."""

DESCENDING_TOKENS: Final = 50
"""Tokens per request of a stream whose responses descend. Real masters limit these responses to the highest
100 facts and name the lowest of them as the next position: earlier facts would never be requested.
"""


def retry_seconds(attempt: int) -> float:
    """The delay after this failed attempt; the first is 0."""
    return RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]


class OpenGaps:
    """The open gaps of one stream, by writer. They stay open over disconnects, until they are repaired."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._errors: dict[str, GapError] = {}

    def open(self, writer: str, upto: int) -> bool:
        """Facts of this writer are missing up to `upto`. Returns whether its gap is a new one."""
        is_new = writer not in self._ends
        self._ends[writer] = upto
        return is_new

    def failed(self, error: GapError) -> None:
        """The missing facts could not be fetched yet."""
        self._errors[error.writer] = error

    def close(self, writer: str) -> bool:
        """No facts of this writer are missing, or they are given up. Returns whether a gap was open."""
        self._errors.pop(writer, None)
        return self._ends.pop(writer, None) is not None

    @property
    def errors(self) -> list[GapError]:
        """The gaps whose facts could not be fetched yet, with the last reason."""
        return list(self._errors.values())

    def missing(self, positions: Mapping[str, int]) -> int:
        """The number of tokens that are known to be missing."""
        return sum(max(0, upto - positions.get(writer, 0)) for writer, upto in self._ends.items())


class GapRepair:
    """Fetches the facts of `writer` after `after` up to `upto`, page by page.

    `is_recheck`: no fact is known to be missing, so this is a precaution: no gap is reported, and the stream
    continues if there is no source. `max_attempts`: failures in a row after which the repair ends (None: it
    never does). `descends`: responses descend.
    """

    def __init__(
        self,
        stream: str,
        writer: str,
        after: int,
        upto: int,
        *,
        is_recheck: bool = False,
        max_attempts: int | None = None,
        descends: bool = False,
    ) -> None:
        self.writer = writer
        self.upto = upto
        self.is_recheck = is_recheck
        self._stream = stream
        self._after = after
        self._max_attempts = max_attempts
        self._descends = descends
        self._failures = 0

    @property
    def is_complete(self) -> bool:
        """Whether all facts were fetched."""
        return self._after >= self.upto

    def request(self) -> Fetch:
        """The next request."""
        return Fetch(self.writer, self._after, self._request_end)

    @property
    def _request_end(self) -> int:
        return min(self.upto, self._after + DESCENDING_TOKENS) if self._descends else self.upto

    def received(self, page: MissedFacts) -> Sequence[tuple[int, list[bytes]]]:
        """Facts in the order to apply them, before the next request.

        Raises `ReplicationError` if the page makes no progress.
        """
        if page.limited and page.upto <= self._after:
            raise ReplicationError(f"the response makes no progress beyond {self._after}")
        self._after = page.upto if page.limited else self._request_end
        self._failures = 0
        return sorted(page.facts, key=_token) if self._descends else page.facts

    def failed(self, error: Exception) -> float | None:
        """Count a failed request. Returns the seconds until the next; None if the repair ends."""
        self._failures += 1
        if self._failures == self._max_attempts or isinstance(error, NowhereToFetch):
            return None
        return retry_seconds(self._failures - 1)

    def error(self, error: Exception) -> GapError:
        """The failure of a request, as a gap."""
        why = str(error) if isinstance(error, ReplicationError) else f"{error!r} (a bug in the source)"
        return GapError(stream=self._stream, writer=self.writer, have=self._after, want=self.upto, why=why)


def _token(fact: tuple[int, list[bytes]]) -> int:
    return fact[0]
