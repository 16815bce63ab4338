"""Reads of a log: a failed one makes the log unhealthy until a retry of the same read works.

Only the same read clears a failure: another one may touch other pages of the database. A failure that may
pass by itself (`retryable`) counts only if the retry fails too.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.gate import Gate
from synrepl.base.interfaces import IClock, IThread
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import StorageError
from synrepl.storage.append_errors import InvalidValue, LogNotOurs
from synrepl.storage.engine import SQLEngine

T = TypeVar("T")

CHECK_SECONDS: Final = 5.0
"""How often the log is checked and failed reads are retried, in seconds."""

RETRY_SOON_SECONDS: Final = 1.0
"""How soon a read with a retryable failure is retried, in seconds."""

Probe = Callable[[], Awaitable[object]]
"""Repeats the failed read."""


class FailingRead(msgspec.Struct):
    """A failed read. Without `probe` it is not retried. `is_sure`: not retryable, or its retry failed too."""

    why: str
    since: float
    is_sure: bool
    is_retryable: bool
    probe: Probe | None


class ReadHealth:
    """The state of reads. `failing` has one failed read of each failing kind, until that read works."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.failing: dict[str, FailingRead] = {}

    def record_failure(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """Record that a read of this kind, or the retry of one (`probe`), has failed."""
        known = self.failing.get(kind)
        if known is None:
            since, sure = self._seconds(), not error.retryable
            self.failing[kind] = FailingRead(str(error), since, sure, error.retryable, probe)
        elif known.probe is probe:
            known.why, known.is_sure, known.is_retryable = str(error), True, error.retryable
        elif not error.retryable and not known.is_sure:
            self.failing[kind] = FailingRead(str(error), known.since, True, False, probe)

    @property
    def probes(self) -> list[tuple[str, Probe]]:
        """The reads to retry."""
        return [(kind, one.probe) for kind, one in self.failing.items() if one.probe is not None]

    @property
    def why(self) -> str:
        """The sure failure (`FailingRead.is_sure`) that has lasted longest; empty if there is none."""
        return self._worst.why if self._worst is not None else ""

    @property
    def since(self) -> float:
        """When the failure of `why` was first seen; now if there is none."""
        return self._worst.since if self._worst is not None else self._seconds()

    @property
    def next_check_seconds(self) -> float:
        """How soon to check again, in seconds."""
        may_pass = any(one.is_retryable and one.probe is not None for one in self.failing.values())
        return RETRY_SOON_SECONDS if may_pass else CHECK_SECONDS

    @property
    def _worst(self) -> FailingRead | None:
        return next((one for one in self.failing.values() if one.is_sure), None)


class CheckedReads:
    """Runs reads in the reading thread, or in the thread that is given with one. A failed read raises, and is
    repeated in the background until it works, so that `health` is correct. Also checks that the log still
    belongs to this process; `on_not_ours` gets the error if it does not.
    """

    def __init__(
        self,
        engine: SQLEngine,
        thread: IThread,
        clock: IClock,
        *,
        on_not_ours: Callable[[LogNotOurs], None],
        logger: Logger,
    ) -> None:
        self.health = ReadHealth(clock.seconds)
        self._thread = thread
        self._engine = engine
        self._on_not_ours = on_not_ours
        self._logger = logger
        self._tasks = Tasks(logger, "log")
        self._is_open = False
        self._is_checking = False
        self._timer = Timer(clock, lambda: self._tasks.start(self._check_log(), "checking the log"))
        self._gate = Gate()

    def open(self) -> None:
        """Check the log from now on."""
        self._is_open = True
        self._check_soon(self.health.next_check_seconds)

    def close(self) -> None:
        """Stop the checks."""
        self._is_open = False
        self._timer.stop()

    def run(self, kind: str, work: Callable[[], T], *, thread: IThread | None = None) -> "Deferred[T]":
        """Run a read, in the reading thread by default.

        A `StorageError` other than `InvalidValue` is recorded; the read is retried while the log is ours.
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
        """Let reads in the reading thread wait while the log is replaced. Reads that run already go on."""
        self._gate.close()
        try:
            yield
        finally:
            self._gate.open()

    async def _run_now(self, thread: IThread, work: Callable[[], T]) -> T:
        while not self._gate.is_open and thread is self._thread:
            await self._gate.wait_open()
        return await thread.run(work)

    def record_failure(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """Record a failed read, unless the checks are closed. `probe` repeats the read; None: no retry."""
        if not self._is_open:
            return
        if isinstance(error, LogNotOurs):
            self._on_not_ours(error)
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
            self._check_soon(self.health.next_check_seconds)

    async def _retry(self, kind: str, probe: Probe) -> None:
        try:
            await probe()
        except StorageError as error:
            self.record_failure(kind, error, probe)
        else:
            self.health.failing.pop(kind, None)
