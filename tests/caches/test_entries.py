"""The entries of one cache."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.caches.cached import Cache
from synrepl.caches.entries import MISSING, Computation, Entries, Key, Shape


def filled(*keys: Key, tree: bool = False, max_entries: int = 10) -> Entries:
    """Entries whose values are their keys."""
    entries = Entries(Shape(len(keys[0]), tree), max_entries)
    for key in keys:
        entries.keep(entries.begin(key), key)
    return entries


def held(entries: Entries) -> list[Key]:
    """The keys in the order of eviction."""
    return sorted(entries.values, key=lambda key: entries.values[key].used_at)


def test_least_recently_used_entry_is_evicted_first() -> None:
    """A cache must keep the entries that are used often."""
    entries = filled(("a",), ("b",), ("c",), max_entries=3)

    entries.get(("a",))
    entries.keep(entries.begin(("d",)), 4)

    assert [("c",), ("a",), ("d",)] == held(entries)
    assert (1, 4, 1) == (entries.counters.hits, entries.counters.misses, entries.counters.evictions)


def test_entries_used_after_one_eviction_survive_the_next() -> None:
    """The order that the first one found is out of date for them."""
    entries = filled(("a",), ("b",), ("c",), max_entries=3)
    entries.keep(entries.begin(("d",)), 4)

    entries.get(("b",))
    entries.drop(("c",))
    for key in (("c",), ("e",), ("f",)):
        entries.keep(entries.begin(key), 5)

    assert [("c",), ("e",), ("f",)] == held(entries)
    assert entries.counters.evictions == 3


def test_none_is_cached_as_a_value() -> None:
    """The absence of a user is worth caching, too."""
    entries = Entries(Shape(1), 10)
    entries.keep(entries.begin(("a",)), None)

    assert entries.get(("a",)) is None
    assert entries.get(("b",)) is MISSING


def test_invalidation_wins_over_a_computation() -> None:
    """A value read before the change must not be kept after it."""
    entries = Entries(Shape(1), 10)
    old = entries.begin(("a",))

    entries.invalidate([("a",)])

    assert entries.computing(("a",)) is None
    new = entries.begin(("a",))
    entries.keep(old, "old")
    assert entries.get(("a",)) is MISSING
    assert new is entries.computing(("a",))
    entries.keep(new, "new")
    entries.keep(old, "old")
    assert entries.get(("a",)) == "new"


@pytest.mark.parametrize("key", [None, ("a",), ("a", "x", "1")])
def test_computations_are_dropped_as_entries_are(key: tuple[str, ...] | None) -> None:
    """By a prefix and by clearing everything, too."""
    entries = Entries(Shape(3, tree=True), 10)
    under_way = entries.begin(("a", "x", "1"))

    entries.invalidate([key])
    entries.keep(under_way, "old")

    assert len(entries) == 0


def test_prefix_drops_what_is_below_it() -> None:
    """And nothing else, however similar."""
    entries = filled(("a", "x"), ("a", "y"), ("ab", "x"), ("b", "a"), tree=True)

    entries.invalidate([("a",)])

    assert [("ab", "x"), ("b", "a")] == held(entries)


@pytest.mark.parametrize(
    ("tree", "key"),
    [(False, ("a",)), (False, ("a", "b", "c")), (True, ("a", "b", "c")), (True, ()), (False, ())],
)
def test_key_of_another_shape_drops_everything(tree: bool, key: tuple[str, ...]) -> None:
    """It is unknown what changed, and stale data is worse than computing again."""
    entries = filled(("x", "y"), ("v", "w"), tree=tree)

    entries.invalidate([key])

    assert len(entries) == 0


def test_empty_key_is_that_of_a_cache_without_arguments() -> None:
    """It is its only key."""
    entries = filled(())

    assert entries.shape.fits(())
    entries.invalidate([()])

    assert len(entries) == 0


def test_strings_may_mean_an_argument_that_is_none() -> None:
    """It is unknown how other writers spell 5 or None, so every possible match is dropped."""
    entries = filled(("a", 5), ("b", "5"))

    entries.invalidate([("c", "5")])

    assert len(entries) == 0


def test_prefix_of_strings_is_exact_whatever_follows_it() -> None:
    """A cache by room and limit is not emptied for every room."""
    entries = filled(("!r1", 5), ("!r2", 5), tree=True)

    entries.invalidate([("!r1",)])

    assert [("!r2", 5)] == held(entries)


def test_strings_are_exact_again_once_the_others_are_gone() -> None:
    """One unusual key must not make a cache slow forever."""
    entries = filled((5,), ("a",), ("b",))
    entries.drop((5,))

    entries.invalidate([("a",)])

    assert [("b",)] == held(entries)


def test_without_room_nothing_is_kept() -> None:
    """Nor counted as an eviction."""
    entries = filled(("a",), max_entries=0)

    assert (0, 0) == (len(entries), entries.counters.evictions)
    assert entries._below == {}


def test_numbers_are_of_the_name_not_of_each_instance() -> None:
    """One row on the wire is one invalidation, for any number of stores."""
    cache = Cache(name="c", max_entries=10, tree=False, streams=frozenset())
    cache.shape = Shape(1)
    first, second = cache.new_entries(), cache.new_entries()
    for entries in (first, second):
        entries.keep(entries.begin(("a",)), 1)

    assert cache.info().entries == 2
    cache.invalidate([("a",)])
    cache.invalidate([("a", "b")])

    assert (0, 2, 1, 2) == (
        cache.info().entries, cache.info().invalidations, cache.info().misshapen, cache.info().misses,
    )  # fmt: skip


# -- against a model: a list in the order of use, and a look at all of it each time ----------------------


class Model:
    """A slow and simple model of the entries."""

    def __init__(self, shape: Shape, max_entries: int) -> None:
        self.shape = shape
        self.max_entries = max_entries
        self.values: list[tuple[Key, object]] = []
        self.computing: dict[Key, object] = {}

    def get(self, key: Key) -> object:
        for entry in self.values:
            if entry[0] == key:
                self.values.remove(entry)
                self.values.append(entry)
                return entry[1]
        return MISSING

    def keep(self, key: Key, computation: object, value: object) -> None:
        if self.computing.get(key) is computation:
            del self.computing[key]
            self.values = [entry for entry in self.values if entry[0] != key]
            self.values.append((key, value))
            self.values = self.values[len(self.values) - min(len(self.values), self.max_entries) :]

    def is_meant(self, key: Key, by: Key) -> bool:
        length = self.shape.length
        if len(by) > length or (len(by) < length and not (self.shape.tree and by)):
            return True
        return key[: len(by)] == by

    def invalidate(self, by: Key | None) -> None:
        keys = [key for key, _ in self.values] + list(self.computing)
        if by is None or any(not isinstance(argument, str) for key in keys for argument in key[: len(by)]):
            self.drop(keys)
        else:
            self.drop([key for key in keys if self.is_meant(key, by)])

    def drop(self, keys: list[Key]) -> None:
        self.values = [entry for entry in self.values if entry[0] not in keys]
        self.computing = {key: of for key, of in self.computing.items() if key not in keys}


ARGUMENT: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from([1, None])
)


@st.composite
def stories(draw: st.DrawFn) -> tuple[Shape, int, list[tuple[str, Any]]]:
    """A cache, and a sequence of operations."""
    length = draw(st.integers(0, 3))
    keys = st.lists(ARGUMENT, min_size=length, max_size=length).map(tuple)
    texts = st.lists(st.sampled_from("ab"), max_size=4).map(tuple)
    steps = st.one_of(
        st.tuples(st.just("get"), keys),
        st.tuples(st.just("begin"), keys),
        st.tuples(st.just("begin and keep"), keys),
        st.tuples(st.just("keep"), st.integers(0, 5)),
        st.tuples(st.just("give up"), st.integers(0, 5)),
        st.tuples(st.just("invalidate"), st.lists(st.none() | texts, max_size=3)),
        st.tuples(st.just("drop"), keys),
    )
    shape = Shape(length, draw(st.booleans()))
    return shape, draw(st.integers(0, 4)), draw(st.lists(steps, max_size=40))


@given(stories())
def test_entries_are_as_the_model_says(setup: tuple[Shape, int, list[tuple[str, Any]]]) -> None:
    """For any sequence of operations; no index keeps a dropped key."""
    shape, max_entries, steps = setup
    entries, model = Entries(shape, max_entries), Model(shape, max_entries)
    begun: list[Computation] = []

    for number, (step, what) in enumerate(steps):
        if step == "get":
            assert model.get(what) == entries.get(what)
        elif step.startswith("begin"):
            if any(what == key for key, _ in model.values):
                continue  # what is known is not computed
            computation = entries.begin(what)
            model.computing[what] = computation
            if step.endswith("keep"):
                entries.keep(computation, number)
                model.keep(what, computation, number)
            else:
                begun.append(computation)
        elif step == "keep" and begun:
            computation = begun[what % len(begun)]
            entries.keep(computation, number)
            model.keep(computation.key, computation, number)
        elif step == "give up" and begun:
            computation = begun[what % len(begun)]
            entries.give_up(computation)
            if model.computing.get(computation.key) is computation:
                del model.computing[computation.key]
        elif step == "invalidate":
            are_full = all(key is None or len(key) == shape.length for key in what)
            assert are_full == entries.invalidate(what)
            for key in what:
                model.invalidate(key)
        elif step == "drop":
            entries.drop(what)
            model.drop([what])

        assert model.values == [(key, entries.values[key].value) for key in held(entries)]
        assert model.computing == entries._computing
        listed = {key for key, _ in model.values} | set(model.computing)
        below: dict[Key, set[Key]] = {}
        for key in listed if shape.tree else ():
            for end in range(1, len(key)):
                below.setdefault(key[:end], set()).add(key)
        assert below == {prefix: set(keys) for prefix, keys in entries._below.items()}
        assert sum(any(not isinstance(a, str) for a in key) for key in listed) == entries._texts_until.total()
