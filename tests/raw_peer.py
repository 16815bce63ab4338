"""A peer whose lines a test writes by hand."""

from typing import Any

from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.testing.network import Network
from synrepl.wire.codec import LineBuffer

__all__ = ["RawPeer", "raw_client", "raw_server"]


class RawPeer(Protocol):
    """One end of a connection: `says` sends lines, `heard` lists the received ones."""

    transport: Any

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.is_connected = False
        self._lines = LineBuffer()

    def connectionMade(self) -> None:
        self.is_connected = True

    def dataReceived(self, data: bytes) -> None:
        self.heard += [line.decode() for line in self._lines.receive(data)]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_connected = False

    def says(self, *lines: str) -> None:
        """Send lines."""
        self.transport.write("".join(f"{line}\n" for line in lines).encode())

    def hears(self) -> list[str]:
        """The lines received since the last call, without PINGs."""
        heard, self.heard = self.heard, []
        return [line for line in heard if not line.startswith("PING")]

    def drop(self) -> None:
        """Cut the connection."""
        self.transport.abortConnection()


def raw_client(network: Network, address: str, name: str = "raw") -> RawPeer:
    """Connect a raw follower to the listener at `address`; it is connected once the clock has advanced."""
    peer = RawPeer()
    factory = Factory.forProtocol(lambda: peer)
    network.connect(name, address, factory)
    return peer


def raw_server(network: Network, address: str) -> list[RawPeer]:
    """Listen at `address` as a raw server. The list gets a peer for each connection."""
    peers: list[RawPeer] = []

    def make() -> RawPeer:
        peers.append(RawPeer())
        return peers[-1]

    network.listen(address, Factory.forProtocol(make))
    return peers
