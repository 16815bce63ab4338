"""The classes of Twisted that the line protocol is made of, on real sockets. Run by trial."""

from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol, ReconnectingClientFactory, connectionDone
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.streams.catalog import PUSH_RULES
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.http.catch_up import HttpCatchUp
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.tcp import FollowerFactory, PublisherFactory
from synrepl.wire.dialect import CURRENT
from synrepl.wire.session import AUTO
from tests.trial.waiting import eventually
from tests.trial.worlds import World


class Listing(ReplicationProtocol):
    """Notes the lines that it receives, and has them handled."""

    def connectionMade(self) -> None:
        self.seen: list[bytes] = []
        self.positioned: Deferred[None] = Deferred()
        super().connectionMade()

    def lineReceived(self, line: bytes) -> None:
        if not line.startswith(b"PING"):
            self.seen.append(line)
        super().lineReceived(line)
        if line.startswith(b"POSITION push_rules ") and not self.positioned.called:
            self.positioned.callback(None)


class ListingFollowers(FollowerFactory):
    """Followers whose lines can be seen."""

    protocol = Listing


class ListingPublisher(PublisherFactory):
    """Served followers whose lines can be seen."""

    protocol = Listing


class Asking(Protocol):
    """Sends a request, closes its half of the connection, and reads to the end."""

    transport: Any

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._received = b""
        self.lines: Deferred[list[bytes]] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(self._text)
        self.transport.loseWriteConnection()

    def dataReceived(self, data: bytes) -> None:
        self._received += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lines.callback(self._received.split(b"\n"))


class LineReceiverTests(World):
    """What the project's card names: `LineOnlyReceiver` and `ReconnectingClientFactory`, on both sides."""

    async def listening(self) -> tuple[ListingPublisher, Any]:
        """A listener whose protocols note what they receive."""
        factory = ListingPublisher(
            self.publisher,
            server_name="hs.example",
            dialect=AUTO,
            clock=self.clock,
            metrics=Metrics(CollectorRegistry()),
        )
        port: Any = self.clock.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.addCleanup(factory.close, "the end of the test")
        return factory, port

    def follower_factory(self, kind: type[FollowerFactory]) -> FollowerFactory:
        """A factory of this class, for a follower that notes what it applied."""
        catch_up = HttpCatchUp(HttpClient(self.clock, self.url))
        self.addCleanup(lambda: ensureDeferred(catch_up.http.stop()))
        follower = Follower(instance="worker", clock=self.clock, catch_up=catch_up, start="earliest")
        follower.on(PUSH_RULES)(self._apply)
        follower.on_event(self._note)
        factory = kind(
            follower,
            dialect=CURRENT,
            expected_server="hs.example",
            clock=self.clock,
            metrics=Metrics(CollectorRegistry()),
        )
        self.addCleanup(follower.stop)
        self.addCleanup(factory.stop)
        return factory

    async def test_both_ends_receive_lines(self) -> None:
        """Whoever knows Twisted overrides `lineReceived`, and calls up."""
        self.assertTrue(issubclass(ReplicationProtocol, LineOnlyReceiver))
        server, port = await self.listening()
        factory = self.follower_factory(ListingFollowers)
        factory.connect(clientFromString(self.clock, f"tcp:127.0.0.1:{port.getHost().port}"))
        await self.happens("connected", 1)
        assert isinstance(factory.current, Listing)
        # A fact appended before the stream's POSITION is sent is caught up over HTTP: no row is sent.
        await factory.current.positioned
        await self.append("@ada:hs")
        await self.happens("applied", 1)

        [served] = server.protocols
        assert isinstance(served, Listing)
        self.assertIn(b"REPLICATE", [line.split(b" ")[0] for line in served.seen])
        self.assertEqual(b"SERVER hs.example", factory.current.seen[0])
        # POSITIONs of other streams may come after it: the answer to REPLICATE takes several turns.
        rows = [line for line in factory.current.seen if line.startswith(b"RDATA")]
        self.assertEqual([b'RDATA push_rules master 1 ["@ada:hs"]'], rows)

    async def test_the_pauses_are_twisteds(self) -> None:
        """The factory's own attributes decide, and the first POSITION resets the delay."""
        self.assertTrue(issubclass(FollowerFactory, ReconnectingClientFactory))
        server, port = await self.listening()
        factory = self.follower_factory(FollowerFactory)
        factory.initialDelay = factory.delay = 0.01
        factory.connect(clientFromString(self.clock, f"tcp:127.0.0.1:{port.getHost().port}"))
        await self.append("@ada:hs")
        await self.happens("applied", 1)
        for count in (2, 3):
            await eventually(lambda: factory.retries == 0, "the first POSITION is applied")
            self.assertEqual(0.01, factory.delay)
            for protocol in list(server.protocols):
                protocol.transport.abortConnection()
            await self.append(f"@bob{count}:hs")
            await self.happens("applied", count)

        self.assertEqual([1, 2, 3], self.applied)

    async def test_a_peer_that_half_closes_gets_what_it_asked_for(self) -> None:
        """As `printf 'REPLICATE push_rules 0\\n' | nc` does it, with some of the netcats."""
        _, port = await self.listening()
        await self.append(*(f"@user{number}:hs" for number in range(3_000)))
        endpoint = clientFromString(self.clock, f"tcp:127.0.0.1:{port.getHost().port}")

        asking: Any = await endpoint.connect(
            Factory.forProtocol(lambda: Asking(b"PING 1\nREPLICATE push_rules 0\n"))
        )
        lines = await asking.lines

        rows = [line for line in lines if line.startswith(b"RDATA")]
        self.assertEqual([f"RDATA push_rules {n}" for n in range(1, 3_001)], [_head(row) for row in rows])
        self.assertEqual([b"POSITION push_rules 3000", b""], lines[-2:])


def _head(line: bytes) -> str:
    return b" ".join(line.split(b" ")[:3]).decode()
