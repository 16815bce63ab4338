"""The fake clock of many calls keeps time as Twisted's does."""

import random

import pytest
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock

from synrepl.testing.heap_clock import HeapClock


def history(clock: Clock, seed: int) -> list[tuple[float, int]]:
    """When each call of a random schedule ran, on this clock."""
    chance = random.Random(seed)
    ran: list[tuple[float, int]] = []
    calls: list[IDelayedCall] = []

    def run(number: int) -> None:
        ran.append((clock.seconds(), number))
        if chance.random() < 0.3:
            calls.append(clock.callLater(chance.choice((0, 0.5, 2)), run, number + 1000))

    for number in range(200):
        calls.append(clock.callLater(chance.uniform(0, 9), run, number))
        call = chance.choice(calls)
        if call.active():
            match chance.randrange(8):
                case 0:
                    call.cancel()
                case 1:
                    call.reset(chance.uniform(0, 9))
                case 2:
                    call.delay(chance.uniform(0, 9))
        if chance.random() < 0.2:
            clock.advance(chance.uniform(0, 2))
        else:
            clock.pump([0.01] * chance.randrange(40))
    ran += [(call.getTime(), 0) for call in clock.getDelayedCalls()]
    return ran


@pytest.mark.parametrize("seed", range(20))
def test_every_call_runs_when_it_would_on_the_clock_of_twisted(seed: int) -> None:
    """A test on it proves as much: calls that are added meanwhile, cancelled, brought forward and put off."""
    expected = history(Clock(), seed)

    assert expected == history(HeapClock(), seed)


def test_calls_of_one_moment_run_in_the_order_in_which_they_were_added() -> None:
    """What is scheduled twice for now is done in order."""
    clock = HeapClock()
    ran: list[int] = []
    for number in range(5):
        clock.callLater(1, ran.append, number)

    clock.pump([0.5] * 2)

    assert list(range(5)) == ran
