"""Connections are `LineOnlyReceiver`s of Twisted. Commands before a bad line are carried out."""

import pytest
from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.streams.table import StreamTable
from synrepl.testing import Cluster, MemoryEndpoint, Network
from synrepl.testing.heap_clock import HeapClock
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.tcp import FollowerFactory, PublisherFactory
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.commands import RemovePusher
from synrepl.wire.dialect import CURRENT
from tests.raw_peer import RawPeer, raw_client, raw_server
from tests.replication.listeners import listener

TABLE = StreamTable.default()


class Listing(ReplicationProtocol):
    """Notes each line, and keeps those from the session that say so."""

    seen: list[bytes]

    def connectionMade(self) -> None:
        self.seen = []
        super().connectionMade()

    def lineReceived(self, line: bytes) -> None:
        self.seen.append(line)
        if b"@left-out" not in line:
            super().lineReceived(line)


class Mixin:
    """As Listing, for any protocol of lines."""

    def lineReceived(self, line: bytes) -> None:
        self.seen: list[bytes] = [*getattr(self, "seen", ()), line]
        super().lineReceived(line)  # type: ignore[misc]


class Mixed(Mixin, ReplicationProtocol):
    """Overrides by its other base class."""


class ListingFollowers(FollowerFactory):
    """As one adapts a factory of Twisted."""

    protocol = Listing


class ListingPublisher(PublisherFactory):
    """The same for the server's side."""

    protocol = Listing


class MixedPublisher(PublisherFactory):
    """With a mixin."""

    protocol = Mixed


class Story:
    """A follower with protocols of this kind, and a server spoken by hand."""

    def __init__(self, kind: type[FollowerFactory]) -> None:
        self.clock = HeapClock()
        network = Network(self.clock)
        self.servers = raw_server(network, "master")
        self.applied: list[int] = []
        follower = Follower(instance="worker", clock=self.clock)
        follower.on(TABLE["push_rules"])(lambda updates: self.applied.append(updates.token))
        self.factory = kind(
            follower,
            dialect=CURRENT,
            expected_server=None,
            clock=self.clock,
            metrics=Metrics(CollectorRegistry()),
        )
        self.factory.connect(MemoryEndpoint(network, "worker", "master"))
        self.clock.pump([0.001] * 100)

    def hears(self, *lines: str) -> None:
        """The server says these in one write."""
        self.servers[-1].says(*lines)
        self.clock.pump([0.001] * 100)


LINES = (
    "SERVER hs",
    "POSITION push_rules master 1 1",
    'RDATA push_rules master 2 ["@ada:hs"]',
    'RDATA push_rules master 3 ["@left-out:hs"]',
    'RDATA push_rules master 4 ["@bob:hs"]',
)


def test_a_subclass_sees_each_line_of_a_server_and_may_keep_it() -> None:
    """The seed's card asks for `LineOnlyReceiver`: whoever knows Twisted looks for exactly this."""
    story = Story(ListingFollowers)

    story.hears(*LINES)

    assert isinstance(story.factory.current, Listing)
    assert [line.encode() for line in LINES] == story.factory.current.seen
    assert [2, 4] == story.applied


@pytest.mark.parametrize("kind", [ListingFollowers, FollowerFactory])
def test_both_ways_of_reading_apply_the_same(kind: type[FollowerFactory]) -> None:
    """Lines travel in runs only where nobody looks at them."""
    story = Story(kind)

    story.hears(*LINES[:3], LINES[4])

    assert [2, 4] == story.applied


def test_a_subclass_sees_no_line_after_the_one_that_closed_the_connection() -> None:
    """As with Twisted's own."""
    story = Story(ListingFollowers)
    protocol = story.factory.current

    story.hears("SERVER hs", "RDATA nonsense", LINES[2])

    assert isinstance(protocol, Listing)
    assert [b"SERVER hs", b"RDATA nonsense"] == protocol.seen


@pytest.fixture
def one() -> Cluster:
    """A daemon with a listener of its own for each kind of protocol."""
    cluster = Cluster()
    for name, kind in KINDS.items():
        listener(cluster, name, kind)
    return cluster


KINDS = {"runs": PublisherFactory, "lines": ListingPublisher, "mixin": MixedPublisher}

BAD_LINES = {
    "CR LF": b"NAME x\r\n",
    "no UTF-8": b"NAME \xff\n",
    "an unknown command": b"BAD\n",
    "a command of the other side": b"POSITION events w 1 1\n",
    "a bad field": b"FEDERATION_ACK w five\n",
    "too long": b"NAME " + b"x" * MAX_LENGTH + b"\n",
    "too long, without an end": b"NAME " + b"x" * MAX_LENGTH,
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_before_a_bad_line_are_carried_out(one: Cluster, kind: str, bad: bytes) -> None:
    """All came in one segment. A lost INVALIDATE_CACHE is a stale cache at every worker."""
    removed: list[str] = []
    one.daemon.publisher.follower_commands.subscribers[RemovePusher].append(
        lambda command: removed.append(command.push_key)
    )
    watching = one.worker(streams=[TABLE["caches"]])
    peer = raw_client(one.network, kind)
    one.settle(0.05)

    peer.transport.write(
        b"REPLICATE events NOW\n"
        b'INVALIDATE_CACHE get_user_by_id ["@ada:hs"]\n'
        b"REMOVE_PUSHER app key @ada:hs\n" + bad + b"REMOVE_PUSHER app after @ada:hs\n"
    )
    one.settle()

    assert ["key"] == removed
    assert [1] == watching.tokens("caches")
    assert not peer.is_connected
    assert any(line.startswith("ERROR ") for line in peer.heard)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_sees_the_lines_of_its_clients(one: Cluster, kind: str) -> None:
    """Client and server share one protocol class."""
    peer = raw_client(one.network, kind)
    one.settle(0.05)
    peer.says("NAME w", "", "REPLICATE push_rules NOW")
    one.settle()

    assert "POSITION push_rules 0" in peer.hears()


def test_sent_lines_end_with_lf(one: Cluster) -> None:
    """`sendLine` is Twisted's, and counts as what this side said."""
    story = Story(ListingFollowers)
    assert story.factory.current is not None

    story.factory.current.sendLine(b"PING 7")
    story.clock.pump([0.001] * 100)

    server: RawPeer = story.servers[-1]
    assert "PING 7" in server.heard
