"""Concurrent callers, in every order that matters."""

import asyncio
from typing import Any

import pytest

from synrepl.caches.registry import CacheRegistry
from tests.caches.fakes import Caller, Cancelled, Waiter, new_registry


class Database:
    """A database of a cached function, which responds when the test says so."""

    def __init__(self, max_entries: int = 10) -> None:
        self.queries: list[Waiter] = []
        self.registry = new_registry()

        @self.registry.cached(max_entries=max_entries)
        async def find(key: str) -> Any:
            answer = Waiter()
            self.queries.append(answer)
            return await answer

        self.find = find

    def call(self, key: str = "a") -> Caller:
        """Call the cached function."""
        return Caller(self.find(key))


def test_callers_of_one_key_share_one_computation() -> None:
    """A thousand requests after a restart are one query."""
    database = Database()
    callers = [database.call() for _ in range(1000)]
    assert len(database.queries) == 1

    database.queries[0].callback(5)

    assert {5} == {caller.outcome for caller in callers}
    info = database.registry.caches["find"]
    assert (999, 1, 1) == (info.hits, info.misses, info.entries)


def test_keys_do_not_wait_for_each_other() -> None:
    """Only callers of one key share a computation."""
    database = Database()
    first, second = database.call("a"), database.call("b")

    database.queries[1].callback(2)

    assert ("waits", 2) == (first.outcome, second.outcome)


def test_a_call_after_an_invalidation_computes_again() -> None:
    """Earlier callers get the old value, which is not kept; later callers do not join them."""
    database = Database()
    before, also_before = database.call(), database.call()

    database.registry.invalidate("find", ("a",))
    after, also_after = database.call(), database.call()
    assert len(database.queries) == 2
    database.queries[0].callback("old")

    assert ["old", "old", "waits", "waits"] == [c.outcome for c in (before, also_before, after, also_after)]
    database.queries[1].callback("new")
    assert ["new", "new"] == [after.outcome, also_after.outcome]
    assert database.call().outcome == "new"


def test_old_result_that_comes_last_is_not_kept() -> None:
    """The newer one was already kept."""
    database = Database()
    old = database.call()
    database.find.invalidate("a")
    database.call()

    database.queries[1].callback("new")
    database.queries[0].callback("old")

    assert old.outcome == "old"
    assert database.call().outcome == "new"


def test_all_callers_get_the_same_exception_and_nothing_is_kept() -> None:
    """The next call retries."""
    database = Database()
    callers = [database.call() for _ in range(3)]
    error = OSError("no database")

    database.queries[0].errback(error)

    assert [error] * 3 == [caller.outcome for caller in callers]
    assert database.registry.caches["find"].entries == 0
    database.call()
    assert len(database.queries) == 2


@pytest.mark.parametrize("how", ["left", "cancelled", "interrupted"])
def test_another_caller_computes_after_the_first_is_cancelled(how: str) -> None:
    """One closed browser tab must not fail the other callers."""
    database = Database()
    first, second, third = [database.call() for _ in range(3)]

    if how == "left":
        first.cancel()
    else:
        first.throw(Cancelled() if how == "cancelled" else asyncio.CancelledError())

    assert ["waits", "waits"] == [second.outcome, third.outcome]
    assert len(database.queries) == 2
    database.queries[1].callback(5)
    assert [5, 5] == [second.outcome, third.outcome]


def test_all_callers_may_be_cancelled_one_after_the_other() -> None:
    """A remaining caller computes; without any, nothing is left behind."""
    database = Database()
    callers = [database.call() for _ in range(3)]

    for caller in callers:
        caller.cancel()

    assert len(database.queries) == 3
    last = database.call()
    assert len(database.queries) == 4
    database.queries[3].callback(5)
    assert last.outcome == 5


def test_a_waiting_caller_may_be_cancelled() -> None:
    """Its waiter is not fired, and the others are not affected."""
    database = Database()
    first, second, third = [database.call() for _ in range(3)]

    second.cancel()
    database.queries[0].callback(5)

    assert [5, "left", 5] == [first.outcome, second.outcome, third.outcome]


def test_a_waiting_caller_may_cancel_the_next_one() -> None:
    """The first to resume cancels the second, whose waiter must not be fired."""
    database = Database()
    outcomes: list[object] = []

    async def cancels_next() -> None:
        outcomes.append(await database.find("a"))
        second.cancel()

    first = database.call()
    Caller(cancels_next())
    second = database.call()
    third = database.call()
    database.queries[0].callback(5)

    assert ([5], 5, "left", 5) == (outcomes, first.outcome, second.outcome, third.outcome)


def test_waiters_of_an_old_computation_join_the_new_one() -> None:
    """They called before the invalidation, but a newer value is as good."""
    database = Database()
    before, waits = database.call(), database.call()
    database.find.invalidate_all()
    after = database.call()

    before.cancel()
    assert len(database.queries) == 2
    database.queries[1].callback("new")

    assert ["new", "new"] == [waits.outcome, after.outcome]


def test_waiters_take_a_value_that_was_kept_meanwhile() -> None:
    """The value is already there when they resume."""
    database = Database()
    before, waits = database.call(), database.call()
    database.find.invalidate_all()
    database.call()
    database.queries[1].callback("new")

    before.cancel()

    assert "new" == waits.outcome
    assert len(database.queries) == 2


def test_a_fired_waiter_may_call_again_at_once() -> None:
    """As callbacks do; the value is in the cache by then."""
    database = Database()
    found: list[object] = []

    async def twice() -> None:
        found.append(await database.find("a"))
        found.append(await database.find("a"))

    database.call()
    Caller(twice())
    database.queries[0].callback(5)

    assert ([5, 5], 1) == (found, len(database.queries))


def test_without_room_computations_are_still_shared() -> None:
    """No value outlives its computation, but one computation serves all its callers."""
    database = Database(max_entries=0)
    callers = [database.call(), database.call()]
    database.queries[0].callback(5)
    later = database.call()

    assert [5, 5, "waits"] == [*(c.outcome for c in callers), later.outcome]
    assert len(database.queries) == 2


def test_nothing_is_looked_up_before_it_is_awaited() -> None:
    """A value that is invalidated between the call and the await is not returned."""
    database = Database()
    database.call()
    database.queries[0].callback("old")

    asked_early = database.find("a")
    database.find.invalidate("a")
    caller = Caller(asked_early)

    assert caller.outcome == "waits"


class Future:
    """A waiter for asyncio."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def callback(self, value: Any) -> None:
        """Fire with a value."""
        if not self._future.done():
            self._future.set_result(value)

    def errback(self, error: BaseException) -> None:
        """Fire with an exception."""
        if not self._future.done():
            self._future.set_exception(error)

    def __await__(self) -> Any:
        return self._future.__await__()


def test_asyncio_futures_are_waiters() -> None:
    """The core depends on no event loop, so any will do, cancelled tasks included."""
    computed: list[str] = []

    async def program() -> list[object]:
        registry = CacheRegistry(waiter=Future)

        @registry.cached()
        async def find(key: str) -> str:
            computed.append(key)
            await asyncio.sleep(0.01)
            return key * 2

        tasks = [asyncio.create_task(find("a")) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        return list(await asyncio.gather(*tasks, find("b"), return_exceptions=True))

    first, second, third, fourth, other = asyncio.run(program())

    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(third, asyncio.CancelledError)
    assert ["aa", "aa", "bb"] == [second, fourth, other]
    assert ["a", "b", "a"] == computed
