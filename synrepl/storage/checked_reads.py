"""Reads of a log, whose failures make it unhealthy until the same reads work again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock, IEngine, IThread
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Timer
from synrepl.storage.append_errors import InvalidValue, LogLost
from synrepl.storage.health import Probe, ReadHealth

__all__ = ["CheckedReads"]

T = TypeVar("T")


class CheckedReads:
    """Runs reads in the reading thread, retries failed ones, and checks that the log still is this process's.

    `on_lost` gets the error if it is not.
    """

    def __init__(
        self,
        engine: IEngine,
        thread: IThread,
        clock: IClock,
        *,
        on_lost: Callable[[LogLost], None],
        logger: Logger,
    ) -> None:
        self.health = ReadHealth(clock.seconds)
        self._thread = thread
        self._clock = clock
        self._engine = engine
        self._on_lost = on_lost
        self._logger = logger
        self._tasks = Tasks(logger, "log")
        self._is_open = False
        self._is_checking = False
        self._timer = Timer(clock, self._start_check)
        self._waiters: list[Deferred[None]] | None = None

    def open(self) -> None:
        """Check the log from now on."""
        self._is_open = True
        self._check_later(self.health.next_check_seconds)

    def close(self) -> None:
        """Stop the checks."""
        self._is_open = False
        self._timer.stop()

    def run(self, kind: str, work: Callable[[], T], *, thread: IThread | None = None) -> "Deferred[T]":
        """Run a read, in the reading thread by default.

        A failure makes the log unhealthy until a read of this kind works.
        """

        def probe() -> "Deferred[T]":
            return Deferred.fromCoroutine(self._run_now(thread or self._thread, work))

        async def read() -> T:
            try:
                return await probe()
            except InvalidValue:
                raise
            except StorageError as error:
                self.record_failure(kind, error, probe)
                raise

        return Deferred.fromCoroutine(read())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let reads wait while the log is replaced. Reads that run already go on."""
        waiting: list[Deferred[None]] = []
        self._waiters = waiting
        try:
            yield
        finally:
            self._waiters = None
            for waiter in waiting:
                waiter.callback(None)

    async def _run_now(self, thread: IThread, work: Callable[[], T]) -> T:
        while self._waiters is not None and thread is self._thread:
            waiter: Deferred[None] = Deferred()
            self._waiters.append(waiter)
            await waiter
        return await thread.run(work)

    def record_failure(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """Record a failed read; `probe` repeats it."""
        if not self._is_open:
            return
        if isinstance(error, LogLost):
            self._on_lost(error)
            return
        was_readable = not self.health.why
        self.health.record_failure(kind, error, probe)
        if was_readable and self.health.why:
            self._logger.error("the log cannot be read: {why}", why=self.health.why)
        self._check_soon(self.health.next_check_seconds)

    def retry_soon(self) -> None:
        """Retry the failed reads at once: a commit succeeded."""
        if self.health.probes:
            self._check_soon(0)

    def _check_soon(self, seconds: float) -> None:
        if self._is_open and not self._is_checking:
            self._timer.start_within(seconds)

    def _check_later(self, seconds: float) -> None:
        if self._is_open:
            self._timer.start(seconds)

    def _start_check(self) -> None:
        self._tasks.start(self._check_log(), "checking the log")

    async def _check_log(self) -> None:
        self._is_checking = True
        was_readable = not self.health.why
        try:
            for kind, probe in self.health.probes:
                await self._retry(kind, probe)
            if "check" not in dict(self.health.probes):
                await self.run("check", self._engine.check)
        except StorageError:
            pass  # `run` has recorded the failure
        finally:
            self._is_checking = False
            if not was_readable and not self.health.why:
                self._logger.info("the log is readable again")
            self._check_later(self.health.next_check_seconds)

    async def _retry(self, kind: str, probe: Probe) -> None:
        try:
            await probe()
        except StorageError as error:
            self.record_failure(kind, error, probe)
        else:
            self.health.record_success(kind)
