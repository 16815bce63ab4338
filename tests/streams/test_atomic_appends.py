"""The fact before the facts of an atomic append, and what it says."""

import pytest

from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS, end_of, opening_rows
from synrepl.streams.facts import Fact


def fact(rows: bytes, stream: str = "atomic_appends") -> Fact:
    """A fact with serial 5."""
    return Fact(5, 1, stream, "w", 0, 1, rows, 0, "")


@pytest.mark.parametrize("count", [1, 7, MAX_ATOMIC_FACTS])
def test_it_says_how_many_facts_follow(count: int) -> None:
    assert 5 + count == end_of(fact(opening_rows(count)))


@pytest.mark.parametrize(
    "rows", [b"[]", b"[[1001]]", b"[[9999999999]]", b"[[-3]]", b'[["3"]]', b"[[3],[4]]", b"[[3.5]]"]
)
def test_rows_that_nobody_could_have_appended_open_nothing(rows: bytes) -> None:
    """A damaged log must not be read without an end."""
    assert 5 == end_of(fact(rows))


def test_other_facts_open_nothing() -> None:
    assert 5 == end_of(fact(opening_rows(3), stream="events"))
