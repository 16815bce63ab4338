"""Keeps the reactor's time steady when the wall clock is set: Twisted schedules all calls by that clock.

A daemon whose clock is days ahead for a moment would time out every connection, and then wait for days: calls
and deadlines that were made meanwhile would be due only then.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from twisted.logger import Logger
from twisted.python.threadable import isInIOThread

STEP_SECONDS: Final = 1.0
"""By how much the wall clock must get away from the monotonic one to count as set. Smaller corrections are
followed at once."""

LASTING_SECONDS: Final = 60.0
"""How long the clock must keep its new time until that is followed."""


class SteadySeconds:
    """The wall clock, in place of `reactor.seconds`, without the steps that it takes back soon.

    A step is followed once it has lasted `LASTING_SECONDS`, and all pending calls of the reactor are moved by
    it: their delays stay. The reactor reads the time at the beginning of each turn, before it makes calls.
    `steady` is a clock that nobody sets. Other threads may read the time, and never move calls.
    """

    _logger = Logger()

    def __init__(
        self,
        reactor: Any,
        *,
        steady: Callable[[], float] = monotonic,
        is_in_reactor: Callable[[], bool] = isInIOThread,
    ) -> None:
        self._reactor = reactor
        self._wall: Callable[[], float] = reactor.seconds
        self._steady = steady
        self._is_in_reactor = is_in_reactor
        self._offset: float = self._wall() - steady()
        self._step = 0.0
        self._stepped_at = 0.0

    def __call__(self) -> float:
        """Return the Unix time."""
        steady: float = self._steady()
        step = self._wall() - steady - self._offset
        if not self._is_in_reactor():
            return steady + self._offset
        if abs(step) < STEP_SECONDS:
            self._offset += step
            self._step = 0.0
        elif abs(step - self._step) >= STEP_SECONDS:
            self._step, self._stepped_at = step, steady
        elif steady - self._stepped_at >= LASTING_SECONDS:
            self._follow(step)
        return steady + self._offset

    def _follow(self, step: float) -> None:
        self._offset += step
        self._step = 0.0
        for call in self._reactor.getDelayedCalls():
            call.delay(step)
        # The reactor may be about to wait for a call that was moved.
        self._reactor.wakeUp()
        self._logger.warn("the clock was set by {step:+.0f} seconds", step=step)


def keep_steady(reactor: Any) -> None:
    """Use `SteadySeconds` for this reactor from now on. Idempotent."""
    if not isinstance(reactor.seconds, SteadySeconds):
        reactor.seconds = SteadySeconds(reactor)
