"""HTTP over real sockets: what in-memory transports cannot show. Run by trial."""

import json
import socket
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from synrepl.base.metrics import Metrics
from synrepl.http_api.routes import STATUS
from synrepl.http_client import BlockingClient
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api import make_site
from synrepl.transports.http.catch_up import HttpCatchUp
from synrepl.transports.http.changelog_client import read_changelog
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.settings import ApiSettings
from tests.http.builders import append_body, post_facts
from tests.trial.worlds import running_log

ROW = ["!room:hs.example", "m.read", "@ada:hs.example", "$event", None, {"ts": 1}]


class Raw(Protocol):
    """A connection on which a test says what it likes. `ended` fires with all that was heard."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended: Deferred[bytes] = Deferred()
        self._wanted: list[tuple[bytes, Deferred[bytes]]] = []

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        self._look()

    def hears(self, what: bytes) -> "Deferred[bytes]":
        """Fires when this was heard."""
        wanted: Deferred[bytes] = Deferred()
        self._wanted.append((what, wanted))
        self._look()
        return wanted

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.ended.callback(self.heard)

    def _look(self) -> None:
        for what, wanted in list(self._wanted):
            if what in self.heard:
                self._wanted.remove((what, wanted))
                wanted.callback(self.heard)


class SocketTests(TestCase):
    """A daemon's site on a port of this machine, over SQLite and real threads."""

    timeout = 60.0

    async def setUp(self) -> None:  # type: ignore[override]
        table = DaemonStreams(StreamTable.default())
        self.log = await running_log(self, self.mktemp(), table)
        metrics = Metrics(CollectorRegistry())
        clock: Any = reactor
        publisher = Publisher(self.log, table, clock, metrics, instance="master")
        publisher.follow_log()
        self.addCleanup(publisher.stop)
        self.site = make_site(
            SiteContext(
                log=self.log,
                publisher=publisher,
                table=table,
                metrics=metrics,
                clock=clock,
                settings=ApiSettings(server_name="hs.example", max_body_bytes=100_000),
                declared=DeclaredStreams(self.log, table, instance="master"),
                refused=RefusedFacts(self.log, table, metrics, instance="master"),
            )
        )
        port: Any = clock.listenTCP(0, self.site, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.port = port.getHost().port
        self.url = f"http://127.0.0.1:{self.port}"

    async def connect(self) -> Raw:
        """A new connection, closed at the end of the test."""
        raw = Raw()
        await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", self.port), raw)
        self.addCleanup(self.close, raw)
        return raw

    def close(self, raw: Raw) -> Any:
        """Close it, and wait until it is."""
        assert raw.transport is not None
        raw.transport.loseConnection()
        return None if raw.ended.called else raw.ended

    def using(self, client: Any) -> Any:
        """A client whose idle connections are closed at the end of the test."""
        self.addCleanup(lambda: ensureDeferred(client.stop()))
        return client

    async def have(self, count: int) -> None:
        """Have so many facts in the log."""
        fact = b"[" + json.dumps(ROW, separators=(",", ":")).encode() + b"]"
        await self.log.append("receipts", "master", [fact] * count)

    async def test_a_body_that_is_too_long_is_refused_while_it_is_sent(self) -> None:
        """The client hears why, although it has not finished, and the connection ends."""
        raw = await self.connect()
        assert raw.transport is not None
        raw.transport.write(
            b"POST /v1/streams/receipts/facts HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n"
            + b"x" * 200_000
        )
        heard = await raw.hears(b"}")
        raw.transport.write(b"x" * 700_000)
        await raw.ended

        self.assertTrue(heard.startswith(b"HTTP/1.1 413 "), heard)
        self.assertIn(b'"too_large"', heard)

    async def test_a_slow_reader_costs_no_memory(self) -> None:
        """Its pages wait in the log, and the others are answered meanwhile."""
        await self.have(80_000)
        reads: list[int] = []
        read = self.log.reads.text

        def counted(**asked: Any) -> Any:
            reads.append(asked["after"])
            return read(**asked)

        self.patch(self.log.reads, "text", counted)
        slow = socket.create_connection(("127.0.0.1", self.port))
        self.addCleanup(slow.close)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        slow.sendall(b"GET /v1/changelog HTTP/1.0\r\n\r\n")
        quick = HttpCatchUp(self.using(HttpClient(reactor, self.url)))
        while not reads:
            await deferLater(reactor, 0, lambda: None)
        for _ in range(20):
            await quick.fetch(stream="receipts", writer="master", after=0, upto=10)
        before = len(reads)

        def rest() -> int:
            count = 0
            while data := slow.recv(1 << 20):
                count += data.count(b"\n")
            return count

        lines = await deferToThread(rest)

        self.assertLess(before, 39)
        self.assertEqual(40, len(reads))
        self.assertGreater(lines, 80_000)

    async def test_a_client_that_leaves_a_changelog_stops_it(self) -> None:
        """And nothing of it is left: trial would find a timer or a socket."""
        await self.have(40_000)
        raw = await self.connect()
        assert raw.transport is not None
        raw.transport.write(b"GET /v1/changelog?wait=300 HTTP/1.1\r\nHost: h\r\n\r\n")
        await raw.hears(b'"serial":1,')
        raw.transport.abortConnection()  # type: ignore[attr-defined]
        await raw.ended

        self.assertEqual([], self.flushLoggedErrors())

    async def test_missed_rows_come_page_by_page(self) -> None:
        """What a follower does after a cut: ask until it is not limited any more."""
        await self.have(2_500)
        catch_up = HttpCatchUp(self.using(HttpClient(reactor, self.url)))

        tokens, after, pages = [], 0, 0
        while True:
            missed = await catch_up.fetch(stream="receipts", writer="master", after=after, upto=2_500)
            tokens += [token for token, _ in missed.facts]
            after, pages = missed.upto, pages + 1
            if not missed.limited:
                break

        self.assertEqual(list(range(1, 2_501)), tokens)
        self.assertEqual((3, 2_500), (pages, after))

    async def test_a_daemon_is_reached_at_an_address_of_ipv6(self) -> None:
        """By other daemons, and by the commands of people, which block and so have a thread here."""
        await self.have(2)
        clock: Any = reactor
        port = clock.listenTCP(0, self.site, interface="::1")
        self.addCleanup(port.stopListening)
        url = f"http://[::1]:{port.getHost().port}"
        changelog = self.using(HttpClient(reactor, url))
        serials: list[int] = []

        await read_changelog(changelog, 0, None, 0, lambda text: serials.append(json.loads(text)["serial"]))
        asking = BlockingClient(url)
        told = await deferToThread(asking.json, STATUS.request())
        await deferToThread(asking.close)

        self.assertEqual([1, 2], serials)
        self.assertEqual(2, told["serial"])

    async def test_the_changelog_waits_for_a_slow_consumer(self) -> None:
        """One line is handled at a time, none is lost, and the end is known."""
        await self.have(3_000)
        changelog = self.using(HttpClient(reactor, self.url))
        serials: list[int] = []

        async def handle(text: bytes) -> None:
            serials.append(json.loads(text)["serial"])
            if len(serials) % 500 == 0:
                await deferLater(reactor, 0, lambda: None)

        upto = await read_changelog(changelog, 0, None, 0, handle)

        self.assertEqual(list(range(1, 3_001)), serials)
        self.assertEqual(3_000, upto)

    async def test_a_waiting_reader_hears_an_append(self) -> None:
        """From one client's POST to another client's line, without a poll."""
        changelog = self.using(HttpClient(reactor, self.url))
        client = self.using(HttpClient(reactor, self.url))
        lines: list[bytes] = []
        waiting = ensureDeferred(read_changelog(changelog, 0, ["receipts"], 30, lines.append))
        appended = await post_facts(client, "receipts", append_body([[ROW]], "w"))

        self.assertEqual(1, await waiting)
        self.assertEqual((1, [1]), (appended.first_serial, appended.tokens))
        self.assertIn(b'"writer":"w"', lines[0])

    async def test_methods_are_as_synapse_has_them(self) -> None:
        """HEAD is GET without a body, on a connection that stays usable; POST is 405."""
        position = b"/_synapse/replication/get_repl_stream_updates/caches/abc?from_token=0&upto_token=0"
        raw = await self.connect()
        assert raw.transport is not None
        for method in (b"HEAD", b"POST", b"GET"):
            raw.transport.write(
                method + b" " + position + b" HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
            )
        heard = await raw.hears(b'"limited":false}')

        statuses = [int(part[:3]) for part in heard.split(b"HTTP/1.1 ")[1:]]
        self.assertEqual([200, 405, 200], statuses)
        self.assertNotIn(b'"updates"', heard.split(b"HTTP/1.1 ")[1])

    async def test_many_appends_at_once_are_all_answered(self) -> None:
        """They share commits, and each gets tokens of its own."""
        client = self.using(HttpClient(reactor, self.url))
        body = append_body([[ROW]])
        asked = [ensureDeferred(post_facts(client, "receipts", body)) for _ in range(50)]
        answers = await gatherResults(asked)

        self.assertEqual(list(range(1, 51)), sorted(answer.tokens[0] for answer in answers))
