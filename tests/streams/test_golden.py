"""Rows of real peers: every recorded row is read, and sent again unchanged."""

import json

import pytest

from synrepl.errors import RowError
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.dialect import LEGACY, Dialect
from tests.streams.captures import DIALECTS, Recorded, redis_rows, tcp_rows

TABLE = StreamTable.default()
TCP = tcp_rows()

# A test master was made to send these; they have the shape of no release.
SHAPELESS = {b'["ev",["$e"]]', b'["ev", ["$e"]]'}


def expected(row: Recorded) -> bytes:
    """The expected output for a row: its input, apart from the known and intended differences."""
    value = json.loads(row.text)
    if row.stream == "events" and value[0] == "ev":
        # SQLite masters write booleans as 1 and 0.
        value[1][7:] = [bool(flag) for flag in value[1][7:]]
    elif row.stream == "presence":
        value[6] = bool(value[6])
    elif row.stream == "pushers":
        value[3] = bool(value[3])
    elif row.stream == "public_rooms":
        value[1] = bool(value[1])
    return jsontext.dumps(value, spaced=jsontext.is_spaced(row.dialect))


@pytest.mark.parametrize("folder", DIALECTS)
def test_every_recorded_row_is_sent_as_it_was_received(folder: str) -> None:
    """A follower of synrepl receives the same bytes as the master's own follower."""
    rows = [row for row in TCP if row.file.startswith(folder + "/") and row.text not in SHAPELESS]
    assert len(rows) > 20

    for row in rows:
        stream = TABLE[row.stream]
        canonical = stream.encode(stream.decode(row.text, row.dialect))

        assert expected(row) == stream.project(canonical, row.dialect), row


def test_real_rows_differ_only_in_booleans() -> None:
    """The differences are as few as promised, and each of them really occurs."""
    changed = {
        (row.dialect.name, row.stream)
        for row in TCP
        if row.text not in SHAPELESS and expected(row) != row.text
    }

    assert {
        ("legacy", "presence"),
        ("legacy", "public_rooms"),
        ("middle", "presence"),
        ("middle", "public_rooms"),
        ("current", "events"),
        ("current", "presence"),
    } == changed


def test_upgrading_a_recorded_row_needs_no_typed_row() -> None:
    """The log stores texts; they must equal those of the typed row."""
    for row in TCP:
        if row.text not in SHAPELESS:
            stream = TABLE[row.stream]
            typed = stream.encode(stream.decode(row.text, row.dialect))

            assert typed == stream.canonical(row.text, row.dialect) == stream.canonical(typed)


def test_json_text_is_that_of_the_peers() -> None:
    """Spaces, escapes and numbers: a peer that compares texts must see no difference."""
    for row in TCP + redis_rows():
        assert row.text == jsontext.dumps(json.loads(row.text), spaced=jsontext.is_spaced(row.dialect))


def test_the_two_shapeless_rows_are_refused() -> None:
    """Only shapes of releases are accepted, else a truncated row would pass for a complete one."""
    found = [row for row in TCP if row.text in SHAPELESS]

    assert [row.dialect.name for row in found] == ["legacy", "current"]
    for row in found:
        with pytest.raises(RowError, match="ev: found 1 item; rows of known releases have 5 or 6 or 8 or 9"):
            TABLE[row.stream].decode(row.text, row.dialect)


def test_every_row_of_the_newest_release_is_canonical_already() -> None:
    """A row from Redis is logged, and sent to Redis, without a changed byte."""
    rows = redis_rows()
    assert len({row.stream for row in rows}) == 16

    for row in rows:
        stream = TABLE[row.stream]
        canonical = stream.canonical(row.text, row.dialect)

        assert row.text == canonical
        assert row.text == stream.encode(stream.decode(row.text, row.dialect))
        assert stream.project(canonical, row.dialect) is canonical


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
def test_rows_of_one_release_read_in_every_other(dialect: Dialect) -> None:
    """A wrong release in the settings costs some speed, but no rows."""
    for row in TCP + redis_rows():
        if row.text not in SHAPELESS:
            stream = TABLE[row.stream]

            assert stream.decode(row.text, row.dialect) == stream.decode(row.text, dialect)


def test_newest_rows_reach_a_legacy_worker_in_its_shape() -> None:
    """Fields that it lacks are dropped; fields that it expects are filled."""
    for row in redis_rows():
        stream = TABLE[row.stream]
        text = stream.project(row.text, LEGACY)
        if text is not None:
            values = json.loads(text)
            inner = values[1] if row.stream == "events" else values

            tag = values[0] if row.stream == "events" else ""
            assert len(stream.shape(LEGACY, tag)) == len(inner)
            assert jsontext.dumps(values, spaced=True) == text
