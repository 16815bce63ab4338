"""What follows the end of a transaction, over pools that are spoken by hand."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from synrepl.ids.transactions import Transaction, transact

T = TypeVar("T")


class Cursor:
    """Takes any statement."""

    def execute(self, statement: str, *parameters: Any) -> None:
        pass

    def fetchone(self) -> Any:
        return None

    def fetchall(self) -> list[Any]:
        return []


class Pool:
    """Runs what it is given as often as `tries` says, as one whose connection was lost does; `fails` at the
    end."""

    def __init__(self, tries: int = 1, fails: Exception | None = None) -> None:
        self.tries = tries
        self.fails = fails

    async def runInteraction(self, work: Callable[..., T], /, *args: Any) -> T:
        results = [work(Cursor(), *args) for _ in range(self.tries)]
        if self.fails is not None:
            raise self.fails
        return results[-1]


class Setup:
    """A transaction, and what was called after it."""

    def __init__(self) -> None:
        self.tries = 0
        self.called: list[str] = []

    def work(self, transaction: Transaction) -> int:
        self.tries += 1
        transaction.call_after(self.called.append, f"committed {self.tries}")
        transaction.call_on_exception(self.called.append, f"rolled back {self.tries}")
        return self.tries


def result_of(asked: "Deferred[Any]") -> Any:
    """What it gives, now."""
    results: list[Any] = []
    ensureDeferred(asked).addBoth(results.append)
    return results[0]


def test_a_try_that_was_lost_was_rolled_back() -> None:
    """The pool tried again on another connection: ids of the first try have no rows, and never will."""
    setup = Setup()

    assert 2 == result_of(transact(Pool(tries=2), setup.work))

    assert ["rolled back 1", "committed 2"] == setup.called


def test_all_tries_of_one_that_failed_were_rolled_back() -> None:
    """Nothing of it was committed."""
    setup = Setup()

    failure = result_of(transact(Pool(tries=2, fails=OSError("away")), setup.work))

    assert failure.check(OSError)
    assert ["rolled back 1", "rolled back 2"] == setup.called


def test_everything_is_called_even_if_something_fails() -> None:
    """Ids of one generator must not stay unfinished since another one failed; the first error is told."""
    called: list[str] = []
    transaction = Transaction(Cursor())

    def fail(why: str) -> None:
        called.append(why)
        raise ValueError(why)

    for why in ("first", "second"):
        transaction.call_after(fail, why)
    transaction.call_after(called.append, "third")

    with pytest.raises(ValueError, match="first"):
        transaction.run_callbacks(committed=True)
    assert ["first", "second", "third"] == called
