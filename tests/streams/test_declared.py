"""Declared streams: good and bad declarations, the rows that they allow, and what differs."""

from typing import Any

import msgspec
import pytest

from synrepl.errors import ConfigError, RowError
from synrepl.streams.catalog import DECLARATIONS
from synrepl.streams.declaration import difference, stream_of
from synrepl.streams.declared import StreamBody, parse_declarations
from synrepl.wire.dialect import NATIVE, NEWEST

PACKAGES = StreamBody(
    name="packages",
    key="name",
    columns={"name": "str", "version": "str?", "size": "int", "ratio": "float", "ok": "bool", "more": "json"},
    writers=["b", "a"],
)


def test_a_declaration_is_a_row() -> None:
    """It survives the log, with the order of its columns."""
    declared = PACKAGES.declaration()
    text = DECLARATIONS.canonical(declared)  # type: ignore[arg-type]

    assert text.startswith(b'["packages",["name"],"kept",{"name":"str","version":"str?"')
    assert DECLARATIONS.decode(text, NEWEST) == declared
    assert declared.writers == ["a", "b"]
    assert [one.release in DECLARATIONS.span for one in (NEWEST, NATIVE)] == [False, True]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "events"}, "events is a stream of Synapse or of synrepl"),
        ({"name": "declarations"}, "is a stream of Synapse or of synrepl"),
        ({"name": ""}, "is not a stream's name: a-z, then"),
        ({"name": "ALL"}, "is not a stream's name: a-z, then"),
        ({"name": "a b"}, "is not a stream's name: a-z, then"),
        ({"name": "x\n"}, "is not a stream's name: a-z, then"),
        ({"name": "x" * 65}, "is not a stream's name: a-z, then"),
        ({"name": "x", "columns": {}}, "columns: give 1 to 100"),
        ({"name": "x", "columns": {f"c{number}": "str" for number in range(101)}}, "columns: give 1 to 100"),
        ({"name": "x", "columns": {"A": "str"}}, "A is not the name of a column"),
        ({"name": "x", "columns": {"_declared": "str"}}, "_declared is not the name of a column"),
        ({"name": "x", "columns": {"a" * 65: "str"}}, "is not the name of a column"),
        ({"name": "x", "columns": {"mro": "str"}}, "field mro"),
        (
            {"name": "x", "columns": {"a": "text"}},
            "column a has the unknown type text; known are str, int, float, bool",
        ),
        ({"name": "x", "columns": {"a": "str??"}}, "column a has the unknown type str??"),
        ({"name": "x", "columns": {"a": "str"}, "key": "b"}, "the key names b, which is not a column"),
        ({"name": "x", "columns": {"a": "str"}, "key": ["a", "a"]}, "names a column twice"),
        ({"name": "x", "columns": {"a": "json"}, "key": "a"}, "the key names a, but a column of type json"),
        ({"name": "x", "key": "A B"}, "the key names A B"),
        ({"name": "x", "writers": ["a b"]}, "`writers` must be at most 100 words"),
        ({"name": "x", "writers": [f"w{number}" for number in range(101)]}, "must be at most 100 words"),
    ],
)
def test_bad_declarations(given: dict[str, Any], why: str) -> None:
    """One line says what is wrong; nothing is stored."""
    with pytest.raises(ConfigError) as refused:
        msgspec.convert(given, StreamBody).declaration()

    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (["a", "1", 5, 0.5, True, {"x": [1]}], ""),
        (["a", None, 5, 1, False, None], ""),
        ([None, "1", 5, 0.5, True, 1], "name (item 0): Expected `str`, got `null`"),
        (["a", "1", "5", 0.5, True, 1], "size (item 2): Expected `int`, got `str`"),
        (["a", "1", 5, 0.5, 1, 1], "ok (item 4): Expected `bool`, got `int`"),
        (["a", "1"], "found 2 items; rows of known releases have 6"),
    ],
)
def test_rows_fit_the_columns(row: list[object], why: str) -> None:
    """The message names the column."""
    stream = stream_of(PACKAGES.declaration())
    if not why:
        read = stream.decode(stream.canonical(row), NEWEST)
        assert stream.key is not None
        assert stream.key(read) == ("a",)
        return
    with pytest.raises(RowError) as refused:
        stream.canonical(row)
    assert why in refused.value.why


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([{"id": 7, "more": [1]}], ""),
        ([{"more": 1}], "is not a JSON object with id, which is in the key"),
        ([7], "is not a JSON object with id, which is in the key"),
        ([{"id": [7]}], "has a list or an object for id, which is in the key"),
        ([1, 2], "found 2 items; rows of known releases have 1"),
    ],
)
def test_untyped_rows(row: list[object], why: str) -> None:
    """One item, any JSON; with a key, an object that has its members."""
    stream = stream_of(StreamBody(name="notes", key="id", kind="ephemeral").declaration())
    assert stream.ephemeral
    if not why:
        assert stream.key is not None
        assert stream.key(stream.decode(stream.canonical(row), NEWEST)) == (7,)
        return
    with pytest.raises(RowError) as refused:
        stream.canonical(row)
    assert why in refused.value.why


def test_without_a_key_no_row_replaces_another() -> None:
    """Typed or not."""
    assert stream_of(StreamBody(name="notes").declaration()).key is None
    assert stream_of(StreamBody(name="notes", columns={"a": "int"}).declaration()).key is None


def test_differences_of_declarations_are_listed() -> None:
    """The order of the columns counts."""
    known = StreamBody(name="x", columns={"a": "str", "b": "int"}).declaration()
    other = StreamBody(name="x", columns={"b": "int", "a": "str"}, key="a").declaration()

    assert difference(known, known) == ""
    assert difference(known, other) == (
        'key [] and not ["a"], columns {"a":"str","b":"int"} and not {"b":"int","a":"str"}'
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1], "must be a table"),
        ({"x": 5}, "has 5 for x, which is not a table"),
        ({"x": {"colums": {}}}, "bad declaration of x: Object contains unknown field `colums`"),
        ({"x": {"kind": "big"}}, "bad declaration of x: Invalid enum value 'big'"),
        ({"events": None}, "events is a stream of Synapse"),
    ],
)
def test_bad_settings(value: Any, why: str) -> None:
    """The message names the stream."""
    with pytest.raises(ConfigError) as refused:
        parse_declarations(value)

    assert why in str(refused.value)


def test_settings() -> None:
    """Everything but the name is optional."""
    one, two = parse_declarations({"notes": None, "x": {"columns": {"a": "str"}, "key": ["a"]}})

    assert (one.name, one.columns, one.key) == ("notes", None, [])
    assert (two.columns, two.key) == ({"a": "str"}, ["a"])
    assert parse_declarations({}) == ()
