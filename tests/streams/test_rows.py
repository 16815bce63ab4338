"""Rows: valid and invalid ones, their errors, and their text for each release."""

import json
import re
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.errors import ConfigError, RowError
from synrepl.streams.catalog import (
    ACCOUNT_DATA,
    CACHES,
    DEVICE_LISTS,
    EVENTS,
    FEDERATION,
    GROUPS,
    PRESENCE,
    PROFILE_UPDATES,
    PUBLIC_ROOMS,
    QUARANTINED_MEDIA,
    RECEIPTS,
    TAG_ACCOUNT_DATA,
    TYPING,
    USER_SIGNATURE,
    CacheInvalidation,
    DeviceList,
    Event,
    Presence,
    ProfileUpdate,
    Receipt,
    State,
    StateAll,
    Typing,
)
from synrepl.streams.stream import MAX_DEPTH, Bool, Gone, Since, Stream, row
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect

TABLE = StreamTable.default()
RELEASES = [
    Dialect.parse(text)
    for text in [
        "0.21",
        "0.99.3",
        "0.99.4",
        "0.99.5",
        "1.0",
        "1.7",
        "1.12.4",
        "1.13",
        "1.18",
        "1.19",
        "1.22",
        "1.23",
        "1.33",
        "1.41",
        "1.61",
        "1.64",
        "1.66",
        "1.67",
        "1.163",
        "native",
    ]
]

EV = b'["ev",["$e","!r:hs","m.room.message",null,null,null,"join",false,true]]'


def refused(stream: Stream[Any], data: bytes, dialect: Dialect = NEWEST) -> str:
    """The error of a bad row."""
    with pytest.raises(RowError) as caught:
        stream.decode(data, dialect)
    assert caught.value.stream == stream.name
    with pytest.raises(RowError) as again:
        stream.canonical(data, dialect)
    assert caught.value.why == again.value.why
    return caught.value.why


# -- what is refused


@pytest.mark.parametrize(
    ("stream", "data", "why"),
    [
        (TYPING, b"", "not JSON: Input data was truncated"),
        (TYPING, b"[", "not JSON: Input data was truncated"),
        (TYPING, b"{}", "a row must be a JSON array, not dict"),
        (TYPING, b"null", "a row must be a JSON array, not NoneType"),
        (TYPING, b"[]", "found 0 items; rows of known releases have 2"),
        (TYPING, b'["!r"]', "found 1 item; rows of known releases have 2"),
        (TYPING, b'["!r",[],0]', "found 3 items; rows of known releases have 2"),
        (TYPING, b'["!r",["@a",1]]', "user_ids (item 1): Expected `str`, got `int` - at `$[1]`"),
        (TYPING, b'["!r",null]', "user_ids (item 1): Expected `array`, got `null`"),
        (TYPING, b'["!r",[]]x', "not JSON: JSON is malformed: trailing characters (byte 10)"),
        (
            PRESENCE,
            b'["@a","online",1.5,0,0,null,true]',
            "last_active_ts (item 2): Expected `int`, got `float`",
        ),
        (
            PRESENCE,
            b'["@a","online",1,0,0,null,2]',
            "currently_active (item 6): Invalid enum value 2",
        ),
        (
            PRESENCE,
            b'["@a","online",1,0,0,null,null]',
            "currently_active (item 6): Expected `bool | int`, got `null`",
        ),
        (EVENTS, b'["ev",["$e"]]', "ev: found 1 item; rows of known releases have 5 or 6 or 8 or 9"),
        (EVENTS, b'["ex",["$e"]]', "'ex' is not a kind of row; known are ev, state, state-all"),
        (EVENTS, b'["ev",{}]', "the row after 'ev' must be a JSON array, not dict"),
        (EVENTS, b'["ev",[1,"!r","t",null,null,null]]', "ev: event_id (item 0): Expected `str`, got `int`"),
        (EVENTS, b'["ev"]', "found 1 item; expected a tag (ev, state, state-all) and a row"),
        (EVENTS, b'["ev",[],[]]', "found 3 items; expected a tag (ev, state, state-all) and a row"),
        (EVENTS, b'["$e","!r",3,null,null]', "untagged: type (item 2): Expected `str`, got `int`"),
        (EVENTS, EV[:-1] + b"x", "not JSON: JSON is malformed: expected ',' or ']' (byte 70)"),
        (PUBLIC_ROOMS, b'["!r","secret",null,null]', "visibility (item 1): Invalid enum value 'secret'"),
        (FEDERATION, b'["p",[]]', "data (item 1): Expected `object`, got `array`"),
    ],
)
def test_bad_row_is_rejected_with_a_reason(stream: Stream[Any], data: bytes, why: str) -> None:
    """The log of a failed connection must show which field was wrong, and how."""
    assert why == refused(stream, data)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_nan_and_infinity_are_rejected(number: bytes) -> None:
    """Python reads and writes them; other JSON parsers do not."""
    assert "NaN and Infinity are not JSON" in refused(FEDERATION, b'["p",{"x":' + number + b"}]")


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000])
def test_huge_numbers_are_rejected(number: bytes) -> None:
    """A float beyond the largest would become Infinity; endless digits are an attack."""
    assert "out of range" in refused(FEDERATION, b'["p",{"x":' + number + b"}]")


def test_bad_utf8_is_rejected() -> None:
    """Also inside strings, which a lazy parser would skip."""
    assert refused(TYPING, b'["\xff",[]]') == "not UTF-8"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_rejected(opening: bytes) -> None:
    """A row of brackets must not end the process."""
    for stream in TABLE:
        refused(stream, opening * 100_000)
    assert refused(FEDERATION, b'["p",' + opening * 100_000) == "nested too deeply"


@pytest.mark.parametrize(
    ("text", "escape", "at"),
    [
        (rb"\ud83d", r"\ud83d", 2),
        (rb"x\uD83Dyz", r"\uD83D", 3),
        (rb"\ud83d\u0041", r"\ud83d", 2),
        (rb"\ud83d\ud83d", r"\ud83d", 2),
        (rb"ok \ud83d\ude00 \ude00", r"\ude00", 18),
        (rb"\\\ud83d", r"\ud83d", 4),
    ],
)
def test_lone_surrogate_is_rejected_by_name(text: bytes, escape: str, at: int) -> None:
    """Databases and UTF-8 peers reject half a surrogate pair; the decoder said: truncated."""
    why = f"the string with {escape} at byte {at} is no Unicode text: it has one half of a surrogate pair"

    assert f"not JSON: {why}" == refused(TYPING, b'["%b",[]]' % text)
    with pytest.raises(RowError, match=re.escape("half of a surrogate pair")):
        TYPING.canonical_fact(b'[["%b",[]]]' % text)


def test_a_text_that_only_looks_like_a_surrogate_is_refused_for_its_own_reason() -> None:
    """An escaped backslash, and a whole pair."""
    assert "truncated" in refused(TYPING, rb'["\\ud83d",[')
    assert "truncated" in refused(TYPING, rb'["\ud83d\ude00",[')


@pytest.mark.parametrize("rows", [b"[]", []])
def test_fact_without_rows_is_rejected(rows: Any) -> None:
    """It would move a token without any content."""
    with pytest.raises(RowError, match="at least one row"):
        TYPING.canonical_fact(rows)


@pytest.mark.parametrize("rows", [b"", b"{}", b"[[]", b"[" * 100_000])
def test_fact_that_is_not_an_array_is_rejected(rows: bytes) -> None:
    """With the same error as a bad row, so that callers catch one type."""
    with pytest.raises(RowError, match="not a JSON array"):
        TYPING.canonical_fact(rows)


def test_bad_row_of_a_fact_is_named() -> None:
    """A publisher of a thousand rows must find the bad one."""
    with pytest.raises(RowError, match="bad row 1 of stream typing") as caught:
        TYPING.canonical_fact(b'[["!r",[]],["!r"],["!r",[]]]')

    assert caught.value.index == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes", {1, 2}])
def test_values_that_json_lacks_are_rejected(value: Any) -> None:
    """A worker's mistake raises in the worker, and never reaches the log."""
    with pytest.raises(RowError):
        FEDERATION.canonical(["p", {"x": value}])
    with pytest.raises(RowError):
        TYPING.canonical(["!r", [value]])


def test_cyclic_values_are_rejected() -> None:
    """Else the encoder would never end."""
    loop: dict[str, Any] = {}
    loop["loop"] = loop

    with pytest.raises(RowError):
        FEDERATION.canonical(["p", loop])


@pytest.mark.parametrize(
    "bad",
    [
        Typing(room_id=1, user_ids=[]),  # type: ignore[arg-type]
        Typing(room_id="!r", user_ids=[float("nan")]),  # type: ignore[list-item]
        StateAll(room_id="!r"),
    ],
)
def test_typed_row_is_checked_before_it_is_written(bad: Any) -> None:
    """A worker may not have run a type checker."""
    with pytest.raises(RowError):
        TYPING.encode(bad)


# -- valid rows


@pytest.mark.parametrize(
    ("written", "held"),
    [
        (b"true", True),
        (b"false", False),
        (b"1", True),
        (b"0", False),
        (b'"public"', True),
        (b'"private"', False),
    ],
)
def test_visibility_of_a_room_is_a_bool_however_written(written: bytes, held: bool) -> None:
    """Masters on SQLite and on PostgreSQL spell it differently."""
    room = PUBLIC_ROOMS.decode(b'["!r",' + written + b",null,null]", LEGACY)

    assert room.visibility is held


def test_booleans_of_sqlite_become_booleans() -> None:
    """``is True`` must be a safe test for a worker, and the log must not depend on the database."""
    data = b'["ev",["$e","!r","t",null,null,null,null,1,0]]'

    event = EVENTS.decode(data, CURRENT)

    assert isinstance(event, Event)
    assert (event.rejected, event.outlier) == (True, False)
    assert event.rejected is True
    assert EVENTS.canonical(data, CURRENT) == b'["ev",["$e","!r","t",null,null,null,null,true,false]]'


def test_switching_between_spellings_changes_nothing() -> None:
    """The remembered spelling of a peer is for speed only."""
    plain, numbers = EV, EV.replace(b"false,true", b"0,1")
    for data in (plain, numbers, numbers, plain, plain, numbers, plain):
        assert EVENTS.canonical(data, CURRENT) == EV


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'["$e","!r","t",null,null]', ["$e", "!r", "t", None, None, None, None, False, False]),
        (b'["ev",["$e","!r","t","",null,"$x"]]', ["$e", "!r", "t", "", None, "$x", None, False, False]),
        (b'["ev",["$e","!r","t","",null,"$x","join",1]]', None),
        (
            b'["ev",["$e","!r","t","",null,"$x","join",1,0]]',
            ["$e", "!r", "t", "", None, "$x", "join", True, False],
        ),
        (
            b' [ "ev" ,\n["$e","!r","t","",null,null] ] ',
            ["$e", "!r", "t", "", None, None, None, False, False],
        ),
        (
            b'["\\u0065v",["$e","!r","t","",null,null]]',
            ["$e", "!r", "t", "", None, None, None, False, False],
        ),
    ],
)
@pytest.mark.parametrize("dialect", [LEGACY, MIDDLE, CURRENT, NEWEST, NATIVE], ids=str)
def test_events_of_any_release_are_upgraded(
    data: bytes, expected: list[Any] | None, dialect: Dialect
) -> None:
    """Whatever the settings say about the peer: its rows decide."""
    expected = expected or ["$e", "!r", "t", "", None, "$x", "join", True, False]
    text = jsontext.dumps(["ev", expected])

    assert text == EVENTS.canonical(data, dialect)
    assert EVENTS.decode(text, NEWEST) == EVENTS.decode(data, dialect)


@pytest.mark.parametrize(
    ("stream", "data", "expected"),
    [
        (DEVICE_LISTS, b'["@a"]', b'["@a",false,false]'),
        (DEVICE_LISTS, b'["@a",null]', b'["@a",false,false]'),
        (DEVICE_LISTS, b'["@a","far"]', b'["@a",false,false,"far"]'),
        (DEVICE_LISTS, b'["@a",1,true]', b'["@a",true,true]'),
        (ACCOUNT_DATA, b'["@a",null,"m.x",{"any":[1.5]}]', b'["@a",null,"m.x",{"any":[1.5]}]'),
        (ACCOUNT_DATA, b'["@a","!r","m.x","{}"]', b'["@a","!r","m.x","{}"]'),
        (ACCOUNT_DATA, b'["@a","!r","m.x",null]', b'["@a","!r","m.x"]'),
        (ACCOUNT_DATA, b'["@a","!r","m.x","caf\xc3\xa9 1e16"]', b'["@a","!r","m.x","caf\\u00e9 1e16"]'),
        (RECEIPTS, b'["!r","m.read","@a","$e",{"ts": 1}]', b'["!r","m.read","@a","$e",null,{"ts":1}]'),
        (EVENTS, b'["state",["!r","t","",null]]', b'["state",["!r","t","",null]]'),
        (EVENTS, b'["state-all", ["!r"]]', b'["state-all",["!r"]]'),
        (TAG_ACCOUNT_DATA, b'["@a","!r","{\\"tags\\": {}}"]', b'["@a","!r","{\\"tags\\": {}}"]'),
        (TAG_ACCOUNT_DATA, b'["@a","!r",{"tags": {}}]', b'["@a","!r",{"tags":{}}]'),
        (CACHES, b'["f",null,null]', b'["f",null,null]'),
        (CACHES, b'["f",[],1]', b'["f",[],1]'),
        (QUARANTINED_MEDIA, b'[null,"m",1]', b'[null,"m",true]'),
        (GROUPS, b'["+g","@a","t",{"x":{}}]', b'["+g","@a","t",{"x":{}}]'),
        (USER_SIGNATURE, b'["@a"]', b'["@a"]'),
        (PUBLIC_ROOMS, b'["!r","public",null,"n"]', b'["!r",true,null,"n"]'),
        (PROFILE_UPDATES, b'["@a","update",["avatar_url"]]', b'["@a","update",["avatar_url"]]'),
    ],
)
def test_row_of_any_release_is_upgraded_to_the_newest(
    stream: Stream[Any], data: bytes, expected: bytes
) -> None:
    """The log keeps one shape, whoever wrote the row, and also for streams that are gone."""
    for dialect in (NEWEST, LEGACY, CURRENT):
        assert expected == stream.canonical(data, dialect)


@pytest.mark.parametrize(
    "value",
    [
        1e16,
        1e-7,
        1.0,
        -0.0,
        0.1,
        1e22,
        123456789.123,
        2**53,
        2**64,
        -(2**70),
        True,
        None,
        "\x7f",
        "\x00\n",
        "é",
        "☃",
        "😀",
        '"\\/',
        "\u2028",
        {},
        [],
        {"é": [1.5e300]},
    ],
    ids=repr,
)
def test_canonical_text_is_that_of_python(value: Any) -> None:
    """Two programs that keep the same row must keep the same bytes; peers compare them."""
    for text in (
        json.dumps(["p", {"x": value}], ensure_ascii=False),
        json.dumps(["p", {"x": value}]),
    ):
        assert json.dumps(["p", {"x": value}], separators=(",", ":")).encode() == FEDERATION.canonical(
            text.encode()
        )


def nested(levels: int) -> bytes:
    """A row with so many levels."""
    return b'["p",' + b'{"a":' * (levels - 1) + b"1" + b"}" * (levels - 1) + b"]"


def test_a_row_that_is_nested_too_deeply_is_refused_wherever_it_comes_in() -> None:
    """What a thread with few calls could read and store, nobody with more of them could: followers, replicas
    and trimming stopped at that fact."""
    assert nested(MAX_DEPTH) == FEDERATION.canonical(nested(MAX_DEPTH))
    for deep in (nested(MAX_DEPTH + 1), nested(900), nested(5_000)):
        with pytest.raises(RowError, match=r"nested too deeply|recursion"):
            FEDERATION.canonical(deep)


def test_duplicate_keys_are_read_as_python_reads_them() -> None:
    """The last value counts, in the position of the first."""
    assert FEDERATION.canonical(b'["p",{"a":1,"b":2,"a":3}]') == b'["p",{"a":3,"b":2}]'


def test_rows_are_values() -> None:
    """They can be compared and used as keys, and are immutable."""
    one = State(room_id="!r", type="t", state_key="", event_id=None)

    assert one == EVENTS.decode(b'["state",["!r","t","",null]]', NEWEST)
    assert len({one, EVENTS.decode(b'["state",["!r","t","",null]]', NEWEST)}) == 1
    with pytest.raises(AttributeError):
        one.type = "u"  # type: ignore[misc]


# -- what each release gets


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.99.3", b'["$e", "!r:hs", "m.room.message", null, null]'),
        ("0.99.4", b'["ev", ["$e", "!r:hs", "m.room.message", null, null]]'),
        ("1.0", b'["ev", ["$e", "!r:hs", "m.room.message", null, null, null]]'),
        ("1.19", b'["ev",["$e","!r:hs","m.room.message",null,null,null]]'),
        ("1.23", b'["ev",["$e","!r:hs","m.room.message",null,null,null,"join",false]]'),
        ("1.64", EV),
        ("native", EV),
    ],
)
def test_event_is_projected_to_each_release(release: str, expected: bytes) -> None:
    """Real followers lose a row with a field too many."""
    assert expected == EVENTS.project(EV, Dialect.parse(release))


@pytest.mark.parametrize(
    ("stream", "data", "release", "expected"),
    [
        (DEVICE_LISTS, b'["@a",true,false]', "1.0", b'["@a", null]'),
        (DEVICE_LISTS, b'["@a",true,false]', "1.66", b'["@a"]'),
        (ACCOUNT_DATA, b'["@a",null,"m.x"]', "1.6", b'["@a", null, "m.x", null]'),
        (ACCOUNT_DATA, b'["@a",null,"m.x"]', "1.7", b'["@a", null, "m.x"]'),
        (
            RECEIPTS,
            b'["!r","m.read","@a","$e","main",{"ts":1}]',
            "1.66",
            b'["!r","m.read","@a","$e",{"ts":1}]',
        ),
        (
            RECEIPTS,
            b'["!r","m.read","@a","$e","main",{"ts":1}]',
            "1.0",
            b'["!r", "m.read", "@a", "$e", {"ts": 1}]',
        ),
        (EVENTS, b'["state-all",["!r"]]', "1.66", None),
        (EVENTS, b'["state",["!r","t","",null]]', "0.99.3", None),
        (EVENTS, b'["state",["!r","t","",null]]', "0.99.4", b'["state", ["!r", "t", "", null]]'),
        (GROUPS, b'["+g","@a","t",{}]', "0.23", None),
        (GROUPS, b'["+g","@a","t",{}]', "1.60", b'["+g","@a","t",{}]'),
        (GROUPS, b'["+g","@a","t",{}]', "1.61", None),
        (PROFILE_UPDATES, b'["@a","update",null]', "1.66", None),
    ],
)
def test_row_is_projected_to_the_fields_of_a_release(
    stream: Stream[Any], data: bytes, release: str, expected: bytes | None
) -> None:
    """Fields that it lacks are dropped, missing ones are filled, unknown rows and streams are withheld."""
    assert expected == stream.project(data, Dialect.parse(release))


@pytest.mark.parametrize(
    ("stream", "received", "kept", "newest"),
    [
        (
            ACCOUNT_DATA,
            b'["@a", "!r", "m.x", {"a": [1e+16, "\\u00e9"]}]',
            b'["@a","!r","m.x",{"a":[1e+16,"\\u00e9"]}]',
            b'["@a","!r","m.x"]',
        ),
        (
            DEVICE_LISTS,
            b'["@a", "far.example.com"]',
            b'["@a",false,false,"far.example.com"]',
            b'["@a",false,false]',
        ),
    ],
)
def test_a_kept_field_is_sent_to_releases_that_have_it(
    stream: Stream[Any], received: bytes, kept: bytes, newest: bytes
) -> None:
    """A federation sender of 1.0 reads its targets from `destination`; newer ones fail at the field."""
    rows = jsontext.join([kept])

    assert kept == stream.canonical(received, LEGACY) == stream.canonical(kept)
    assert kept == stream.encode(stream.decode(received, LEGACY))
    assert [received] == stream.project_fact(rows, LEGACY)
    assert [newest] == stream.project_fact(rows, NEWEST) == stream.project_fact(rows, NATIVE)
    assert [newest] == stream.project_newest(rows) == stream.project_newest(jsontext.join([newest]))


def test_a_kept_field_is_an_attribute_of_the_row() -> None:
    """A follower of a legacy master can read it; the row is an instance of the declared class."""
    rows = DEVICE_LISTS.decode_many([b'["@a", "far"]', b'["@b", null]'], LEGACY)

    assert ["far", None] == [getattr(row, "destination", None) for row in rows]
    assert all(isinstance(row, DeviceList) for row in rows)


@pytest.mark.parametrize("stream", [EVENTS, DEVICE_LISTS])
def test_no_rows_are_decoded_to_none(stream: Stream[Any]) -> None:
    """With tags and without."""
    assert [] == stream.decode_many([], NEWEST)


def test_row_that_needs_no_projection_is_not_copied() -> None:
    """A current follower of a busy stream costs almost nothing."""
    assert EVENTS.project(EV, NEWEST) is EV
    assert EVENTS.project(EV, CURRENT) is EV


def test_text_that_is_not_a_row_of_the_stream_is_not_projected() -> None:
    """A broken log is an error, not a reason to invent a row."""
    with pytest.raises(RowError, match="not a canonical row"):
        EVENTS.project(b'["no",[]]', CURRENT)


def test_fact_is_projected_row_by_row() -> None:
    """Rows that the release does not know are left out; the others keep their order."""
    rows = b'[["state-all",["!r"]],' + EV + b',["state",["!r","t","",null]]]'

    assert EVENTS.project_fact(rows, CURRENT) == [EV, b'["state",["!r","t","",null]]']
    assert EVENTS.project_fact(rows, NEWEST) == [b'["state-all",["!r"]]', EV, b'["state",["!r","t","",null]]']
    assert TABLE["profile_updates"].project_fact(b'[["@a","update",null]]', CURRENT) == []


def test_fact_is_upgraded_row_by_row() -> None:
    """The log keeps the same text for texts and for values."""
    expected = b'[["!r",["@a"]],["!s",[]]]'

    assert expected == TYPING.canonical_fact(b' [["!r", ["@a"]], ["!s", []]]')
    assert expected == TYPING.canonical_fact([["!r", ["@a"]], ["!s", []]])


def test_shape_lists_the_field_names() -> None:
    """The tables of the manual are made from it."""
    assert EVENTS.shape(LEGACY) == ("event_id", "room_id", "type", "state_key", "redacts", "relates_to")
    assert EVENTS.shape(LEGACY, "state") == ("room_id", "type", "state_key", "event_id")
    assert EVENTS.shape(LEGACY, "state-all") == ()
    assert EVENTS.tags == ("ev", "state", "state-all")
    assert ACCOUNT_DATA.shape(LEGACY) == ("user_id", "room_id", "data_type", "data")
    assert GROUPS.shape(CURRENT) == ()


# -- keys


@pytest.mark.parametrize(
    ("stream", "data", "key"),
    [
        (EVENTS, EV, ("ev", "$e")),
        (EVENTS, b'["state",["!r","t","k",null]]', ("state", "!r", "t", "k")),
        (EVENTS, b'["state-all",["!r"]]', ("state-all", "!r")),
        (TYPING, b'["!r",[]]', ("!r",)),
        (RECEIPTS, b'["!r","m.read","@a","$e","main",{}]', ("!r", "m.read", "@a", "main")),
        (CACHES, b'["f",["a","b"],1]', ("f", '["a","b"]')),
        (CACHES, b'["f",null,1]', ("f", "null")),
        (QUARANTINED_MEDIA, b'[null,"m",true]', (None, "m")),
        (PROFILE_UPDATES, b'["@a","update",["displayname"]]', ("@a", "update", '["displayname"]')),
        # A signature says nothing of devices, and a row for one server nothing to another one.
        (DEVICE_LISTS, b'["@a",false,false]', ("@a", False, False, None)),
        (DEVICE_LISTS, b'["@a",true,false]', ("@a", True, False, None)),
        (DEVICE_LISTS, b'["@a",false,true]', ("@a", False, True, None)),
        (DEVICE_LISTS, b'["@a",false,false,"far"]', ("@a", False, False, "far")),
        # `data` is what the row says, and not what it is about.
        (ACCOUNT_DATA, b'["@a",null,"t"]', ("@a", None, "t")),
        (ACCOUNT_DATA, b'["@a",null,"t","{}"]', ("@a", None, "t")),
    ],
)
def test_key_tells_which_rows_replace_each_other(
    stream: Stream[Any], data: bytes, key: tuple[Any, ...]
) -> None:
    """Compaction keeps the last row of each key, so two facts must never share one by accident."""
    assert stream.key is not None
    assert key == stream.key(stream.decode(data, NEWEST))


# -- declaring


@row
class Cat:
    """A row of a custom stream."""

    cat_id: str
    lives: int
    is_fed: Annotated[Bool, Since("1.50", default=True)]

    @property
    def is_alive(self) -> bool:
        """Methods and properties survive the decoration."""
        return self.lives > 0


CATS = Stream("cats", Cat, key="cat_id", gone=[Gone("color", until="1.10", default="gray", type=str)])


def test_declared_row_is_a_type_of_its_own() -> None:
    """A custom stream has all features of the streams of the catalog."""
    cat = Cat(cat_id="tom", lives=9, is_fed=True)

    assert cat == CATS.decode(b'["red","tom",9]', LEGACY)
    assert cat == CATS.decode(b'["tom",9]', MIDDLE)
    assert CATS.encode(cat) == b'["tom",9,true]'
    assert CATS.project(CATS.encode(cat), LEGACY) == b'["gray", "tom", 9]'
    assert cat.is_alive
    assert Cat.__doc__ == "A row of a custom stream."
    assert CATS.key is not None
    assert CATS.key(cat) == ("tom",)


def test_shape_of_the_release_is_preferred_to_another_of_its_length() -> None:
    """Two shapes with as many items of the same types: only the release tells them apart."""

    @row
    class Swapped:
        first: str
        new: Annotated[str, Since("1.50", default="none")]

    stream = Stream("swapped", Swapped, gone=[Gone("old", until="1.50", default="gone", type=str)])

    assert stream.canonical(b'["a","b"]', NEWEST) == b'["a","b"]'
    assert stream.canonical(b'["a","b"]', LEGACY) == b'["b","none"]'
    assert stream.canonical(b'["a","b"]', NEWEST) == b'["a","b"]'


def test_bad_declarations_are_rejected_at_once() -> None:
    """At import, not with the first row."""
    with pytest.raises(ConfigError, match="has no fields"):

        @row
        class Empty: ...

    with pytest.raises(ConfigError, match="must not have a default"):

        @row
        class Lazy:
            field: int = 3

    with pytest.raises(ConfigError, match="cannot be in a row"):

        @row
        class Odd:
            field: bytes

    with pytest.raises(ConfigError, match="cannot be in a row"):

        @row
        class Keyed:
            field: dict[int, str]

    with pytest.raises(ConfigError, match="does not fit"):

        @row
        class Unfit:
            field: Annotated[int, Since("1.5", default="x")]

    for name in ("", "two words", "line\nbreak"):
        with pytest.raises(ConfigError, match="cannot be the name"):
            Stream(name, Cat)
    with pytest.raises(ConfigError, match="names 'dog'"):
        Stream("cats", Cat, key="dog")
    with pytest.raises(ConfigError, match="cannot follow mouse"):
        Stream("cats", Cat, gone=[Gone("dog", after="mouse", until="1.7")])
    with pytest.raises(ConfigError, match="decorate it"):
        Stream("cats", dict)
    with pytest.raises(ConfigError, match="tag of its own"):
        Stream("cats", Cat | Typing)


# -- whatever comes

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BOOL = st.sampled_from([True, False, 0, 1])
MAYBE = st.none() | TEXT
OBJECT = st.dictionaries(TEXT, VALUE, max_size=3)
EVENT = [TEXT, TEXT, TEXT, MAYBE, MAYBE, MAYBE, MAYBE, BOOL, BOOL]
ROWS: dict[str, st.SearchStrategy[Any]] = {
    "events": st.one_of(
        st.tuples(st.just("ev"), st.tuples(*EVENT)),
        st.tuples(st.just("ev"), st.tuples(*EVENT[:6])),
        st.tuples(*EVENT[:5]),
        st.tuples(st.just("state"), st.tuples(TEXT, TEXT, TEXT, MAYBE)),
        st.tuples(st.just("state-all"), st.tuples(TEXT)),
    ),
    "presence": st.tuples(TEXT, TEXT, st.integers(), st.integers(), st.integers(), MAYBE, BOOL),
    "typing": st.tuples(TEXT, st.lists(TEXT, max_size=3)),
    "receipts": st.one_of(
        st.tuples(TEXT, TEXT, TEXT, TEXT, MAYBE, OBJECT), st.tuples(TEXT, TEXT, TEXT, TEXT, OBJECT)
    ),
    "pushers": st.tuples(TEXT, TEXT, TEXT, BOOL),
    "caches": st.tuples(TEXT, st.none() | st.lists(TEXT, max_size=3), st.none() | st.integers()),
    "device_lists": st.one_of(st.tuples(TEXT), st.tuples(TEXT, MAYBE), st.tuples(TEXT, BOOL, BOOL)),
    "federation": st.tuples(TEXT, OBJECT),
    "account_data": st.one_of(st.tuples(TEXT, MAYBE, TEXT), st.tuples(TEXT, MAYBE, TEXT, VALUE)),
    "tag_account_data": st.tuples(TEXT, TEXT, TEXT | OBJECT),
    "groups": st.tuples(TEXT, TEXT, TEXT, OBJECT),
}


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), spaced=st.booleans(), ascii_only=st.booleans())
def test_upgrading_is_idempotent(data: st.DataObject, name: str, spaced: bool, ascii_only: bool) -> None:
    """Canonical text stays unchanged, else two logs of the same facts would diverge."""
    stream = TABLE[name]
    value = data.draw(ROWS[name])
    text = json.dumps(value, ensure_ascii=ascii_only, separators=None if spaced else (",", ":")).encode()

    canonical = stream.canonical(text, data.draw(st.sampled_from(RELEASES)))

    assert canonical == stream.canonical(canonical)
    assert canonical == jsontext.dumps(json.loads(canonical))
    assert canonical == stream.canonical(json.loads(text))
    assert canonical == stream.encode(stream.decode(text, NEWEST))


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), dialect=st.sampled_from(RELEASES))
def test_a_projected_row_can_be_sent_back(data: st.DataObject, name: str, dialect: Dialect) -> None:
    """A row may pass through several daemons that speak as different releases."""
    stream = TABLE[name]
    canonical = stream.canonical(list(data.draw(ROWS[name])))

    text = stream.project(canonical, dialect)

    if text is None:
        return
    upgraded = stream.canonical(text, dialect)
    assert text == stream.project(upgraded, dialect)
    assert text == jsontext.dumps(json.loads(text), spaced=jsontext.is_spaced(dialect))


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), dialect=st.sampled_from(RELEASES))
def test_several_facts_are_projected_as_each_alone(data: st.DataObject, name: str, dialect: Dialect) -> None:
    """A reader that is far behind gets the same bytes as one that is near."""
    stream = TABLE[name]
    rows = ROWS[name].map(lambda value: stream.canonical(list(value)))
    facts = data.draw(st.lists(st.lists(rows, min_size=1, max_size=3).map(jsontext.join), max_size=3))

    together = stream.project_facts(facts, dialect)

    assert together is not None
    assert [stream.project_fact(fact, dialect) for fact in facts] == [
        [*map(bytes, rows)] for rows in together
    ]


@pytest.mark.parametrize("fact", [b'[["no",[]]]', b'["ev"]', b"{}", b"[" * 3_000])
def test_facts_of_which_one_is_broken_are_not_projected_together(fact: bytes) -> None:
    """One by one it is found which."""
    assert EVENTS.project_facts([b"[" + EV + b"]", fact], LEGACY) is None


JUNK = st.one_of(
    st.binary(max_size=40),
    VALUE.map(lambda value: json.dumps(value).encode()),
    st.lists(VALUE, max_size=9).map(lambda value: json.dumps(value).encode()),
    st.tuples(st.sampled_from(["ev", "state", "state-all"]), VALUE).map(
        lambda value: json.dumps(value).encode()
    ),
    st.tuples(st.integers(0, len(EV)), st.binary(max_size=3)).map(
        lambda edit: EV[: edit[0]] + edit[1] + EV[edit[0] + 1 :]
    ),
)


@settings(deadline=None)
@given(data=JUNK, dialect=st.sampled_from(RELEASES))
def test_junk_raises_row_errors_only(data: bytes, dialect: Dialect) -> None:
    """One hostile line costs one connection, never the daemon."""
    for stream in TABLE:
        try:
            held = stream.decode(data, dialect)
        except RowError:
            with pytest.raises(RowError):
                stream.canonical(data, dialect)
        else:
            assert msgspec.json.decode(data) is not None
            assert stream.canonical(data, dialect) == stream.encode(held)


def test_types_are_those_of_the_catalog() -> None:
    """A worker's editor and type checker know the rows."""
    typing: Typing = TYPING.decode(b'["!r",[]]', NEWEST)
    receipt: Receipt = RECEIPTS.decode(b'["!r","m.read","@a","$e",null,{}]', NEWEST)
    presence: Presence = PRESENCE.decode(b'["@a","online",1,1,1,null,1]', NEWEST)
    invalidation: CacheInvalidation = CACHES.decode(b'["f",null,1]', NEWEST)
    update: ProfileUpdate = PROFILE_UPDATES.decode(b'["@a","update",null]', NEWEST)

    assert (typing.room_id, receipt.user_id, presence.currently_active) == ("!r", "@a", True)
    assert (invalidation.keys, update.affected_fields) == (None, None)
