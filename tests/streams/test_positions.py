"""Positions by stream and writer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.streams.positions import VClock

CLOCKS = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(-3, 9)), max_size=3
).map(VClock)


def test_positions_are_kept_by_stream_and_writer() -> None:
    """Two writers of a stream have separate positions."""
    clock = VClock().advanced("events", "w1", 5).advanced("events", "w2", 3).advanced("caches", "w1", 1)

    assert clock.get("events", "w1") == 5
    assert clock.get("events", "w3") is None
    assert clock.get("typing", "w1") is None
    assert list(clock) == [("caches", "w1", 1), ("events", "w1", 5), ("events", "w2", 3)]
    assert len(clock) == 3


def test_advanced_never_goes_back_but_with_position_does() -> None:
    """A late row must not undo a position; a restarted writer of typing starts again."""
    clock = VClock({"typing": {"w": 5}})

    assert clock.advanced("typing", "w", 4) is clock
    assert clock.with_position("typing", "w", 1).get("typing", "w") == 1
    assert clock.get("typing", "w") == 5


@given(CLOCKS, CLOCKS)
def test_merged_clock_covers_both(one: VClock, other: VClock) -> None:
    """And a smaller clock does not."""
    merged = one.merge(other)

    assert merged.covers(one)
    assert merged.covers(other)
    assert merged == other.merge(one)
    assert one.covers(other) == (merged == one)


@given(CLOCKS)
def test_clock_survives_json(clock: VClock) -> None:
    """It is stored and sent as JSON."""
    again = VClock.from_json(json.loads(json.dumps(clock.to_json())))

    assert clock == again
    assert hash(clock) == hash(again)
    assert shown(clock) == repr(again)


def shown(clock: VClock) -> str:
    """The text of a clock in a log."""
    return f"VClock({clock.to_json()})"


def test_unknown_writer_is_not_covered() -> None:
    """An unknown position is less than any position, even a negative one."""
    assert not VClock().covers(VClock({"federation": {"master": -1}}))
    assert VClock().covers(VClock({"federation": {}}))


def test_clock_does_not_share_its_source() -> None:
    """It is a value."""
    writers = {"w": 1}
    clock = VClock({"events": writers})
    writers["w"] = 2
    clock.to_json()["events"]["w"] = 3

    assert clock.get("events", "w") == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "an object of streams, not NoneType"),
        ([], "an object of streams, not list"),
        ({"events": 5}, "positions of events must be an object of writers, not int"),
        ({"events": {"w": "5"}}, "position of w in events must be a whole number, not '5'"),
        ({"events": {"w": True}}, "position of w in events must be a whole number, not True"),
        ({"events": {"w": 1.0}}, "position of w in events must be a whole number, not 1.0"),
        ({"events": {"w": 2**63}}, "does not fit 64 bits"),
        ({"events": {"w": -(2**63) - 1}}, "does not fit 64 bits"),
        ({"events": {"": 1}}, "is not the name of a writer"),
        ({"": {"w": 1}}, "is not the name of a stream"),
        ({1: {}}, "1 is not the name of a stream"),
    ],
)
def test_bad_positions_are_rejected_with_a_reason(value: Any, why: str) -> None:
    """They come from files and peers."""
    with pytest.raises(ValueError, match=why):
        VClock.from_json(value)
