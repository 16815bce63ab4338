"""Computations in progress, and the callers that wait for them."""

from collections import OrderedDict
from collections.abc import Generator, Hashable
from typing import Any, Final, Protocol

__all__ = ["AGAIN", "Computation", "IWaiter"]

# The result for a waiter whose computation was abandoned: look up again.
AGAIN: Final = object()


class IWaiter(Protocol):
    """An awaitable of one caller; Twisted's Deferred is one.

    It is fired once, and firing it after its caller was cancelled must do no harm.
    """

    def callback(self, value: Any, /) -> object:
        """Make its `await` return this value."""

    def errback(self, error: Any, /) -> object:
        """Make its `await` raise this exception."""

    def __await__(self) -> Generator[Any, Any, Any]: ...


class Computation:
    """The computation of `key` by one caller; other callers wait for its result, in order."""

    __slots__ = ("key", "_waiters", "_last_number")

    def __init__(self, key: tuple[Hashable, ...]) -> None:
        self.key = key
        self._waiters: OrderedDict[int, IWaiter] = OrderedDict()
        self._last_number = 0

    async def wait(self, waiter: IWaiter) -> Any:
        """Wait for the value; AGAIN if the computing caller went away. Raises the computation's exception."""
        self._last_number = number = self._last_number + 1
        self._waiters[number] = waiter
        try:
            return await waiter
        finally:
            # If this caller is being cancelled, its waiter must not be fired.
            self._waiters.pop(number, None)

    # A waiter may resume at once, call again, or cancel another waiter, so they are fired one at a time.

    def resolve(self, value: Any) -> None:
        """Give this value to all waiters."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].callback(value)

    def fail(self, error: Exception) -> None:
        """Raise this exception in all waiters."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].errback(error)

    def retry(self) -> None:
        """Let all waiters look up again: the first computes the value, and the others wait for it."""
        self.resolve(AGAIN)
