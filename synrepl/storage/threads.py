"""Threads for blocking work: a real thread, and an immediate one."""

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from synrepl.errors import StorageError
from synrepl.ports.turn_queue import TurnQueue

T = TypeVar("T")


def stopped_error() -> StorageError:
    """Make the error of work for a stopped thread."""
    return StorageError(op="run", why="the thread was stopped", retryable=True)


class ReactorThread:
    """One real thread next to the reactor's, where results arrive, in each turn for a slice of time.

    What waits for a result may work for some milliseconds, such as to encode a page for a follower, and many
    results may arrive at once. The thread starts with the first work and ends with `stop`. A process that
    ends without `stop` does not wait for the thread.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(1, 1, name=name)
        # A daemon thread: the interpreter would wait for ever for an idle thread of another kind.
        self._pool.threadFactory = partial(Thread, daemon=True)  # type: ignore[assignment]
        self._is_stopped = False
        self._results = TurnQueue(reactor)

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` after all earlier work."""
        if self._is_stopped:
            return fail(stopped_error())
        if not self._pool.started:
            self._pool.start()
        result: Deferred[T] = Deferred()
        deferToThreadPool(self._reactor, self._pool, work).addBoth(self._deliver, result)
        return result

    def _deliver(self, outcome: Any, result: "Deferred[Any]") -> None:
        deliver = partial(result.callback, outcome)
        if self._results.has_time:
            self._results.run(deliver)
        else:
            self._results.run_later(deliver)

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
    """No thread: work runs inside `run`. For tests, and for callers that may block, such as tools."""

    def __init__(self) -> None:
        self._is_stopped = False

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` now; the Deferred has fired already."""
        if self._is_stopped:
            return fail(stopped_error())
        try:
            return succeed(work())
        except Exception as error:
            return fail(error)

    async def stop(self) -> None:
        """Refuse any further work."""
        self._is_stopped = True
