"""A guard of the table of threads in `synrepl/storage/engine.py`: what it does not allow is refused."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from synrepl.base.interfaces import IThread
from synrepl.storage.engine import SQLEngine

T = TypeVar("T")

REACTOR, READING, WRITING = "reactor", "reading", "writing"

PARTS: Final = ("database", "leases", "notes", "pages", "receipts")
"""What of an engine has functions of its own."""


def thread_of(function: str) -> str:
    """The thread that may call this function of the engine of a log."""
    match function.split("."):
        case ["database", "disk_usage"] | ["staging"]:
            return REACTOR
        case ["pages", name]:
            return WRITING if name == "size" else READING
        case ["digest_at" | "check"] | ["receipts", "between"]:
            return READING
    return WRITING


class ThreadGuard:
    """The two threads of a log, which may be one in truth, and what was called from the wrong one."""

    def __init__(self, inner: IThread) -> None:
        self.current = REACTOR
        self.violations: list[str] = []
        self.writing, self.reading = GuardedThread(self, inner, WRITING), GuardedThread(self, inner, READING)

    def engine(self, engine: SQLEngine, thread_of: Callable[[str], str] = thread_of) -> SQLEngine:
        """This engine, as the log of these threads gets it."""
        return cast(SQLEngine, _Guarded(self, engine, thread_of, ""))

    def check(self, function: str, thread: str) -> None:
        """Raises `AssertionError`. The log may take it for a failure of the database: so it is noted too."""
        if self.current != thread:
            self.violations.append(f"{function} is for the {thread} thread, not for the {self.current}")
            raise AssertionError(self.violations[-1])


class GuardedThread:
    """A thread of a log, which says that it runs."""

    def __init__(self, guard: ThreadGuard, inner: IThread, name: str) -> None:
        self._guard = guard
        self._inner = inner
        self._name = name

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        def guarded() -> T:
            before, self._guard.current = self._guard.current, self._name
            try:
                return work()
            finally:
                self._guard.current = before

        return self._inner.run(guarded)

    def stop(self) -> Awaitable[None]:
        return self._inner.stop()


class _Guarded:
    """An engine, or a part of one."""

    def __init__(self, guard: ThreadGuard, inner: Any, thread_of: Callable[[str], str], prefix: str) -> None:
        self._guard, self._inner, self._thread_of, self._prefix = guard, inner, thread_of, prefix

    def __getattr__(self, name: str) -> Any:
        found, function = getattr(self._inner, name), self._prefix + name
        if function in PARTS:
            return _Guarded(self._guard, found, self._thread_of, f"{function}.")
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._guard.check(function, self._thread_of(function))
            result = found(*args, **options)
            if isinstance(result, SQLEngine):
                return self._guard.engine(result, lambda _: WRITING)  # that of a staged copy
            return result

        return call
