"""Findings about a worker's caches."""

from collections.abc import Callable, Iterator
from typing import Any

from synrepl.caches.lint import CacheWarning, lint
from synrepl.caches.registry import CacheRegistry, NameCounts
from synrepl.caches.vintage import Drop
from synrepl.streams.catalog import CacheInvalidation
from tests.caches.fakes import NEWEST, new_registry


def registry_of(**arguments: str) -> CacheRegistry:
    """A registry with caches by name and arguments."""
    registry = new_registry()
    for name, takes in arguments.items():
        declare(registry, name, takes)
    return registry


def declare(registry: CacheRegistry, name: str, takes: str, **options: Any) -> None:
    """Add a cache with these arguments."""

    def one(a: str) -> None: ...

    def two(a: str, b: str) -> None: ...

    made: dict[int, Callable[..., None]] = {1: one, 2: two}
    registry.cached(name=name, **options)(made[len(takes.split())])


def found(findings: list[CacheWarning]) -> list[tuple[str, str]]:
    """The findings without their texts."""
    return [(finding.kind, finding.cache) for finding in findings]


def test_correct_names_give_no_findings() -> None:
    """A check that always complains is ignored."""
    registry = registry_of(get_room_type="room", get_user_by_id="user", get_event="event")
    declare(registry, "get_constants", "name", streams=())
    declare(registry, "get_receipts", "room", streams=("receipts",))

    assert [] == lint(registry, {"cs_cache_fake": 5, "get_user_by_id": 1}, {"get_user_by_id": [1]})


def test_cache_that_nothing_invalidates() -> None:
    """It is correct until the first change, and stale from then on."""
    registry = registry_of(get_profile="user")

    (finding,) = lint(registry, {})

    assert ("no-route", "get_profile") == (finding.kind, finding.cache)
    assert "Nothing known invalidates get_profile" in finding.text
    assert "streams=()" in finding.text
    assert [] == lint(registry, {"get_profile": 1})


def test_unknown_cache_names_are_findings() -> None:
    """Most are caches that this worker does not have; one may be a misspelled name."""
    registry = registry_of(get_profile_of_user="user")

    findings = lint(
        registry, {"get_profile_of_users": 2, "get_device": 1, NameCounts.REST: 7, "cs_cache_fake": 1}
    )

    assert [
        ("no-route", "get_profile_of_user"),
        ("unknown", "get_device"),
        ("unknown", "get_profile_of_users"),
    ] == (found(findings))
    assert "Ignore this" in findings[1].text
    assert "seen 2 times" in findings[2].text
    assert "Is it get_profile_of_user?" in findings[2].text


def test_keys_of_another_length_seen() -> None:
    """Each of them clears the cache, which is correct but slow; or they mean another cache."""
    registry = registry_of(get_device="user device")
    declare(registry, "count_keys", "user device", tree=True)
    seen = {"get_device": 3, "count_keys": 2}

    findings = lint(registry, seen, {"get_device": [2, 1, 1, 3], "count_keys": [1, 2, 0], "other": [7]})

    assert [("misshapen", "count_keys"), ("misshapen", "get_device")] == found(findings)
    assert "keys of 0 arguments were seen; keys must have 2 or fewer. Give the" in findings[0].text
    assert (
        "keys of 1 argument were seen, keys of 3 arguments were seen; keys must have 2." in findings[1].text
    )
    assert "tree=True" in findings[1].text


def test_table_that_does_not_fit_a_cache() -> None:
    """Found before the first row arrives: every event would clear the cache."""
    registry = registry_of(get_threads="room limit", get_room_type="room")

    findings = lint(registry, {"cs_cache_fake": 1})

    assert [("misshapen", "get_threads")] == found(findings)
    assert "ph_cache_fake of 1.163 gives keys of 1 argument" in findings[0].text
    assert "events of 1.163 gives" in findings[0].text


def test_keys_of_another_length_that_were_counted() -> None:
    """The counters of a running worker are evidence, too."""
    registry = registry_of(get_device="user device")
    for name, keys in (("get_device", ["a"]), ("ph_cache_fake", None)):
        registry.apply("caches", [CacheInvalidation(cache_func=name, keys=keys, invalidation_ts=None)])

    findings = lint(registry, registry.seen)

    assert [("misshapen", "get_device"), ("misshapen", "ph_cache_fake")] == found(findings)
    assert "1 keys had another length" in findings[0].text
    assert "vintage" in findings[1].text


def test_alias_that_was_never_seen() -> None:
    """Perhaps nothing happened yet; perhaps the writer is of another release."""
    registry = registry_of(get_room_summary="room", get_event="event")

    (finding,) = lint(registry, {})

    assert ("never-seen", "get_room_summary") == (finding.kind, finding.cache)
    assert "cs_cache_fake, dr_cache_fake" in finding.text
    assert [] == lint(registry, {"dr_cache_fake": 1})


def test_stream_that_may_reach_everything_is_a_route() -> None:
    """It may reach this cache."""
    mine = NEWEST.extended("mine")

    @mine.implied("typing")
    def typing(row: Any) -> Iterator[Drop]:
        yield from ()

    registry = new_registry(mine)
    declare(registry, "get_profile", "user")

    assert [] == lint(registry, {})
