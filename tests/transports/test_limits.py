"""Connections beyond the limit of a listener."""

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import WrappingFactory

from synrepl.transports.limits import LimitedFactory


def test_a_connection_beyond_the_limit_is_closed_under_tls_too() -> None:
    """TLS wraps what the listener makes, and cannot wrap nothing."""
    outer = WrappingFactory(LimitedFactory(Factory.forProtocol(Protocol), 1, Clock()))
    transports = [StringTransport(), StringTransport()]

    for transport in transports:
        made = outer.buildProtocol(transport.getPeer())
        assert made is not None
        made.makeConnection(transport)

    assert [False, True] == [transport.disconnecting for transport in transports]
