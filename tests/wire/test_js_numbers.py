"""Numbers as text, for readers that have 64-bit floats only."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.wire.js_numbers import MAX_SAFE, numbers_as_text

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.integers(MAX_SAFE - 5, MAX_SAFE + 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    NUMBERS | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Exact(str):
    """A number as it is written."""

    __slots__ = ()


def written(value: Any) -> str:
    """JSON with every number as it is."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{written(inner)}" for key, inner in value.items()) + "}"
    return f"{value:E}".replace("E", "e") if isinstance(value, Decimal) else json.dumps(value)


def holds(exact: Any, read: Any) -> bool:
    """Whether a reader with floats has what is exact: the same digits, as a number or as text."""
    if isinstance(exact, Exact):
        if isinstance(read, str):
            return read == exact
        return isinstance(read, float) and Decimal(repr(read)) == Decimal(exact)
    if isinstance(exact, list):
        return len(exact) == len(read) and all(map(holds, exact, read))
    if isinstance(exact, dict):
        return exact.keys() == read.keys() and all(holds(exact[key], read[key]) for key in exact)
    return type(exact) is type(read) and bool(exact == read)


@given(st.lists(VALUES, min_size=1))
def test_a_reader_with_floats_loses_nothing(values: list[Any]) -> None:
    """Of any lines of JSON; what is no number stays as it is."""
    text = "\n".join(map(written, values))

    exact, read = (
        [json.loads(line, parse_int=kind, parse_float=kind) for line in found.split("\n")]
        for kind, found in ((Exact, text), (float, numbers_as_text(text.encode()).decode()))
    )

    assert holds(exact, read)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9007199254740991", "9007199254740991"),
        ("9007199254740992", '"9007199254740992"'),
        ("-9007199254740993", '"-9007199254740993"'),
        ("[1,0.1,1e3,-0,0.25e-3]", "[1,0.1,1e3,-0,0.25e-3]"),
        ("0.1000000000000000055511151231257827", '"0.1000000000000000055511151231257827"'),
        ("1e400", '"1e400"'),
        ("1e-400", '"1e-400"'),
        ("1e-99999999999999999999", '"1e-99999999999999999999"'),
        ("1" * 5000, '"' + "1" * 5000 + '"'),
        ("0." + "1" * 5000, '"0.' + "1" * 5000 + '"'),
        (r'["9007199254740993","\\",9007199254740993]', r'["9007199254740993","\\","9007199254740993"]'),
        (r'["a\"9007199254740993",1e400]', r'["a\"9007199254740993","1e400"]'),
    ],
)
def test_a_number_is_text_if_it_would_be_another(text: str, expected: str) -> None:
    """With its own digits; strings are not looked into."""
    assert expected == numbers_as_text(text.encode()).decode()
