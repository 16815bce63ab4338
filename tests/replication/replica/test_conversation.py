"""What an upstream sends, before a replica has looked at it."""

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from synrepl.errors import RemoteProtocolError
from synrepl.ports.metrics import Metrics
from synrepl.replication.replica import RefusedByUpstream
from synrepl.transports.native import HELD_BYTES, UpstreamConnection
from synrepl.wire.blocks import block
from synrepl.wire.native import Refusal, heartbeat_check
from synrepl.wire.session import KEEPALIVE
from tests.replication.worlds import World

HEARTBEAT = f"HEARTBEAT 1 0 d 0 0 {heartbeat_check(1, 0, 'd', 0, 0)}\n".encode()


def connected() -> tuple[UpstreamConnection, StringTransport]:
    """A connection to an upstream that was greeted."""
    clock = Clock()
    connection = UpstreamConnection(
        clock, Metrics(CollectorRegistry()), name="paris", expected_server=None, keepalive=KEEPALIVE
    )
    transport = StringTransport()
    connection.makeConnection(transport)
    return connection, transport


@pytest.mark.parametrize("sent", [HEARTBEAT, block("ephemeral", 0, b"")], ids=["heartbeats", "empty blocks"])
def test_what_has_no_rows_waits_within_a_bound_too(sent: bytes) -> None:
    """A replica that is at its disk takes nothing; a flood must wait in the upstream's memory, not in its."""
    connection, transport = connected()
    flood = sent * 500
    fed = 0
    while transport.producerState == "producing" and fed < 100 * HELD_BYTES:
        connection.dataReceived(flood)
        fed += len(flood)

    assert "paused" == transport.producerState
    while connection.ready() is not None:
        pass
    assert "producing" == transport.producerState


def test_a_refusal_is_safe_to_show() -> None:
    """It stands in the log, on the page and on terminals; the address in it would be connected to."""
    refusal = Refusal(code="x\n", message="a\x1b[2J" + "m" * 9000, retryable=True, moved_to="tcp:a\n")

    error = RefusedByUpstream(refusal)

    assert str(error).isprintable()
    assert len(str(error)) < 1_100
    assert ("x\\n", "") == (error.refusal.code, error.refusal.moved_to)


def test_what_an_upstream_says_at_its_end_is_safe_to_show() -> None:
    """Its ERROR stands in the log and in the status of the replica."""
    world = World(corrupt=lambda data: data.replace(b"WELCOME ", b"ERROR \x1b[2J "))
    world.node("a")
    b = world.node("b", "a")
    world.pass_(1)

    assert b.replica is not None
    assert "the upstream says: \\x1b[2J" in b.replica.why
    assert b.replica.why.isprintable()


def test_an_unknown_block_is_named_in_words_that_are_safe_to_show() -> None:
    """Its kind is the peer's word."""
    connection, _ = connected()
    connection.dataReceived(block("x\x1b[2J", 0, b""))

    assert isinstance(connection._end, RemoteProtocolError)
    assert "a block of x\\x1b[2J is not known here" in connection._end.why
