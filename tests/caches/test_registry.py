"""Invalidations of a worker's caches, and their counters."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from synrepl.caches.registry import CacheRegistry, NameCounts
from synrepl.caches.vintage import Drop, Invalidation, Vintage
from synrepl.errors import ConfigError
from synrepl.streams.catalog import CacheInvalidation, StateAll
from tests.caches.fakes import LEGACY, NEWEST, new_registry

# Nobody can call a function that nobody holds, so its entries would be gone at once.
KEPT: WeakKeyDictionary[CacheRegistry, list[object]] = WeakKeyDictionary()


def row(cache: str, *keys: str) -> CacheInvalidation:
    """A row of ``caches``."""
    return CacheInvalidation(cache_func=cache, keys=list(keys), invalidation_ts=None)


def with_caches(registry: CacheRegistry, *names: str, **options: Any) -> CacheRegistry:
    """Caches by one argument, each with an entry for `!r` and one for `!s`."""
    for name in names:

        def find(key: str) -> str:
            return key

        cached = registry.cached(name=name, **options)(find)
        cached("!r")
        cached("!s")
        KEPT.setdefault(registry, []).append(cached)
    return registry


def entries(registry: CacheRegistry) -> dict[str, int]:
    """The number of entries of each cache."""
    return {name: info.entries for name, info in registry.caches.items()}


def test_a_fact_drops_the_entries_of_all_its_rows() -> None:
    """Aliases and plain names alike."""
    registry = with_caches(new_registry(), "get_room_type", "get_users_in_room", "get_profile")

    registry.apply("caches", [row("cs_cache_fake", "!r"), row("get_profile", "!s")])

    assert {"get_room_type": 1, "get_users_in_room": 2, "get_profile": 1} == entries(registry)
    assert (1, 0) == (
        registry.caches["get_room_type"].invalidations,
        registry.caches["get_room_type"].misshapen,
    )


def test_null_drops_all_of_a_cache() -> None:
    """An empty list is not a key of a cache with arguments: it drops everything, and is counted."""
    registry = with_caches(new_registry(), "get_profile", "get_other")

    registry.apply("caches", [CacheInvalidation(cache_func="get_profile", keys=None, invalidation_ts=1)])
    registry.apply("caches", [row("get_other")])

    assert {"get_profile": 0, "get_other": 0} == entries(registry)
    assert [0, 1] == [info.misshapen for info in registry.caches.values()]


def test_events_drop_the_entries_that_they_imply() -> None:
    """Without a row on ``caches``."""
    registry = with_caches(new_registry(), "get_room_type", "get_rooms_for_user", "get_profile")

    registry.apply("events", [StateAll(room_id="!r")])

    assert {"get_room_type": 1, "get_rooms_for_user": 0, "get_profile": 2} == entries(registry)


def test_streams_are_those_that_can_invalidate() -> None:
    """A follower subscribes to these, and needs no others."""
    registry = with_caches(new_registry(), "get_profile", streams=("caches", "profile_updates"))

    assert {"caches", "profile_updates"} == registry.streams
    with_caches(registry, "get_room_type")
    assert {"caches", "events", "backfill", "profile_updates"} == registry.streams
    assert {"caches"} == new_registry(LEGACY).streams


def test_subscribers_of_invalidations_get_those_of_all_streams() -> None:
    """They may keep what is no cache of the registry."""
    registry = new_registry()
    registry.on_invalidation.append(lambda one: None)

    assert {"events", "backfill", "presence", "receipts", "account_data"} < registry.streams


def test_loss_on_a_stream_clears_exactly_the_caches_that_it_reaches() -> None:
    """All other entries are still correct."""
    registry = with_caches(new_registry(), "get_room_type", "get_profile")
    with_caches(registry, "get_constants", "get_event", streams=())
    with_caches(registry, "get_receipts", streams=("receipts",))

    registry.invalidate_stream("typing")
    assert {2} == set(entries(registry).values())
    registry.invalidate_stream("receipts")
    assert 0 == entries(registry).pop("get_receipts")
    registry.invalidate_stream("backfill")
    assert {
        "get_room_type": 0, "get_profile": 2, "get_constants": 2, "get_event": 0, "get_receipts": 0,
    } == entries(registry)  # fmt: skip
    registry.invalidate_stream("caches")
    assert {
        "get_room_type": 0, "get_profile": 0, "get_constants": 2, "get_event": 0, "get_receipts": 0,
    } == entries(registry)  # fmt: skip


def test_stream_without_samples_counts_as_reaching_everything() -> None:
    """It is unknown what it reaches, and a cache that is left out would stay stale."""
    mine = NEWEST.extended("mine")

    @mine.implied("typing")
    def typing(row: str) -> Iterator[Drop]:
        yield "get_profile", (row,)

    registry = with_caches(new_registry(mine), "get_profile", "get_constants", streams=())

    registry.apply("typing", ["!r"])
    assert {"get_profile": 1, "get_constants": 2} == entries(registry)
    registry.invalidate_stream("typing")
    assert {"get_profile": 0, "get_constants": 0} == entries(registry)


def test_alias_with_unsupported_keys_clears_the_caches_that_it_reaches() -> None:
    """They invalidate something unknown."""
    registry = with_caches(new_registry(), "get_room_type", "get_profile")
    null = CacheInvalidation(cache_func="ph_cache_fake", keys=None, invalidation_ts=None)

    registry.apply("caches", [null, row("get_profile", "!r")])

    assert {"get_room_type": 0, "get_profile": 1} == entries(registry)
    assert {"ph_cache_fake": 1} == dict(registry.misshapen)
    assert {} == dict(registry.unknown)


def test_unreadable_packed_keys_are_counted() -> None:
    """The other keys of the row are applied."""
    registry = new_registry()
    name = "_get_server_keys_json"

    @registry.cached(name=name)
    def keys(server: str, key: str) -> str:
        return key

    keys("hs", "1")
    keys("hs", "2")
    registry.apply("caches", [row(name, "?", '["hs", "1"]')])

    assert {name: 1} == entries(registry) == dict(registry.unreadable)


def test_unknown_names_are_counted_and_bounded() -> None:
    """They are not ignored silently, raise no error, and cannot fill the memory."""
    registry = with_caches(new_registry(), "get_profile")

    for number in range(1500):
        registry.apply("caches", [row(f"name{number}"), row("get_profile", "!r"), row("name5")])

    assert len(registry.unknown) == len(dict(registry.unknown)) == 1001
    assert (1, 1501, 500) == (
        registry.unknown["name0"], registry.unknown["name5"], registry.unknown[NameCounts.REST],
    )  # fmt: skip
    assert "get_profile" not in registry.unknown
    assert registry.seen["get_profile"] == 1500
    assert "NameCounts({'a': 1})" == repr(_counted("a"))
    with pytest.raises(KeyError):
        _ = _counted("a")[NameCounts.REST]


def _counted(*names: str) -> NameCounts:
    counts = NameCounts()
    for name in names:
        counts.add(name)
    return counts


def test_invalidation_by_name_is_for_caches_of_this_worker() -> None:
    """A misspelled name without effect would leave a stale entry."""
    registry = with_caches(new_registry(), "get_profile")

    registry.invalidate("get_profile", ("!r",))
    assert {"get_profile": 1} == entries(registry)
    registry.invalidate("get_profile", None)
    assert {"get_profile": 0} == entries(registry)
    for name in ("get_profiles", "cs_cache_fake"):
        with pytest.raises(ConfigError, match=f"there is no cache named {name}"):
            registry.invalidate(name, ("!r",))


def test_invalidations_can_be_listened_to() -> None:
    """For tests that check a transcript, and for caches of other libraries."""
    registry = with_caches(new_registry(LEGACY), "get_room_summary")
    transcript: list[tuple[Invalidation, int]] = []
    registry.on_invalidation.append(
        lambda invalidation: transcript.append((invalidation, entries(registry)["get_room_summary"]))
    )

    registry.apply("caches", [row("cs_cache_fake", "!r"), row("get_other", "x")])
    registry.invalidate("get_room_summary", ("!s",))
    registry.invalidate_stream("caches")

    # All of a fact is gone before anybody is told of any of it.
    assert [
        (Invalidation("get_users_in_room", ("!r",)), 1),
        (Invalidation("get_room_summary", ("!r",)), 1),
        (Invalidation("get_current_state_ids", ("!r",)), 1),
        (Invalidation("get_other", ("x",)), 1),
        (Invalidation("get_room_summary", ("!s",)), 0),
        (Invalidation("get_room_summary", None), 0),
    ] == transcript


def test_subscribers_are_told_of_one_cache_after_the_other() -> None:
    """In the order in which the fact names them: all keys of a cache are dropped at once."""
    registry = with_caches(new_registry(), "get_profile", "get_other")
    told: list[Invalidation] = []
    registry.on_invalidation.append(told.append)
    everything = CacheInvalidation(cache_func="get_profile", keys=None, invalidation_ts=1)

    registry.apply("caches", [row("get_profile", "!r"), row("get_other", "!r"), everything])

    assert [
        Invalidation("get_profile", ("!r",)),
        Invalidation("get_profile", None),
        Invalidation("get_other", ("!r",)),
    ] == told
    assert {"get_profile": 0, "get_other": 1} == entries(registry)


def test_keys_of_every_shape_may_come_at_once() -> None:
    """Each drops what it would drop alone, and is counted as that."""
    registry = new_registry()

    @registry.cached(tree=True)
    def find(room: str, user: str) -> str:
        return user

    for room, user in (("!r", "@a"), ("!r", "@b"), ("!s", "@a"), ("!t", "@a")):
        find(room, user)

    registry.apply("caches", [row("find", "!r"), row("find", "!s", "@a"), row("find", "!t", "@b")])
    info = registry.caches["find"]
    assert (1, 3, 0) == (info.entries, info.invalidations, info.misshapen)
    registry.apply("caches", [row("find", "!r", "@a"), row("find", "!r", "@a", "too many")])
    info = registry.caches["find"]
    assert (0, 5, 1) == (info.entries, info.invalidations, info.misshapen)


@pytest.mark.parametrize("stream", ["caches", "typing"])
def test_error_of_a_vintage_is_raised_and_leaves_no_stale_entry(stream: str) -> None:
    """A bug in the worker must be visible, and must not leave stale entries."""
    mine = Vintage("mine")

    def faulty(*keys: str) -> Iterator[Drop]:
        yield "get_profile", ("!r",)
        if keys[0] == "fault":
            raise ZeroDivisionError

    mine.alias("my_fake", samples=[["!r"]])(faulty)
    mine.implied("typing", samples=["!r"])(faulty)
    registry = with_caches(new_registry(mine), "get_profile", "get_other")
    rows = {"caches": row("my_fake", "fault"), "typing": "fault"}

    with pytest.raises(ZeroDivisionError):
        registry.apply(stream, [rows[stream], row("get_other", "!r")])

    assert 0 == entries(registry)["get_profile"]
    assert {"caches": 0, "typing": 2}[stream] == entries(registry)["get_other"]
