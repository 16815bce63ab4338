"""Rows that share a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.streams.batches import Batches, split


def test_row_with_a_token_is_a_fact() -> None:
    """The usual case."""
    batches: Batches[str] = Batches()

    assert batches.add("typing", "w", 5, "row", 3) == ["row"]


def test_rows_of_a_batch_are_returned_together() -> None:
    """Half a fact must not be applied: the other half may never come."""
    batches: Batches[str] = Batches()

    assert batches.add("events", "w", None, "a", 1) is None
    assert batches.add("events", "w", None, "b", 1) is None
    assert batches.add("events", "w", 7, "c", 1) == ["a", "b", "c"]
    assert batches.add("events", "w", 8, "d", 1) == ["d"]
    assert (batches.pending_rows, batches.pending_bytes) == (0, 0)


def test_writers_and_streams_do_not_mix() -> None:
    """Two writers may be in the middle of a fact at once."""
    batches: Batches[str] = Batches()
    batches.add("events", "w1", None, "a", 1)

    assert batches.add("events", "w2", 7, "b", 1) == ["b"]
    assert batches.add("caches", "w1", 7, "c", 1) == ["c"]
    assert batches.add("events", "w1", 8, "d", 1) == ["a", "d"]


def test_unfinished_facts_are_dropped_after_a_position() -> None:
    """The end of a row too long for the wire never comes; its start would join the next fact."""
    batches: Batches[str] = Batches()
    for stream, writer in (("events", "w1"), ("events", "w2"), ("caches", "w1")):
        batches.add(stream, writer, None, "old", 1)

    batches.clear("events", "w1")
    assert batches.add("events", "w1", 8, "new", 1) == ["new"]
    assert batches.pending_rows == 2
    batches.clear("events")
    assert batches.add("events", "w2", 8, "new", 1) == ["new"]
    batches.clear_all()
    assert batches.add("caches", "w1", 8, "new", 1) == ["new"]
    assert (batches.pending_rows, batches.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("batches", "size"), [(Batches(max_rows=3), 1), (Batches(max_bytes=3), 1), (Batches(max_bytes=30), 10)]
)
def test_endless_batch_is_an_error_of_the_peer(batches: Batches[str], size: int) -> None:
    """A peer must not fill the memory, not even spread over many streams."""
    for number in range(3):
        batches.add(f"stream{number}", "w", None, "row", size)

    with pytest.raises(RemoteProtocolError, match="too many unfinished batch rows") as caught:
        batches.add("last", "w", None, "row", size)

    assert "the last one of last from w" in caught.value.why
    assert (batches.pending_rows, batches.pending_bytes) == (0, 0)


def test_default_bounds_hold_a_large_fact() -> None:
    """Real masters send some thousand rows under one token."""
    assert (Batches().max_rows, Batches().max_bytes) == (100_000, 64 * 1024 * 1024)


@given(st.lists(st.integers(1, 5), max_size=20))
def test_split_facts_are_joined_again(sizes: list[int]) -> None:
    """Receiving reverses sending."""
    batches: Batches[int] = Batches()
    joined: list[tuple[int | None, list[int]]] = []
    for token, size in enumerate(sizes):
        for row, sent in enumerate(split(size, token)):
            rows = batches.add("events", "w", sent, row, 1)
            if rows is not None:
                joined.append((sent, rows))

    assert [(token, list(range(size))) for token, size in enumerate(sizes)] == joined


def test_fact_without_rows_cannot_be_sent() -> None:
    """There would be no line to put the token on."""
    with pytest.raises(LocalProtocolError):
        split(0, 5)
