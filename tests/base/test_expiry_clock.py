"""The clock by which things expire: it counts the time that the daemon lived through."""

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from synrepl.base.time import BELIEF_SECONDS, ExpiryClock

DAY = 24 * 3600.0
NOW = 1_790_000_000.0


class Setup:
    """A wall clock that can be set, and a monotonic one that cannot."""

    def __init__(self, *, last: float | None = None) -> None:
        self.wall = Clock()
        self.wall.advance(NOW)
        self.monotonic = 100.0
        self.expiry = ExpiryClock(self.wall, lambda: self.monotonic)
        if last is not None:
            self.expiry.resume(last)

    def live(self, seconds: float, *, step: float = 5.0) -> float:
        """Let time pass, with a reading at each step; gives the last one."""
        for _ in range(round(seconds / step)):
            self.wall.rightNow += step
            self.monotonic += step
            self.expiry.seconds()
        return self.expiry.seconds() - NOW

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        self.wall.rightNow += seconds


def test_it_is_the_wall_clock_if_nobody_sets_it() -> None:
    """Also where that is a little fast or slow, as it is while it is corrected."""
    setup = Setup()

    assert 3600 == setup.live(3600)
    for _ in range(1_000):
        setup.jump(0.5)
        setup.live(5)
    assert 3600 + 1_000 * 5.5 == setup.live(0)


def test_a_jump_ahead_for_a_moment_counts_for_nothing() -> None:
    """The clock was 8 days ahead for 8 seconds, and a lease of 7 days ended."""
    setup = Setup()
    setup.live(10)
    setup.jump(8 * DAY)
    assert 18 == setup.live(8, step=1)
    setup.jump(-8 * DAY)

    assert 28 == setup.live(10)


def test_a_jump_that_lasts_is_believed_after_a_day() -> None:
    """As where a machine without a battery starts in 1970, or was suspended."""
    setup = Setup()
    setup.jump(8 * DAY)
    assert BELIEF_SECONDS == setup.live(BELIEF_SECONDS, step=60)

    assert 8 * DAY + BELIEF_SECONDS + 60 == setup.live(60, step=60)


def test_the_lowest_of_several_jumps_is_believed() -> None:
    """A second jump, near the end of the day, has not lasted for a day."""
    setup = Setup()
    setup.jump(DAY)
    setup.live(BELIEF_SECONDS - 60, step=60)
    setup.jump(8 * DAY)

    assert DAY + BELIEF_SECONDS + 60 == setup.live(120, step=60)


def test_back_is_believed_at_once() -> None:
    """Then things expire later, which does no harm."""
    setup = Setup()
    setup.jump(-3600)

    assert -3590 == setup.live(10)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (NOW - 10 * DAY, -10 * DAY),  # off for ten days, or a jump at the start: nobody can tell
        (NOW, 0),
        (NOW + 8 * DAY, 0),  # stored while the clock was ahead
    ],
)
def test_after_a_start_time_goes_on_where_it_was(last: float, expected: float) -> None:
    """Never beyond the wall clock."""
    setup = Setup(last=last)

    assert expected + 60 == setup.live(60)
    assert BELIEF_SECONDS + 120 == setup.live(BELIEF_SECONDS + 60, step=60)


def test_the_latest_of_the_stored_moments_counts() -> None:
    """In any order."""
    setup = Setup(last=NOW - DAY)
    setup.expiry.resume(NOW - 2 * DAY)
    assert -DAY == setup.live(0)
    setup.expiry.resume(NOW - DAY / 2)

    assert -DAY / 2 == setup.live(0)


def test_a_jump_is_told_once() -> None:
    """An operator may correct the clock within the day. The time that the daemon was off is no news."""
    setup = Setup(last=NOW - DAY)
    with capturedLogs() as events:
        setup.live(60)
        assert not events
        setup.jump(-DAY)
        setup.live(10)
        setup.jump(8 * DAY)
        setup.live(60)

    (event,) = events
    assert formatEvent(event) == (
        "the clock jumped ahead by 691200 seconds; leases and trimming ignore that until it has lasted"
        " 24 hours"
    )
