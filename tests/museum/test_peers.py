"""Bugs of peers of another release, peers that drop connections, and peers that are not who they say."""

from pathlib import Path

from OpenSSL import SSL
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.testing.network import Network
from synrepl.transports.tls import ClientTls, ServerTls, TlsFiles
from synrepl.wire.dialect import CURRENT
from tests.certificates import Authority
from tests.replication.follower.test_strategy import Setup
from tests.replication.serving.test_strategy import append, client, cluster


def test_old_and_new_row_formats_live_in_one_cluster() -> None:
    """Case 23, Synapse #17360 (and 1.76): workers could not read rows in the format of another release.

    Here: each follower is sent the format of its own release, on one port.
    """
    one = cluster()
    old = client(one, "REPLICATE receipts 0", name="old")
    new = client(one, "REPLICATE", name="new")
    old.hears(), new.hears()

    append(one, "receipts", [["!r", "m.read", "@a:hs", "$e", "main", {"ts": 1}]])

    assert ['RDATA receipts 1 ["!r", "m.read", "@a:hs", "$e", {"ts": 1}]'] == old.hears()
    assert ['RDATA receipts master 1 ["!r","m.read","@a:hs","$e",{"ts":1}]'] == new.hears()


def test_a_peer_that_accepts_and_drops_is_tried_less_often() -> None:
    """Case 24, Synapse #4749: each accepted connection reset the delay. The client tried in a tight loop.

    Here: a connection is good only after its first POSITION is applied; until then the backoff grows.
    """
    setup = Setup(CURRENT, "to_device")

    for _ in range(600):
        if setup.master.is_connected:
            setup.master.drop()
        setup.wait(0.1)

    assert 5 <= len(setup.masters) <= 13


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    """Case 33, Synapse #15312 (read in its code): TLS to Redis does not verify certificates, even with a CA
    file set.

    Here: a server with a certificate of the right CA for another name is refused, with a one-line reason.
    """
    authority = Authority(tmp_path, "ours")
    cert_file, key_file = authority.sign("other.example")
    ours = ClientTls(TlsFiles(ca_file=authority.ca_file), "localhost")
    theirs = ServerTls(TlsFiles(cert_file=cert_file, key_file=key_file))
    clock = Clock()
    network = Network(clock)
    reached: list[Protocol] = []
    lost: list[Failure] = []

    class Client(Protocol):
        def connectionLost(self, reason: Failure = connectionDone) -> None:
            lost.append(reason)

    class Server(Protocol):
        def dataReceived(self, data: bytes) -> None:
            reached.append(self)

    network.listen("server", TLSMemoryBIOFactory(theirs, False, Factory.forProtocol(Server), clock))
    network.connect("client", "server", TLSMemoryBIOFactory(ours, True, Factory.forProtocol(Client), clock))
    clock.pump([0.01] * 100)

    (reason,) = lost
    assert isinstance(reason.value, SSL.Error)
    assert "TLS: the certificate is for other.example, not for localhost" == ours.explain(reason.value)
    assert [] == reached
