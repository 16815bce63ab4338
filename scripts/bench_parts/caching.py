"""Benchmarks of caches: calls with a cached result, and rows that invalidate entries."""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from twisted.internet.defer import Deferred

from scripts.bench_parts.measuring import Options, Result, best
from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Vintage
from synrepl.streams.catalog import CacheInvalidation

__all__ = ["cached", "invalidation"]

ENTRIES: Final = 1_000
USERS: Final = 50
ALIAS: Final = "cs_cache_fake"


def cached(options: Options) -> Iterator[Result]:
    """Measure look-ups of cached keys: in a dict, in `functools.lru_cache`, and in `CacheRegistry`."""
    calls = options.scaled(200_000)
    registry = CacheRegistry(waiter=Deferred)
    keys = [f"!room{number}:here" for number in range(ENTRIES)]

    @registry.cached()
    def get_plain(room_id: str) -> str:
        return room_id.upper()

    @registry.cached()
    async def get_later(room_id: str) -> str:
        return room_id.upper()

    @lru_cache(maxsize=10_000)
    def get_of_library(room_id: str) -> str:
        return room_id.upper()

    known = {key: get_plain(key) for key in keys}
    known_by_arguments: dict[tuple[str, ...], str] = {(key,): value for key, value in known.items()}

    def least(*args: str) -> str:
        return known_by_arguments[args]

    for key in keys:
        get_of_library(key)
        _run(_each(get_later, [key]))
    asked = keys * (calls // len(keys))
    bare, library, wrapped, plain, coroutine = best(
        options.rounds,
        lambda: _seconds(lambda: _look_up(known, asked)),
        lambda: _seconds(lambda: _call(get_of_library, asked)),
        lambda: _seconds(lambda: _call(least, asked)),
        lambda: _seconds(lambda: _call(get_plain, asked)),
        lambda: _seconds(lambda: _run(_each(get_later, asked))),
    )
    assert registry.caches["get_plain"].misses == registry.caches["get_later"].misses == ENTRIES
    yield Result("plain function, known", len(asked) / plain, "calls/s")
    yield Result("coroutine function, known", len(asked) / coroutine, "calls/s")
    yield Result("least wrapper in Python, known", len(asked) / wrapped, "calls/s")
    yield Result("functools.lru_cache, known", len(asked) / library, "calls/s")
    yield Result("look-up in a dict / plain", plain / bare, "x")
    yield Result("least wrapper in Python / plain", plain / wrapped, "x")
    yield Result("functools.lru_cache / least wrapper", wrapped / library, "x")
    yield Result.at_most("functools.lru_cache / plain", plain / library, "x", 3)
    yield Result.at_most("functools.lru_cache / coroutine", coroutine / library, "x", 5)


def invalidation(options: Options) -> Iterator[Result]:
    """Measure how fast a registry applies rows of ``caches``: plain names, and an alias."""
    rows = options.scaled(50_000)
    room, users = "!room1:here", [f"@user{number}:server{number % 10}" for number in range(USERS)]
    names = [_row("get_profile", f"@user{number}:here") for number in range(ENTRIES)]
    alias = [_row(ALIAS, room, *users)]
    plain, pop, expanded, pops = best(
        options.rounds,
        lambda: _repeat(rows // ENTRIES, _Applied(names)) / ENTRIES,
        lambda: _repeat(rows // ENTRIES, _Popped(names)) / ENTRIES,
        lambda: _repeat(rows // USERS, _Applied(alias)),
        lambda: _repeat(rows // USERS, _Popped(alias)),
    )
    yield Result("plain names", 1 / plain, "rows/s")
    yield Result("pop from a dict / plain name", plain / pop, "x")
    yield Result.at_most(f"{ALIAS} of {USERS} users", expanded * 1e6, "us/row", 60)
    yield Result(f"pops from dicts / {ALIAS} of {USERS} users", expanded / pops, "x")


def _row(name: str, *keys: str) -> CacheInvalidation:
    return CacheInvalidation(cache_func=name, keys=list(keys), invalidation_ts=1)


class _Applied:
    """A registry that applies rows, one a fact, with all entries that they drop."""

    def __init__(self, rows: list[CacheInvalidation]) -> None:
        self._drops = _drops(rows)
        self._facts = [[row] for row in rows]
        self._registry = CacheRegistry(waiter=Deferred)
        lengths = {cache: len(key) for cache, key in self._drops}
        self._caches = {
            cache: self._registry.cached(name=cache)(_find if length == 1 else _find_two)
            for cache, length in lengths.items()
        }

    def fill(self) -> None:
        for cache, key in self._drops:
            self._caches[cache](*key)

    def drop(self) -> None:
        for fact in self._facts:
            self._registry.apply("caches", fact)


class _Popped:
    """Dicts with the same entries, which are dropped as fast as Python can."""

    def __init__(self, rows: list[CacheInvalidation]) -> None:
        self._drops = _drops(rows)
        self._dicts: dict[str, dict[tuple[str, ...], str]] = {cache: {} for cache, _ in self._drops}

    def fill(self) -> None:
        for cache, key in self._drops:
            # As in a registry, a key that is dropped is not the same object.
            self._dicts[cache][(*key,)] = cache

    def drop(self) -> None:
        for cache, key in self._drops:
            self._dicts[cache].pop(key, None)


def _drops(rows: list[CacheInvalidation]) -> list[tuple[str, tuple[str, ...]]]:
    found = (drop for row in rows for drop in Vintage.of("1.163").expand(row.cache_func, row.keys))
    return [(drop.cache, drop.key) for drop in found if drop.key is not None]


def _find(key: str) -> str:
    return key


def _find_two(room_id: str, key: str) -> str:
    return key


def _repeat(times: int, caches: _Applied | _Popped) -> float:
    """Return the mean CPU seconds to drop the entries, which are filled in again each time."""
    seconds = 0.0
    for _ in range(times):
        caches.fill()
        seconds += _seconds(caches.drop)
    return seconds / times


def _look_up(known: dict[str, str], keys: list[str]) -> None:
    for key in keys:
        known[key]


def _call(function: Callable[[str], str], keys: list[str]) -> None:
    for key in keys:
        function(key)


async def _each(function: Any, keys: list[str]) -> None:
    for key in keys:
        await function(key)


def _run(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the coroutine waits; it was to end at once")


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
