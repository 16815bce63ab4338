"""HTTP client of a daemon; the bodies of responses come whole, by chunks, or by lines, with backpressure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeGuard, TypeVar
from urllib.parse import urlsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, DNSLookupError
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.python.url import URL

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.key_rules import LOCALHOST, refusal
from synrepl.ports.interfaces import IClock
from synrepl.ports.response_errors import NeverSent, as_response_error
from synrepl.ports.time import Timer
from synrepl.transports.credentials import Credentials, is_local
from synrepl.transports.failures import describe_failure
from synrepl.transports.http.headers import CONTENT_DIGEST, WANT_DIGEST, content_digest, matches_digest
from synrepl.wire.blocks import MAX_HELD
from synrepl.wire.codec import LineBuffer
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without TLS should not load OpenSSL.
    from OpenSSL import SSL

T = TypeVar("T")

MIB: Final = 1024 * 1024
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_BUFFERED_BYTES: Final = MIB
"""Reading from the connection pauses while more bytes than this are queued."""
LINE_BYTES: Final = 64
"""Memory that a queued line counts in addition to its text."""
MAX_LINE_BYTES: Final = MAX_HELD
"""Bytes of a line: one fact of the largest size, or all ephemeral facts, as in a ``held`` block."""


def decode_json(expected: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} sent an invalid response: {printable(str(error))}") from error


def request_headers(body: bytes | None) -> dict[str, list[str]]:
    """The headers of a request with this body (None: without), besides those that authenticate it."""
    headers = {WANT_DIGEST: ["sha-256=1"]}
    if body is not None:
        headers |= {"content-type": ["application/json"], CONTENT_DIGEST: [content_digest(body)]}
    return headers


def _treq_url(url: str) -> str | URL:
    """Return the URL for treq, without user and password."""
    shown = public_url(url)
    return _AddressUrl.from_text(shown) if "://[" in shown else shown


class _AddressUrl(URL):
    """A URL with an IPv6 address, which treq would try to encode as a name (IDNA)."""

    def to_uri(self) -> URL:
        return URL.to_uri(self.replace(host="localhost")).replace(host=self.host)


@dataclass(eq=False, repr=False)
class HttpClient:
    """Client of a daemon over pooled connections. Unless cancelled, it raises only `ReplicationError`s.

    `base_url` is the URL of the daemon; without it, each request names one. A request may take `timeout`
    seconds, with its whole response in `call` and `read`. `client` is a treq client, for tests.
    """

    reactor: Any
    base_url: str = ""
    _: KW_ONLY
    secret: InitVar[str | Credentials | None] = None
    timeout: float = 60.0
    client: Any = None
    is_homeserver: ClassVar = False
    """Whether the secret is that of the processes of a homeserver."""

    def __post_init__(self, secret: str | Credentials | None) -> None:
        self.base_url = self.base_url.rstrip("/")
        self._credentials = Credentials.of(secret)
        self._pool: Any = None

    async def call(
        self,
        request: HttpRequest,
        answer: type[T],
        *,
        base_url: str | None = None,
        body: bytes | msgspec.Struct | None = None,
        max_bytes: int = MIB,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> T:
        """Send a request of a route; return its decoded answer. Raises the errors of `read`."""
        url = request.url(base_url or self.base_url)
        content = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        found = await self.read(request.method, url, content, max_bytes, headers=headers, timeout=timeout)
        return decode_json(answer, found, public_url(url))

    async def read(
        self,
        method: str,
        url: str,
        body: bytes | None,
        max_bytes: int,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> bytes:
        """Return the body if the status is 200, else raise `ApiResponseError`.

        `headers` are added to the usual ones, or replace them.
        """

        async def read() -> bytes:
            response = await self._open(method, url, body, headers)
            return await verified_body(response, max_bytes, public_url(url))

        content: bytes = await self._within(self.timeout if timeout is None else timeout, read(), url)
        return content

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _open(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> Any:
        """Return a response with status 200 whose body is not read yet."""
        more = {name: [value] for name, value in headers.items()}
        response = await self._send(method, url, request_headers(body) | more, body)
        if response.code != 200:
            body = await verified_body(response, MAX_ERROR_BYTES, public_url(url))
            raise as_response_error(response.code, body, public_url(url))
        return response

    async def _send(self, method: str, url: str, headers: dict[str, list[str]], body: Any) -> Any:
        """Send a request with these headers, and the secret; return the response, its body unread."""
        if self.client is None:
            self.client, self._pool = make_client(self.reactor, self._credentials)
        return await self.client.request(
            method,
            _treq_url(url),
            headers={**self._authorization(self.base_url or url), **headers},
            data=body,
            # Redirects are not followed: they would send the secret to another host.
            allow_redirects=False,
            unbuffered=True,
            reactor=self.reactor,
        )

    def _authorization(self, url: str) -> dict[str, list[str]]:
        """The headers that authenticate a request."""
        return self._credentials.headers_for(url, is_homeserver=self.is_homeserver)

    async def _within(
        self, seconds: float, coroutine: Any, url: str, *, progress: Callable[[], int] = lambda: 0
    ) -> Any:
        """Await a coroutine, with a timeout that restarts as long as `progress` grows."""
        done: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        last = 0

        def check() -> None:
            nonlocal last
            before, last = last, progress()
            if last == before:
                done.cancel()
            else:
                timer.start(seconds)

        timer = Timer(self.reactor, check)
        timer.start(seconds)
        try:
            return await done
        except ReplicationError:
            raise
        except Exception as error:
            why, cause = _describe_error(error), _root_cause(error)
            # Twisted wraps the cancellation of a request that has no answer yet.
            if isinstance(cause, CancelledError):
                if not timer.is_active:
                    why = f"{public_url(url)} has not answered within {seconds:g} seconds"
                    raise NotConnected(why) from None
                if not _is_stopped_body(error):
                    raise CancelledError from error
                why = "the connection was lost while the request was sent"
            if url.startswith("https:") and _is_tls_error(cause):
                why = self._credentials.explain(urlsplit(url).hostname or "", cause)
            kind = NeverSent if _is_never_sent(error) else NotConnected
            # Where nothing was sent, the path says nothing.
            where = _origin(url) if kind is NeverSent else url
            raise kind(f"no response from {public_url(where)}: {why}") from error
        finally:
            timer.stop()


def _is_stopped_body(error: Exception) -> bool:
    """Whether the connection was lost while the body of a request was sent, which cancels its reading."""
    from twisted.web._newclient import RequestGenerationFailed

    return isinstance(error, RequestGenerationFailed)


def _is_never_sent(error: Exception) -> bool:
    # Imported here, as is TLS below: followers over TCP have this module, and make no request.
    from twisted.web._newclient import RequestNotSent

    # UnicodeError: an invalid host name, found before connecting.
    never = ConnectError | ConnectingCancelledError | DNSLookupError | RequestNotSent | UnicodeError
    if isinstance(error, never):
        return True
    cause = _root_cause(error)
    if not _is_tls_error(cause):
        return False
    from synrepl.transports.tls import is_handshake_refused

    return is_handshake_refused(cause)


def make_client(reactor: Any, credentials: Credentials) -> tuple[Any, Any]:
    """Return a client of treq, and its pool of connections. Heads are bounded, and nothing is unpacked."""
    # Loaded with the first request: followers over TCP have this module, too.
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool

    from synrepl.transports.http.response_head import BoundedHeadFactory

    pool = HTTPConnectionPool(reactor)
    pool._factory = BoundedHeadFactory
    endpoints = _Endpoints(reactor, credentials, Agent(reactor, credentials, connectTimeout=10.0))
    agent: Any = PlainAgent(Agent.usingEndpointFactory(reactor, endpoints, pool))
    return HTTPClient(agent), pool


class _Endpoints:
    """The endpoints of an agent. If ``localhost`` is another machine, no key is sent there."""

    def __init__(self, reactor: Any, credentials: Credentials, agent: Any) -> None:
        self._credentials = credentials
        self._usual = agent._endpointFactory

    def endpointForURI(self, uri: Any) -> Any:
        """Return the endpoint for a parsed URI."""
        endpoint = self._usual.endpointForURI(uri)
        may_be_read = uri.scheme == b"http" and uri.host.lower() == LOCALHOST.encode()
        if may_be_read and self._credentials.secret is not None and not self._credentials.insecure:
            return _LocalEndpoint(endpoint)
        return endpoint


class _LocalEndpoint:
    """An endpoint that closes a connection to another machine before anything is sent."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def connect(self, factory: Any) -> "Deferred[Any]":
        """Connect; the Deferred fails with `NeverSent` if the peer is not on this machine."""
        connecting: Deferred[Any] = self._endpoint.connect(factory)
        return connecting.addCallback(self._check)

    def _check(self, protocol: Any) -> Any:
        peer = protocol.transport.getPeer()
        if is_local(peer):
            return protocol
        protocol.transport.abortConnection()
        raise NeverSent(refusal(f"{LOCALHOST} at {peer.host}", is_private=False, insecure=False))


class PlainAgent:
    """An agent that takes no compressed responses: a small one can unpack to any size, and treq has no bound.

    treq asks for gzip, and unpacks it, if its agent does not prevent that.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def request(self, method: bytes, uri: bytes, headers: Any, bodyProducer: Any = None) -> "Deferred[Any]":
        """Send a request. The Deferred fails with `RemoteProtocolError` if the response is compressed."""
        headers = headers.copy()
        headers.setRawHeaders(b"accept-encoding", [b"identity"])
        sent: Deferred[Any] = self._agent.request(method, uri, headers, bodyProducer)
        return sent.addCallback(_check_plain, public_url(uri.decode("ascii")))


def _check_plain(response: Any, url: str) -> Any:
    codings = response.headers.getRawHeaders(b"content-encoding") or []
    if any(coding.strip().lower() not in (b"", b"identity") for coding in codings):
        BodyChunks.of(response, url).stop()
        shown = printable(b", ".join(codings).decode("latin-1"))
        raise RemoteProtocolError(f"{url} sent a compressed response ({shown}), which was not asked for")
    return response


def _is_tls_error(error: BaseException | None) -> "TypeGuard[SSL.Error]":
    # Compared by name: without TLS, OpenSSL is not imported.
    return type(error).__module__ == "OpenSSL.SSL"


async def verified_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Read a body and verify its Content-Digest, if it has one."""
    body = await collect_body(response, max_bytes, url)
    if not matches_digest(body, response.headers.getRawHeaders(CONTENT_DIGEST)):
        raise NotConnected(f"{url} sent a corrupted response: its Content-Digest does not match")
    return body


class _PacedBody(Protocol):
    """A body that is queued until it is taken; pauses the connection while too many bytes are queued.

    `end` is set when the response has ended. A wait fails after `silence` seconds without data (None: never).
    The time in which the caller processes data does not count. Subclasses queue what arrives.
    """

    def __init__(self, url: str, *, clock: IClock | None = None, silence: float | None = None) -> None:
        self.end: Failure | None = None
        self.url = url
        self._clock = clock
        self._silence = silence
        self._queued: list[bytes] = []
        self._buffered = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    @classmethod
    def of(cls, response: Any, url: str, **options: Any) -> Self:
        body = cls(url, **options)
        response.deliverBody(body)
        return body

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        self._buffered += self._queue(data)
        if self._buffered > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        self._wake()

    def _queue(self, data: bytes) -> int:
        """Queue what arrived; return the bytes that count towards `MAX_BUFFERED_BYTES`."""
        raise NotImplementedError

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def take(self) -> list[bytes]:
        taken, self._queued = self._queued, []
        self._buffered = 0
        if self._is_paused and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return taken

    async def next(self) -> list[bytes]:
        """Wait until something is queued, and return all of it; an empty list at the end.

        Raises `NotConnected` after the time of silence.
        """
        while not self._queued and self.end is None:
            await self._wait()
        return self.take()

    async def _wait(self) -> None:
        waiter: Deferred[None] = Deferred()
        self._waiter = waiter
        if self._silence is None or self._clock is None:
            return await waiter
        error = NotConnected(f"{self.url} was silent for {self._silence:g} seconds")
        timer = Timer(self._clock, lambda: waiter.errback(error))
        timer.start(self._silence)
        try:
            await waiter
        finally:
            timer.stop()

    def check_complete(self) -> None:
        """Raises `NotConnected` unless the response is complete."""
        assert self.end is not None
        if not _is_complete(self.end):
            raise self._broken_off(self.end)

    def _broken_off(self, end: Failure) -> NotConnected:
        return NotConnected(f"{self.url}: the response ended early: {_describe_error(end.value)}")

    def stop(self) -> None:
        self._is_stopped = True
        if self.end is None:
            self._abort()

    def _abort(self) -> None:
        transport: Any = self.transport
        if transport is not None:
            getattr(transport, "abortConnection", transport.loseConnection)()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


class BodyChunks(_PacedBody):
    """A body in chunks as they arrive."""

    def _queue(self, data: bytes) -> int:
        self._queued.append(data)
        return len(data)


class BodyLines(_PacedBody):
    """A body in lines."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._buffer = LineBuffer(MAX_LINE_BYTES)
        self._is_too_long = False

    def _queue(self, data: bytes) -> int:
        lines = self._buffer.receive(data)
        size = sum(map(len, lines))
        if size > MAX_LINE_BYTES and max(map(len, lines)) > MAX_LINE_BYTES:
            self._is_too_long, self._is_stopped = True, True
            self._abort()
            return 0
        self._queued += lines
        return size + LINE_BYTES * len(lines)

    async def next(self) -> list[bytes]:
        """Wait for lines, and return all that have arrived; an empty list at the end of a complete response.

        Raises `NotConnected` if the response ends early, `RemoteProtocolError` after a line over the limit.
        """
        if not (lines := await super().next()):
            self.check_complete()
        return lines

    def check_complete(self) -> None:
        if self._is_too_long:
            raise RemoteProtocolError(f"{self.url} sent a line of more than {MAX_LINE_BYTES} bytes")
        super().check_complete()
        if self._buffer.size:
            assert self.end is not None
            raise self._broken_off(self.end)


async def collect_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Return the body. Raises `RemoteProtocolError` over `max_bytes`, or the error that ended it early."""
    chunks, parts, size = BodyChunks.of(response, url), [], 0
    try:
        while more := await chunks.next():
            parts += more
            size += sum(map(len, more))
            if size > max_bytes:
                raise RemoteProtocolError(f"{url} sent a response of more than {max_bytes} bytes")
    finally:
        chunks.stop()
    assert chunks.end is not None
    if not _is_complete(chunks.end):
        chunks.end.raiseException()
    return b"".join(parts)


def _root_cause(error: BaseException | None) -> BaseException | None:
    """Return the error that Twisted has wrapped in lists of reasons."""
    while (reasons := getattr(error, "reasons", None)) and isinstance(reasons[0], Failure):
        error = reasons[0].value
    return error


def _describe_error(error: BaseException | None) -> str:
    return printable(describe_failure(Failure(_root_cause(error))), limit=1_000)


def _origin(url: str) -> str:
    """Return the scheme, host and port of a URL, which may be invalid."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + re.split("[/?#]", rest, maxsplit=1)[0]


def _is_complete(reason: Failure) -> bool:
    # Imported here: a follower over TCP has this module, and needs nothing of twisted.web.
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None
