"""Benchmarks of caches: calls with a cached result, and rows that invalidate entries."""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

from twisted.internet.defer import Deferred

from scripts.bench_parts.measuring import Options, Result, best
from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintages import NEWEST
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
    plain, alias, bare = best(
        options.rounds,
        partial(_invalidate, [_row("get_profile", f"@user{n % ENTRIES}:here") for n in range(rows)]),
        partial(_invalidate, [_row(ALIAS, room, *users)] * (rows // USERS)),
        partial(_pop, rows),
    )
    yield Result("plain names", rows / plain, "rows/s")
    yield Result(f"{ALIAS} of {USERS} users", rows // USERS / alias, "rows/s")
    yield Result("pop from a dict / plain name", plain / bare, "x")
    yield Result(f"{ALIAS} of {USERS} users / plain name", alias / (rows // USERS) / (plain / rows), "x")


def _row(name: str, *keys: str) -> CacheInvalidation:
    return CacheInvalidation(cache_func=name, keys=list(keys), invalidation_ts=1)


def _invalidate(rows: list[CacheInvalidation]) -> float:
    """Return the CPU seconds to apply these rows, one a fact, to a registry with the caches they reach."""
    registry = CacheRegistry(waiter=Deferred)
    held = []
    for name in sorted({"get_profile", *NEWEST.reaches(ALIAS)}):

        def find(key: str) -> str:
            return key

        held.append(registry.cached(name=name)(find))
        for number in range(ENTRIES):
            held[-1](f"@user{number}:here")
    facts = [[row] for row in rows]

    def apply() -> None:
        for fact in facts:
            registry.apply("caches", fact)

    return _seconds(apply)


def _pop(rows: int) -> float:
    known = {(f"@user{number}:here",): number for number in range(ENTRIES)}
    keys = [(f"@user{number % ENTRIES}:here",) for number in range(rows)]

    def pop() -> None:
        for key in keys:
            known.pop(key, None)

    return _seconds(pop)


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
