"""JSON text of rows."""

import json

import pytest

from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect


def test_every_ascii_character_is_written_as_python_writes_it() -> None:
    """The log's text is compared with the peers'."""
    for code in [*range(0x80), 0xE9, 0x2603, 0x1F600]:
        assert json.dumps([chr(code)], separators=(",", ":")).encode() == jsontext.dumps([chr(code)])


def test_old_releases_write_spaces() -> None:
    """1.19.0 dropped them."""
    assert jsontext.is_spaced(Dialect.parse("1.18.9"))
    assert not jsontext.is_spaced(Dialect.parse("1.19.0"))
    assert jsontext.dumps([1, {"a": "é"}], spaced=True) == b'[1, {"a": "\\u00e9"}]'
    assert jsontext.dumps([1, {"a": "é"}]) == b'[1,{"a":"\\u00e9"}]'


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"1", 0),
        (b"[]", 1),
        (b"[[],[],[[]]]", 3),
        (b'[{"a":[{}]},[]]', 4),
        (rb'["[[[[{{{{",{"[":"\\"},"]\"[[["]', 2),
        (b"[[[],[]],[[],[]],[[],[]]]", 3),
        (rb'[["\\\\","[[["],"\\\"[[",["]\\\"[{"]]', 2),
    ],
)
def test_how_deep_a_text_is_nested(text: bytes, depth: int) -> None:
    """Brackets in strings are text, and those that are closed count no more."""
    assert [True] * depth + [False] * 3 == [jsontext.is_deeper(text, most) for most in range(depth + 3)]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinities_are_rejected(number: float) -> None:
    """Other parsers reject them."""
    for spaced in (False, True):
        with pytest.raises(ValueError, match="not JSON compliant"):
            jsontext.dumps({"x": number}, spaced=spaced)


def test_rows_are_split_unchanged() -> None:
    """The texts are forwarded, so no byte of them may change."""
    rows = [b'["a, ]", 1.0]', b'{"b":[1e16]}', b"null"]

    assert rows == jsontext.split(b"[ " + b" , ".join(rows) + b"]")
    assert rows == jsontext.split(jsontext.join(rows))
    assert jsontext.split(b"[]") == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[1", b"[1]]", b"[" * 100_000])
def test_only_arrays_are_split(text: bytes) -> None:
    """All other input raises the same error."""
    with pytest.raises(ValueError, match=r"."):
        jsontext.split(text)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b'["@ada:hs"]'],
        [b"[]"],
        [b'["a",["x","y"]]'],
        [b'["a",[1],[2]]'],
        [b'["],[",1]'],
        [b'["a"]', b'["b"]'],
        [b"[[1],[2]]", b"[[3]]"],
        [b'["] ,["]'],
    ],
)
def test_rows_of_a_fact_are_parted_as_they_were_joined(texts: list[bytes]) -> None:
    """Brackets may also be in a row, and in its strings."""
    rows = jsontext.join(texts)

    assert texts == jsontext.split(rows)
    assert len(texts) == jsontext.count_rows(rows)


@pytest.mark.parametrize("rows", [b"[[1] , [2]]", b"[[1], [2]]", b"[[1] ,[2]]"])
def test_spaces_between_rows_part_them_too(rows: bytes) -> None:
    """No log has them; a row that is sent with another one in it would be lost all the same."""
    assert [b"[1]", b"[2]"] == jsontext.split(rows)
