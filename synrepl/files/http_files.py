"""The client of another daemon's files."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.base.gate import Gate
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.files.routes import GET_FILE, PUT_FILE
from synrepl.http_api.request_errors import read_error
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.transports.http.http_client import MAX_ERROR_BYTES, NO_HEADERS, HttpClient
from synrepl.transports.http.response_body import BodyChunks

BLOCK: Final = 256 * 1024
"""Bytes per read."""


@dataclass(eq=False, repr=False)
class HttpFiles:
    """Client of the files of the daemon at `base_url`; an `IFetchFile`.

    A response may take the timeout of `http` to start (the server verifies a big file first), and then
    `silence` seconds between bytes.
    """

    http: HttpClient
    base_url: str
    silence: float = 30.0

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with any bytes from `offset` to the end; await its result before reading on.

        What `on_chunk` raises ends the download: the caller bounds it.
        """
        # 416: the local part is complete already; its checksum will be verified.
        headers, codes = ({"range": f"bytes={offset}-"}, {200, 206, 416}) if offset else ({}, {200, 206})
        request = GET_FILE.request(sha256)
        async with self._exchange(request, codes, headers=headers) as (url, response, chunks):
            if response.code == 416:
                return
            skip = offset
            if response.code == 206:
                skip = 0
                content_range = (response.headers.getRawHeaders("content-range") or [""])[0]
                if not content_range.startswith(f"bytes {offset}-"):
                    raise RemoteProtocolError(
                        f"{url} sent {content_range or 'no range'} instead of the bytes from {offset}"
                    )
            while data := b"".join(await chunks.next()):
                selected = data[skip:]
                skip -= min(skip, len(data))
                if selected:
                    await on_chunk(selected)
            chunks.check_complete()

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file, which `read` returns by offset and length; return once it is stored."""
        async with self._exchange(PUT_FILE.request(sha256, hops=hops), {200, 201}, body=_Body(size, read)):
            pass

    @asynccontextmanager
    async def _exchange(
        self,
        request: HttpRequest,
        codes: Collection[int],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        body: "_Body | None" = None,
    ) -> AsyncIterator[tuple[str, Any, BodyChunks]]:
        """Send a request; yield its URL, the response and its body. Other `codes` raise `HttpError`.

        The timeout restarts while the server reads the request's body.
        """
        url = public_url(request.url(self.base_url))
        response = await self.http.send(
            request, headers, body, base_url=self.base_url, progress=lambda: 0 if body is None else body.sent
        )
        chunks = BodyChunks.of(response, url, clock=self.http.reactor, silence=self.silence)
        try:
            if response.code not in codes:
                raise read_error(response.code, await _error_body(chunks), url=url)
            yield url, response, chunks
        finally:
            chunks.stop()
            if body is not None:
                body.end()


async def _error_body(chunks: BodyChunks) -> bytes:
    """Read the body of an error response, up to the limit, or until the server is silent."""
    body = b""
    with suppress(NotConnected):
        while len(body) < MAX_ERROR_BYTES and (data := b"".join(await chunks.next())):
            body += data
    return body


@implementer(IBodyProducer)
class _Body(Gate):
    """A request body that reads its file as the connection accepts data."""

    pauseProducing = Gate.close
    resumeProducing = Gate.open

    def __init__(self, size: int, read: Callable[[int, int], Awaitable[bytes]]) -> None:
        super().__init__()
        self.length = size
        self.sent = 0
        self._read = read
        self._sending: Deferred[None] | None = None
        self._is_over = False
        self._transport: Any = None

    def startProducing(self, consumer: Any) -> "Deferred[None]":
        # Twisted gives a consumer that counts the bytes; only that knows the connection.
        self._transport = getattr(consumer, "_consumer", None)
        produced: Deferred[None] = Deferred()
        self._sending = Deferred.fromCoroutine(self._send(consumer))

        def done(result: Any) -> None:
            if not self._is_over:
                produced.callback(result)

        self._sending.addBoth(done)
        return produced

    def end(self) -> None:
        """The answer has come, perhaps before the whole body was sent: nothing is read any more.

        Twisted is not told: it would log that a request failed which was answered. So the connection, which
        waits for the rest of the body, is closed here.
        """
        self._is_over = True
        if self._sending is not None:
            self._sending.cancel()
        if self.sent < self.length and self._transport is not None:
            self._transport.abortConnection()

    async def _send(self, consumer: Any) -> None:
        while self.sent < self.length:
            await self.wait_open()
            data = await self._read(self.sent, min(BLOCK, self.length - self.sent))
            self.sent += len(data)
            consumer.write(data)

    def stopProducing(self) -> None:
        self.end()
