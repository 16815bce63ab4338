"""Getting files from another daemon."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.client_errors import as_refusal
from synrepl.transports.http.http_client import (
    MAX_ERROR_BYTES,
    abort,
    is_complete,
    make_client,
    public_url,
    reason,
    treq_url,
    unreachable_message,
)

__all__ = ["HttpFiles"]

MIB: Final = 1024 * 1024
HELD_BYTES: Final = MIB
"""Bytes that wait for the disk before the connection is read no further."""
BLOCK: Final = 256 * 1024
"""Bytes that are read at a time."""
MAX_FILE: Final = 16 * 1024 * MIB


class HttpFiles:
    """The files of the daemon at `base_url`; an `IFetchFile`.

    An answer may take `timeout` seconds to begin (a big file is looked through there first); after that no
    bytes may come for `silence` seconds. A file of more than `max_bytes` is not taken. `client` is a treq
    client, for tests.
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
        """Call `on_chunk` with the bytes from `offset` on, to the end; what it returns is waited for."""
        url = public_url(f"{self._base_url}/v1/files/sha256/{sha256}")
        response = await self._begun(url, offset)
        chunks = _Chunks(self._reactor, self._silence)
        response.deliverBody(chunks)
        try:
            if response.code == 416 and offset:
                # There is no more of it. Whether what is here is right, its checksum tells.
                return
            if response.code not in {200, 206}:
                raise as_refusal(response.code, await _refusal(chunks), url)
            unwanted = 0 if response.code == 206 else offset
            room = self._max_bytes - offset + unwanted
            if response.code == 206:
                told = (response.headers.getRawHeaders("content-range") or [""])[0]
                if not told.startswith(f"bytes {offset}-"):
                    raise RemoteProtocolError(f"{url} gave {told or 'some bytes'}, not those from {offset}")
            while (data := await chunks.take()) is not None:
                room -= len(data)
                if room < 0:
                    raise RemoteProtocolError(f"{url} gave more than {self._max_bytes} bytes")
                wanted = data[unwanted:]
                unwanted -= min(unwanted, len(data))
                if wanted:
                    await on_chunk(wanted)
        finally:
            chunks.stop()
        if chunks.is_silent:
            raise NotConnected(f"{url} sent nothing for {self._silence:g} seconds")
        if not chunks.is_complete:
            assert chunks.end is not None
            raise NotConnected(f"{url} broke off: {reason(chunks.end.value)}")  # type: ignore[arg-type]

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Bring a file there; returns when it is kept."""
        url = public_url(f"{self._base_url}/v1/files/sha256/{sha256}?hops={hops}")
        body = _Body(size, read)
        response = await self._answer(self._request("PUT", url, self._credentials.headers, body), url, body)
        chunks = _Chunks(self._reactor, self._silence)
        response.deliverBody(chunks)
        try:
            if response.code not in {200, 201}:
                raise as_refusal(response.code, await _refusal(chunks), url)
        finally:
            chunks.stop()

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _begun(self, url: str, offset: int) -> Any:
        headers = self._credentials.headers
        if offset:
            headers["range"] = [f"bytes={offset}-"]
        return await self._answer(self._request("GET", url, headers, None), url, None)

    def _request(self, method: str, url: str, headers: dict[str, list[str]], body: Any) -> "Deferred[Any]":
        asked: Deferred[Any] = self._treq().request(
            method,
            treq_url(url),
            headers=headers,
            data=body,
            # To follow a redirection would show the secret to whoever it names.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        return asked

    async def _answer(self, asked: "Deferred[Any]", url: str, body: "_Body | None") -> Any:
        """The answer, once it begins; while bytes are taken from us, it may take its time."""
        watch = _Watch(self._reactor, self._timeout, asked, body)
        try:
            return await asked
        except CancelledError:
            if watch.is_over:
                raise NotConnected(f"{url} has not answered within {self._timeout:g} seconds") from None
            raise
        except ReplicationError:
            raise
        except Exception as error:
            raise NotConnected(unreachable_message(self._credentials, url, error)) from error
        finally:
            watch.stop()

    def _treq(self) -> Any:
        if self._client is None:
            self._client, self._pool = make_client(self._reactor, self._credentials)
        return self._client


async def _refusal(chunks: "_Chunks") -> bytes:
    """The body of a refusal, as far as it comes."""
    body = b""
    while len(body) < MAX_ERROR_BYTES and (data := await chunks.take()) is not None:
        body += data
    return body


class _Watch:
    """Calls a request off when nothing has happened for so many seconds."""

    def __init__(self, reactor: Any, seconds: float, asked: "Deferred[Any]", body: "_Body | None") -> None:
        self.is_over = False
        self._reactor = reactor
        self._seconds = seconds
        self._asked = asked
        self._body = body
        self._seen = 0
        self._timer = reactor.callLater(seconds, self._look)

    def _look(self) -> None:
        sent = 0 if self._body is None else self._body.sent
        if sent == self._seen:
            self.is_over = True
            self._asked.cancel()
        else:
            self._seen = sent
            self._timer = self._reactor.callLater(self._seconds, self._look)

    def stop(self) -> None:
        """It has ended."""
        if self._timer.active():
            self._timer.cancel()


@implementer(IBodyProducer)
class _Body:
    """A file on its way out, read as it is taken."""

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
    """A body in pieces; the sender waits while too much of it is held here.

    While it is read, it `is_silent` once no bytes came for `silence` seconds.
    """

    def __init__(self, clock: Any, silence: float) -> None:
        self.end: Failure | None = None
        self.is_silent = False
        self._clock = clock
        self._silence = silence
        self._timer: Any = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it ended as it should."""
        return self.end is not None and is_complete(self.end)

    async def take(self) -> bytes | None:
        """The bytes that came since the last time; None once there are no more."""
        if not self._held and self.end is None and not self.is_silent:
            # Only who waits minds the silence: while the disk is slow, the sender is kept silent by us.
            self._timer = self._clock.callLater(self._silence, self._fall_silent)
            self._waiter = Deferred()
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._timer.active():
                    self._timer.cancel()
        if not self._held:
            return None
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        if self._is_paused and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return data

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def stop(self) -> None:
        """Read no further."""
        self._is_stopped = True
        self._held.clear()
        if self.end is None:
            abort(self.transport)

    def _fall_silent(self) -> None:
        self.is_silent = True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)
