"""Counters and gauges of our own: a page of metrics has them as it has those of prometheus-client."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from synrepl.base.metric_values import Counter, Gauge, Registry


class Kinds(NamedTuple):
    """The classes of one origin, with one registry."""

    counter: Callable[..., Any]
    gauge: Callable[..., Any]


def _counted(kinds: Kinds) -> None:
    kinds.counter("gaps", "Gaps found.").inc()
    kinds.counter("facts", "Facts.").inc(3)


def _labelled(kinds: Kinds) -> None:
    rows = kinds.counter("rows", "Rows, by stream.", ["stream"])
    rows.labels("events").inc(2)
    rows.labels("events").inc()
    rows.labels('odd "name"\\\n').inc()


def _set(kinds: Kinds) -> None:
    connections = kinds.gauge("connections", "Open connections.")
    connections.inc()
    connections.inc()
    connections.dec()
    kinds.gauge("lag_seconds", "Lag.").set(2.5)


def _set_by_labels(kinds: Kinds) -> None:
    position = kinds.gauge("position", "Position.", ["stream", "writer"])
    position.labels("events", "master").set(7)
    position.labels("events", "persister").set(2**53)
    position.labels("events", "master").set(8)


def _cleared(kinds: Kinds) -> None:
    role = kinds.gauge("role", "The role.", ["role"])
    role.labels("primary").set(1)
    role.clear()
    role.labels("replica").set(1)


def _read_late(kinds: Kinds) -> None:
    kinds.gauge("unsent", "Unsent bytes.").set_function(lambda: 512)


def _never_counted(kinds: Kinds) -> None:
    kinds.counter("lost", "Facts lost.")
    kinds.counter("refused", "Facts refused.", ["stream"])
    kinds.gauge("disk_free", "Free bytes.")
    kinds.gauge("log_bytes", "Bytes.", ["part"])


@pytest.mark.parametrize("generate", [generate_latest, generate_openmetrics])
@pytest.mark.parametrize(
    "use", [_counted, _labelled, _set, _set_by_labels, _cleared, _read_late, _never_counted]
)
def test_a_page_has_them_as_those_of_the_library(
    use: Callable[[Kinds], None], generate: Callable[[Any], bytes]
) -> None:
    """A dashboard finds the same names, types and values. When a counter began, nobody asks."""
    ours = Registry()
    use(Kinds(partial(Counter, registry=ours), partial(Gauge, registry=ours)))
    theirs = CollectorRegistry()
    use(
        Kinds(
            partial(prometheus_client.Counter, namespace="synrepl", registry=theirs),
            partial(prometheus_client.Gauge, namespace="synrepl", registry=theirs),
        )
    )

    expected = [line for line in generate(theirs).splitlines() if b"_created" not in line]
    assert expected == generate(ours).splitlines()


def test_a_registry_of_the_library_refuses_a_second_metric_of_a_name() -> None:
    """A worker that makes its metrics twice learns of it at once, not from a page that Prometheus refuses."""
    registry = CollectorRegistry()
    Counter("gaps", "Gaps found.", registry=registry)

    with pytest.raises(ValueError, match="synrepl_gaps"):
        Counter("gaps", "Gaps found.", registry=registry)


def test_values_of_all_labels_are_needed() -> None:
    """A number without a place would be lost from the page."""
    rows = Counter("rows", "Rows.", ["stream"], registry=Registry())

    with pytest.raises(ValueError, match="synrepl_rows has the labels"):
        rows.labels()
