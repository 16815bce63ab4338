"""The meter of the reactor's turns: it counts the time between two polls, and nothing else."""

from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics, TurnNumbers
from synrepl.daemon.turn_meter import TurnMeter, measure_turns


class Poller:
    """A poller that a test can ask, and that says what it was asked."""

    def __init__(self) -> None:
        self.polls: list[tuple[Any, ...]] = []

    def poll(self, *arguments: Any) -> list[int]:
        """One poll."""
        self.polls.append(arguments)
        return [7]

    def register(self, descriptor: int) -> int:
        """Another method of pollers."""
        return descriptor


class Recorded(TurnNumbers):
    """Numbers that keep every turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[float, float]] = []

    def count(self, seconds: float, cpu_seconds: float) -> None:
        self.turns.append((seconds, cpu_seconds))


def test_the_time_between_polls_is_counted_and_that_in_a_poll_is_not() -> None:
    """A reactor that waits in its poll keeps nobody waiting."""
    times = iter([1.0, 3.5, 10.0, 10.25, 20.0])
    cpu_times = iter([0.5, 2.5, 2.75, 3.0, 4.0])
    numbers = Recorded()
    meter: Any = TurnMeter(
        Poller(), "poll", numbers, seconds=lambda: next(times), cpu_seconds=lambda: next(cpu_times)
    )

    for _ in range(3):
        assert meter.poll(0.1, 5) == [7]

    assert [(2.5, 2.0), (0.25, 0.25)] == numbers.turns


def test_the_meter_stands_for_the_poller() -> None:
    """The reactor calls other methods of its poller too."""

    class Reactor:
        def __init__(self) -> None:
            self._poller: Any = Poller()

    reactor, numbers = Reactor(), Recorded()

    assert measure_turns(reactor, numbers)
    assert reactor._poller.register(9) == 9
    assert [7] == reactor._poller.poll(0.1) == reactor._poller.poll(0.2)
    assert reactor._poller.polls == [(0.1,), (0.2,)]
    assert len(numbers.turns) == 1, "from the first poll to the second"


def test_a_reactor_of_an_unknown_kind_is_left_alone() -> None:
    """It runs without the numbers."""
    assert not measure_turns(object(), TurnNumbers())


def test_turns_are_exported_as_a_histogram_with_the_longest_cpu_time() -> None:
    """An operator sees how many turns were long; a test, the longest."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.turns.count(9.0, 9.0)
    metrics.turns.restart()
    metrics.turns.count(9.0, 9.0)

    metrics.turns.count(0.002, 0.001)
    metrics.turns.count(0.5, 0.25)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"synrepl_reactor_turn_{name}", labels)

    assert value("seconds_bucket", le="0.001") == 0
    assert value("seconds_bucket", le="0.003") == 1
    assert value("seconds_bucket", le="1.0") == 2
    assert value("seconds_count") == 2
    assert value("seconds_sum") == 0.502
    assert value("cpu_seconds_max") == 0.25
