"""ReorderBuffer: sorts facts that arrive from the highest token down."""

from collections.abc import Callable
from typing import Final

from synrepl.replication.follower.updates import RawFact

__all__ = ["MAX_HELD", "QUIET_SECONDS", "ReorderBuffer"]

QUIET_SECONDS: Final = 0.5
"""A burst ends when its writer has been quiet this long. Real masters send a burst at once."""

MAX_HELD: Final = 10_000
"""The largest number of buffered facts of a writer; a full buffer is emptied."""


class ReorderBuffer:
    """Buffers the facts of one stream, by writer, until a burst of them ends.

    Tokens of a burst descend: advancing the position with the first, highest one would claim the facts still
    to come, and they would never be fetched if the connection were lost. A burst ends with POSITION, or when
    its writer is quiet for a while. `seconds` returns the time.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._facts: dict[str, list[RawFact]] = {}
        self._last_added: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._facts)

    def add(self, writer: str, token: int, rows: list[bytes]) -> list[RawFact]:
        """Buffer a fact. Returns all facts of the writer if the buffer is full."""
        facts = self._facts.setdefault(writer, [])
        facts.append((writer, token, rows))
        self._last_added[writer] = self._seconds()
        return self.pop(writer) if len(facts) >= MAX_HELD else []

    def pop(self, writer: str) -> list[RawFact]:
        """Remove all facts of this writer and return them sorted by token."""
        self._last_added.pop(writer, None)
        return sorted(self._facts.pop(writer, ()), key=lambda fact: fact[1])

    def pop_quiet(self) -> list[RawFact]:
        """Remove and return the facts of the writers whose bursts have ended."""
        quiet_since = self._seconds() - QUIET_SECONDS
        quiet = [writer for writer, last_added in self._last_added.items() if last_added <= quiet_since]
        return [fact for writer in quiet for fact in self.pop(writer)]
