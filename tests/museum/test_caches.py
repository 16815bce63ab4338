"""Bugs of cache invalidation."""

from synrepl.caches.lint import lint
from tests.caches.fakes import new_registry
from tests.caches.test_lint import declare
from tests.caches.test_registry import entries, row, with_caches


def test_a_purged_room_is_forgotten_as_a_group() -> None:
    """Case 18, Synapse #11521: a room was purged and joined again. Caches of its events stayed, and the room
    broke.

    Here: one row stands for the whole group of caches, and each of them drops the room. Others stay.
    """
    registry = with_caches(
        new_registry(),
        "have_seen_event",
        "get_latest_event_ids_in_room",
        "get_relations_for_event",
        "get_profile",
    )

    registry.apply("caches", [row("ph_cache_fake", "!r")])

    assert {
        "have_seen_event": 1,
        "get_latest_event_ids_in_room": 1,
        "get_relations_for_event": 1,
        "get_profile": 2,
    } == entries(registry)


def test_a_key_of_the_wrong_shape_is_caught() -> None:
    """Case 19, Synapse #13863: an invalidation had a key of another shape, and never dropped anything.

    Here: such a key empties the cache and is counted, and lint names cache and key.
    """
    registry = new_registry()
    declare(registry, "get_device", "user device")
    kept = with_caches(registry, "get_profile")

    kept.apply("caches", [row("get_profile", "!r", "too", "many")])
    findings = lint(registry, {"get_device": 3, "get_profile": 1}, {"get_device": [1]})

    assert 0 == entries(kept)["get_profile"]
    assert [("misshapen", "get_device"), ("misshapen", "get_profile")] == sorted(
        (finding.kind, finding.cache) for finding in findings
    )
