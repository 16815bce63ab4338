"""The aliases of each release, line by line, and the changes that a worker may make."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.caches.vintage import Drop, Unreadable, Vintage, pack, unpack
from synrepl.errors import ConfigError
from synrepl.streams.catalog import Backfilled, Event, State, StateAll
from tests.caches import tables
from tests.caches.fakes import LEGACY, NEWEST

SLIDING_SYNC = "get_sliding_sync_rooms_for_user_from_membership_snapshots"
LOCAL_ROOMS = "_get_rooms_for_local_user_where_membership_is_inner"


def expand(vintage: Vintage, name: str, *keys: str) -> list[Drop]:
    """The expansion of a row, in order."""
    return [(found.cache, found.key) for found in vintage.expand(name, keys)]


def event(**fields: Any) -> Event:
    """An event with these fields."""
    values: dict[str, Any] = {
        "event_id": "$e", "room_id": "!r:hs", "type": "m.room.message", "state_key": None, "redacts": None,
        "relates_to": None, "membership": None, "rejected": False, "outlier": False,
    }  # fmt: skip
    return Event(**(values | fields))


def implied(row: object, stream: str = "events") -> list[Drop]:
    """The implications of a row in 1.163, in order."""
    return [(found.cache, found.key) for found in NEWEST.implied_by(stream, row)]


def test_legacy_state_of_a_room() -> None:
    """Two members of one server invalidate that server once."""
    assert [
        ("is_host_joined", ("!r:hs", "far")),
        ("is_host_joined", ("!r:hs", "hs:8448")),
        ("was_host_joined", ("!r:hs", "far")),
        ("was_host_joined", ("!r:hs", "hs:8448")),
        ("get_users_in_room", ("!r:hs",)),
        ("get_room_summary", ("!r:hs",)),
        ("get_current_state_ids", ("!r:hs",)),
    ] == expand(LEGACY, "cs_cache_fake", "!r:hs", "@b:hs:8448", "@a:far", "@c:far")


def test_legacy_state_without_members() -> None:
    """As for a change of topic."""
    assert [
        ("get_users_in_room", ("!r:hs",)),
        ("get_room_summary", ("!r:hs",)),
        ("get_current_state_ids", ("!r:hs",)),
    ] == expand(LEGACY, "cs_cache_fake", "!r:hs")


def test_newest_state_of_a_room() -> None:
    """All caches that depend on the members and state of a room."""
    assert [
        ("is_host_joined", ("!r:hs", "far")),
        ("is_host_joined", ("!r:hs", "hs")),
        ("is_host_invited", ("!r:hs", "far")),
        ("is_host_invited", ("!r:hs", "hs")),
        ("get_users_in_room", ("!r:hs",)),
        ("get_current_hosts_in_room", ("!r:hs",)),
        ("get_users_in_room_with_profiles", ("!r:hs",)),
        ("get_number_joined_users_in_room", ("!r:hs",)),
        ("get_member_counts", ("!r:hs",)),
        ("get_local_users_in_room", ("!r:hs",)),
        ("does_pair_of_users_share_a_room", None),
        ("get_user_in_room_with_profile", ("!r:hs", "@b:hs")),
        ("get_user_in_room_with_profile", ("!r:hs", "@a:far")),
        ("get_rooms_for_user", ("@b:hs",)),
        ("get_rooms_for_user", ("@a:far",)),
        (LOCAL_ROOMS, ("@b:hs",)),
        (LOCAL_ROOMS, ("@a:far",)),
        (SLIDING_SYNC, ("@b:hs",)),
        (SLIDING_SYNC, ("@a:far",)),
        ("get_room_summary", ("!r:hs",)),
        ("get_partial_current_state_ids", ("!r:hs",)),
        ("_get_current_state_event_id", ("!r:hs",)),
        ("get_room_type", ("!r:hs",)),
        ("get_room_encryption", ("!r:hs",)),
        (SLIDING_SYNC, None),
    ] == expand(NEWEST, "cs_cache_fake", "!r:hs", "@b:hs", "@a:far", "@b:hs")


def test_newest_state_without_members() -> None:
    """Memberships are not invalidated."""
    assert [
        ("get_room_summary", ("!r:hs",)),
        ("get_partial_current_state_ids", ("!r:hs",)),
        ("_get_current_state_event_id", ("!r:hs",)),
        ("get_room_type", ("!r:hs",)),
        ("get_room_encryption", ("!r:hs",)),
        (SLIDING_SYNC, None),
    ] == expand(NEWEST, "cs_cache_fake", "!r:hs")


PURGED: list[Drop] = [
    ("get_event", None),
    ("have_seen_event", ("!r:hs",)),
    ("get_latest_event_ids_in_room", ("!r:hs",)),
    ("get_unread_event_push_actions_by_room_for_user", ("!r:hs",)),
    ("get_relations_for_event", ("!r:hs",)),
    ("_get_max_event_pos", ("!r:hs",)),
    ("get_threads", ("!r:hs",)),
    ("get_room_type", ("!r:hs",)),
    ("get_room_encryption", ("!r:hs",)),
    ("get_metadata_for_event", ("!r:hs",)),
    ("_get_membership_from_event_id", None),
    ("get_applicable_edit", None),
    ("get_thread_id", None),
    ("get_thread_id_for_receipts", None),
    ("get_invited_rooms_for_local_user", None),
    ("get_rooms_for_user", None),
    (LOCAL_ROOMS, None),
    (SLIDING_SYNC, None),
    ("did_forget", None),
    ("get_forgotten_rooms_for_user", None),
    ("get_references_for_event", None),
    ("get_thread_summary", None),
    ("get_thread_participated", None),
    ("_get_state_group_for_event", None),
    ("get_event_ordering", None),
    ("is_partial_state_event", None),
    ("_get_joined_profile_from_event_id", None),
]


def test_purged_history_drops_caches_of_the_room() -> None:
    """A room whose events were purged must not be joined again with cached ones."""
    assert PURGED == expand(NEWEST, "ph_cache_fake", "!r:hs")


def test_a_deleted_room_drops_all_its_caches() -> None:
    """All caches about it."""
    assert [
        *PURGED,
        ("get_aliases_for_room", ("!r:hs",)),
        ("_get_linearized_receipts_for_room", ("!r:hs",)),
        ("is_room_blocked", ("!r:hs",)),
        ("get_retention_policy_for_room", ("!r:hs",)),
        ("_get_partial_state_servers_at_join", ("!r:hs",)),
        ("is_partial_state_room", ("!r:hs",)),
        ("get_current_hosts_in_room_ordered", ("!r:hs",)),
        ("get_room_version_id", ("!r:hs",)),
        ("get_account_data_for_room", None),
        ("get_account_data_for_room_and_type", None),
        ("get_tags_for_room", None),
        ("_get_forward_extremeties_for_room", None),
        ("get_partial_current_state_ids", ("!r:hs",)),
        ("_get_current_state_event_id", ("!r:hs",)),
        ("get_users_in_room", ("!r:hs",)),
        ("get_current_hosts_in_room", ("!r:hs",)),
        ("get_users_in_room_with_profiles", ("!r:hs",)),
        ("get_number_joined_users_in_room", ("!r:hs",)),
        ("get_member_counts", ("!r:hs",)),
        ("get_local_users_in_room", ("!r:hs",)),
        ("get_room_summary", ("!r:hs",)),
        ("is_host_invited", None),
        ("is_host_joined", None),
        ("does_pair_of_users_share_a_room", None),
        ("get_user_in_room_with_profile", None),
    ] == expand(NEWEST, "dr_cache_fake", "!r:hs")


@pytest.mark.parametrize("name", ["_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json"])
def test_packed_keys_are_split_and_bad_ones_reported(name: str) -> None:
    """A key is a list itself; one that is not is skipped and reported."""
    unreadable: list[Unreadable] = []
    keys = ['["@a:hs", "D"]', "D", "[1]", '{"a":"b"}', '["@b:hs","E"]', "[", '"a"', "\ud800"]

    found = list(NEWEST.expand(name, keys, unreadable=unreadable.append))

    assert [("@a:hs", "D"), ("@b:hs", "E")] == [drop.key for drop in found]
    assert {name} == {drop.cache for drop in found}
    assert ["D", "[1]", '{"a":"b"}', "[", '"a"', "\ud800"] == [key.key for key in unreadable]
    assert [(name, None)] == [(drop.cache, drop.key) for drop in NEWEST.expand(name, None)]


def test_packed_keys_are_written_as_real_writers_do() -> None:
    """Readers may compare texts."""
    assert '["@caf\\u00e9:hs", "D"]' == pack(("@café:hs", "D"))
    assert ("@café:hs", "D") == unpack(pack(("@café:hs", "D")))


def test_plain_names_pass() -> None:
    """Null means all entries; an empty list is a key."""
    assert [("get_user_by_id", ("@a:hs",))] == expand(NEWEST, "get_user_by_id", "@a:hs")
    assert [("get_user_by_id", None)] == [(d.cache, d.key) for d in NEWEST.expand("get_user_by_id", None)]
    assert [("get_monthly_active_count", ())] == expand(LEGACY, "get_monthly_active_count")


EVENT: list[Drop] = [
    ("get_event", ("$e",)),
    ("have_seen_event", ("!r:hs", "$e")),
    ("get_metadata_for_event", ("!r:hs", "$e")),
    ("get_latest_event_ids_in_room", ("!r:hs",)),
    ("get_unread_event_push_actions_by_room_for_user", ("!r:hs",)),
    ("_get_max_event_pos", ("!r:hs",)),
    ("_get_membership_from_event_id", ("$e",)),
]


def test_an_event_drops_caches_of_its_room() -> None:
    """It exists now, and is the newest of its room."""
    assert EVENT == implied(event())


def test_a_redaction_drops_the_redacted_event() -> None:
    """A redacted event must not be shown from a cache."""
    assert [
        *EVENT,
        ("get_event", ("$old",)),
        ("get_relations_for_event", ("!r:hs", "$old")),
        ("get_applicable_edit", ("$old",)),
        ("get_thread_id", ("$old",)),
        ("get_thread_id_for_receipts", ("$old",)),
    ] == implied(event(redacts="$old"))


def test_a_membership_drops_the_lists_of_rooms_of_its_user() -> None:
    """The rooms that a user is in, was invited to, or forgot."""
    assert [
        *EVENT,
        ("get_invited_rooms_for_local_user", ("@a:hs",)),
        ("get_rooms_for_user", ("@a:hs",)),
        (LOCAL_ROOMS, ("@a:hs",)),
        (SLIDING_SYNC, ("@a:hs",)),
        ("get_forgotten_rooms_for_user", ("@a:hs",)),
        ("did_forget", ("@a:hs", "!r:hs")),
    ] == implied(event(type="m.room.member", state_key="@a:hs"))
    assert EVENT == implied(event(type="m.room.member"))


def test_a_relation_drops_caches_of_its_event() -> None:
    """Reactions, edits and threads."""
    assert [
        *EVENT,
        ("get_relations_for_event", ("!r:hs", "$root")),
        ("get_references_for_event", ("$root",)),
        ("get_applicable_edit", ("$root",)),
        ("get_thread_summary", ("$root",)),
        ("get_thread_participated", ("$root",)),
        ("get_threads", ("!r:hs",)),
    ] == implied(event(relates_to="$root"))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("m.room.create", [("get_room_type", ("!r:hs",))]),
        ("m.room.encryption", [("get_room_encryption", ("!r:hs",))]),
        ("m.room.name", []),
        ("m.room.tombstone", []),
    ],
)
def test_state_shown_in_room_lists_drops_them(kind: str, more: list[Drop]) -> None:
    """Only as state of the room itself; any user may send an event of that type with another key."""
    assert [*EVENT, *more, (SLIDING_SYNC, None)] == implied(event(type=kind, state_key=""))
    assert [*EVENT, *more] == implied(event(type=kind, state_key="x"))
    assert [*EVENT, *more] == implied(event(type=kind))


def test_a_state_event_drops_caches_of_that_state() -> None:
    """Members, encryption and type; no other state."""

    def of(kind: str) -> list[Drop]:
        return implied(State(room_id="!r:hs", type=kind, state_key="@a:hs", event_id="$e"))

    assert [("get_rooms_for_user", ("@a:hs",)), (SLIDING_SYNC, None)] == of("m.room.member")
    assert [("get_room_encryption", ("!r:hs",))] == of("m.room.encryption")
    assert [("get_room_type", ("!r:hs",))] == of("m.room.create")
    assert [] == of("m.room.topic")


def test_a_change_of_all_state_drops_all_caches_of_the_room() -> None:
    """Too much changed to list it."""
    assert [
        ("get_rooms_for_user", None),
        (SLIDING_SYNC, None),
        ("get_room_type", ("!r:hs",)),
        ("get_room_encryption", ("!r:hs",)),
    ] == implied(StateAll(room_id="!r:hs"))


def test_backfilled_event_implies_what_an_event_does() -> None:
    """It is as new to this worker."""
    row = Backfilled(
        event_id="$e", room_id="!r:hs", type="m.room.member", state_key="@a:hs", redacts="$o", relates_to="$p"
    )

    assert implied(row, "backfill") == implied(
        event(type="m.room.member", state_key="@a:hs", redacts="$o", relates_to="$p")
    )


# -- what a vintage can reach ------------------------------------------------------------------------------


def test_reach_of_aliases_is_what_the_tables_name() -> None:
    """After a loss these are cleared; a missing one would stay stale."""
    for alias in NEWEST.aliases:
        keys = [pack(("a", "b"))] if alias.startswith("_") else ["!r:hs", "@a:hs"][: 1 + (alias[0] == "c")]
        assert {cache for cache, _ in tables.newest(alias, keys)} == NEWEST.reaches(alias)
    reached = {cache for cache, _ in tables.legacy("cs_cache_fake", ["!r:hs", "@a:hs"])}
    assert reached == LEGACY.reaches("cs_cache_fake")
    assert reached == set(LEGACY.reached_by("caches") or ())
    assert {"get_user_by_id"} == NEWEST.reaches("get_user_by_id")


TEXTS = st.sampled_from(["$a", "@b:hs", "", "m.room.member"])
TYPES = st.sampled_from(
    ["m.room.member", "m.room.create", "m.room.encryption", "m.room.name", "m.room.tombstone", "x"]
)


@given(
    st.builds(
        event,
        type=TYPES,
        state_key=st.none() | TEXTS,
        redacts=st.none() | TEXTS,
        relates_to=st.none() | TEXTS,
    )
    | st.builds(State, room_id=TEXTS, type=TYPES, state_key=TEXTS, event_id=st.none() | TEXTS)
    | st.builds(StateAll, room_id=TEXTS)
)
def test_no_row_reaches_further_than_the_samples(row: Event | State | StateAll) -> None:
    """The reach of a stream comes from its samples, so these must be complete."""
    reached = NEWEST.reached_by("events")

    assert reached is not None
    assert {cache for cache, _ in implied(row)} <= reached


def test_streams_without_implications_reach_nothing() -> None:
    """As typing does."""
    assert NEWEST.reached_by("typing") == frozenset()
    assert [] == implied(object(), "typing")


# -- a vintage of one's own --------------------------------------------------------------------------------


def test_worker_adds_to_a_vintage() -> None:
    """To a copy; the original stays unchanged."""
    mine = NEWEST.extended("mine")

    @mine.alias("my_room_fake")
    def my_room(room_id: str, limit: str = "") -> Iterator[Drop]:
        yield "get_my_room", (room_id,)
        if limit:
            yield "get_my_limit", None

    @mine.implied("typing")
    def my_typing(row: str) -> Iterator[Drop]:
        yield "get_typing", (row,)

    assert [("get_my_room", ("!r",))] == expand(mine, "my_room_fake", "!r")
    assert {"get_my_room", "get_my_limit"} == mine.reaches("my_room_fake")
    assert my_room is mine.aliases["my_room_fake"]
    assert my_typing is mine.implications["typing"]
    assert mine.reached_by("typing") is None
    assert not NEWEST.is_alias("my_room_fake")
    assert {*NEWEST.implications, "typing"} == set(mine.implications)
    assert "Vintage('mine')" == repr(mine)


def test_worker_replaces_what_an_alias_means() -> None:
    """The table belongs to the worker."""
    mine = NEWEST.extended("mine")

    @mine.alias("cs_cache_fake")
    def mine_only(room_id: str, *users: str) -> Iterator[Drop]:
        yield "get_room_summary", (room_id,)

    assert [("get_room_summary", ("!r",))] == expand(mine, "cs_cache_fake", "!r", "@a:hs")
    assert len(expand(NEWEST, "cs_cache_fake", "!r", "@a:hs")) > 10
    assert {"get_room_summary"} == mine.reaches("cs_cache_fake")


def test_mistakes_raise_at_the_declaration() -> None:
    """Not with the first row."""

    def nothing(*keys: str) -> Iterator[Drop]:
        yield from ()

    mine = Vintage("mine")
    mine.alias("a")(nothing)
    with pytest.raises(ConfigError, match="vintage mine declares a twice"):
        mine.alias("a")(nothing)
    with pytest.raises(ConfigError, match=r"vintage 1\.163 is sealed"):
        NEWEST.alias("a")(nothing)
    with pytest.raises(ConfigError, match="rows of the stream caches cannot imply"):
        mine.implied("caches")(nothing)

    def numbers(key: str) -> Iterator[Drop]:
        yield "get_number", (str(int(key)),)

    with pytest.raises(ConfigError, match="alias b of mine fails for its samples"):
        mine.alias("b")(numbers)
    mine.alias("c", samples=[["5"]])(numbers)

    def unreadable(key: str) -> Iterator[Unreadable]:
        yield Unreadable(key)

    with pytest.raises(ConfigError, match="d cannot read its sample '!room:one'; pass readable samples="):
        mine.alias("d")(unreadable)

    def text(key: str) -> Iterator[Any]:
        yield "get_number", [key]

    with pytest.raises(ConfigError, match="e yields '!room:one' as a key, which must be a tuple or None"):
        mine.alias("e")(text)


def test_an_alias_may_yield_many_keys_of_a_cache() -> None:
    """Each is an invalidation; a list without keys is none."""
    mine = Vintage("mine")

    @mine.alias("users")
    def users(*users: str) -> Iterator[Drop]:
        yield "get_user", [(user,) for user in users]

    assert [("get_user", ("@a",)), ("get_user", ("@b",))] == expand(mine, "users", "@a", "@b")
    assert [] == expand(mine, "users")


@pytest.mark.parametrize(
    ("name", "keys", "why"),
    [
        ("cs_cache_fake", None, "not a cache"),
        ("cs_cache_fake", [], "takes 1 or more keys, not 0"),
        ("ph_cache_fake", [], "takes 1 keys, not 0"),
        ("dr_cache_fake", ["!r", "!s"], "takes 1 keys, not 2"),
    ],
)
def test_alias_rejects_unsupported_keys(name: str, keys: list[str] | None, why: str) -> None:
    """The registry decides what to drop."""
    with pytest.raises(ValueError, match=why):
        list(NEWEST.expand(name, keys))
