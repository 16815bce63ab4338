"""Timers, the delays between retries, and pauses."""

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from synrepl.base.time import Backoff, Timer, doubling, sleep


class Calls:
    """A timer on a fake clock, and when it called."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.at: list[float] = []
        self.timer = Timer(self.clock, lambda: self.at.append(self.clock.seconds()))

    def run(self, seconds: float) -> list[float]:
        """When it has called after so many seconds more."""
        self.clock.pump([1.0] * int(seconds))
        return self.at


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_timer_calls_once_for_each_start(calls: Calls) -> None:
    """A call that is pending stays when it was due."""
    calls.timer.start(2.0)
    calls.timer.start(9.0)
    assert calls.timer.is_active

    assert [2.0] == calls.run(20)
    assert not calls.timer.is_active

    calls.timer.start(3.0)
    assert [2.0, 23.0] == calls.run(20)


def test_a_restarted_timer_calls_at_the_new_time_only(calls: Calls) -> None:
    """Later or earlier than it was due."""
    calls.timer.restart(2.0)
    calls.timer.restart(5.0)
    calls.timer.restart(4.0)

    assert [4.0] == calls.run(20)


def test_a_timer_started_within_a_time_is_never_put_off(calls: Calls) -> None:
    """A call that is due sooner stays; a later one is brought forward."""
    calls.timer.start_within(5.0)
    calls.timer.start_within(9.0)
    calls.timer.start_within(3.0)
    calls.timer.start_within(4.0)

    assert [3.0] == calls.run(20)


def test_a_stopped_timer_calls_no_more_until_its_next_start(calls: Calls) -> None:
    """Stopping it twice, or before it was started, is harmless."""
    calls.timer.stop()
    calls.timer.start(2.0)
    calls.timer.stop()
    calls.timer.stop()

    assert not calls.timer.is_active
    assert [] == calls.run(20)
    assert not calls.clock.getDelayedCalls()

    calls.timer.start(1.0)
    assert [21.0] == calls.run(5)


def test_a_timer_can_be_started_by_its_own_call() -> None:
    """As one that checks something again and again."""
    clock = Clock()
    at: list[float] = []

    def check() -> None:
        assert not timer.is_active
        at.append(clock.seconds())
        timer.start(2.0)

    timer = Timer(clock, check)
    timer.start(2.0)
    clock.pump([1.0] * 7)

    assert [2.0, 4.0, 6.0] == at


def test_delays_are_used_in_order_and_the_last_one_again_and_again() -> None:
    """After a success they begin with the first."""
    backoff = Backoff([0.5, 1.0, 4.0])

    assert [0.5, 1.0, 4.0, 4.0, 4.0] == [backoff.next() for _ in range(5)]
    assert 5 == backoff.failures

    backoff.reset()
    assert 0 == backoff.failures
    assert [0.5, 1.0] == [backoff.next() for _ in range(2)]


def test_each_delay_has_its_own_jitter() -> None:
    """It does not grow from one delay to the next."""
    factors = iter([0.5, 0.25, 1.0])
    backoff = Backoff([2.0, 4.0], jitter=lambda: next(factors))

    assert [1.0, 1.0, 4.0] == [backoff.next() for _ in range(3)]


@pytest.mark.parametrize(
    ("first", "longest", "delays"),
    [
        (1.0, 60.0, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)),
        (0.25, 1.0, (0.25, 0.5, 1.0)),
        (3.0, 3.0, (3.0,)),
    ],
)
def test_doubled_delays_end_with_the_longest(first: float, longest: float, delays: tuple[float, ...]) -> None:
    """It is none of the powers, as often as not."""
    assert delays == doubling(first, longest)


def test_a_pause_ends_in_time() -> None:
    """And not before."""
    clock = Clock()
    ended: list[None] = []
    sleep(clock, 2.0).addCallback(lambda _: ended.append(None))

    clock.advance(1.9)
    assert [] == ended
    clock.advance(0.1)
    assert [None] == ended


def test_a_cancelled_pause_leaves_nothing_on_the_clock() -> None:
    """A task that is cancelled must not keep a reactor busy."""
    clock = Clock()
    pause = sleep(clock, 2.0)
    pause.cancel()

    assert not clock.getDelayedCalls()
    assert pause.addErrback(lambda failure: failure.check(CancelledError)).result is CancelledError
