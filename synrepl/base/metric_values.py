"""Counters and gauges that load prometheus-client when somebody asks for them.

The package of that library imports servers for HTTP and WSGI, 1 MiB with what these need. Only `collect`
makes its objects, so a daemon has it from the first scrape on. The numbers have no locks, as the reactor's
thread alone changes them. A worker may register them in a registry of the library, beside its own metrics.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    # Not imported at run time before the first scrape.
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric


class ICollector(Protocol):
    """What a registry takes."""

    def collect(self) -> "Iterable[Metric]": ...


class IRegistry(ICollector, Protocol):
    """Where metrics register themselves: a `Registry`, or one of prometheus-client."""

    def register(self, collector: Any) -> None: ...


class Registry:
    """The metrics of a daemon."""

    def __init__(self) -> None:
        self._collectors: list[ICollector] = []

    def register(self, collector: ICollector) -> None:
        """Export these metrics too."""
        self._collectors.append(collector)

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics, in the order in which they were registered."""
        for collector in self._collectors:
            yield from collector.collect()


class Count:
    """A number that grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add to the number."""
        self.value += amount

    def read(self) -> float:
        """Return the number."""
        return self.value


class Level(Count):
    """A number that grows and shrinks."""

    __slots__ = ()

    def dec(self) -> None:
        """Subtract one from the number."""
        self.value -= 1

    def set(self, value: float) -> None:
        """Set the number."""
        self.value = value


N = TypeVar("N", bound=Count)


class _Metric(Generic[N]):
    """A metric: its name, and its numbers by the values of its labels.

    Without labels the metric is its only number.
    """

    _number: type[N]

    def __init__(self, name: str, what: str, labels: Sequence[str] = (), *, registry: IRegistry) -> None:
        super().__init__()
        self._name = f"synrepl_{name}"
        self._what = what
        self._label_names = tuple(labels)
        self._numbers: dict[tuple[str, ...], Any] = {} if labels else {(): self}
        registry.register(self)

    def labels(self, *values: str) -> N:
        """Return the number with these values of all labels. Raises `ValueError` if one is missing."""
        found: N | None = self._numbers.get(values)
        if found is None:
            if len(values) != len(self._label_names):
                raise ValueError(f"{self._name} has the labels {self._label_names}: {values} are not all")
            found = self._numbers[values] = self._number()
        return found

    def clear(self) -> None:
        """Forget the numbers of all labels."""
        self._numbers = {}

    def describe(self) -> "Iterator[Metric]":
        """Yield the metric without numbers: by this, prometheus-client refuses a second one of its name."""
        yield self._family()

    def collect(self) -> "Iterator[Metric]":
        """Yield the metric with its numbers."""
        family = self._family()
        # A copy: this may be another thread, in which a page of metrics is made.
        for values, number in self._numbers.copy().items():
            family.add_metric(values, number.read())
        yield family

    def _family(self) -> "CounterMetricFamily | GaugeMetricFamily":
        raise NotImplementedError


class Counter(_Metric[Count], Count):
    """A metric that grows while the process runs. Its name gets ``_total``."""

    _number = Count

    def _family(self) -> "CounterMetricFamily":
        from prometheus_client.metrics_core import CounterMetricFamily

        return CounterMetricFamily(self._name, self._what, labels=self._label_names)


class Gauge(_Metric[Level], Level):
    """A metric that grows and shrinks."""

    _number = Level
    _function: Callable[[], float] | None = None

    def set_function(self, function: Callable[[], float]) -> None:
        """Read the number from this function, whenever the metric is collected."""
        self._function = function

    def read(self) -> float:
        return self.value if self._function is None else self._function()

    def _family(self) -> "GaugeMetricFamily":
        from prometheus_client.metrics_core import GaugeMetricFamily

        return GaugeMetricFamily(self._name, self._what, labels=self._label_names)
