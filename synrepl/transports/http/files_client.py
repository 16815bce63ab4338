"""Client of another daemon's files."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.routes import GET_FILE, PUT_FILE
from synrepl.ports.response_errors import as_response_error
from synrepl.ports.time import Timer
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import MAX_ERROR_BYTES, DaemonClient, public_url
from synrepl.transports.http.response_body import BodyChunks

__all__ = ["HttpFiles"]

BLOCK: Final = 256 * 1024
"""Bytes per read."""
MAX_FILE: Final = 16 * 1024**3


class HttpFiles(DaemonClient):
    """Client of the files of the daemon at `base_url`; an `IFetchFile`.

    A response may take `timeout` seconds to start (the server verifies a big file first), and then `silence`
    seconds between bytes. Files over `max_bytes` are refused. `client` is a treq client, for tests.
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
        self._timeout = timeout
        self._silence = silence
        self._max_bytes = max_bytes

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` to the end; await its result before reading on."""
        url = public_url(GET_FILE.request(sha256).url(self._base_url))
        headers = {"range": [f"bytes={offset}-"]} if offset else {}
        response = await self._respond(self._http.start("GET", url, headers, None), url, None)
        chunks = BodyChunks.of(response, url, clock=self._reactor, silence=self._silence)
        try:
            if response.code == 416 and offset:
                # The local part is complete already; its checksum will be verified.
                return
            if response.code not in {200, 206}:
                raise as_response_error(response.code, await _error_body(chunks), url)
            skip = 0 if response.code == 206 else offset
            room = self._max_bytes - offset + skip
            if response.code == 206:
                content_range = (response.headers.getRawHeaders("content-range") or [""])[0]
                if not content_range.startswith(f"bytes {offset}-"):
                    raise RemoteProtocolError(
                        f"{url} sent {content_range or 'no range'} instead of the bytes from {offset}"
                    )
            while data := b"".join(await chunks.next()):
                room -= len(data)
                if room < 0:
                    raise RemoteProtocolError(f"{url} sent more than {self._max_bytes} bytes")
                selected = data[skip:]
                skip -= min(skip, len(data))
                if selected:
                    await on_chunk(selected)
            chunks.check_complete()
        finally:
            chunks.stop()

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file; return once it is stored."""
        url = public_url(PUT_FILE.request(sha256, hops=hops).url(self._base_url))
        body = _Body(size, read)
        response = await self._respond(self._http.start("PUT", url, {}, body), url, body)
        chunks = BodyChunks.of(response, url, clock=self._reactor, silence=self._silence)
        try:
            if response.code not in {200, 201}:
                raise as_response_error(response.code, await _error_body(chunks), url)
        finally:
            chunks.stop()

    async def _respond(self, pending: "Deferred[Any]", url: str, body: "_Body | None") -> Any:
        """Wait for the response. The timeout restarts while the server reads the request's body."""
        idle_timeout = _IdleTimeout(self._reactor, self._timeout, pending, body)
        try:
            return await pending
        except CancelledError:
            if idle_timeout.is_over:
                raise NotConnected(f"{url} has not answered within {self._timeout:g} seconds") from None
            raise
        except ReplicationError:
            raise
        except Exception as error:
            raise self._http.unreachable(url, error) from error
        finally:
            idle_timeout.stop()


async def _error_body(chunks: BodyChunks) -> bytes:
    """Read the body of an error response, up to the limit, or until the server is silent."""
    body = b""
    with suppress(NotConnected):
        while len(body) < MAX_ERROR_BYTES and (data := b"".join(await chunks.next())):
            body += data
    return body


class _IdleTimeout:
    """Cancels a request without progress for so many seconds."""

    def __init__(self, reactor: Any, seconds: float, pending: "Deferred[Any]", body: "_Body | None") -> None:
        self.is_over = False
        self._seconds = seconds
        self._pending = pending
        self._body = body
        self._last_sent = 0
        self._timer = Timer(reactor, self._check)
        self._timer.start(seconds)

    def _check(self) -> None:
        sent = 0 if self._body is None else self._body.sent
        if sent == self._last_sent:
            self.is_over = True
            self._pending.cancel()
        else:
            self._last_sent = sent
            self._timer.start(self._seconds)

    def stop(self) -> None:
        """Stop the timer: the request has ended."""
        self._timer.stop()


@implementer(IBodyProducer)
class _Body:
    """A request body that reads its file as the connection accepts data."""

    def __init__(self, size: int, read: Callable[[int, int], Awaitable[bytes]]) -> None:
        self.length = size
        self.sent = 0
        self._read = read
        self._room: Deferred[None] | None = None
        self._is_paused = False
        self._sending: Deferred[None] | None = None

    def startProducing(self, consumer: Any) -> "Deferred[None]":
        self._sending = Deferred.fromCoroutine(self._send(consumer))
        return self._sending

    async def _send(self, consumer: Any) -> None:
        while self.sent < self.length:
            if self._is_paused:
                self._room = Deferred()
                await self._room
            data = await self._read(self.sent, min(BLOCK, self.length - self.sent))
            self.sent += len(data)
            consumer.write(data)

    def pauseProducing(self) -> None:
        self._is_paused = True

    def resumeProducing(self) -> None:
        self._is_paused = False
        room, self._room = self._room, None
        if room is not None:
            room.callback(None)

    def stopProducing(self) -> None:
        if self._sending is not None:
            self._sending.addErrback(lambda failure: failure.trap(CancelledError) and None)
            self._sending.cancel()
