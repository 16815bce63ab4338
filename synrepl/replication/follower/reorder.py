"""Facts that are told from the highest token down, put in order before any of them counts."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.ports.interfaces import IClock

__all__ = ["MAX_HELD", "SETTLE_SECONDS", "ReorderBuffer"]

SETTLE_SECONDS: Final = 0.5
"""A burst is over when its writer has said nothing for so long. Real ones send all of it in one go."""

MAX_HELD: Final = 10_000
"""Facts that are held at most; then they are let go in the order they have."""


class ReorderBuffer:
    """Holds the facts of one stream, by writer, until a burst of them is over.

    A position that moved with the first, highest one would claim those that are still to come; if the
    connection were lost between them, nobody would ask for them again. It is over when POSITION says so, or
    when nothing has come for a while: then `settled` is called with the writer.
    """

    def __init__(self, clock: Callable[[], IClock], settled: Callable[[str], object]) -> None:
        self._clock = clock
        self._settled = settled
        self._held: dict[str, list[tuple[int, list[bytes]]]] = {}
        self._heard: dict[str, float] = {}
        self._timer: Any = None

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, writer: str, token: int, rows: list[bytes]) -> bool:
        """Hold a fact. False: there is no room for more, so that what is held must be taken now."""
        held = self._held.setdefault(writer, [])
        held.append((token, rows))
        self._heard[writer] = self._clock().seconds()
        self._arm()
        return len(held) < MAX_HELD

    def take(self, writer: str) -> list[tuple[int, list[bytes]]]:
        """All that is held of this writer, by token."""
        self._heard.pop(writer, None)
        return sorted(self._held.pop(writer, ()), key=lambda fact: fact[0])

    def put_back(self, writer: str, facts: list[tuple[int, list[bytes]]]) -> None:
        """These could not be applied yet."""
        if facts:
            self._held[writer] = facts + self._held.get(writer, [])
            self._heard[writer] = self._clock().seconds()
            self._arm()

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._heard.clear()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._clock().callLater(SETTLE_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        over = self._clock().seconds() - SETTLE_SECONDS
        for writer in [writer for writer, heard in self._heard.items() if heard <= over]:
            self._settled(writer)
        if self._held:
            self._arm()
