"""What an upstream sends, before a replica has looked at it."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from synrepl.base.metrics import Metrics
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.replicas.native_client import MAX_QUEUED_BYTES, NativeConversation, NativeUpstream
from synrepl.replicas.replica.conversation import RefusedByUpstream
from synrepl.replicas.settings import UpstreamSettings
from synrepl.replicas.wire.blocks import encode_block
from synrepl.replicas.wire.native import Refused, Welcome, heartbeat_check
from synrepl.replication.addresses import Address
from synrepl.testing import MemoryEndpoint, Network
from synrepl.transports.connection import ReplicationProtocol
from synrepl.wire.dialect import NATIVE
from tests.replicas.clusters import FakeCluster

WELCOME = f"{Welcome.EXAMPLES[NATIVE]}\n".encode()
HEARTBEAT = f"HEARTBEAT 1 0 d 0 0 {heartbeat_check(1, 0, 'd', 0, 0)}\n".encode()


def connected(clock: Clock | None = None) -> tuple[ReplicationProtocol, NativeConversation, StringTransport]:
    """A connection to an upstream that was greeted, and the conversation over it."""
    upstream = NativeUpstream(
        MemoryEndpoint(Network(Clock()), "paris", "primary"),
        clock or Clock(),
        Metrics(CollectorRegistry()),
        UpstreamSettings(),
        where=Address(native="primary"),
    )
    connection = upstream.build("paris")
    transport = StringTransport()
    connection.makeConnection(transport)
    assert isinstance(connection.owner, NativeConversation)
    connection.dataReceived(WELCOME)
    assert connection.owner.ready() is not None
    return connection, connection.owner, transport


@pytest.mark.parametrize(
    "sent", [HEARTBEAT, encode_block("ephemeral", 0, b"")], ids=["heartbeats", "empty blocks"]
)
def test_what_has_no_rows_waits_within_a_bound_too(sent: bytes) -> None:
    """A replica that is at its disk takes nothing; a flood must wait in the upstream's memory, not in its."""
    connection, conversation, transport = connected()
    flood = sent * 500
    fed = 0
    while transport.producerState == "producing" and fed < 100 * MAX_QUEUED_BYTES:
        connection.dataReceived(flood)
        fed += len(flood)

    assert "paused" == transport.producerState
    while conversation.ready() is not None:
        pass
    assert "producing" == transport.producerState


def test_a_refusal_is_safe_to_show() -> None:
    """It stands in the log, on the page and on terminals; the address in it would be connected to."""
    refusal = Refused(code="x\n", message="a\x1b[2J" + "m" * 9000, retryable=True, moved_to="tcp:a\n")

    error = RefusedByUpstream(refusal)

    assert str(error).isprintable()
    assert len(str(error)) < 1_100
    assert ("x\\n", "") == (error.refusal.code, error.refusal.moved_to)


def test_what_an_upstream_says_at_its_end_is_safe_to_show() -> None:
    """Its ERROR stands in the log and in the status of the replica."""
    cluster = FakeCluster(corrupt=lambda data: data.replace(b"WELCOME ", b"ERROR \x1b[2J "))
    cluster.node("a")
    b = cluster.node("b", "a")
    cluster.pass_(1)

    assert b.replica is not None
    assert "ERROR from the upstream: \\x1b[2J" in b.replica.why
    assert b.replica.why.isprintable()


def test_an_unknown_block_is_named_in_words_that_are_safe_to_show() -> None:
    """Its kind is the peer's word."""
    connection, conversation, _ = connected()
    connection.dataReceived(encode_block("x\x1b[2J", 0, b""))

    assert isinstance(conversation.error, RemoteProtocolError)
    assert "a block of unknown kind x\\x1b[2J" in conversation.error.why


@pytest.mark.parametrize(("old", "new"), [(b"1 0 d", b"1 1 d"), (b"1 0 d", b"2 0 d"), (b" 0 0 ", b" 9 0 ")])
def test_a_heartbeat_that_was_changed_on_its_way_is_not_believed(old: bytes, new: bytes) -> None:
    """A changed bit in it would make a replica believe that it stands where it does not."""
    connection, conversation, transport = connected()
    connection.dataReceived(HEARTBEAT.replace(old, new, 1))

    assert conversation.ready() is None
    assert b"corrupted HEARTBEAT: its check does not match" in transport.value()


@pytest.mark.parametrize(
    "member", ["uuid", "history", "instance", "server_name", "role", "address", "primary"]
)
@pytest.mark.parametrize("text", ["a\x1b[2J", "\u202e", "x" * 1_001])
def test_a_welcome_names_nobody_by_what_cannot_be_shown(member: str, text: str) -> None:
    """It stands in the status, and in the log."""
    said = {"proof": "", "position": {"epoch": 1, "serial": 0, "digest": "d"}, "trimmed_upto": 0}
    said |= dict.fromkeys(("uuid", "history", "instance", "server_name", "role"), "x")
    connection, conversation, transport = connected()

    connection.dataReceived(b"WELCOME " + msgspec.json.encode(said | {member: text}) + b"\n")

    assert conversation.ready() is None
    assert b"invalid name or address" in transport.value()


def test_an_upstream_is_not_blamed_for_what_was_not_read() -> None:
    """While the replica is at its disk it takes nothing, and hears no sign of life."""
    clock = Clock()
    connection, conversation, transport = connected(clock)
    connection.dataReceived(HEARTBEAT)
    for _ in range(1 + MAX_QUEUED_BYTES // (1_000 * len(HEARTBEAT))):
        if transport.producerState == "producing":
            connection.dataReceived(HEARTBEAT * 1_000)
    assert "paused" == transport.producerState
    clock.pump([1] * 200)
    assert not transport.disconnecting

    while conversation.ready() is not None:
        pass
    clock.pump([1] * 200)

    assert transport.disconnecting


def test_a_block_may_take_longer_than_the_timeout() -> None:
    """A fact of 64 MiB takes minutes on a slow line, and no PING can come within it."""
    clock = Clock()
    connection, conversation, transport = connected(clock)
    connection.dataReceived(b"PING 1\n")
    block = encode_block("facts", 0, b"\n" * 100)
    for start in range(0, len(block), 10):
        assert not transport.disconnecting
        connection.dataReceived(block[start : start + 10])
        clock.pump([1] * 10)

    assert conversation.ready() is not None
    clock.pump([1] * 30)
    assert isinstance(conversation.error, RemoteProtocolError)
    assert "ping timeout" == conversation.error.why


def test_nothing_is_left_of_a_conversation_that_was_closed() -> None:
    """No delayed call, and no memory for a block that never came whole."""
    clock = Clock()
    connection, conversation, _ = connected(clock)
    connection.dataReceived(encode_block("facts", 1, b"x" * 100)[:-1])

    conversation.close()
    connection.connectionLost()

    assert [] == clock.getDelayedCalls()
    assert isinstance(conversation.error, NotConnected)
    assert connection.owner is not conversation
