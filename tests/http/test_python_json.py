"""Answers of Python's json module that are no JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.transports.http.catch_up import _missed_facts
from synrepl.transports.http.python_json import split_page

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.integers(0, 99), values), max_size=4),
    st.dictionaries(st.text().filter(lambda name: name != "updates"), values, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_what_python_writes_is_found_as_it_was_written(
    rows: list[tuple[int, Any]], others: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    """Each row byte for byte, whatever is in it."""
    text = json.dumps({**others, "updates": rows}, indent=indent, ensure_ascii=is_ascii)

    members, found = split_page(text.encode(errors="surrogatepass"), "updates")

    assert repr(others) == repr(members) or not is_ascii
    assert [token for token, _ in rows] == [token for token, _ in found]
    for (_, row), (_, one) in zip(rows, found, strict=True):
        assert one.decode(errors="surrogatepass") in text
        assert json.dumps(row) == json.dumps(json.loads(one.decode(errors="surrogatepass")))


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]:,"updates1 N')).map(str.encode))
def test_other_text_is_refused(text: bytes) -> None:
    """With one kind of error."""
    try:
        split_page(text, "updates")
    except ValueError:
        pass


def test_one_odd_row_does_not_keep_back_the_others() -> None:
    """The whole page was refused, again and again: no fact behind it came."""
    body = b'{"updates":[[1,["@a",1]],[2,["@b",NaN]],[3,["@c",1]]],"upto_token":3,"limited":false}'

    page = _missed_facts(body, "http://h", 0, 3)

    assert [(1, [b'["@a",1]']), (2, [b'["@b",NaN]']), (3, [b'["@c",1]'])] == list(page.facts)
    assert (3, False) == (page.upto, page.limited)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"NaN",
        b'{"updates":[[1,NaN]],"upto_token":"x","limited":false}',
        b'{"updates":[["x",NaN]],"upto_token":1,"limited":false}',
        b'{"updates":[[1,NaN]]}',
        b'{"updates":[[1]],"upto_token":1,"limited":false}',
        b'{"updates":' + b"[" * 100_000,
    ],
)
def test_an_answer_of_another_form_is_refused(body: bytes) -> None:
    """As before, with the error of the strict reader."""
    with pytest.raises(RemoteProtocolError, match="sent an invalid response"):
        _missed_facts(body, "http://h", 0, 3)
