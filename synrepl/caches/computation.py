"""A value on its way, and those who wait for it."""

from collections import OrderedDict
from collections.abc import Generator, Hashable
from typing import Any, Final, Protocol

__all__ = ["AGAIN", "Computation", "IWaiter"]

# What a waiter is told when nobody computes its value any more.
AGAIN: Final = object()


class IWaiter(Protocol):
    """What one caller waits on; Twisted's Deferred is one.

    It is told once. Being told when its caller has just gone away must do no harm.
    """

    def callback(self, value: Any, /) -> object:
        """Its `await` gives this value."""

    def errback(self, error: Any, /) -> object:
        """Its `await` raises this exception."""

    def __await__(self) -> Generator[Any, Any, Any]: ...


class Computation:
    """The value of `key` is being computed by one caller; others wait for the outcome, in order."""

    __slots__ = ("key", "_waiters", "_came")

    def __init__(self, key: tuple[Hashable, ...]) -> None:
        self.key = key
        self._waiters: OrderedDict[int, IWaiter] = OrderedDict()
        self._came = 0

    async def wait(self, waiter: IWaiter) -> Any:
        """The value, or AGAIN if whoever computed it went away; raises what the computation raised."""
        self._came = number = self._came + 1
        self._waiters[number] = waiter
        try:
            return await waiter
        finally:
            # This caller may be going away itself; it is not to be told then.
            self._waiters.pop(number, None)

    # Whoever is told may run at once, ask again, or make another waiter leave: so one at a time.

    def tell(self, value: Any) -> None:
        """Everybody gets this value."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].callback(value)

    def fail(self, error: Exception) -> None:
        """Everybody gets this exception."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].errback(error)

    def hand_over(self) -> None:
        """Everybody asks again: the first of them computes anew, and the others wait for that."""
        self.tell(AGAIN)
