"""Clients of other daemons: for files, and for claims, handovers and status."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.request_errors import HttpError, read_error
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import GET_FILE, PUT_FILE
from synrepl.ports.gate import Gate
from synrepl.ports.history import LogPosition
from synrepl.replicas.roles.messages import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.replicas.routes import CLAIM, HANDOVER, REPLICATION
from synrepl.replication.addresses import Address
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import MAX_ERROR_BYTES, NO_HEADERS, HttpClient
from synrepl.transports.http.response_body import BodyChunks

T = TypeVar("T")

BLOCK: Final = 256 * 1024
"""Bytes per read."""
TIMEOUT_SECONDS: Final = 10.0
CONFLICT: Final = 409


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
        """Send a request; yield its URL, the response and its body. Any other code raises `HttpError`.

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


class IPeerAddresses(Protocol):
    """Knows which addresses of other daemons may be used, and with which credentials."""

    def credentials_for(self, url: str) -> Credentials:
        """Return the credentials for requests to this URL. Raises `NeverSent` if there may be none."""

    def first_usable(self, *urls: str) -> str:
        """Return the first of these URLs that may be used; empty without one."""


@dataclass(eq=False, repr=False)
class PeerHttp:
    """Sends requests to other daemons, each with the credentials for its URL."""

    reactor: Any
    addresses: IPeerAddresses

    def __post_init__(self) -> None:
        self._clients: dict[int, HttpClient] = {}
        """By the identities of their credentials, which live as long as this."""

    def client_for(self, url: str) -> HttpClient:
        """Return the client for this URL. Raises `NeverSent` if it may not be used."""
        credentials = self.addresses.credentials_for(url)
        if id(credentials) not in self._clients:
            self._clients[id(credentials)] = HttpClient(self.reactor, secret=credentials)
        return self._clients[id(credentials)]

    async def call(self, request: HttpRequest, answer: type[T], *, base_url: str, **options: Any) -> T:
        """Send a request to the daemon at this URL; return its decoded answer.

        `options` and errors are those of `HttpClient.read` and `client_for`.
        """
        return await self.client_for(base_url).call(request, answer, base_url=base_url, **options)

    async def stop(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            await client.stop()


@dataclass(eq=False, repr=False)
class PeerClient:
    """Sends claims, handover requests and questions to other daemons; see `roles.IPeerClient`."""

    http: PeerHttp

    async def hand_over(self, address: Address, handover: HandOver) -> LogPosition:
        """Request a handover: the primary refuses facts for a while. Returns its position.

        Raises `CannotPromote` if the primary refuses, another `ReplicationError` if the request fails.
        """
        try:
            return await self._call(address, HANDOVER.request(), LogPosition, body=handover)
        except HttpError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        await self._call(address, CLAIM.request(), msgspec.Raw, body=claim)

    async def describe(self, address: Address, *, after: int | None = None) -> PeerStatus:
        """Fetch the status of another daemon; with `after` also its first facts after this serial."""
        return await self._call(address, REPLICATION.request(after=after), PeerStatus)

    async def _call(self, address: Address, request: HttpRequest, answer: type[T], **options: Any) -> T:
        if not address.http:
            raise NotConnected(f"cannot ask {address}: its HTTP address is unknown")
        return await self.http.call(
            request, answer, base_url=address.http, timeout=TIMEOUT_SECONDS, **options
        )
