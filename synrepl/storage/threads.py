"""Threads for blocking work: a real thread, and an immediate one."""

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from synrepl.base.turn_queue import TurnQueue
from synrepl.errors import StorageError

T = TypeVar("T")


def stopped_error() -> StorageError:
    """Make the error of work for a stopped thread."""
    return StorageError(op="run", why="the thread was stopped", retryable=True)


class ReactorThread:
    """One real thread next to the reactor's, where results arrive, in each turn for a slice of time.

    The callback of a result may take some milliseconds, such as to encode a page for a follower, and many
    results may arrive at once. The thread starts with the first work and ends with `stop`. A process that
    ends without `stop` does not wait for the thread.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._thread: Thread | None = None
        self._work: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._is_stopped = False
        self._results = TurnQueue(reactor)

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` after all earlier work."""
        if self._is_stopped:
            return fail(stopped_error())
        if self._thread is None:
            # A daemon thread: the interpreter would wait for ever for an idle thread of another kind.
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        result: Deferred[T] = Deferred()
        self._work.put((work, result))
        return result

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, result = item
            try:
                outcome = work()
            except BaseException:
                outcome = Failure()  # type: ignore[no-untyped-call]
            self._reactor.callFromThread(self._deliver, outcome, result)
            # While this waits, a large result must not be kept alive.
            del item, work, result, outcome

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
        last = succeed(None) if self._thread is None else self.run(lambda: None)
        self._is_stopped = True
        await last
        if self._thread is not None:
            self._work.put(None)
            # It has no more work, so that the reactor waits for nothing here.
            self._thread.join()


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
