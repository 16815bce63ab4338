"""The queue of a connection to an upstream: order, backpressure, errors in their turn."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.errors import NotConnected
from synrepl.replicas.event_queue import EventQueue


class Setup:
    def __init__(self, limit: int) -> None:
        self.calls: list[str] = []
        self.queue: Any = EventQueue(
            limit, on_full=lambda: self.calls.append("full"), on_space=lambda: self.calls.append("room")
        )

    def take(self) -> Any:
        """The next event, or its error; nothing while it is waited for."""
        found: list[Any] = []
        Deferred.fromCoroutine(self.queue.next()).addBoth(found.append)
        return found[0] if found else None


def test_events_come_in_order_to_a_replica_that_waits_or_not() -> None:
    setup = Setup(10)
    found: list[Any] = []
    Deferred.fromCoroutine(setup.queue.next()).addCallback(found.append)
    assert [] == found
    for event in ("one", "two", "three"):
        setup.queue.put(event)

    assert ["one"] == found
    assert "two" == setup.queue.ready()
    assert "three" == setup.take()
    assert setup.queue.ready() is None


def test_reading_pauses_above_the_limit_and_resumes_at_half_of_it() -> None:
    setup = Setup(10)
    for size in (4, 6, 1, 5):
        setup.queue.put("event", size)
    assert ["full"] == setup.calls
    assert setup.queue.is_full
    setup.take()
    setup.take()
    assert ["full"] == setup.calls  # 6 are left
    setup.take()

    assert ["full", "room"] == setup.calls
    assert not setup.queue.is_full
    assert 5 == setup.queue.size


def test_an_error_has_its_turn() -> None:
    """What came before it is good."""
    setup = Setup(10)
    setup.queue.put("one")
    setup.queue.put(NotConnected("refused"))
    assert "one" == setup.queue.ready()
    assert setup.queue.ready() is None

    failure = setup.take()
    assert "refused" == str(failure.value)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_first_end_counts_and_comes_last(is_waiting: bool) -> None:
    setup = Setup(1)
    found: list[Any] = []
    if is_waiting:
        Deferred.fromCoroutine(setup.queue.next()).addBoth(found.append)
    else:
        setup.queue.put("one", 2)
    setup.queue.end(NotConnected("lost"))
    setup.queue.end(NotConnected("closed"))
    if not is_waiting:
        assert "one" == setup.take()
        found.append(setup.take())

    assert "lost" == str(found[0].value)
    assert "room" not in setup.calls
