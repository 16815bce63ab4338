"""A site over a log in memory, and asking it without a socket."""

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http import fromChunk
from zope.interface import implementer

from synrepl.base.access import Keyring
from synrepl.base.history import Appended
from synrepl.base.interfaces import IThread
from synrepl.base.metrics import Metrics
from synrepl.errors import StorageError
from synrepl.http_api.routes import APPEND
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.log_waiters import LogWaiters
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api import make_site
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.settings import ApiSettings
from tests.memory_engine import FaultyEngine

NOW = 1_700_000_000
"""When every test begins, in seconds."""

BROKEN = StorageError(op="commit", why="the disk is full", retryable=True)

SETTINGS = {field.name for field in fields(ApiSettings)}
"""Options that are settings; all others but the keys are of the context."""

CATCH_UP = "/_synapse/replication/get_repl_stream_updates"


class Transport(StringTransport):
    """A connection that can be cut as well as closed, and, while `is_slow`, is full after each big write."""

    full_at = 10_000

    is_aborted = False
    is_slow = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self._wrote(len(data))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        parts = list(data)
        super().writeSequence(parts)
        self._wrote(sum(map(len, parts)))

    def _wrote(self, count: int) -> None:
        if self.is_slow and count > self.full_at and self.producer is not None:
            self.producer.pauseProducing()

    def abortConnection(self) -> None:
        self.is_aborted = True
        self.loseConnection()


class Answer:
    """What came back: the status, the headers by lower-case name, the body."""

    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.is_whole = True
        if self.headers.get("transfer-encoding") == "chunked":
            rest, parts = body, []
            self.is_whole = rest.endswith(b"0\r\n\r\n")
            while rest and rest != b"0\r\n\r\n":
                part, rest = fromChunk(rest)
                parts.append(part)
            body = b"".join(parts)
        self.body = body

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """The body as lines of JSON."""
        return [json.loads(text) for text in self.body.splitlines()]


class Talk:
    """One connection to the site."""

    def __init__(self, site: Any, peer: str = "127.0.0.1") -> None:
        self.transport = Transport(peerAddress=IPv4Address("TCP", peer, 54321))
        self.protocol = site.buildProtocol(None)
        self.protocol.makeConnection(self.transport)

    def say(self, data: bytes) -> None:
        """Send these bytes."""
        self.protocol.dataReceived(data)

    @property
    def heard(self) -> bytes:
        """All that came back."""
        heard: bytes = self.transport.value()
        return heard

    def answer(self) -> Answer:
        """All that came back, as one answer."""
        return Answer(self.heard)

    def leave(self) -> None:
        """The client goes away."""
        self.protocol.connectionLost(Failure(ConnectionDone()))


class SiteCase(SynchronousTestCase):
    """A site, a fake clock, and everything behind the site in memory."""

    instance = "master"
    ring_bytes = 8 * 1024 * 1024

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(NOW)
        self.engine = FaultyEngine()
        self.table = DaemonStreams(StreamTable.default())
        self.log = self.make_log()
        self.declared = DeclaredStreams(self.log, self.table, instance=self.instance)
        self.wait(self.log.start())
        self.metrics = Metrics(CollectorRegistry())
        self.refused = RefusedFacts(self.log, self.table, self.metrics, instance=self.instance)
        self.publisher = Publisher(
            self.log,
            self.table,
            self.clock,
            self.metrics,
            instance=self.instance,
            ring_bytes=self.ring_bytes,
        )
        self.log.subscribe(self.declared.committed)
        self.publisher.follow_log()
        self.log.subscribe(self.refused.committed)
        self.declared.subscribers.append(self.publisher.stream_added)
        self.addCleanup(self.publisher.stop)
        self.site = self.make_site()

    def reading_thread(self) -> IThread:
        """Where the log is read."""
        return ImmediateThread()

    def make_log(self) -> Log:
        """A log that does everything at once."""
        return Log(
            self.engine,
            ImmediateThread(),
            self.reading_thread(),
            self.clock,
            ephemeral=[stream.name for stream in self.table if stream.ephemeral],
            unordered=[stream.name for stream in self.table if not stream.ordered],
            append_refusal=lambda stream, writer: self.declared.refusal(stream, writer),  # noqa: PLW0108  # made later
            logger=Logger(observer=_unheard),
        )

    def make_site(self, *, secret: str | None = None, **options: Any) -> Any:
        """A site with these options."""
        keys = options.pop("keys", None if secret is None else Keyring(secret))
        settings = {name: options.pop(name) for name in SETTINGS & options.keys()}
        context = SiteContext(
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            clock=self.clock,
            declared=self.declared,
            refused=self.refused,
            settings=ApiSettings(instance_name=self.instance, server_name="hs.example", **settings),
            **options,
        )
        return make_site(context, keys=keys)

    def talk(self, peer: str = "127.0.0.1") -> Talk:
        """A new connection."""
        return Talk(self.site, peer)

    def request(self, method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
        """A request as bytes."""
        given = "".join(f"{header}\r\n" for header in headers)
        if not any(header.lower().startswith("host:") for header in headers):
            given += "Host: localhost\r\n"
        if body or method == "POST":
            given += f"Content-Length: {len(body)}\r\n"
        return f"{method} {path} HTTP/1.1\r\n{given}\r\n".encode() + body

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> Answer:
        """Ask, and what was answered."""
        talk = self.talk()
        talk.say(self.request(method, path, body, *headers))
        if not talk.heard:
            # A large body takes several turns.
            self.clock.advance(0)
        return talk.answer()

    def get(self, path: str, *headers: str) -> Answer:
        """GET this."""
        return self.ask("GET", path, b"", *headers)

    def post(self, stream: str, *facts: list[Any], **more: Any) -> Answer:
        """POST these facts."""
        return self.ask("POST", f"/v1/streams/{stream}/facts", json.dumps({"facts": facts, **more}).encode())

    def receipts(self, count: int, *, writer: str = "master") -> None:
        """Have so many facts of one row each in the log."""
        for _ in range(count):
            self.assertEqual(200, self.post("receipts", [receipt()], writer=writer).status)

    def waiters(self) -> LogWaiters:
        """Who waits for the log."""
        return self.publisher.waiters

    def wait(self, awaitable: Any) -> Any:
        """The result of what is done already."""
        done: Deferred[Any] = ensureDeferred(awaitable)
        return self.successResultOf(done)


@implementer(ILogObserver)
def _unheard(event: LogEvent) -> None:
    """What the log tells its operator is tested elsewhere."""


def append_body(facts: list[list[Any]], writer: str | None = None, key: str | None = None) -> bytes:
    """The body of an append."""
    names = {"writer": writer, "idempotency_key": key}
    return json.dumps({"facts": facts, **{name: text for name, text in names.items() if text}}).encode()


async def post_facts(client: HttpClient, stream: str, body: bytes) -> Appended:
    """Append the facts of this body."""
    return await client.call(APPEND.request(stream), Appended, body=body)


def receipt(user: str = "@ada:hs.example") -> list[Any]:
    """A row of receipts."""
    return ["!room:hs.example", "m.read", user, "$event", None, {"ts": 1}]


def typing(*users: str) -> list[Any]:
    """A row of typing."""
    return ["!room:hs.example", list(users)]
