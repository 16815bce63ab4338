"""Connections in memory between real protocols, on a fake clock."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from twisted.internet import error
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IStreamClientEndpoint,
    ITransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.interfaces import IClock

BUFFER_BYTES: Final = 64 * 1024
"""Bytes that a transport buffers before it pauses its producer; the same as in Twisted."""


@implementer(ITransport, IPushProducer)
class MemoryTransport:
    """One end of a link. Bytes arrive at the other end in order, after the network's delay."""

    disconnecting = False

    def __init__(self, link: "MemoryLink", name: str) -> None:
        self.peer: MemoryTransport
        self.protocol: Any = None
        self.most_buffered = 0
        self._link = link
        self._network = link.network
        self._name = name
        self._outgoing: deque[bytes] = deque()
        self._buffered = 0
        self._producer: Any = None
        self._producer_paused = False
        self._reading = True
        self._timer: Any = None
        self.is_open = True

    def write(self, data: bytes) -> None:
        if not self.is_open or self.disconnecting or not data:
            return
        self._outgoing.append(data)
        self._buffered += len(data)
        self.most_buffered = max(self.most_buffered, self._buffered)
        is_full = self._buffered > self._network.buffer_bytes
        if is_full and self._producer is not None and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()
        self.carry()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        if self.is_open and not self.disconnecting:
            self.disconnecting = True
            self.carry()

    def abortConnection(self) -> None:
        self._link.cut()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def pauseProducing(self) -> None:
        self._reading = False

    def resumeProducing(self) -> None:
        self._reading = True
        self.peer.carry()

    def stopProducing(self) -> None:
        self.loseConnection()

    def getPeer(self) -> UNIXAddress:
        return UNIXAddress(self.peer._name)

    def getHost(self) -> UNIXAddress:
        return UNIXAddress(self._name)

    def carry(self) -> None:
        """Schedule the delivery of written data."""
        if self._timer is None and self.is_open and (self._outgoing or self.disconnecting):
            self._timer = self._network.clock.callLater(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if not self.is_open or not self.peer._reading or self._link.is_stalled:
            return
        if self._outgoing:
            # Chunks of any size: protocols must not rely on their boundaries.
            data = self._outgoing.popleft()
            size = self._network.piece(len(data))
            if size < len(data):
                self._outgoing.appendleft(data[size:])
            self._buffered -= size
            self.peer.protocol.dataReceived(self._network.corrupt(data[:size]))
        elif self.disconnecting:
            self._link.close()
            return
        if self._producer_paused and self._buffered == 0 and self._producer is not None:
            self._producer_paused = False
            self._producer.resumeProducing()
        self.carry()

    def lost(self, reason: BaseException) -> None:
        """Close this end, and tell its protocol."""
        if self.is_open:
            self.is_open = False
            if self._timer is not None and self._timer.active():
                self._timer.cancel()
            self.protocol.connectionLost(Failure(reason))


class MemoryLink:
    """A connection: a pair of transports."""

    def __init__(self, network: "Network", client: str, server: str) -> None:
        self.network = network
        self.is_stalled = False
        self.client = MemoryTransport(self, client)
        self.server = MemoryTransport(self, server)
        self.client.peer, self.server.peer = self.server, self.client

    def start(self, client: Any, server: Any) -> None:
        """Connect the two protocols."""
        self.client.protocol, self.server.protocol = client, server
        server.makeConnection(self.server)
        client.makeConnection(self.client)

    @property
    def is_open(self) -> bool:
        """Whether the link is open."""
        return self.client.is_open

    def cut(self) -> None:
        """Cut the link: data in flight is lost."""
        self._end(error.ConnectionLost())

    def close(self) -> None:
        """Close the link in order."""
        self._end(error.ConnectionDone())

    def stall(self) -> None:
        """Deliver nothing until `go_on`. Both ends stay connected."""
        self.is_stalled = True

    def go_on(self) -> None:
        """Deliver again."""
        self.is_stalled = False
        self.client.carry()
        self.server.carry()

    def _end(self, reason: BaseException) -> None:
        self.server.lost(reason)
        self.client.lost(reason)


@dataclass(eq=False, repr=False)
class Network:
    """Listeners by address, and the links to them.

    `delay` returns the seconds that a chunk takes, `piece` how many of so many waiting bytes arrive as one
    chunk; `corrupt` may change a chunk. `reaches` says whether a client can reach an address. A transport
    with more than `buffer_bytes` in its buffer pauses its producer.
    """

    clock: IClock
    _: KW_ONLY
    delay: Callable[[], float] = lambda: 0.001
    piece: Callable[[int], int] = lambda size: size
    corrupt: Callable[[bytes], bytes] = lambda data: data
    reaches: Callable[[str, str], bool] = lambda client, address: True
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        self.links: list[MemoryLink] = []
        self._listeners: dict[str, IProtocolFactory] = {}

    def listen(self, address: str, factory: IProtocolFactory) -> None:
        """Accept connections to `address` with this factory."""
        self._listeners[address] = factory

    def stop_listening(self, address: str) -> None:
        """Refuse connections to `address` from now on."""
        self._listeners.pop(address, None)

    def connect(self, client: str, address: str, factory: IProtocolFactory) -> "Deferred[IProtocol]":
        """Connect `client` to `address`. Fails with Twisted's ConnectionRefusedError if unreachable."""
        connected: Deferred[IProtocol] = Deferred()
        timer = self.clock.callLater(self.delay(), self._connect, client, address, factory, connected)
        connected._canceller = lambda _: timer.cancel() if timer.active() else None
        return connected

    def links_of(self, name: str) -> list[MemoryLink]:
        """The open links of the client or listener with this name."""
        self.links = [link for link in self.links if link.is_open]
        return [link for link in self.links if name in (link.client._name, link.server._name)]

    def _connect(
        self, client: str, address: str, factory: IProtocolFactory, connected: "Deferred[IProtocol]"
    ) -> None:
        listener = self._listeners.get(address)
        if listener is None or not self.reaches(client, address):
            connected.errback(error.ConnectionRefusedError())
            return
        link = MemoryLink(self, client, address)
        self.links.append(link)
        ours = factory.buildProtocol(link.client.getPeer())
        theirs = listener.buildProtocol(link.server.getPeer())
        link.start(ours, theirs)
        assert ours is not None
        connected.callback(ours)


@implementer(IStreamClientEndpoint)
@dataclass(eq=False)
class MemoryEndpoint:
    """A client endpoint to an address of a `Network`."""

    network: Network
    client: str
    address: str

    def connect(self, protocolFactory: IProtocolFactory) -> "Deferred[IProtocol]":
        return self.network.connect(self.client, self.address, protocolFactory)
