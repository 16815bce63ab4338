"""A fake clock with its calls in a heap: many calls are under way, and time passes in many small steps."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.base import DelayedCall
from twisted.internet.task import Clock

__all__ = ["HeapClock"]


class HeapClock(Clock):
    """A faster `Clock`: that of Twisted sorts all its calls anew for each that is added, and at each step.

    Calls for the same moment run in the order in which they were added.
    """

    def __init__(self) -> None:
        super().__init__()
        # A call stands here once for each time at which it was to run; all but the last of these are stale.
        self._heap: list[tuple[float, int, DelayedCall]] = []
        self._numbers = itertools.count()

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: Any, **kwargs: Any
    ) -> DelayedCall:
        """As `IReactorTime` has it; delays are in seconds."""
        call = DelayedCall(
            self.seconds() + delay, callable, args, kwargs, lambda _: None, self._push, self.seconds
        )
        self._push(call)
        return call

    def getDelayedCalls(self) -> list[DelayedCall]:
        """The calls that are still to run, the next one first."""
        calls = {id(call): call for _, _, call in self._heap if call.active()}
        return sorted(calls.values(), key=lambda call: call.getTime())

    def advance(self, amount: float) -> None:
        """Let so many seconds pass, and run what is due."""
        self.rightNow += amount
        self._run_due()

    def pump(self, timings: Iterable[float]) -> None:
        """Advance by each of these steps; one at which nothing is due costs next to nothing."""
        for amount in timings:
            self.rightNow += amount
            if self._heap and self._heap[0][0] <= self.rightNow:
                self._run_due()

    def _run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self.rightNow:
            time, _, call = heapq.heappop(self._heap)
            if not call.active():
                continue
            if call.getTime() > time:
                call.activate_delay()  # or it would not tell when it is brought forward again
                self._push(call)
                continue
            call.called = 1
            call.func(*call.args, **call.kw)

    def _push(self, call: DelayedCall) -> None:
        heapq.heappush(self._heap, (call.getTime(), next(self._numbers), call))
