"""From HELLO on a replica is served by what it opens, however its bytes arrive: over TCP, TLS and HTTP."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.ssl import ClientContextFactory, ContextFactory
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.wire.blocks import Payload
from synrepl.transports.tcp import PublisherFactory
from tests.certificates import Authority
from tests.replicas.clusters import RawReplica
from tests.replicas.http.native_door import Door
from tests.replicas.http.test_replica_routes import CopiesCase

HERE = IPv4Address("TCP", "127.0.0.1", 54321)
SAID = b'NAME r\nPING 1\nHELLO {"uuid":"u","name":"r","version":3}\nJOIN {}\n'
HEARD = ["SERVER", "WELCOME", "JOINING", "facts", "snapshot", "JOINED"]
"""What the upstream sends, but for PING and HEARTBEAT: lines by their commands, and blocks by their kinds."""


def heard_by(replica: RawReplica) -> list[str]:
    """The commands and the kinds of blocks that came."""
    found = [
        one.kind if isinstance(one, Payload) else one.partition(b" ")[0].decode() for one in replica.heard
    ]
    return [one for one in dict.fromkeys(found) if one not in ("PING", "HEARTBEAT", "PEERS", "meta")]


class Server(ContextFactory):
    """TLS with a certificate of a test."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._context = SSL.Context(SSL.TLS_METHOD)
        self._context.use_certificate_file(str(certificate))
        self._context.use_privatekey_file(str(key))

    def getContext(self) -> SSL.Context:
        return self._context


class HandedOverTests(CopiesCase):
    """The conversation is cut at every byte, and comes in one segment, and byte by byte."""

    certificate: ClassVar[tuple[Path, Path]]
    _folder: ClassVar[Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls._folder = tempfile.TemporaryDirectory()
        cls.certificate = Authority(Path(cls._folder.name), "ca").sign("hs.example")

    @classmethod
    def tearDownClass(cls) -> None:
        cls._folder.cleanup()

    def setUp(self) -> None:
        super().setUp()
        self.receipts(3)

    def factory(self) -> PublisherFactory:
        """The listener of the primary."""
        return PublisherFactory(
            self.publisher,
            server_name="hs.example",
            dialect=None,
            clock=self.clock,
            metrics=self.metrics,
            hello=RelayHello(self.registry),
        )

    def pass_(self) -> None:
        """Let the upstream answer."""
        self.clock.pump([0.05] * 4)

    def over_tcp(self, pieces: Sequence[bytes]) -> RawReplica:
        """What a replica hears that sends these pieces."""
        protocol, transport, replica = (
            self.factory().buildProtocol(None),
            StringTransport(peerAddress=HERE),
            RawReplica(),
        )
        protocol.makeConnection(transport)
        for piece in pieces:
            protocol.dataReceived(piece)
        self.pass_()
        replica.dataReceived(transport.value())
        protocol.connectionLost(Failure(ConnectionDone()))
        return replica

    def over_tls(self, pieces: Sequence[bytes]) -> RawReplica:
        """The same, in records of TLS."""
        replica = RawReplica()
        server = TLSMemoryBIOFactory(
            Server(*self.certificate), False, self.factory(), clock=self.clock
        ).buildProtocol(None)
        client = TLSMemoryBIOFactory(
            ClientContextFactory(), True, Factory.forProtocol(lambda: replica), clock=self.clock
        ).buildProtocol(None)
        ends = (server, StringTransport(peerAddress=HERE)), (client, StringTransport())
        for protocol, transport in ends:
            protocol.makeConnection(transport)

        def carry() -> None:
            for _ in range(4):
                self.clock.advance(0)
                for (_, source), (target, _) in (ends, ends[::-1]):
                    data = source.value()
                    source.clear()
                    if data:
                        target.dataReceived(data)

        carry()
        for piece in pieces:
            replica.transport.write(piece)
            carry()
        self.pass_()
        carry()
        server.connectionLost(Failure(ConnectionDone()))
        return replica

    def over_http(self, pieces: Sequence[bytes]) -> RawReplica:
        """The same, in requests."""
        door = Door(self)
        for piece in pieces:
            door.write(piece)
        door.pass_(0.2)
        door.talk.leave()
        return door.replica

    def check(self, name: str) -> None:
        """Each cut gives the same."""
        cuts = [[SAID], [SAID[at : at + 1] for at in range(len(SAID))]]
        cuts += [[SAID[:at], SAID[at:]] for at in range(1, len(SAID))]
        for pieces in cuts:
            replica = getattr(self, name)(pieces)

            self.assertEqual(HEARD, heard_by(replica), pieces)

    def test_over_tcp(self) -> None:
        """What stands behind HELLO in its segment is not lost."""
        self.check("over_tcp")

    def test_over_tls(self) -> None:
        """Records end where lines do not."""
        self.check("over_tls")

    def test_over_http(self) -> None:
        """The same protocol, fed by another transport."""
        self.check("over_http")
