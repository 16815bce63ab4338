"""Getting files from another daemon: ours, and one that misbehaves."""

from collections.abc import Awaitable, Callable
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.files.http_files import HttpFiles
from synrepl.files.store import StoredFile
from synrepl.http_api.request_errors import HttpError
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.response_body import MAX_BUFFERED_BYTES
from tests.files.builders import checksum
from tests.files.setup import missing
from tests.files.site import DATA, SHA, FilesSiteCase

URL = "http://ada:pass@127.0.0.1:9093"


class Response:
    """An answer whose body the test says."""

    def __init__(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.code = code
        self.headers = Headers({name: [value] for name, value in (headers or {}).items()})
        self.transport = StringTransport()
        self.protocol: Any = None

    def deliverBody(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.makeConnection(self.transport)

    def say(self, data: bytes) -> None:
        """Bytes of the body."""
        self.protocol.dataReceived(data)

    def end(self, error: Exception | None = None) -> None:
        """It ends, well or not."""
        self.protocol.connectionLost(Failure(error or ResponseDone()))


class Client:
    """A treq client that gives this response, or nothing, or fails."""

    def __init__(self, given: Response | Exception | None) -> None:
        self.given = given
        self.asked: list[dict[str, Any]] = []

    def request(self, method: str, url: str, **options: Any) -> "Deferred[Any]":
        self.asked.append({"url": url, **options})
        done: Deferred[Any] = Deferred()
        if isinstance(self.given, Exception):
            done.errback(self.given)
        elif self.given is not None:
            done.callback(self.given)
        return done


class ClientCase(FilesSiteCase):
    """What came is in `got`."""

    def setUp(self) -> None:
        super().setUp()
        self.got: list[bytes] = []
        self.is_slow: Deferred[None] | None = None

    async def take(self, data: bytes) -> None:
        """As the disk does."""
        self.got.append(data)
        if self.is_slow is not None:
            await self.is_slow

    def fetch(self, client: Any, offset: int = 0, sha256: str = SHA, **options: Any) -> "Deferred[None]":
        """Begin."""
        files = HttpFiles(HttpClient(self.clock, client=client, **options), URL)
        return ensureDeferred(files.fetch(sha256, offset, self.take))


class OursTests(ClientCase):
    """Against our own site."""

    def ours(self, offset: int = 0, sha256: str = SHA, **options: Any) -> "Deferred[None]":
        client = StubTreq(self.site.resource)
        fetched = self.fetch(client, offset, sha256, **options)
        client.flush()
        return fetched

    def test_a_file_comes_whole_or_from_a_place_on(self) -> None:
        """So that what was cut is gone on with."""
        self.put(DATA)
        for offset in (0, 1, 999):
            self.got.clear()

            self.successResultOf(self.ours(offset))

            self.assertEqual(DATA[offset:], b"".join(self.got))

    def test_when_all_of_it_came_already_there_is_no_more(self) -> None:
        """The checksum will tell."""
        self.put(DATA)

        self.successResultOf(self.ours(len(DATA)))

        self.assertEqual([], self.got)

    def test_an_empty_file_comes(self) -> None:
        """They do occur."""
        self.put(b"")

        self.successResultOf(self.ours(sha256=checksum(b"")))

        self.assertEqual([], self.got)

    def test_a_file_that_is_not_there_is_refused_in_the_servers_words(self) -> None:
        """People see them in the status."""
        error = self.failureResultOf(self.ours(), HttpError).value

        self.assertEqual((404, "no_such_file"), (error.status, error.code))
        self.name("x", SHA)
        self.assertTrue(self.failureResultOf(self.ours(), HttpError).value.retryable)

    def test_the_secret_is_shown(self) -> None:
        """And nothing else is."""
        self.put(DATA)
        self.site = self.make_site(secret="sesame")

        self.failureResultOf(self.ours(), HttpError)
        self.successResultOf(self.ours(secret="sesame"))


class MisbehavingTests(ClientCase):
    """Against servers that do as they like."""

    def test_a_server_that_knows_no_ranges_gives_all_of_it(self) -> None:
        """What is here already is passed over, wherever the pieces end."""
        response = Response(200)
        fetched = self.fetch(Client(response), 7)

        for at in range(0, 20, 5):
            response.say(DATA[at : at + 5])
        response.end()

        self.successResultOf(fetched)
        self.assertEqual(DATA[7:20], b"".join(self.got))

    def test_another_range_than_was_asked_for_is_an_error(self) -> None:
        """The pieces would not fit."""
        for told in ("bytes 6-9/10", "bytes 70-99/100", ""):
            response = Response(206, {"content-range": told})
            self.failureResultOf(self.fetch(Client(response), 7), RemoteProtocolError)
            self.assertTrue(response.transport.disconnecting)
        self.assertEqual([], self.got)

    def test_what_came_before_a_cut_is_good(self) -> None:
        """And the cut is told."""
        response = Response(200)
        fetched = self.fetch(Client(response))
        response.say(DATA[:5])

        response.end(ResponseFailed([Failure(ConnectionResetError("reset by peer"))]))

        error = self.failureResultOf(fetched, NotConnected).value
        self.assertIn("reset by peer", str(error))
        self.assertNotIn("pass", str(error))
        self.assertEqual([DATA[:5]], self.got)

    def test_silence_ends_it(self) -> None:
        """While bytes flow there is no limit."""
        response = Response(200)
        fetched = self.fetch(Client(response))
        for _ in range(10):
            self.clock.advance(29)
            response.say(b"x")
        self.assertNoResult(fetched)

        self.clock.advance(30)

        self.assertIn("30 seconds", str(self.failureResultOf(fetched, NotConnected).value))
        self.assertTrue(response.transport.disconnecting)

    def test_a_server_that_does_not_answer(self) -> None:
        """Nor is there, nor ends its refusal."""
        fetched = self.fetch(Client(None))
        self.clock.advance(60)
        self.failureResultOf(fetched, NotConnected)
        self.failureResultOf(self.fetch(Client(Refused())), NotConnected)
        refusing = self.fetch(Client(Response(503)))
        self.clock.advance(30)
        self.assertEqual(503, self.failureResultOf(refusing, HttpError).value.status)

    def test_a_slow_disk_slows_the_sender(self) -> None:
        """That silence is our own: it is not counted."""
        self.is_slow = Deferred()
        response = Response(200)
        fetched = self.fetch(Client(response))
        response.say(b"x")
        response.say(b"y" * (MAX_BUFFERED_BYTES + 1))
        self.assertEqual("paused", response.transport.producerState)
        self.clock.advance(300)
        self.assertNoResult(fetched)

        slow, self.is_slow = self.is_slow, None
        slow.callback(None)

        self.assertEqual("producing", response.transport.producerState)
        response.end()
        self.successResultOf(fetched)
        self.assertEqual(MAX_BUFFERED_BYTES + 2, sum(map(len, self.got)))

    def test_a_cancelled_download_closes_the_connection(self) -> None:
        """As when the daemon stops."""
        response = Response(200)
        fetched = self.fetch(Client(response))
        response.say(b"x")

        fetched.cancel()

        self.failureResultOf(fetched)
        self.assertTrue(response.transport.disconnecting)

    def test_a_disk_that_fails_is_the_callers_affair(self) -> None:
        """It hears its own error."""
        client = StubTreq(_Site(DATA))

        async def fail(data: bytes) -> None:
            raise ReplicationError("the disk is full")

        fetched = ensureDeferred(HttpFiles(HttpClient(self.clock, client=client), URL).fetch(SHA, 0, fail))
        client.flush()

        self.assertEqual("the disk is full", str(self.failureResultOf(fetched, ReplicationError).value))


class _Site(Resource):
    """Always says this."""

    isLeaf = True

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    def render_GET(self, request: Any) -> bytes:
        return self._body


class ReplicaOfOursTests(FilesSiteCase):
    """A whole replica, fetching from the site of a primary."""

    def test_what_was_cut_is_gone_on_with_from_where_it_was(self) -> None:
        """By a request for the rest of it."""
        self.put(DATA)
        self.name("x", SHA)
        client = StubTreq(self.site.resource)
        ranges: list[Any] = []
        real = self.files.read

        async def read(file: StoredFile, offset: int, count: int) -> bytes:
            ranges.append((offset, count))
            return await real(file, offset, count)

        self.patch(self.files, "read", read)
        self.directory = self.directory.with_name("replica")
        self.wait(self.make_files(_Cut()).stop())

        replica = self.make_files(HttpFiles(HttpClient(self.clock, client=client), URL))
        self.clock.advance(1)
        client.flush()

        self.assertEqual([], missing(replica))
        self.assertEqual([f"sha256/{SHA[:2]}/{SHA[2:]}"], self.everything())
        self.assertEqual([(400, 600)], ranges)


class _Cut:
    """An upstream that is killed on the way."""

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        raise AssertionError("nobody brings anything here")

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        await on_chunk(DATA[:400])
        raise NotConnected("it broke off")
