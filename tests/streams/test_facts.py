"""Facts as lines of JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.streams.facts import Fact, decode_facts, encode_fact, encode_facts

numbers = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.just(" ") | st.characters(exclude_categories=["C", "Z"]), min_size=1)
"""Printable, as `str.isprintable` has it."""
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
rows = st.lists(st.lists(values, max_size=3), max_size=3).map(
    lambda one: json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
)
facts = st.builds(
    Fact,
    serial=numbers,
    epoch=numbers,
    stream=names,
    writer=names,
    prev_token=numbers,
    token=numbers,
    rows=rows,
    committed_at_ms=numbers,
    digest=st.text("0123456789abcdef", max_size=64),
)


@given(st.lists(facts, max_size=5))
def test_any_fact_is_read_as_it_was_written(some: list[Fact]) -> None:
    """Byte by byte: the digest covers the exact bytes of the rows."""
    assert some == decode_facts(encode_facts(some))


@given(facts)
def test_a_line_is_plain_json(fact: Fact) -> None:
    """A shell script can read it."""
    decoded = json.loads(encode_fact(fact))

    assert list(decoded) == [
        "serial", "epoch", "stream", "writer", "prev_token", "token", "rows", "committed_at_ms", "digest",
    ]  # fmt: skip
    assert json.loads(fact.rows) == decoded["rows"]


@pytest.mark.parametrize("data", [b"{}\n", b"x\n", b"[1]\n", b'{"serial":"one"}\n', b"\xff\n", b"[" * 5000])
def test_a_line_that_is_not_a_fact_is_rejected(data: bytes) -> None:
    """With a message for the peer."""
    with pytest.raises(RemoteProtocolError, match="not a fact"):
        decode_facts(data)


def test_no_lines_are_no_facts() -> None:
    """An empty block is a block."""
    assert [] == decode_facts(b"")
