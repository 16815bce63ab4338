"""Connections in memory end as those of the system do."""

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock

from synrepl.testing.network import MemoryLink, Network


class Heard(Protocol):
    """Keeps what comes."""

    def __init__(self) -> None:
        self.data = b""
        self.is_lost = False

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: object = None) -> None:
        self.is_lost = True


def connected() -> tuple[Clock, MemoryLink, Heard, Heard]:
    """A clock, a link, and its two ends: client and server."""
    clock = Clock()
    network = Network(clock)
    network.listen("there", Factory.forProtocol(Heard))
    network.connect("here", "there", Factory.forProtocol(Heard))
    clock.advance(1)
    (link,) = network.links
    return clock, link, link.client.protocol, link.server.protocol


def test_what_was_written_before_a_close_arrives() -> None:
    """And what is written afterwards does not."""
    clock, link, _, server = connected()
    link.client.write(b"before")
    link.client.loseConnection()
    link.client.write(b"after")
    clock.pump([0.1] * 5)

    assert (b"before", True) == (server.data, server.is_lost)


def test_nothing_is_sent_over_an_aborted_link() -> None:
    """Nor kept for later."""
    clock, link, _, server = connected()
    link.client.abortConnection()
    link.client.write(b"after")
    clock.advance(1)

    assert (b"", True, 0) == (server.data, server.is_lost, link.client.most_buffered)


def test_an_empty_write_sends_nothing() -> None:
    """A chunk of no bytes would be the end of a stream elsewhere."""
    clock, link, _, server = connected()
    link.client.write(b"")

    assert [] == clock.getDelayedCalls()
    assert server.data == b""
