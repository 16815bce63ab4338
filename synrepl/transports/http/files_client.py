"""Client of another daemon's files."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.routes import GET_FILE, PUT_FILE
from synrepl.ports.response_errors import as_response_error
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import (
    MAX_ERROR_BYTES,
    abort,
    describe_error,
    is_complete,
    make_client,
    public_url,
    treq_url,
    unreachable_message,
)

__all__ = ["HttpFiles"]

MIB: Final = 1024 * 1024
MAX_BUFFERED_BYTES: Final = MIB
"""Bytes that wait for the disk at which reading from the connection pauses."""
BLOCK: Final = 256 * 1024
"""Bytes per read."""
MAX_FILE: Final = 16 * 1024 * MIB


class HttpFiles:
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
        self._reactor = reactor
        self._base_url = base_url.rstrip("/")
        self._credentials = Credentials.of(secret)
        self._timeout = timeout
        self._silence = silence
        self._max_bytes = max_bytes
        self._client = client
        self._pool: Any = None

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` to the end; await its result before reading on."""
        url = public_url(GET_FILE.request(sha256).url(self._base_url))
        response = await self._open(url, offset)
        chunks = _Chunks(self._reactor, self._silence)
        response.deliverBody(chunks)
        try:
            if response.code == 416 and offset:
                # The local part is complete already; its checksum will be verified.
                return
            if response.code not in {200, 206}:
                raise as_response_error(response.code, await _refusal(chunks), url)
            skip = 0 if response.code == 206 else offset
            room = self._max_bytes - offset + skip
            if response.code == 206:
                content_range = (response.headers.getRawHeaders("content-range") or [""])[0]
                if not content_range.startswith(f"bytes {offset}-"):
                    raise RemoteProtocolError(
                        f"{url} sent {content_range or 'no range'} instead of the bytes from {offset}"
                    )
            while (data := await chunks.next_chunk()) is not None:
                room -= len(data)
                if room < 0:
                    raise RemoteProtocolError(f"{url} sent more than {self._max_bytes} bytes")
                selected = data[skip:]
                skip -= min(skip, len(data))
                if selected:
                    await on_chunk(selected)
        finally:
            chunks.stop()
        if chunks.is_silent:
            raise NotConnected(f"{url} sent nothing for {self._silence:g} seconds")
        if not chunks.is_complete:
            assert chunks.end is not None
            raise NotConnected(f"{url}: the response ended early: {describe_error(chunks.end.value)}")  # type: ignore[arg-type]

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file; return once it is stored."""
        url = public_url(PUT_FILE.request(sha256, hops=hops).url(self._base_url))
        body = _Body(size, read)
        response = await self._await_response(
            self._request("PUT", url, self._credentials.headers, body), url, body
        )
        chunks = _Chunks(self._reactor, self._silence)
        response.deliverBody(chunks)
        try:
            if response.code not in {200, 201}:
                raise as_response_error(response.code, await _refusal(chunks), url)
        finally:
            chunks.stop()

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _open(self, url: str, offset: int) -> Any:
        headers = self._credentials.headers
        if offset:
            headers["range"] = [f"bytes={offset}-"]
        return await self._await_response(self._request("GET", url, headers, None), url, None)

    def _request(self, method: str, url: str, headers: dict[str, list[str]], body: Any) -> "Deferred[Any]":
        pending: Deferred[Any] = self._treq().request(
            method,
            treq_url(url),
            headers=headers,
            data=body,
            # Redirects are not followed: they would send the secret to another host.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        return pending

    async def _await_response(self, pending: "Deferred[Any]", url: str, body: "_Body | None") -> Any:
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
            raise NotConnected(unreachable_message(self._credentials, url, error)) from error
        finally:
            idle_timeout.stop()

    def _treq(self) -> Any:
        if self._client is None:
            self._client, self._pool = make_client(self._reactor, self._credentials)
        return self._client


async def _refusal(chunks: "_Chunks") -> bytes:
    """Read the body of an error response, up to the limit."""
    body = b""
    while len(body) < MAX_ERROR_BYTES and (data := await chunks.next_chunk()) is not None:
        body += data
    return body


class _IdleTimeout:
    """Cancels a request without progress for so many seconds."""

    def __init__(self, reactor: Any, seconds: float, pending: "Deferred[Any]", body: "_Body | None") -> None:
        self.is_over = False
        self._reactor = reactor
        self._seconds = seconds
        self._pending = pending
        self._body = body
        self._last_sent = 0
        self._timer = reactor.callLater(seconds, self._check)

    def _check(self) -> None:
        sent = 0 if self._body is None else self._body.sent
        if sent == self._last_sent:
            self.is_over = True
            self._pending.cancel()
        else:
            self._last_sent = sent
            self._timer = self._reactor.callLater(self._seconds, self._check)

    def stop(self) -> None:
        """Stop the timer: the request has ended."""
        if self._timer.active():
            self._timer.cancel()


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


class _Chunks(Protocol):
    """A response body in chunks; pauses the connection while too many bytes are buffered.

    `is_silent` is set if a read waits `silence` seconds for bytes.
    """

    def __init__(self, clock: Any, silence: float) -> None:
        self.end: Failure | None = None
        self.is_silent = False
        self._clock = clock
        self._silence = silence
        self._timer: Any = None
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the response ended properly."""
        return self.end is not None and is_complete(self.end)

    async def next_chunk(self) -> bytes | None:
        """Return the bytes since the last call; None at the end."""
        if not self._buffered and self.end is None and not self.is_silent:
            # The timer runs only while a read waits: a slow disk pauses the sender, too.
            self._timer = self._clock.callLater(self._silence, self._on_silence)
            self._waiter = Deferred()
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._timer.active():
                    self._timer.cancel()
        if not self._buffered:
            return None
        data = b"".join(self._buffered)
        self._buffered.clear()
        self._buffered_bytes = 0
        if self._is_paused and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return data

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        self._buffered.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def stop(self) -> None:
        """Stop reading, and abort the response."""
        self._is_stopped = True
        self._buffered.clear()
        if self.end is None:
            abort(self.transport)

    def _on_silence(self) -> None:
        self.is_silent = True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)
