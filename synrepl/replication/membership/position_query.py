"""PositionQuery: asks for the positions of known writers until each has answered."""

from collections.abc import Callable, Iterator
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.streams.writer import Writer

REQUERY_SECONDS: Final = (5.0, 30.0, 300.0)
"""Delays after which `ask` is called again if a known writer has not announced its position. A response is
lost if its sender loses its connection; a removed writer never responds.
"""


class PositionQuery:
    """Calls `ask` again while some of the expected streams and writers are `unanswered`.

    After the last question they are forgotten: who answers later than that is one that comes anew.
    """

    def __init__(self, clock: IClock, ask: Callable[[], object]) -> None:
        self.unanswered: set[Writer] = set()
        self._ask = ask
        self._timer = Timer(clock, self._repeat)
        self._delays: Iterator[float] = iter(())

    def start(self) -> None:
        """The first question was asked: ask again later."""
        self._delays = iter(REQUERY_SECONDS)
        self._ask_later()

    def stop(self) -> None:
        """Ask no more."""
        self._timer.stop()

    def _ask_later(self) -> None:
        seconds = next(self._delays, None)
        if seconds is None:
            self.unanswered.clear()
        elif self.unanswered:
            self._timer.restart(seconds)

    def _repeat(self) -> None:
        if self.unanswered:
            self._ask()
            self._ask_later()
