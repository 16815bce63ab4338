"""A caller's own transaction, and what is to happen when it has ended."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.python.failure import Failure

__all__ = ["ICursor", "IPool", "ITransaction", "Transaction", "transact"]

T = TypeVar("T")


class ICursor(Protocol):
    """As much of a DB-API cursor as is used here."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class ITransaction(ICursor, Protocol):
    """A cursor inside a transaction that tells when that has ended, and how.

    `Transaction` is one; so is the `LoggingTransaction` that a homeserver's own store hands to its functions.
    """

    def call_after(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call this after the transaction was committed."""

    def call_on_exception(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call this after the transaction was rolled back."""


class IPool(Protocol):
    """Runs functions in transactions, outside the reactor's thread:
    `twisted.enterprise.adbapi.ConnectionPool` is one. The function is given a cursor; when it returns the
    transaction is committed, when it raises, rolled back.
    """

    def runInteraction(self, work: Callable[..., T], /, *args: Any) -> Awaitable[T]: ...


class Transaction:
    """A cursor of a pool's transaction as an `ITransaction`."""

    def __init__(self, cursor: ICursor) -> None:
        self._cursor = cursor
        self._after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._on_exception: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.execute = cursor.execute
        self.fetchone = cursor.fetchone
        self.fetchall = cursor.fetchall

    def call_after(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call this after the transaction was committed."""
        self._after.append((callback, args))

    def call_on_exception(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call this after the transaction was rolled back."""
        self._on_exception.append((callback, args))

    def ended(self, *, committed: bool) -> None:
        """Call what was to be called. All of it is, even if one raises; the first error is raised then."""
        failure: Exception | None = None
        for callback, args in self._after if committed else self._on_exception:
            try:
                callback(*args)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


def transact(
    pool: IPool, work: Callable[[Transaction], T], *, unheard: Callable[[T], object] = lambda result: None
) -> "Deferred[T]":
    """Run `work` in a transaction of the pool, and what it asked for once that has ended.

    Calling it off is no end: the thread goes on, and may yet commit. What follows the end follows the real
    one, and the result goes to `unheard`; whoever called it off hears `CancelledError` only then, since what
    it does next may rely on the end.
    """
    opened: list[Transaction] = []

    def run(cursor: ICursor) -> T:
        # A pool may run it again after a lost connection: what the first try asked for was rolled back.
        opened.append(Transaction(cursor))
        return work(opened[-1])

    async def whole() -> T:
        try:
            result = await pool.runInteraction(run)
        except BaseException:
            for transaction in opened:
                transaction.ended(committed=False)
            raise
        for transaction in opened[:-1]:
            transaction.ended(committed=False)
        opened[-1].ended(committed=True)
        return result

    def call_off(told: "Deferred[T]") -> None:
        told.pause()
        told.errback(CancelledError())

    told: Deferred[T] = Deferred(call_off)

    def tell(result: T) -> None:
        if told.called:
            unheard(result)
            told.unpause()
        else:
            told.callback(result)

    def fail(failure: Failure) -> None:
        if told.called:
            told.unpause()
        else:
            told.errback(failure)

    ensureDeferred(whole()).addCallbacks(tell, fail)
    return told
