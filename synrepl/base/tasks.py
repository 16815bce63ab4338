"""Running coroutines: `Tasks` logs their failures and can cancel them, `Loops` repeats them.

`shielded` lets one go on when its caller is cancelled.
`step_eagerly` needs no Deferred for a coroutine that never waits.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.interfaces import IClock
from synrepl.base.time import Backoff, doubling, sleep
from synrepl.errors import ReplicationError

T = TypeVar("T")

_ENDED: Final = object()


class Tasks:
    """The running coroutines of one object, which log lines call `what`."""

    def __init__(self, logger: Logger, what: str = "task") -> None:
        self._logger = logger
        self._what = what
        # In the order of their start, in which they are cancelled: a simulation can be repeated.
        self._running: dict[Deferred[Any], None] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def is_working(self) -> bool:
        """Whether any coroutine runs."""
        return bool(self._running)

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> "Deferred[T | None]":
        """Run `coro` now, up to its first wait. The Deferred fires with its result, and never fails.

        A failure is logged once, under `name`, and gives None; so does a cancellation, without a log line.
        After `stop` the coroutine does not run, and the result is None.
        """
        if self._is_stopped:
            coro.close()
            return succeed(None)
        running: Deferred[Any] = Deferred.fromCoroutine(coro)
        self._running[running] = None

        def ended(result: Any) -> Any:
            self._running.pop(running, None)
            if isinstance(result, Failure):
                self._log_failed(result, name)
                return None
            return result

        return running.addBoth(ended)

    def _log_failed(self, failure: Failure, name: str) -> None:
        error = failure.value
        if isinstance(error, ReplicationError):
            self._logger.error("{what}: {name} failed: {why}", what=self._what, name=name, why=str(error))
        elif not isinstance(error, CancelledError):
            self._logger.failure("{what}: {name} failed", failure, what=self._what, name=name)

    def cancel_all(self) -> None:
        """Cancel all running coroutines; some may take time to end."""
        for running in list(self._running):
            running.cancel()

    def stop(self) -> None:
        """Cancel all running coroutines, and run no more."""
        self._is_stopped = True
        self.cancel_all()


class Loops(Tasks):
    """Steps that are repeated until they are cancelled; one that fails is retried with backoff.

    `failing` maps the name of each failing loop to its error and when that error began (Unix seconds).
    """

    def __init__(self, clock: IClock, logger: Logger, what: str) -> None:
        super().__init__(logger, what)
        self._clock = clock
        self.failing: dict[str, tuple[str, float]] = {}

    def repeat(self, step: Callable[[], Awaitable[None]], name: str) -> None:
        """Start to repeat a step, which waits until it has work. Logs the first of equal failures."""
        self.start(self._repeat(step, name), name)

    def finish(self, step: Callable[[], Awaitable[None]], name: str) -> None:
        """Start a step, and repeat it only until it succeeds."""
        self.start(self._repeat(step, name, once=True), name)

    async def _repeat(self, step: Callable[[], Awaitable[None]], name: str, *, once: bool = False) -> None:
        backoff = Backoff(doubling(1.0, 60.0))
        while True:
            try:
                await step()
            except CancelledError:
                raise
            except Exception as error:
                text = f"{name}: {error}"
                if self.failing.get(name, ("",))[0] != text:
                    if isinstance(error, ReplicationError):
                        self._logger.error("{what}: {why}; will retry", what=self._what, why=text)
                    else:
                        self._logger.failure("{what}: internal error in {name}", what=self._what, name=name)
                    self.failing[name] = text, self._clock.seconds()
                await sleep(self._clock, backoff.next())
            else:
                backoff.reset()
                if self.failing.pop(name, None):
                    self._logger.info("{what}: {name} works again", what=self._what, name=name)
                if once:
                    return


def shielded(coroutine: Coroutine[Any, Any, T]) -> "Deferred[T]":
    """Run a coroutine to its end, even if the returned Deferred is cancelled."""
    result: Deferred[T] = Deferred()
    Deferred.fromCoroutine(coroutine).chainDeferred(result)
    return result


def step_eagerly(coroutine: Coroutine[Any, Any, None]) -> "Deferred[None] | None":
    """Run a coroutine up to its first wait. Return None if it ended, as most do, or the rest to await."""
    # `next` with a default takes half the time of `send`, which ends with an exception.
    first = next(coroutine.__await__(), _ENDED)
    return None if first is _ENDED else Deferred.fromCoroutine(_drive(coroutine, first))


def _drive(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            # Closed, not thrown into: the garbage collector may already have closed the coroutine.
            coroutine.close()
            raise
        except BaseException as error:
            step: Callable[[], Any] = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, answer)
        try:
            waits_for = step()
        except StopIteration:
            return
