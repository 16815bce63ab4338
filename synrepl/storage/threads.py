"""Threads for blocking work: a real thread, an immediate one, and a simulated one on a fake clock."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer

__all__ = ["DelayedThread", "ImmediateThread", "ReactorThread"]

T = TypeVar("T")


def _stopped() -> StorageError:
    return StorageError(op="run", why="the thread was stopped", retryable=True)


class ReactorThread:
    """One real thread next to the reactor's; results arrive in the reactor's thread.

    The thread starts with the first work and ends with `stop`. It keeps the process alive until then.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(1, 1, name=name)
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` after all earlier work."""
        if self._is_stopped:
            return fail(_stopped())
        if not self._pool.started:
            self._pool.start()
        return deferToThreadPool(self._reactor, self._pool, work)

    async def stop(self) -> None:
        """Finish all queued work, then end the thread. Idempotent."""
        if self._is_stopped:
            return
        last = self.run(lambda: None) if self._pool.started else None
        self._is_stopped = True
        if last is not None:
            # The thread has no more work, so joining it does not block the reactor.
            await last
            self._pool.stop()


class ImmediateThread:
    """No thread: work runs inside `run`. For tests and command line tools."""

    def __init__(self) -> None:
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` now; the Deferred has fired already."""
        if self._is_stopped:
            return fail(_stopped())
        try:
            return succeed(work())
        except Exception as error:
            return fail(error)

    async def stop(self) -> None:
        """Refuse any further work."""
        self._is_stopped = True


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
            return fail(_stopped())
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
