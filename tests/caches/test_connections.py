"""The vintage of a registry follows the releases that its connections speak."""

import pytest

from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Vintage
from synrepl.errors import ConfigError
from synrepl.streams.catalog import CacheInvalidation, State
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect
from tests.caches.fakes import new_registry

ROOM, USER = "!r:hs", "@a:hs"
ROOM_CACHES = ("get_users_in_room", "get_current_state_ids", "get_partial_current_state_ids", "get_room_type")


def registry_of(*dialects: Dialect | None, vintage: Vintage | None = None) -> CacheRegistry:
    """A registry with caches by room, which has met these releases."""
    registry = new_registry(vintage)
    for name in ROOM_CACHES:
        registry.cached(name=name)(lambda room: room)
    for dialect in dialects:
        registry.connected(dialect)
    return registry


def dropped(registry: CacheRegistry, *keys: str, alias: str = "cs_cache_fake") -> set[str]:
    """The caches of the registry that a row drops something of."""
    row = CacheInvalidation(cache_func=alias, keys=list(keys), invalidation_ts=None)
    return {cache for cache, _ in registry.apply("caches", [row])} & set(registry.caches)


@pytest.mark.parametrize(
    ("dialects", "state", "members"),
    [
        ([LEGACY], {"get_users_in_room", "get_current_state_ids"}, set()),
        ([MIDDLE], {"get_users_in_room", "get_current_state_ids"}, set()),
        ([Dialect.parse("1.60")], {"get_current_state_ids"}, {"get_users_in_room"}),
        ([CURRENT], {"get_partial_current_state_ids"}, {"get_users_in_room"}),
        ([Dialect.parse("1.113")], {"get_partial_current_state_ids", "get_room_type"}, {"get_users_in_room"}),
        ([NEWEST], {"get_partial_current_state_ids", "get_room_type"}, {"get_users_in_room"}),
        ([LEGACY, CURRENT], set(ROOM_CACHES), set()),
        ([CURRENT, LEGACY], set(ROOM_CACHES), set()),
        ([NATIVE], set(ROOM_CACHES), set()),
        ([None], set(ROOM_CACHES), set()),
        ([], set(ROOM_CACHES), set()),
    ],
    # Sets have another text in each process.
    ids=["legacy", "middle", "1.60", "current", "1.113", "newest", "two", "turned", "native", "any", "none"],
)
def test_a_registry_drops_what_its_connections_do(
    dialects: list[Dialect | None], state: set[str], members: set[str]
) -> None:
    """What either of them drops; what any release does if it is unknown. Other releases' caches are extra."""
    registry = registry_of(*dialects)
    known = [one for one in dialects if one is not None]
    own = set(ROOM_CACHES) if not known or NATIVE in known else state | members
    # A cache that the release lacks is there for facts of other releases: they drop it.
    foreign = set(ROOM_CACHES) - own

    assert state | foreign == dropped(registry, ROOM) | foreign
    assert own | foreign == dropped(registry, ROOM, USER) | foreign
    assert foreign <= dropped(registry, ROOM, USER)


def test_an_alias_that_the_release_lacks_still_drops() -> None:
    """A daemon of several sources may have its rows, whatever dialect the worker asked it for."""
    registry = registry_of(CURRENT)
    registry.cached(name="get_thread_id")(lambda event: event)

    assert {"get_thread_id", "get_room_type"} == dropped(registry, ROOM, alias="ph_cache_fake")
    assert not Vintage.of(CURRENT).is_alias("ph_cache_fake")


def test_a_given_vintage_wins() -> None:
    """Whatever the connection speaks."""
    registry = registry_of(LEGACY, vintage=Vintage.of(NEWEST))

    assert {"get_partial_current_state_ids", "get_room_type"} == dropped(registry, ROOM)


def test_caches_that_a_given_vintage_drops_less_often_are_told() -> None:
    """With what drops them; those that it drops as often are not, nor what it drops more often."""
    registry = registry_of(vintage=Vintage.of(NEWEST))
    registry.cached(name="get_room_summary")(lambda room: room)

    assert {
        "get_users_in_room": ["cs_cache_fake"], "get_current_state_ids": ["cs_cache_fake"],
    } == registry.connected(LEGACY)  # fmt: skip
    assert {} == registry_of(vintage=Vintage.of()).connected(LEGACY)
    assert {} == registry_of().connected(LEGACY)


def test_a_replaced_alias_is_compared_too() -> None:
    """One that takes other keys drops all that it reaches, which is often enough."""
    mine = Vintage.of(CURRENT).extended("mine")
    mine.alias("cs_cache_fake")(lambda room: [("get_users_in_room", (room,))])

    found = registry_of(vintage=mine).connected(CURRENT)

    assert {"get_partial_current_state_ids": ["cs_cache_fake"]} == found


def test_streams_follow_the_release() -> None:
    """Only those whose rows can drop a cache of the registry."""
    registry = new_registry(None)
    registry.cached(name="get_tags_for_user")(lambda user: user)
    registry.connected(LEGACY)
    assert {"caches", "tag_account_data"} == registry.streams

    registry.connected(NEWEST)
    assert {"caches", "tag_account_data", "account_data"} == registry.streams


def test_vintages_are_found_by_release() -> None:
    """By a dialect or its text."""
    assert Vintage.of("legacy") is Vintage.of(LEGACY)
    assert Vintage.of("1.163") is Vintage.of(NEWEST)
    assert Vintage.of(NATIVE) is Vintage.of() is Vintage.of(LEGACY, NATIVE)
    assert repr(Vintage.of(CURRENT, LEGACY)) == "Vintage('legacy and current')"
    with pytest.raises(ConfigError, match="'new' is not a dialect"):
        Vintage.of("new")


def test_rows_of_state_drop_by_release() -> None:
    """1.66 keeps the rooms of a user with their order until a row of the state names the user."""
    row = State(room_id=ROOM, type="m.room.member", state_key=USER, event_id="$e")

    for dialect, names in (
        (LEGACY, {"get_rooms_for_user_with_stream_ordering"}),
        (CURRENT, {"get_rooms_for_user_with_stream_ordering"}),
        (Dialect.parse("1.80"), {"get_rooms_for_user_with_stream_ordering", "get_rooms_for_user"}),
    ):
        assert names == {cache for cache, _ in Vintage.of(dialect).implied_drops("events", row)}
