"""Callers and waiters that are run by hand, so that tests can play every order of events."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Vintage
from synrepl.wire import dialect

LEGACY = Vintage.of(dialect.LEGACY)
NEWEST = Vintage.of(dialect.NEWEST)


class Waiter:
    """Waits until it is fired, and then resumes at once, as Twisted's Deferred does."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self._outcome: tuple[str, Any] | None = None

    def callback(self, value: Any) -> None:
        """Fire with a value."""
        self._tell("value", value)

    def errback(self, error: BaseException) -> None:
        """Fire with an exception."""
        self._tell("error", error)

    def _tell(self, kind: str, what: Any) -> None:
        assert self._outcome is None, "told twice"
        self._outcome = (kind, what)
        if self.caller is not None:
            self.caller.resume()

    def __await__(self) -> Generator["Waiter", None, Any]:
        if self._outcome is None:
            yield self
        assert self._outcome is not None
        kind, what = self._outcome
        if kind == "error":
            raise what
        return what


class Caller:
    """Runs a coroutine until it waits; at its end `outcome` is a value or an exception."""

    def __init__(self, coroutine: Coroutine[Any, None, Any]) -> None:
        self._coroutine = coroutine
        self.outcome: Any = "waits"
        self.resume()

    def resume(self) -> None:
        """Continue with the value that it waited for."""
        self._run(lambda: self._coroutine.send(None))

    def throw(self, error: BaseException) -> None:
        """Continue with an exception."""
        self._run(lambda: self._coroutine.throw(error))

    def cancel(self) -> None:
        """Cancel the caller."""
        self._coroutine.close()
        self.outcome = "left"

    def _run(self, step: Callable[[], Waiter]) -> None:
        try:
            step().caller = self
        except StopIteration as done:
            self.outcome = done.value
        except BaseException as error:
            self.outcome = error


class Cancelled(Exception):
    """Thrown into callers to cancel them."""


def new_registry(vintage: Vintage | None = NEWEST) -> CacheRegistry:
    """A registry whose callers can be run by hand."""
    return CacheRegistry(waiter=Waiter, vintage=vintage, abandoned=(GeneratorExit, Cancelled))
