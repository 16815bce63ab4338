"""What every transport promises to a reader: lines and Redis here, those of rooms in tests/ROOM.

`tests/replicas/test_feed_contract.py` has the promises about the contents of a feed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from twisted.logger import capturedLogs

from tests.transports.pairs import RedisPair, TcpPair, TransportPair

PAIRS: Final = [TcpPair, RedisPair]

MOST_BUFFERED: Final = 4 * 1024 * 1024
"""Bytes that a server buffers at most for a reader that does not read."""


@pytest.fixture(params=PAIRS, ids=lambda pair: pair.__name__.removesuffix("Pair").lower())
def kind(request: pytest.FixtureRequest) -> type[TransportPair]:
    """A transport."""
    found: type[TransportPair] = request.param
    return found


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Nothing that a peer sends is an error of this process."""
    with capturedLogs() as events:
        yield
    failures: list[Any] = [event["log_failure"] for event in events if "log_failure" in event]
    assert failures == []


def test_a_reader_connects_and_says_who_it_is(kind: type[TransportPair]) -> None:
    """An operator sees who reads."""
    world = kind()
    world.start()

    assert any("reader" in name for name in world.names())
    world.stop()


def test_facts_arrive_in_order_and_once(kind: type[TransportPair]) -> None:
    """Those from before, and those that are committed later, whatever the sizes of chunks."""
    world = kind(piece=lambda size: min(size, 1_000))
    if world.has_history:
        world.write(20)
    world.start()
    world.write(40 - world.written)
    world.write(1, size=3_000)
    world.wait(1)

    assert len(world.expected()) == 41
    assert world.tokens() == world.expected()
    world.stop()


def test_a_slow_reader_is_paused(kind: type[TransportPair]) -> None:
    """It gets everything later. Meanwhile the server's memory for it is bounded."""
    world = kind()
    world.start()
    for link in world.outgoing():
        link.stall()
    for _ in range(10):
        world.write(1_000, size=2_000)
    most = max(link.server.most_buffered + link.client.most_buffered for link in world.outgoing())
    for link in world.outgoing():
        link.go_on()
    world.wait(5)

    assert 0 < most < MOST_BUFFERED
    assert world.tokens() == world.expected()
    world.stop()


@pytest.mark.parametrize("which", ["malformed", "too_long"])
def test_a_broken_message_ends_the_connection_with_a_reason(kind: type[TransportPair], which: str) -> None:
    """The reader connects again, and misses nothing."""
    data, why = getattr(kind, which)
    world = kind()
    world.start()
    before = world.links()
    with without_tracebacks():
        world.inject(data)
        world.wait(0.1)
        stated = world.why()
        world.write(3)
        world.wait(15)

    assert why in stated
    assert not any(link.is_open for link in before)
    assert world.links()
    assert world.tokens() == world.expected()
    world.stop()


def test_silence_ends_the_connection(kind: type[TransportPair]) -> None:
    """A peer that is gone does not close it."""
    world = kind()
    world.start()
    before = world.links()
    for link in before:
        link.stall()
    world.write(3)
    with without_tracebacks():
        world.wait(80)

    assert before
    assert any(link not in before for link in world.links())
    assert world.tokens() == world.expected()
    world.stop()


def test_half_of_a_message_is_not_stored(kind: type[TransportPair]) -> None:
    """The connection is cut at any byte of a fact: it is sent again, and stored once."""
    world = kind(piece=lambda size: min(size, 20))
    world.start()
    for step in range(30):
        world.write(2, size=10)
        world.wait(0.001 * step)
        for link in world.links():
            link.cut()
        assert world.tokens() == world.expected()[: len(world.tokens())]
        world.wait(3)
    world.wait(15)

    assert world.tokens() == world.expected()
    world.stop()


def test_what_was_written_while_the_reader_was_away_arrives(kind: type[TransportPair]) -> None:
    """It goes on where it was."""
    world = kind()
    world.start()
    for _ in range(3):
        world.write(5)
        for link in world.links():
            link.cut()
        world.write(5)
        world.wait(15)

    assert world.tokens() == world.expected()
    world.stop()


def test_a_reader_that_stops_closes_its_connections(kind: type[TransportPair]) -> None:
    """The server need not wait for its silence."""
    world = kind()
    world.start()
    world.leave()
    world.wait(1)

    assert world.network.links_of("reader") == []
    world.stop()


def test_nothing_is_left_after_a_stop(kind: type[TransportPair]) -> None:
    """No connection, and no delayed call."""
    world = kind()
    world.start()
    world.write(3)
    world.stop()
    world.wait(1)

    assert world.links() == []
    assert [call for call in world.clock.getDelayedCalls() if call.active()] == []
