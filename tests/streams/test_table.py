"""The table of streams."""

import pytest

from synrepl.errors import ConfigError, UnknownStream
from synrepl.streams.stream import Stream, row
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect


@row
class Cat:
    """A row of a custom stream."""

    cat_id: str


CATS = Stream("cats", Cat, key="cat_id")
DOGS = Stream("dogs", Cat, key="cat_id")

OLD = (
    "events backfill presence typing receipts push_rules pushers caches public_rooms device_lists to_device"
    " federation tag_account_data account_data groups"
)
NEW = (
    "events backfill presence presence_federation typing receipts push_rules pushers caches device_lists"
    " to_device federation account_data profile_updates sticky_events thread_subscriptions"
    " un_partial_stated_room un_partial_stated_event quarantined_media"
)


def known(dialect: Dialect) -> str:
    """The names of the streams of a release, in order."""
    return " ".join(stream.name for stream in StreamTable.default().known_to(dialect))


def test_each_release_has_its_own_streams_in_the_order_of_masters() -> None:
    """A real peer disconnects at the position of a stream that it does not know."""
    assert known(LEGACY) == OLD
    assert known(MIDDLE) == OLD.replace("groups", "groups user_signature")
    assert known(NEWEST) == NEW
    assert known(NATIVE) == NEW + " files declarations promises atomic_appends refused"
    assert known(CURRENT) == (
        "events backfill presence presence_federation typing receipts push_rules pushers caches device_lists"
        " to_device federation tag_account_data account_data user_signature"
    )


def test_properties_of_the_streams() -> None:
    """Storage and followers rely on them and have no lists of their own."""
    table = StreamTable.default()

    assert {"typing", "presence", "presence_federation", "federation"} == {
        s.name for s in table if s.ephemeral
    }
    assert {"typing", "presence_federation", "federation"} == {s.name for s in table if not s.monotonic}
    assert {"backfill", "caches"} == {s.name for s in table if not s.ordered}
    assert {"federation", "atomic_appends"} == {s.name for s in table if s.key is None}


@pytest.mark.parametrize("more", [{CATS}, [CATS], StreamTable([CATS])])
def test_adding_a_stream_makes_another_table(more: object) -> None:
    """Two workers in one process can have different streams."""
    default = StreamTable.default()

    table = default | more  # type: ignore[operator]

    assert table["cats"] is CATS
    assert len(table) == len(default) + 1
    assert [*default, CATS] == list(table)
    assert "cats" not in default


def test_sets_of_streams_are_sorted() -> None:
    """The order must not change from one start to the next."""
    assert list(StreamTable() | {DOGS, CATS}) == [CATS, DOGS]


def test_tables_are_values() -> None:
    """Two tables of the same streams are the same."""
    assert StreamTable.default() == StreamTable.default()
    assert hash(StreamTable.default()) == hash(StreamTable.default())
    assert StreamTable.default() != StreamTable([CATS])
    assert repr(StreamTable([CATS])) == "StreamTable(cats)"


def test_two_streams_of_one_name_are_rejected() -> None:
    """One of them would silently receive the other's rows."""
    with pytest.raises(ConfigError, match="two streams named cats"):
        StreamTable([CATS]) | [Stream("cats", Cat)]


def test_streams_are_found_by_name() -> None:
    """Names come from the wire, so unknown names are common."""
    table = StreamTable.default()

    assert table["typing"].name == "typing"
    assert table.get("cats") is None
    assert "typing" in table
    assert table["typing"] in table
    assert CATS not in table
    assert 3 not in table
    with pytest.raises(UnknownStream, match="cats"):
        table["cats"]
