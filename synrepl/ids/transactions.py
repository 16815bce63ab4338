"""Transactions with callbacks for their end."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.python.failure import Failure

from synrepl.storage.worker_database import ICursor

T = TypeVar("T")


class ITransaction(ICursor, Protocol):
    """A cursor inside a transaction, with callbacks for the transaction's end.

    `Transaction` implements it; so does the `LoggingTransaction` of a homeserver's own store.
    """

    def call_after(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call `callback` after the transaction is committed."""

    def call_on_exception(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call `callback` after the transaction failed, which includes a commit of unknown outcome."""


class IPool(Protocol):
    """Runs functions in transactions, outside the reactor's thread, as adbapi's `ConnectionPool` does.

    The function gets a cursor. Its return commits the transaction; an exception rolls it back.
    """

    def runInteraction(self, work: Callable[..., T], /, *args: Any) -> Awaitable[T]: ...


class Transaction:
    """An `ITransaction` for a cursor of a pool's transaction."""

    def __init__(self, cursor: ICursor) -> None:
        self._after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._on_exception: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.execute = cursor.execute
        self.fetchone = cursor.fetchone
        self.fetchall = cursor.fetchall

    def call_after(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call `callback` after the transaction is committed."""
        self._after.append((callback, args))

    def call_on_exception(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call `callback` after the transaction failed, which includes a commit of unknown outcome."""
        self._on_exception.append((callback, args))

    def run_callbacks(self, *, committed: bool) -> None:
        """Run all callbacks for this end, even if one raises; then raise the first error."""
        failure: Exception | None = None
        for callback, args in self._after if committed else self._on_exception:
            try:
                callback(*args)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


def transact(
    pool: IPool,
    work: Callable[[Transaction], T],
    *,
    on_abandoned: Callable[[T], object] = lambda result: None,
) -> "Deferred[T]":
    """Run `work` in a transaction of the pool, then the callbacks that it registered for the end.

    `pool` is an adbapi `ConnectionPool` or alike. `work` gets a `Transaction`, in the pool's thread. The
    Deferred fires in the reactor's thread with the result of `work`. It fails with the error of the pool, of
    `work` (then the transaction is rolled back), of the commit or of a callback::

        token = await synrepl.transact(pool, insert)

    Cancelling does not stop the transaction: its thread goes on and may still commit. The callbacks follow
    its real end, and a result goes to `on_abandoned`. Only then the Deferred fails with `CancelledError`,
    since the caller may rely on the end.
    """
    opened: list[Transaction] = []

    def run(cursor: ICursor) -> T:
        # A pool may run it again after a lost connection; the first attempt was rolled back.
        opened.append(Transaction(cursor))
        return work(opened[-1])

    async def whole() -> T:
        try:
            outcome = await pool.runInteraction(run)
        except BaseException:
            for transaction in opened:
                transaction.run_callbacks(committed=False)
            raise
        for transaction in opened[:-1]:
            transaction.run_callbacks(committed=False)
        opened[-1].run_callbacks(committed=True)
        return outcome

    def cancel(result: "Deferred[T]") -> None:
        result.pause()
        result.errback(CancelledError())

    result: Deferred[T] = Deferred(cancel)

    def succeed(value: T) -> None:
        if result.called:
            on_abandoned(value)
            result.unpause()
        else:
            result.callback(value)

    def fail(failure: Failure) -> None:
        if result.called:
            result.unpause()
        else:
            result.errback(failure)

    ensureDeferred(whole()).addCallbacks(succeed, fail)
    return result
