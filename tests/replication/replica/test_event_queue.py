"""The queue of a connection to an upstream: order, backpressure, errors in their turn."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.errors import NotConnected
from synrepl.transports.event_queue import EventQueue


class Story:
    def __init__(self, limit: int) -> None:
        self.calls: list[str] = []
        self.queue: Any = EventQueue(
            limit, on_full=lambda: self.calls.append("full"), on_room=lambda: self.calls.append("room")
        )

    def take(self) -> Any:
        """The next event, or its error; nothing while it is waited for."""
        found: list[Any] = []
        Deferred.fromCoroutine(self.queue.next()).addBoth(found.append)
        return found[0] if found else None


def test_events_come_in_order_to_a_replica_that_waits_or_not() -> None:
    story = Story(10)
    found: list[Any] = []
    Deferred.fromCoroutine(story.queue.next()).addCallback(found.append)
    assert [] == found
    for event in ("one", "two", "three"):
        story.queue.put(event)

    assert ["one"] == found
    assert "two" == story.queue.ready()
    assert "three" == story.take()
    assert story.queue.ready() is None


def test_reading_pauses_above_the_limit_and_resumes_at_half_of_it() -> None:
    story = Story(10)
    for size in (4, 6, 1, 5):
        story.queue.put("event", size)
    assert ["full"] == story.calls
    assert story.queue.is_full
    story.take()
    story.take()
    assert ["full"] == story.calls  # 6 are left
    story.take()

    assert ["full", "room"] == story.calls
    assert not story.queue.is_full
    assert 5 == story.queue.size


def test_an_error_has_its_turn() -> None:
    """What came before it is good."""
    story = Story(10)
    story.queue.put("one")
    story.queue.put(NotConnected("refused"))
    assert "one" == story.queue.ready()
    assert story.queue.ready() is None

    failure = story.take()
    assert "refused" == str(failure.value)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_first_end_counts_and_comes_last(is_waiting: bool) -> None:
    story = Story(1)
    found: list[Any] = []
    if is_waiting:
        Deferred.fromCoroutine(story.queue.next()).addBoth(found.append)
    else:
        story.queue.put("one", 2)
    story.queue.end(NotConnected("lost"))
    story.queue.end(NotConnected("closed"))
    if not is_waiting:
        assert "one" == story.take()
        found.append(story.take())

    assert "lost" == str(found[0].value)
    assert "room" not in story.calls
