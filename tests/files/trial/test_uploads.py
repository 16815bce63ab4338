"""Uploads to a server that answers before it has read them, on real sockets. Run by trial."""

from typing import Any, ClassVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from synrepl.files.http_files import BLOCK, HttpFiles
from synrepl.http_api.request_errors import HttpError
from synrepl.transports.http.http_client import HttpClient
from tests.trial.waiting import eventually

SIZE = 8 * 1024 * 1024


class Refusing(Protocol):
    """Answers the first bytes with 413, as nginx does, and reads on."""

    all: ClassVar[list["Refusing"]] = []
    has_answered = False
    is_lost = False

    def connectionMade(self) -> None:
        Refusing.all.append(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_lost = True

    def dataReceived(self, data: bytes) -> None:
        if not self.has_answered:
            self.has_answered = True
            assert self.transport is not None
            head = b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Type: text/html\r\n"
            self.transport.write(head + b"Content-Length: 5\r\nConnection: close\r\n\r\n<html")


class EarlyRefusalTests(TestCase):
    """A file of which a proxy takes nothing."""

    def test_it_is_no_failure_of_the_request(self) -> Any:
        """Twisted logged a traceback, as the rest of the file could not be read any more."""
        return ensureDeferred(self.check())

    async def check(self) -> None:
        from twisted.internet import reactor

        endpoint = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        port = await endpoint.listen(Factory.forProtocol(Refusing))
        self.addCleanup(port.stopListening)
        http = HttpClient(reactor)
        self.addCleanup(lambda: ensureDeferred(http.stop()))
        files = HttpFiles(http, f"http://127.0.0.1:{port.getHost().port}")
        read: list[int] = []

        async def block(offset: int, count: int) -> bytes:
            read.append(offset)
            if offset >= 4 * BLOCK:
                await Deferred[None]()  # the disk is slow: the answer comes first
            return bytes(count)

        with self.assertRaises(HttpError) as caught:
            await files.send("0" * 64, SIZE, block, 1)

        self.assertEqual(413, caught.exception.status)
        self.assertIn("client_max_body_size", str(caught.exception))
        self.assertLessEqual(len(read), 5)
        await eventually(lambda: all(one.is_lost for one in Refusing.all), "the end of the connection")
