"""What an upstream sends, before a replica has looked at it."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from synrepl.errors import RemoteProtocolError
from synrepl.ports.metrics import Metrics
from synrepl.replication.replica import RefusedByUpstream
from synrepl.transports.native import MAX_QUEUED_BYTES, UpstreamConnection
from synrepl.wire.blocks import encode_block
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


@pytest.mark.parametrize(
    "sent", [HEARTBEAT, encode_block("ephemeral", 0, b"")], ids=["heartbeats", "empty blocks"]
)
def test_what_has_no_rows_waits_within_a_bound_too(sent: bytes) -> None:
    """A replica that is at its disk takes nothing; a flood must wait in the upstream's memory, not in its."""
    connection, transport = connected()
    flood = sent * 500
    fed = 0
    while transport.producerState == "producing" and fed < 100 * MAX_QUEUED_BYTES:
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
    assert "ERROR from the upstream: \\x1b[2J" in b.replica.why
    assert b.replica.why.isprintable()


def test_an_unknown_block_is_named_in_words_that_are_safe_to_show() -> None:
    """Its kind is the peer's word."""
    connection, _ = connected()
    connection.dataReceived(encode_block("x\x1b[2J", 0, b""))

    assert isinstance(connection.events.error, RemoteProtocolError)
    assert "unknown block type x\\x1b[2J" in connection.events.error.why


@pytest.mark.parametrize(("old", "new"), [(b"1 0 d", b"1 1 d"), (b"1 0 d", b"2 0 d"), (b" 0 0 ", b" 9 0 ")])
def test_a_heartbeat_that_was_changed_on_its_way_is_not_believed(old: bytes, new: bytes) -> None:
    """A changed bit in it would make a replica believe that it stands where it does not."""
    connection, transport = connected()
    connection.dataReceived(HEARTBEAT.replace(old, new, 1))

    assert connection.ready() is None
    assert b"corrupted HEARTBEAT: its check does not match" in transport.value()


@pytest.mark.parametrize(
    "member", ["uuid", "history", "instance", "server_name", "role", "address", "primary"]
)
@pytest.mark.parametrize("text", ["a\x1b[2J", "\u202e", "x" * 1_001])
def test_a_welcome_names_nobody_by_what_cannot_be_shown(member: str, text: str) -> None:
    """It stands in the status, and in the log."""
    said = {"proof": "", "position": {"epoch": 1, "serial": 0, "digest": "d"}, "trimmed_upto": 0}
    said |= dict.fromkeys(("uuid", "history", "instance", "server_name", "role"), "x")
    connection, transport = connected()

    connection.dataReceived(b"WELCOME " + msgspec.json.encode(said | {member: text}) + b"\n")

    assert connection.ready() is None
    assert b"invalid name or address" in transport.value()


def test_an_upstream_is_not_blamed_for_what_was_not_read() -> None:
    """While the replica is at its disk it takes nothing, and hears no sign of life."""
    connection, transport = connected()
    clock: Any = connection._clock
    connection.dataReceived(HEARTBEAT)
    for _ in range(1 + MAX_QUEUED_BYTES // (1_000 * len(HEARTBEAT))):
        if transport.producerState == "producing":
            connection.dataReceived(HEARTBEAT * 1_000)
    assert "paused" == transport.producerState
    clock.pump([1] * 200)
    assert not transport.disconnecting

    while connection.ready() is not None:
        pass
    clock.pump([1] * 200)

    assert transport.disconnecting
