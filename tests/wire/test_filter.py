"""Filters of streams and writers."""

import pytest

from synrepl.wire.filter import ALL, Filter

EVENTS = Filter.of(streams=["events"])
OURS = Filter.of(streams=["events", "receipts"], writers=["w1"])


@pytest.mark.parametrize(
    ("wanted", "stream", "writer", "passes"),
    [
        (ALL, "events", "w1", True),
        (EVENTS, "events", "w2", True),
        (EVENTS, "receipts", "w1", False),
        (OURS, "receipts", "w1", True),
        (OURS, "receipts", "w2", False),
        (OURS, "typing", "w1", False),
        (Filter.of(writers=["w1"]), "typing", "w1", True),
        (Filter.of(writers=["w1"]), "typing", "w2", False),
        (Filter.of(streams=[]), "events", "w1", False),
    ],
)
def test_a_fact_passes_by_stream_and_writer(wanted: Filter, stream: str, writer: str, passes: bool) -> None:
    """Both must match; None matches all."""
    assert passes is wanted.passes(stream, writer)


@pytest.mark.parametrize(
    ("narrower", "wider", "is_within"),
    [
        (ALL, ALL, True),
        (EVENTS, ALL, True),
        (ALL, EVENTS, False),
        (OURS, EVENTS, False),
        (EVENTS, OURS, False),
        (Filter.of(streams=["events"], writers=["w1"]), OURS, True),
        (Filter.of(streams=["events"], writers=["w1", "w2"]), OURS, False),
        (Filter.of(writers=["w1"]), Filter.of(writers=["w1", "w2"]), True),
        (EVENTS, Filter.of(writers=["w1"]), False),
    ],
)
def test_one_filter_is_within_another(narrower: Filter, wider: Filter, is_within: bool) -> None:
    """A filter without a limit is wider than any with one."""
    assert is_within is narrower.within(wider)
