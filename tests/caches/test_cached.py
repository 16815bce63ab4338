"""Functions and methods with a cache behind them."""

import copy
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from synrepl.caches.entries import IWaiter
from synrepl.caches.registry import CacheRegistry
from synrepl.errors import ConfigError
from tests.caches.fakes import NEWEST, Caller, Waiter, new_registry


def test_value_is_computed_once_for_each_key() -> None:
    """The purpose of a cache."""
    registry = new_registry()
    computed: list[int] = []

    @registry.cached()
    def double(number: int) -> int:
        """Twice as much."""
        computed.append(number)
        return 2 * number

    assert [2, 4, 2] == [double(1), double(2), double(1)]
    assert [1, 2] == computed
    assert ("double", "double", "Twice as much.") == (double.name, double.__name__, double.__doc__)
    assert double.__wrapped__(3) == 6


def test_one_call_has_one_key_however_it_is_written() -> None:
    """Else it would be computed, and have to be invalidated, several times."""
    registry = new_registry()
    computed: list[tuple[object, ...]] = []

    @registry.cached()
    def find(room: str, /, limit: int = 10, *, newest: bool = True, before: str | None = None) -> int:
        computed.append((room, limit, newest, before))
        return len(computed)

    assert {1} == {
        find("!r"), find("!r", 10), find("!r", limit=10), find("!r", before=None, newest=True),
        find("!r", 10, before=None),
    }  # fmt: skip
    assert [2, 2] == [find("!r", 11), find("!r", limit=11)]
    find.invalidate("!r", limit=10)
    assert [3, 2] == [find("!r"), find("!r", 11)]
    assert ("!r", 10, True, None) == computed[0]


@pytest.mark.parametrize("arguments", [(), ("a", 1), ("a", 1, 2, 3, 4)])
def test_wrong_calls_raise_as_without_a_cache(arguments: tuple[Any, ...]) -> None:
    """Also if their key has a value."""
    registry = new_registry()

    @registry.cached()
    def find(room: str, *, limit: int) -> int:
        return limit

    call: Any = find
    call("a", limit=1)

    with pytest.raises(TypeError, match=r"find\(\)"):
        call(*arguments)


def test_unhashable_argument_is_named() -> None:
    """`unhashable type` alone does not show which of ten arguments it was, nor why it matters."""
    registry = new_registry()

    @registry.cached()
    def find(room: str, users: Any) -> int:
        return 1

    @registry.cached()
    async def look(room: str, users: Any) -> int:
        return 1

    why = r"\(\) is cached, so users must be hashable: unhashable type: 'list'"
    for call in (find, find.invalidate, look.invalidate):
        with pytest.raises(TypeError, match=why):
            call("!r", [])
    assert why.replace("\\", "") in str(Caller(look("!r", [])).outcome)


def test_error_of_a_comparison_is_raised_unchanged() -> None:
    """It is not reported as an unhashable argument."""

    class Odd:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise TypeError("never alike")

    registry = new_registry()

    @registry.cached()
    def find(odd: Odd) -> int:
        return 1

    find(Odd())
    with pytest.raises(TypeError, match="never alike"):
        find(Odd())


def test_exceptions_are_not_kept() -> None:
    """The next call retries."""
    registry = new_registry()
    outcomes: list[int] = []

    @registry.cached()
    def find(key: str) -> int:
        outcomes.append(1)
        if len(outcomes) == 1:
            raise OSError("no database")
        return 5

    with pytest.raises(OSError, match="no database"):
        find("a")

    assert [5, 5] == [find("a"), find("a")]


def test_plain_function_must_not_return_an_awaitable() -> None:
    """A coroutine can be awaited once; the second caller would get an error instead of a value."""
    registry = new_registry()

    @registry.cached()
    def find(key: str) -> Waiter:
        return Waiter()

    with pytest.raises(TypeError, match=r"find\(\) is cached, but returned Waiter.*async def"):
        find("a")


def test_invalidation_while_a_plain_function_computes_wins() -> None:
    """The function may cause a change of its own data."""
    registry = new_registry()
    values = ["old", "new"]

    @registry.cached()
    def find(key: str) -> str:
        value = values.pop(0)
        if value == "old":
            find.invalidate(key)
        return value

    assert ["old", "new", "new"] == [find("a"), find("a"), find("a")]


class Store:
    """Created by `stores`, with its own registry."""

    names: list[str]


def stores(registry: CacheRegistry) -> Callable[[], Any]:
    """A class with two cached methods."""

    class Users(Store):
        def __init__(self) -> None:
            self.names = []

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

        @registry.cached()
        def name(self, user: str, lower: bool = True) -> str:
            """The name of a user."""
            self.names.append(user)
            return user.lower() if lower else user

        @registry.cached()
        async def age(self, user: str) -> int:
            self.names.append(user)
            return len(user)

        @staticmethod
        @registry.cached()
        def of_all(user: str) -> str:
            return user * 2

    return Users


def test_each_instance_has_entries_of_its_own() -> None:
    """Two stores are two databases, even if they are equal, unhashable or copies."""
    registry = new_registry()
    make = stores(registry)
    first, second = make(), make()

    assert ["ada", "ada", "ada"] == [first.name("ADA"), second.name("ADA"), first.name(user="ADA")]
    assert (["ADA"], ["ADA"]) == (first.names, second.names)
    third = copy.copy(first)
    third.names = []
    assert third.name("ADA") == "ada"
    assert (["ADA"], 3) == (third.names, registry.caches["name"].entries)


def test_name_reaches_every_instance() -> None:
    """The wire has names, not objects."""
    registry = new_registry()
    make = stores(registry)
    first, second = make(), make()
    for store in (first, second):
        Caller(store.age("@ada:hs"))
        Caller(store.age("@bob:hs"))

    registry.invalidate("age", ("@ada:hs",))

    assert registry.caches["age"].entries == 2
    assert (1, 0) == (registry.caches["age"].invalidations, registry.caches["age"].misshapen)


def test_one_instance_can_be_invalidated_alone() -> None:
    """By the object, or by its class."""
    registry = new_registry()
    make: Any = stores(registry)
    first, second, third = make(), make(), make()
    for store in (first, second, third):
        store.name("A")

    first.name.invalidate("A")
    second.name.invalidate_all()
    assert registry.caches["name"].entries == 1
    make.name.invalidate(third, "A")
    assert registry.caches["name"].entries == 0
    first.name("A")
    Caller(make.age(first, "A"))
    assert registry.caches["age"].entries == 1
    make.name.invalidate_all()
    assert registry.caches["name"].entries == 0


def test_methods_keep_their_metadata() -> None:
    """For people, and for documentation tools."""
    make: Any = stores(new_registry())
    store = make()

    assert ("name", "The name of a user.", "name") == (
        make.name.name,
        make.name.__doc__,
        make.name.__name__,
    )
    assert ("name", "name") == (store.name.name, store.name.__name__)
    assert "B" == store.name.__wrapped__("B", lower=False)
    assert ("c", "C") == (make.name(store, "C"), make.name(store, "C", False))
    assert ("dd", "dd") == (make.of_all("d"), store.of_all("d"))
    with pytest.raises(AttributeError, match="has no attribute 'cache_clear'"):
        _ = store.name.cache_clear


def test_instances_are_not_kept_alive() -> None:
    """A registry lives as long as its worker; stores of one test, or one request, do not."""
    registry = new_registry()
    store = stores(registry)()
    store.name("A")
    alive = weakref.ref(store)

    del store
    gc.collect()

    assert alive() is None
    assert (0, 1) == (registry.caches["name"].entries, registry.caches["name"].misses)


def test_id_of_a_dead_instance_may_be_reused() -> None:
    """The entries of one must not be returned for the other."""
    registry = new_registry()
    make = stores(registry)
    for number in range(100):
        store = make()
        store.name(f"A{number % 2}")
        assert store.names == [f"A{number % 2}"]
        del store


def test_functions_stay_functions() -> None:
    """A call of an object takes longer, and others ask whether a function is a coroutine function."""
    registry = new_registry()

    @registry.cached()
    def plain(user: str, limit: int = 1) -> int:
        return limit

    @registry.cached()
    async def later(user: str) -> int:
        return 1

    assert (True, True) == (inspect.isfunction(plain), inspect.iscoroutinefunction(later))
    assert "(user: str, limit: int = 1) -> int" == str(inspect.signature(plain))


def test_only_functions_defined_in_a_class_are_methods() -> None:
    """Not those in a method of it, nor one that is put on a class later, as with `functools.lru_cache`."""
    registry = new_registry()

    class Users:
        def count(self, user: str) -> int:
            @registry.cached()
            def of_user(user: str) -> int:
                return len(user)

            return of_user(user)

    @registry.cached()
    def size(users: Users, user: str) -> int:
        return len(user)

    setattr(Users, "size", size)  # noqa: B010
    users: Any = Users()
    assert (3, 3) == (users.count("ada"), users.size("ada"))
    assert (1, 2) == (registry.cache("of_user").shape.length, registry.cache("size").shape.length)
    registry.invalidate("size", ("ada",))
    assert (1, 0) == (registry.caches["size"].misshapen, registry.caches["size"].entries)


def test_instance_without_weak_references_is_rejected() -> None:
    """Else it would be kept forever."""
    registry = new_registry()

    class Tight:
        __slots__ = ()

        @registry.cached()
        def size(self, user: str) -> int:
            return len(user)

    with pytest.raises(ConfigError, match="cannot cache size for each Tight: the class needs __weakref__"):
        Tight().size("a")


def test_two_caches_of_one_name_are_rejected() -> None:
    """An invalidation could mean either."""
    registry = new_registry()

    @registry.cached(name="get_user")
    def one(user: str) -> int:
        return 1

    with pytest.raises(ConfigError, match="there are two caches named get_user"):

        @registry.cached(name="get_user")
        def two(user: str) -> int:
            return 2

    assert one("a") == 1


def test_functions_that_cannot_be_cached_are_rejected() -> None:
    """When it is declared, not when it is first called."""
    registry = new_registry()

    def any_number(*users: str) -> int:
        return len(users)

    def any_names(**users: str) -> int:
        return len(users)

    with pytest.raises(ConfigError, match=r"any_number cannot be cached: \*users: str takes any number"):
        registry.cached()(any_number)
    with pytest.raises(ConfigError, match=r"any_names cannot be cached: \*\*users"):
        registry.cached()(any_names)
    with pytest.raises(ConfigError, match="right above `def`"):
        registry.cached()(staticmethod(any_number))
    with pytest.raises(ConfigError, match="must be at least 0, not -1"):
        registry.cached(max_entries=-1)(len)
    with pytest.raises(ConfigError, match="collection of names, not the text 'caches'"):
        registry.cached(streams="caches")
    with pytest.raises(
        ConfigError, match="is an alias in the caches stream, so a cache of this name would never"
    ):
        registry.cached(name="cs_cache_fake")(new_registry)
    assert dict(registry.caches) == {}


def test_types_of_the_signature_are_kept() -> None:
    """For the type checker, which complains about an ignored error that does not occur."""
    make_waiter: Callable[[], IWaiter] = Waiter
    registry = CacheRegistry(waiter=make_waiter, vintage=NEWEST)

    @registry.cached()
    def plain(user: str, limit: int = 1) -> list[str]:
        return [user] * limit

    @registry.cached()
    async def coroutine(user: str) -> bytes:
        return user.encode()

    class Users:
        @registry.cached()
        def method(self, user: str) -> int:
            return len(user)

        @registry.cached()
        async def coroutine_method(self, user: str) -> int:
            return len(user)

    async def program() -> None:
        names: list[str] = plain("a", limit=2)
        text: bytes = await coroutine("a")
        users = Users()
        size: int = users.method("a")
        later: int = await users.coroutine_method(user="a")
        of_class: int = Users.method(users, "a")
        users.method.invalidate("a")
        plain.invalidate("a")
        assert (["a", "a"], b"a", 1, 1, 1) == (names, text, size, later, of_class)

    async def wrong(users: Users) -> None:
        plain(5)  # type: ignore[arg-type]
        await coroutine()  # type: ignore[call-arg]
        users.method("a", "b")  # type: ignore[call-arg]
        users.method.invalidate(5)  # type: ignore[arg-type]

    assert Caller(program()).outcome is None
    assert callable(wrong)
