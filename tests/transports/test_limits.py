"""Connections beyond the limit of a listener."""

from pathlib import Path
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocolFactory, IStreamServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.transports.limits import LINGERING, LimitedFactory
from synrepl.transports.tls import ServerTls, TlsFiles
from synrepl.transports.tls_endpoints import TlsServerEndpoint
from tests.certificates import Authority


def test_a_connection_beyond_the_limit_is_closed_under_tls_too() -> None:
    """TLS wraps what the listener makes, and cannot wrap nothing."""
    outer = WrappingFactory(LimitedFactory(Factory.forProtocol(Protocol), 1, Clock()))
    transports = [StringTransport(), StringTransport()]

    for transport in transports:
        made = outer.buildProtocol(transport.getPeer())
        assert made is not None
        made.makeConnection(transport)

    assert [False, True] == [transport.disconnecting for transport in transports]


def test_connections_in_the_handshake_of_tls_count(tmp_path: Path) -> None:
    """A client that says nothing has a descriptor, too, and the wrapped factory does not know of it."""
    certificate, key = Authority(tmp_path, "ca").sign("localhost")
    listening: list[Any] = []

    @implementer(IStreamServerEndpoint)
    class Plain:
        def listen(self, factory: IProtocolFactory) -> Any:
            listening.append(factory)

    tls = ServerTls(TlsFiles(cert_file=certificate, key_file=key))
    TlsServerEndpoint(Plain(), tls, Clock(), most=2).listen(Factory.forProtocol(Protocol))
    (outer,) = listening

    def connected() -> tuple[Any, StringTransport]:
        transport = StringTransport()
        protocol = outer.buildProtocol(transport.getPeer())
        protocol.makeConnection(transport)
        return protocol, transport

    made = [connected() for _ in range(2 + LINGERING)]
    assert not any(transport.disconnecting for _, transport in made)
    assert connected()[1].disconnecting

    made[0][0].connectionLost(Failure(ConnectionDone()))
    assert not connected()[1].disconnecting
