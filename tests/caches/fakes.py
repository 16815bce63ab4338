"""Callers that are run by hand, and what they wait on: every order of events can be played."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from synrepl.caches import CacheRegistry
from synrepl.caches.vintage import Vintage
from synrepl.caches.vintages.release_1_163 import NEWEST


class Waiter:
    """Waits until told, and goes on at once then, as Twisted's Deferred does."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self._outcome: tuple[str, Any] | None = None

    def callback(self, value: Any) -> None:
        """Tells a value."""
        self._tell("value", value)

    def errback(self, error: BaseException) -> None:
        """Tells an exception."""
        self._tell("error", error)

    def _tell(self, kind: str, what: Any) -> None:
        assert self._outcome is None, "told twice"
        self._outcome = (kind, what)
        if self.caller is not None:
            self.caller.go_on()

    def __await__(self) -> Generator["Waiter", None, Any]:
        if self._outcome is None:
            yield self
        assert self._outcome is not None
        kind, what = self._outcome
        if kind == "error":
            raise what
        return what


class Caller:
    """Runs a coroutine as far as it goes; afterwards `outcome` is a value or an exception."""

    def __init__(self, coroutine: Coroutine[Any, None, Any]) -> None:
        self._coroutine = coroutine
        self.outcome: Any = "waits"
        self.go_on()

    def go_on(self) -> None:
        """What it waited for has come."""
        self._run(lambda: self._coroutine.send(None))

    def throw(self, error: BaseException) -> None:
        """What it waited for is no more."""
        self._run(lambda: self._coroutine.throw(error))

    def leave(self) -> None:
        """Nobody wants the outcome any more."""
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
    """Thrown into callers that are to go away."""


def new_registry(vintage: Vintage = NEWEST) -> CacheRegistry:
    """A registry whose callers can be run by hand."""
    return CacheRegistry(waiter=Waiter, vintage=vintage, abandoned=(GeneratorExit, Cancelled))
