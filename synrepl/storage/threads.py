"""Where blocking work runs: a real thread, no thread at all, or a pretended one on a fake clock."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock

__all__ = ["DelayedThread", "ImmediateThread", "ReactorThread"]

T = TypeVar("T")


def _stopped() -> StorageError:
    return StorageError(op="run", why="the thread was stopped", retryable=True)


class ReactorThread:
    """One real thread of its own, beside the reactor's; results arrive in the reactor's thread.

    The thread starts with the first work, and ends with `stop`. It keeps the process alive until then.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(1, 1, name=name)
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Do `work` after all that was asked before."""
        if self._is_stopped:
            return fail(_stopped())
        if not self._pool.started:
            self._pool.start()
        return deferToThreadPool(self._reactor, self._pool, work)

    async def stop(self) -> None:
        """Finish what was asked, then end the thread. Harmless when repeated."""
        if self._is_stopped:
            return
        last = self.run(lambda: None) if self._pool.started else None
        self._is_stopped = True
        if last is not None:
            # Nothing is left to do after this, so that joining the thread does not hold up the reactor.
            await last
            self._pool.stop()


class ImmediateThread:
    """No thread: work is done in the call that asks for it. For tests, and for command line tools."""

    def __init__(self) -> None:
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Do `work` now; the Deferred has fired already."""
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
    """A pretended thread on a fake clock: one thing at a time, in order, each after `delay()` seconds.

    For the simulator, which kills: what has not run at `stop` never runs and its Deferred never fires, just
    as nobody hears the answer of a process that is gone.
    """

    def __init__(self, clock: IClock, delay: Callable[[], float]) -> None:
        self._clock = clock
        self._delay = delay
        self._waiting: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self._next: Any = None
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Do `work` when all that was asked before is done and one more delay has passed."""
        if self._is_stopped:
            return fail(_stopped())
        done: Deferred[T] = Deferred()
        self._waiting.append((work, done))
        if self._next is None:
            self._next = self._clock.callLater(self._delay(), self._step)
        return done

    async def stop(self) -> None:
        """Drop what has not run."""
        self._is_stopped = True
        self._waiting.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _step(self) -> None:
        work, done = self._waiting.popleft()
        self._next = None
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        if self._waiting:
            self._next = self._clock.callLater(self._delay(), self._step)
        if failure is None:
            done.callback(result)
        else:
            done.errback(failure)
