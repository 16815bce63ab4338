"""The seconds of a reactor whose wall clock is set: calls come when they were asked for."""

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from synrepl.daemon.clock_steps import LASTING_SECONDS, SteadySeconds, keep_steady

DAY = 86_400.0


class Reactor(Clock):
    """A reactor whose wall clock can be set; `wakes` counts how often it was woken up."""

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = 1_790_000_000.0
        self.monotonic = 100.0
        self.wakes = 0
        self.called: list[float] = []
        self.is_in_reactor = True
        self.seconds: Any = SteadySeconds(
            self, steady=lambda: self.monotonic, is_in_reactor=lambda: self.is_in_reactor
        )

    def wakeUp(self) -> None:
        """Do not wait."""
        self.wakes += 1

    def call(self, seconds: float) -> None:
        """Note when this call comes."""
        self.callLater(seconds, lambda: self.called.append(self.monotonic - 100))

    def live(self, seconds: int) -> float:
        """Let time pass, with a turn each second; returns how much that made by `seconds`."""
        before: float = self.seconds()
        for _ in range(seconds):
            self.monotonic += 1
            self.rightNow += 1
            # As a reactor does before it makes calls.
            self.seconds()
            self.advance(0)
        after: float = self.seconds()
        return after - before


@pytest.mark.parametrize("step", [8 * DAY, -8 * DAY])
def test_a_step_for_a_moment_changes_nothing(step: float) -> None:
    """Eight days ahead for eight seconds kept facts from followers for eight days."""
    reactor = Reactor()
    reactor.call(5)
    reactor.call(30)
    reactor.rightNow += step
    assert 8 == reactor.live(8)
    reactor.call(5)
    reactor.rightNow -= step

    assert 22 == reactor.live(22)
    assert [5, 13, 30] == reactor.called
    assert 0 == reactor.wakes


@pytest.mark.parametrize("step", [8 * DAY, -8 * DAY])
def test_a_step_that_lasts_is_followed_and_calls_stay_on_time(step: float) -> None:
    """As when the time is set after the start of a machine. Facts bear the right time then."""
    reactor = Reactor()
    lasting = int(LASTING_SECONDS)
    for seconds in (5, lasting + 5, lasting + 500):
        reactor.call(seconds)
    reactor.rightNow += step

    with capturedLogs() as events:
        assert lasting - 1 == reactor.live(lasting - 1)
        assert step + 441 == reactor.live(441)
    reactor.call(5)
    reactor.live(60)

    assert reactor.rightNow == reactor.seconds()
    assert [5, lasting + 5, lasting + 445, lasting + 500] == reactor.called
    assert [f"the clock was set by {step:+.0f} seconds"] == [formatEvent(event) for event in events]
    assert 1 == reactor.wakes


def test_steps_one_after_the_other_each_have_to_last() -> None:
    """A clock that jumps about is not followed."""
    reactor = Reactor()
    for _ in range(10):
        reactor.rightNow += DAY
        assert 50 == reactor.live(50)


def test_small_corrections_are_followed_at_once() -> None:
    """A time service makes them all the time."""
    reactor = Reactor()
    for _ in range(100):
        reactor.rightNow += 0.5
        reactor.live(1)

    assert reactor.rightNow == reactor.seconds()


def test_another_thread_only_reads() -> None:
    """Calls are the reactor's."""
    reactor = Reactor()
    reactor.call(500)
    reactor.rightNow += DAY
    reactor.live(10)
    reactor.is_in_reactor = False
    reactor.monotonic += 100

    assert reactor.rightNow - DAY + 100 == reactor.seconds()
    (call,) = reactor.getDelayedCalls()
    assert call.getTime() == 1_790_000_000.0 + 500


def test_a_reactor_is_made_steady_once() -> None:
    """Two daemons in one process share it."""
    reactor = Reactor()
    seconds = reactor.seconds
    keep_steady(reactor)

    assert seconds is reactor.seconds
