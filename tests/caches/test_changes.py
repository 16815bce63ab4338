"""The invalidations of one transaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.caches.changes import Changes
from synrepl.caches.vintage import PACKED, Invalidation, pack
from synrepl.errors import LocalProtocolError
from synrepl.streams.catalog import CacheInvalidation
from tests.caches.fakes import NEWEST

ROOM, USERS = "!r:hs", [f"@user{number}:hs" for number in range(10_000)]


def rows_of(changes: Changes) -> list[tuple[str, list[str] | None]]:
    """The rows, without their time."""
    rows = changes.rows(1500)
    assert {1500} >= {row.invalidation_ts for row in rows}
    return [(row.cache_func, row.keys) for row in rows]


def test_each_change_is_sent_once_and_in_order() -> None:
    """However often it was invalidated."""
    changes = Changes()
    changes.invalidate("get_user_by_id", ("@b:hs",))
    changes.invalidate("get_monthly_active_count", ())
    changes.invalidate("get_user_by_id", ("@a:hs",))
    changes.invalidate("get_user_by_id", ("@b:hs",))

    assert [
        ("get_user_by_id", ["@b:hs"]),
        ("get_monthly_active_count", []),
        ("get_user_by_id", ["@a:hs"]),
    ] == rows_of(changes)
    assert (
        CacheInvalidation(cache_func="get_user_by_id", keys=["@b:hs"], invalidation_ts=1500)
        == changes.rows(1500)[0]
    )


def test_a_transaction_without_changes_sends_no_rows() -> None:
    """No rows are sent."""
    assert [] == rows_of(Changes())


def test_all_of_a_cache_includes_its_entries() -> None:
    """Packed ones, too."""
    changes = Changes()
    changes.invalidate("get_user_by_id", ("@a:hs",))
    changes.invalidate(PACKED[0], ("@a:hs", "D"))
    changes.invalidate_all("get_user_by_id")
    changes.invalidate_all(PACKED[0])
    changes.invalidate("get_user_by_id", ("@b:hs",))
    changes.invalidate("get_profile", ("@b:hs",))

    assert [("get_user_by_id", None), (PACKED[0], None), ("get_profile", ["@b:hs"])] == rows_of(changes)


def test_ten_thousand_members_are_two_hundred_rows() -> None:
    """Each row is as long as possible, and no member is sent twice."""
    changes = Changes()
    for user in USERS:
        changes.state_changed(ROOM, [user])
        changes.state_changed(ROOM, [user])

    rows = rows_of(changes)

    assert 200 == len(rows)
    assert USERS == [user for _, keys in rows for user in (keys or [])[1:]]
    assert {("cs_cache_fake", ROOM, 51)} == {(name, (keys or [])[0], len(keys or [])) for name, keys in rows}


def test_state_changes_of_a_room_are_one() -> None:
    """A change of its topic is sent together with its members."""
    changes = Changes()
    changes.state_changed(ROOM)
    changes.state_changed("!s:hs")
    changes.state_changed(ROOM, ["@b:hs"])
    changes.invalidate("cs_cache_fake", (ROOM, "@a:hs", "@b:hs"))

    assert [("cs_cache_fake", [ROOM, "@b:hs", "@a:hs"]), ("cs_cache_fake", ["!s:hs"])] == rows_of(changes)


def test_deleted_room_includes_its_history_and_state() -> None:
    """But not the ended memberships, which readers learn from the change of state."""
    changes = Changes()
    changes.history_purged(ROOM)
    changes.state_changed(ROOM)
    changes.invalidate("ph_cache_fake", ("!s:hs",))
    changes.room_deleted(ROOM)
    changes.invalidate("dr_cache_fake", (ROOM,))

    assert [("ph_cache_fake", ["!s:hs"]), ("dr_cache_fake", [ROOM])] == rows_of(changes)
    changes.state_changed(ROOM, ["@a:hs"])
    assert ("cs_cache_fake", [ROOM, "@a:hs"]) == rows_of(changes)[0]


@pytest.mark.parametrize("name", PACKED)
def test_packed_keys_share_rows(name: str) -> None:
    """Many keys change at once."""
    changes = Changes()
    for user in USERS[:120]:
        changes.invalidate(name, (user, "D"))
        changes.invalidate(name, (user, "D"))

    rows = rows_of(changes)

    assert [50, 50, 20] == [len(keys or []) for _, keys in rows]
    assert [pack((user, "D")) for user in USERS[:120]] == [key for _, keys in rows for key in keys or []]


@pytest.mark.parametrize(
    ("name", "key"),
    [("cs_cache_fake", ()), ("ph_cache_fake", ()), ("dr_cache_fake", (ROOM, "x")), ("get_user", ("a", 5))],
)
def test_changes_that_no_reader_accepts_are_rejected(name: str, key: tuple[str, ...]) -> None:
    """They would be lost, or do harm."""
    with pytest.raises(LocalProtocolError, match=name):
        Changes().invalidate(name, key)


@pytest.mark.parametrize("name", ["cs_cache_fake", "ph_cache_fake", "dr_cache_fake"])
def test_alias_has_no_all(name: str) -> None:
    """Real workers fail at it."""
    with pytest.raises(LocalProtocolError, match=f"{name} is an alias, not a cache"):
        Changes().invalidate_all(name)


NAMES = ["get_a", "get_b", *PACKED]
ROOMS = st.sampled_from(["!r:hs", "!s:hs"])
CALLS = st.one_of(
    st.tuples(
        st.sampled_from(NAMES),
        st.none() | st.lists(st.sampled_from("xyz"), min_size=2, max_size=2).map(tuple),
    ),
    st.tuples(st.just("ph_cache_fake"), ROOMS.map(lambda room: (room,))),
    st.tuples(st.just("dr_cache_fake"), ROOMS.map(lambda room: (room,))),
    st.tuples(
        st.just("cs_cache_fake"),
        st.tuples(ROOMS, st.lists(st.sampled_from(USERS[:120]), max_size=80)).map(lambda c: (c[0], *c[1])),
    ),
)


def dropped(rows: list[CacheInvalidation]) -> set[Invalidation]:
    """The entries that readers drop, without those of caches that are dropped completely."""
    drops = {drop for row in rows for drop in NEWEST.expand(row.cache_func, row.keys)}
    return {drop for drop in drops if drop.key is None or Invalidation(drop.cache, None) not in drops}


@given(st.lists(CALLS, max_size=12))
def test_few_rows_drop_the_same_as_many(calls: list[tuple[str, tuple[str, ...] | None]]) -> None:
    """Fewer rows must have the same meaning."""
    changes, single = Changes(), []
    for name, key in calls:
        one = Changes()
        for to in (changes, one):
            if key is None:
                to.invalidate_all(name)
            else:
                to.invalidate(name, key)
        single += one.rows(0)

    rows = changes.rows(0)

    assert dropped(single) == dropped(rows)
    assert len(rows) <= len(single)
    assert len(rows) == len({repr(row) for row in rows})
    assert all(len(row.keys or ()) <= 51 for row in rows)
    assert rows == changes.rows(0)
