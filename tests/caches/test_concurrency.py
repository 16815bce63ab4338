"""Several callers at once, in every order that matters."""

import asyncio
from typing import Any

import pytest

from synrepl.caches import CacheRegistry
from tests.caches.fakes import Caller, Cancelled, Waiter, new_registry


class Database:
    """Answers when told to; a cached function asks it."""

    def __init__(self, max_entries: int = 10) -> None:
        self.asked: list[Waiter] = []
        self.registry = new_registry()

        @self.registry.cached(max_entries=max_entries)
        async def find(key: str) -> Any:
            answer = Waiter()
            self.asked.append(answer)
            return await answer

        self.find = find

    def call(self, key: str = "a") -> Caller:
        """Somebody asks."""
        return Caller(self.find(key))


def test_callers_of_one_key_share_one_computation() -> None:
    """A thousand requests after a restart are one query."""
    database = Database()
    callers = [database.call() for _ in range(1000)]
    assert len(database.asked) == 1

    database.asked[0].callback(5)

    assert {5} == {caller.outcome for caller in callers}
    info = database.registry.caches["find"]
    assert (999, 1, 1) == (info.hits, info.misses, info.entries)


def test_keys_do_not_wait_for_each_other() -> None:
    """Only those who ask the same wait for the same."""
    database = Database()
    first, second = database.call("a"), database.call("b")

    database.asked[1].callback(2)

    assert ("waits", 2) == (first.outcome, second.outcome)


def test_who_asks_after_an_invalidation_computes_anew() -> None:
    """Those before it are given what they asked for; it is not kept, and later ones do not join them."""
    database = Database()
    before, also_before = database.call(), database.call()

    database.registry.invalidate("find", ("a",))
    after, also_after = database.call(), database.call()
    assert len(database.asked) == 2
    database.asked[0].callback("old")

    assert ["old", "old", "waits", "waits"] == [c.outcome for c in (before, also_before, after, also_after)]
    database.asked[1].callback("new")
    assert ["new", "new"] == [after.outcome, also_after.outcome]
    assert database.call().outcome == "new"


def test_old_result_that_comes_last_is_not_kept() -> None:
    """The newer one has been kept already."""
    database = Database()
    old = database.call()
    database.find.invalidate("a")
    database.call()

    database.asked[1].callback("new")
    database.asked[0].callback("old")

    assert old.outcome == "old"
    assert database.call().outcome == "new"


def test_everybody_gets_the_same_exception_and_nothing_is_kept() -> None:
    """The next one tries again."""
    database = Database()
    callers = [database.call() for _ in range(3)]
    error = OSError("no database")

    database.asked[0].errback(error)

    assert [error] * 3 == [caller.outcome for caller in callers]
    assert database.registry.caches["find"].entries == 0
    database.call()
    assert len(database.asked) == 2


@pytest.mark.parametrize("how", ["left", "cancelled", "interrupted"])
def test_when_the_first_caller_goes_away_another_computes(how: str) -> None:
    """That one browser tab was closed is no reason to fail the others."""
    database = Database()
    first, second, third = [database.call() for _ in range(3)]

    if how == "left":
        first.leave()
    else:
        first.throw(Cancelled() if how == "cancelled" else asyncio.CancelledError())

    assert ["waits", "waits"] == [second.outcome, third.outcome]
    assert len(database.asked) == 2
    database.asked[1].callback(5)
    assert [5, 5] == [second.outcome, third.outcome]


def test_all_may_go_away_one_after_the_other() -> None:
    """Whoever is left computes; when nobody is, nothing is left behind."""
    database = Database()
    callers = [database.call() for _ in range(3)]

    for caller in callers:
        caller.leave()

    assert len(database.asked) == 3
    last = database.call()
    assert len(database.asked) == 4
    database.asked[3].callback(5)
    assert last.outcome == 5


def test_a_waiting_caller_may_go_away() -> None:
    """It is not told any more, and the others do not notice."""
    database = Database()
    first, second, third = [database.call() for _ in range(3)]

    second.leave()
    database.asked[0].callback(5)

    assert [5, "left", 5] == [first.outcome, second.outcome, third.outcome]


def test_a_waiting_caller_may_make_the_next_one_go_away() -> None:
    """The first to be told closes the second: that one must not be told then."""
    database = Database()
    outcomes: list[object] = []

    async def told() -> None:
        outcomes.append(await database.find("a"))
        second.leave()

    first = database.call()
    Caller(told())
    second = database.call()
    third = database.call()
    database.asked[0].callback(5)

    assert ([5], 5, "left", 5) == (outcomes, first.outcome, second.outcome, third.outcome)


def test_heirs_of_an_old_computation_join_the_new_one() -> None:
    """They asked before the invalidation, but what is newer is as good."""
    database = Database()
    before, waits = database.call(), database.call()
    database.find.invalidate_all()
    after = database.call()

    before.leave()
    assert len(database.asked) == 2
    database.asked[1].callback("new")

    assert ["new", "new"] == [waits.outcome, after.outcome]


def test_heirs_take_what_is_kept_meanwhile() -> None:
    """The value is there already when they are woken."""
    database = Database()
    before, waits = database.call(), database.call()
    database.find.invalidate_all()
    database.call()
    database.asked[1].callback("new")

    before.leave()

    assert "new" == waits.outcome
    assert len(database.asked) == 2


def test_who_is_told_may_ask_again_at_once() -> None:
    """As callbacks do; what they ask is answered from the cache by then."""
    database = Database()
    found: list[object] = []

    async def twice() -> None:
        found.append(await database.find("a"))
        found.append(await database.find("a"))

    database.call()
    Caller(twice())
    database.asked[0].callback(5)

    assert ([5, 5], 1) == (found, len(database.asked))


def test_without_room_computations_are_still_shared() -> None:
    """No value outlives its computation, but one computation serves all who wait for it."""
    database = Database(max_entries=0)
    callers = [database.call(), database.call()]
    database.asked[0].callback(5)
    later = database.call()

    assert [5, 5, "waits"] == [*(c.outcome for c in callers), later.outcome]
    assert len(database.asked) == 2


def test_nothing_is_looked_up_before_it_is_awaited() -> None:
    """What was invalidated between the call and the await is not given."""
    database = Database()
    database.call()
    database.asked[0].callback("old")

    asked_early = database.find("a")
    database.find.invalidate("a")
    caller = Caller(asked_early)

    assert caller.outcome == "waits"


class Future:
    """How asyncio waits."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def callback(self, value: Any) -> None:
        """Tells a value."""
        if not self._future.done():
            self._future.set_result(value)

    def errback(self, error: BaseException) -> None:
        """Tells an exception."""
        if not self._future.done():
            self._future.set_exception(error)

    def __await__(self) -> Any:
        return self._future.__await__()


def test_asyncio_can_be_waited_with() -> None:
    """The core knows no event loop, so every one will do: cancelled tasks included."""
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
