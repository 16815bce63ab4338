"""Client of another daemon's files."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import GET_FILE, PUT_FILE
from synrepl.ports.gate import Gate
from synrepl.ports.response_errors import as_response_error
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import MAX_ERROR_BYTES, HttpClient
from synrepl.transports.http.response_body import BodyChunks

__all__ = ["HttpFiles"]

BLOCK: Final = 256 * 1024
"""Bytes per read."""
MAX_FILE: Final = 16 * 1024**3


class HttpFiles(HttpClient):
    """Client of the files of the daemon at `base_url`; an `IFetchFile`.

    A response may take `timeout` seconds to start (the server verifies a big file first), and then `silence`
    seconds between bytes. Files over `max_bytes` are refused.
    """

    def __init__(
        self,
        reactor: Any,
        base_url: str,
        *,
        secret: str | Credentials | None = None,
        timeout: float = 60.0,
        silence: float = 30.0,
        max_bytes: int = MAX_FILE,
        client: Any = None,
    ) -> None:
        super().__init__(reactor, base_url, secret, timeout=timeout, client=client)
        self._silence = silence
        self._max_bytes = max_bytes

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` to the end; await its result before reading on."""
        # 416: the local part is complete already; its checksum will be verified.
        headers, codes = ({"range": [f"bytes={offset}-"]}, {200, 206, 416}) if offset else ({}, {200, 206})
        async with self._exchange(GET_FILE.request(sha256), codes, headers=headers) as (
            url,
            response,
            chunks,
        ):
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
            room = self._max_bytes - offset + skip
            while data := b"".join(await chunks.next()):
                room -= len(data)
                if room < 0:
                    raise RemoteProtocolError(f"{url} sent more than {self._max_bytes} bytes")
                selected = data[skip:]
                skip -= min(skip, len(data))
                if selected:
                    await on_chunk(selected)
            chunks.check_complete()

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file; return once it is stored."""
        async with self._exchange(PUT_FILE.request(sha256, hops=hops), {200, 201}, body=_Body(size, read)):
            pass

    @asynccontextmanager
    async def _exchange(
        self,
        request: HttpRequest,
        codes: Collection[int],
        *,
        headers: dict[str, list[str]] | None = None,
        body: "_Body | None" = None,
    ) -> AsyncIterator[tuple[str, Any, BodyChunks]]:
        """Send a request; yield its URL, the response and its body. Other `codes` raise `ApiResponseError`.

        The timeout restarts while the server reads the request's body.
        """
        url = public_url(request.url(self._base_url))
        response = await self._within(
            self._timeout,
            self._send(request.method, url, headers or {}, body),
            url,
            progress=lambda: 0 if body is None else body.sent,
        )
        chunks = BodyChunks.of(response, url, clock=self._reactor, silence=self._silence)
        try:
            if response.code not in codes:
                raise as_response_error(response.code, await _error_body(chunks), url)
            yield url, response, chunks
        finally:
            chunks.stop()


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

    def startProducing(self, consumer: Any) -> "Deferred[None]":
        self._sending = Deferred.fromCoroutine(self._send(consumer))
        return self._sending

    async def _send(self, consumer: Any) -> None:
        while self.sent < self.length:
            await self.wait_open()
            data = await self._read(self.sent, min(BLOCK, self.length - self.sent))
            self.sent += len(data)
            consumer.write(data)

    def stopProducing(self) -> None:
        if self._sending is not None:
            self._sending.addErrback(lambda failure: failure.trap(CancelledError) and None)
            self._sending.cancel()
