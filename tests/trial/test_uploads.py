"""Uploads to a server that answers before it has read them, on real sockets. Run by trial."""

from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from synrepl.ports.response_errors import ApiResponseError
from synrepl.transports.http.peer_clients import BLOCK, HttpFiles

SIZE = 8 * 1024 * 1024


class Refusing(Protocol):
    """Answers the first bytes with 413, as nginx does, and reads on."""

    has_answered = False

    def dataReceived(self, data: bytes) -> None:
        if not self.has_answered:
            self.has_answered = True
            assert self.transport is not None
            head = b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Type: text/html\r\n"
            self.transport.write(head + b"Content-Length: 5\r\nConnection: close\r\n\r\n<html")


class EarlyRefusalTests(TestCase):
    """A file of which a proxy takes nothing."""

    async def upload(self, *, pause: float) -> tuple[ApiResponseError, list[int]]:
        """The error, and the offsets that were read of the file; it is closed with the answer."""
        from twisted.internet import reactor

        port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(
            Factory.forProtocol(Refusing)
        )
        self.addCleanup(port.stopListening)
        files: Any = HttpFiles(reactor, f"http://127.0.0.1:{port.getHost().port}")
        self.addCleanup(files.stop)
        read: list[int] = []
        is_closed = False

        async def block(offset: int, count: int) -> bytes:
            read.append(offset)
            await deferLater(reactor, pause)
            assert not is_closed
            return bytes(count)

        try:
            await files.send("0" * 64, SIZE, block, 1)
        except ApiResponseError as error:
            is_closed = True
            for _ in range(5):
                await deferLater(reactor, 0.01)
            return error, read
        raise AssertionError("it was taken")

    def test_it_is_no_failure_of_the_request(self) -> Any:
        """Twisted logged a traceback, as the rest of the file could not be read any more."""
        return ensureDeferred(self.check())

    async def check(self) -> None:
        for pause in (0, 0.002):
            error, read = await self.upload(pause=pause)
            self.assertEqual(413, error.status)
            self.assertIn("client_max_body_size", str(error))
            self.assertLess(len(read), SIZE // BLOCK)
