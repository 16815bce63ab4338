"""Each line of a connection can be seen by a subclass, as with any `LineOnlyReceiver` of Twisted."""

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.streams.table import StreamTable
from synrepl.testing import MemoryEndpoint, Network
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT
from tests.raw_peer import RawPeer, raw_server

TABLE = StreamTable.default()


class Seen(ReplicationProtocol):
    """Notes each line, and leaves out those that say so."""

    lines: list[bytes]

    def connectionMade(self) -> None:
        self.lines = []
        super().connectionMade()

    def lineReceived(self, line: bytes) -> None:
        self.lines.append(line)
        if b"@left-out" not in line:
            super().lineReceived(line)


class SeenFactory(FollowerFactory):
    """As one adapts a factory of Twisted."""

    protocol = Seen


class Story:
    """A follower with protocols of this kind, and a server spoken by hand."""

    def __init__(self, kind: type[FollowerFactory]) -> None:
        self.clock = Clock()
        network = Network(self.clock)
        self.masters = raw_server(network, "master")
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
        """The server says these at once."""
        master: RawPeer = self.masters[-1]
        master.says(*lines)
        self.clock.pump([0.001] * 100)


LINES = (
    "SERVER hs",
    "POSITION push_rules master 1 1",
    'RDATA push_rules master 2 ["@ada:hs"]',
    'RDATA push_rules master 3 ["@left-out:hs"]',
    'RDATA push_rules master 4 ["@bob:hs"]',
)


def test_a_subclass_sees_each_line_and_may_keep_it() -> None:
    """Runs of lines went to the session at once, past `lineReceived`."""
    story = Story(SeenFactory)

    story.hears(*LINES)

    assert isinstance(story.factory.current, Seen)
    assert story.factory.current.lines == [line.encode() for line in LINES]
    assert story.applied == [2, 4]


def test_nothing_is_heard_after_the_line_that_closed_the_connection() -> None:
    """As with Twisted's own."""
    story = Story(SeenFactory)
    protocol = story.factory.current

    story.hears("SERVER hs", "RDATA nonsense", 'RDATA push_rules master 2 ["@ada:hs"]')

    assert isinstance(protocol, Seen)
    assert protocol.lines == [b"SERVER hs", b"RDATA nonsense"]


@pytest.mark.parametrize("kind", [SeenFactory, FollowerFactory])
def test_lines_are_heard_by_both_ways_alike(kind: type[FollowerFactory]) -> None:
    """Whether somebody looks at them makes no difference to who applies them."""
    story = Story(kind)

    story.hears(*LINES[:3], LINES[4])

    assert story.applied == [2, 4]
