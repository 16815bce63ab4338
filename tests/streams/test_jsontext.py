"""JSON as the wire has it."""

import json

import pytest

from synrepl.streams import jsontext
from synrepl.wire.dialect import Dialect


def test_every_ascii_character_is_written_as_python_writes_it() -> None:
    """The log's text is compared with the peers'."""
    for code in [*range(0x80), 0xE9, 0x2603, 0x1F600]:
        assert json.dumps([chr(code)], separators=(",", ":")).encode() == jsontext.dumps([chr(code)])


def test_spaces_are_the_habit_of_old_releases() -> None:
    """1.19.0 left them out."""
    assert jsontext.is_spaced(Dialect.parse("1.18.9"))
    assert not jsontext.is_spaced(Dialect.parse("1.19.0"))
    assert jsontext.dumps([1, {"a": "é"}], spaced=True) == b'[1, {"a": "\\u00e9"}]'
    assert jsontext.dumps([1, {"a": "é"}]) == b'[1,{"a":"\\u00e9"}]'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_refused(number: float) -> None:
    """Other parsers stop at it."""
    for spaced in (False, True):
        with pytest.raises(ValueError, match="not JSON compliant"):
            jsontext.dumps({"x": number}, spaced=spaced)


def test_rows_are_split_as_they_stand() -> None:
    """Texts are passed on; nothing of them may change on the way."""
    rows = [b'["a, ]", 1.0]', b'{"b":[1e16]}', b"null"]

    assert rows == jsontext.split(b"[ " + b" , ".join(rows) + b"]")
    assert rows == jsontext.split(jsontext.join(rows))
    assert jsontext.split(b"[]") == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[1", b"[1]]", b"[" * 100_000])
def test_what_is_no_array_is_not_split(text: bytes) -> None:
    """With one kind of error, however it is wrong."""
    with pytest.raises(ValueError, match=r"."):
        jsontext.split(text)
