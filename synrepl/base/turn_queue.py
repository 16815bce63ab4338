"""A queue of work that shares the reactor's turns: no turn lasts much longer than a slice of time."""

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer

SLICE_SECONDS: Final = 0.02
"""Work begins in a turn until that has lasted this long. An event is handled twice in a turn at most: in the
poll, and in the calls that are due."""


class TurnQueue:
    """Runs work at once while the turn has time left, and else in a later turn, in the order of the calls.

    Work that takes turns is in no hurry: it calls `run_later`, so that everybody else is served in between.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque()
        self._left = SLICE_SECONDS
        self._timer = Timer(clock, self._begin_turn)

    @property
    def has_time(self) -> bool:
        """Whether work may begin in this turn: there is time left, and nobody waits for it."""
        return self._left > 0 and not self._waiting

    def run(self, work: Callable[[], object]) -> None:
        """Run `work` now. To be called only if `has_time`."""
        began = self._clock.seconds()
        try:
            work()
        finally:
            self._left -= self._clock.seconds() - began
            # A timer for each short work would cost more than the work.
            if self._left < SLICE_SECONDS / 2:
                self._timer.start(0)

    def run_later(self, work: Callable[[], object]) -> None:
        """Run `work` in a later turn, after all other work that waits."""
        self._waiting.append(work)
        self._timer.start(0)

    def turn(self) -> "Deferred[None]":
        """Return a Deferred that fires in a later turn, as `run_later`: for work in parts."""
        turn: Deferred[None] = Deferred()
        self.run_later(lambda: turn.callback(None))
        return turn

    def stop(self) -> None:
        """Drop all work that waits."""
        self._waiting.clear()
        self._timer.stop()

    def _begin_turn(self) -> None:
        self._left = SLICE_SECONDS
        try:
            for _ in range(len(self._waiting)):
                if self._left <= 0:
                    break
                self.run(self._waiting.popleft())
        finally:
            if self._waiting:
                self._timer.start(0)
