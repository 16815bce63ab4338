"""ReorderBuffer: sorts facts that arrive from the highest token down."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.ports.interfaces import IClock

__all__ = ["MAX_HELD", "QUIET_SECONDS", "ReorderBuffer"]

QUIET_SECONDS: Final = 0.5
"""A burst ends when its writer has been quiet this long. Real masters send a burst at once."""

MAX_HELD: Final = 10_000
"""The largest number of buffered facts of a writer; a full buffer must be emptied."""


class ReorderBuffer:
    """Buffers the facts of one stream, by writer, until a burst of them ends.

    Tokens of a burst descend: advancing the position with the first, highest one would claim the facts still
    to come, and they would never be fetched if the connection were lost. A burst ends with POSITION, or when
    its writer is quiet for a while: then `on_quiet` is called with the writer.
    """

    def __init__(self, clock: Callable[[], IClock], on_quiet: Callable[[str], object]) -> None:
        self._clock = clock
        self._on_quiet = on_quiet
        self._facts: dict[str, list[tuple[int, list[bytes]]]] = {}
        self._last_added: dict[str, float] = {}
        self._timer: Any = None

    def __bool__(self) -> bool:
        return bool(self._facts)

    def add(self, writer: str, token: int, rows: list[bytes]) -> bool:
        """Buffer a fact. Returns False if the buffer is full and must be emptied now."""
        facts = self._facts.setdefault(writer, [])
        facts.append((token, rows))
        self._last_added[writer] = self._clock().seconds()
        self._arm()
        return len(facts) < MAX_HELD

    def pop(self, writer: str) -> list[tuple[int, list[bytes]]]:
        """Remove all facts of this writer and return them sorted by token."""
        self._last_added.pop(writer, None)
        return sorted(self._facts.pop(writer, ()), key=lambda fact: fact[0])

    def put_back(self, writer: str, facts: list[tuple[int, list[bytes]]]) -> None:
        """Return facts that could not be applied yet."""
        if facts:
            self._facts[writer] = facts + self._facts.get(writer, [])
            self._last_added[writer] = self._clock().seconds()
            self._arm()

    def clear(self) -> None:
        """Empty the buffer and stop the timer."""
        self._facts.clear()
        self._last_added.clear()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._clock().callLater(QUIET_SECONDS, self._check_quiet)

    def _check_quiet(self) -> None:
        self._timer = None
        quiet_since = self._clock().seconds() - QUIET_SECONDS
        for writer in [
            writer for writer, last_added in self._last_added.items() if last_added <= quiet_since
        ]:
            self._on_quiet(writer)
        if self._facts:
            self._arm()
