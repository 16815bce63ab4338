"""A simulated thread on a fake clock."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail

from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer
from synrepl.storage.threads import stopped_error

__all__ = ["DelayedThread"]

T = TypeVar("T")


class DelayedThread:
    """A simulated thread on a fake clock: runs work in order, each piece `delay()` seconds after the last.

    For simulations of a kill: work that has not run at `stop` never runs, and its Deferred never fires.
    """

    def __init__(self, clock: IClock, delay: Callable[[], float]) -> None:
        self._delay = delay
        self._waiting: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self._timer = Timer(clock, self._step)
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` after all earlier work and a further delay."""
        if self._is_stopped:
            return fail(stopped_error())
        done: Deferred[T] = Deferred()
        self._waiting.append((work, done))
        if not self._timer.is_active:
            self._timer.start(self._delay())
        return done

    async def stop(self) -> None:
        """Drop the queued work."""
        self._is_stopped = True
        self._waiting.clear()
        self._timer.stop()

    def _step(self) -> None:
        work, done = self._waiting.popleft()
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        if self._waiting:
            self._timer.start(self._delay())
        if failure is None:
            done.callback(result)
        else:
            done.errback(failure)
