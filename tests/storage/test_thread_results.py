"""The thread next to the reactor's: results arrive in order, and a slice of time in a turn."""

from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.base.turn_queue import SLICE_SECONDS
from synrepl.storage.threads import ReactorThread

PATIENCE_SECONDS = 60.0


class FakeReactor(Clock):
    """A reactor that makes one turn at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_of_threads: Queue[Callable[[], object]] = Queue()

    def callFromThread(self, function: Callable[..., object], *arguments: Any) -> None:
        """Keep a call of a thread."""
        self.calls_of_threads.put(lambda: function(*arguments))

    def turn(self, results: int = 0) -> None:
        """Make the calls that are due, but not those that they make due, then as many calls of threads."""
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.func(*call.args, **call.kw)
        for _ in range(results):
            self.calls_of_threads.get(timeout=PATIENCE_SECONDS)()


class Results:
    """What arrives of five pieces of work, each of which makes the reactor work for so long."""

    def __init__(self, seconds: float, *, fails: bool = False) -> None:
        self.reactor = FakeReactor()
        self.thread = ReactorThread(self.reactor, "test")
        self.arrived: list[Any] = []
        self._seconds = seconds
        for number in range(5):
            self.thread.run(lambda number=number: number // (not fails)).addBoth(self._arrive)  # type: ignore[misc]

    def _arrive(self, result: Any) -> None:
        self.arrived.append(result)
        self.reactor.rightNow += self._seconds

    def turns(self) -> list[int]:
        """How many results have arrived after each turn. All are there in the first one."""
        counts = []
        for turn in range(6):
            self.reactor.turn(results=0 if turn else 5)
            counts.append(len(self.arrived))
        stopping = Deferred.fromCoroutine(self.thread.stop())
        self.reactor.turn(results=1)
        assert stopping.called
        return counts


def test_results_that_take_long_arrive_in_turns_of_their_own() -> None:
    """30 followers that were behind had their pages encoded in one turn, for 0.2 seconds."""
    results = Results(1.5 * SLICE_SECONDS)

    assert [1, 2, 3, 4, 5, 5] == results.turns()
    assert [0, 1, 2, 3, 4] == results.arrived


def test_results_that_take_no_time_arrive_together() -> None:
    """Else a hundred of them would wait for a hundred turns, which are long in a flood."""
    assert [5] * 6 == Results(SLICE_SECONDS / 10).turns()


@pytest.mark.parametrize("seconds", [0, SLICE_SECONDS])
def test_errors_arrive_as_errors(seconds: float) -> None:
    """At once, and later."""
    results = Results(seconds, fails=True)

    assert 5 == results.turns()[-1]
    assert all(one.check(ZeroDivisionError) for one in results.arrived)
