"""HTTP client of a daemon: complete responses, and lines of endless ones."""

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.error import ConnectError, ConnectingCancelledError, DNSLookupError
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.python.url import URL

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import HttpRequest
from synrepl.ports.interfaces import IClock
from synrepl.ports.response_errors import NeverSent, as_response_error
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.content_digest import HEADER, WANTED, content_digest, matches_digest
from synrepl.wire.blocks import MAX_HELD
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without TLS should not load OpenSSL.
    from OpenSSL import SSL

__all__ = [
    "MAX_ERROR_BYTES",
    "DaemonClient",
    "HttpClient",
    "ResponseLines",
    "abort",
    "collect_body",
    "decode_json",
    "iterate_lines",
    "is_complete",
    "make_client",
    "public_url",
    "describe_error",
    "treq_url",
    "unreachable_message",
]

T = TypeVar("T")

MIB: Final = 1024 * 1024
LINE_BYTES: Final = 64
"""Memory that a queued line counts in addition to its text."""
MAX_BUFFERED_BYTES: Final = MIB
"""Bytes of queued lines at which reading from the connection pauses."""
MAX_LINE_BYTES: Final = MAX_HELD
"""Limit for a line, as for a block: one fact of the largest size, or all ephemeral facts."""
MAX_ERROR_BYTES: Final = 64 * 1024


def decode_json(expected: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} sent an invalid response: {printable(str(error))}") from error


def public_url(url: str) -> str:
    """Return the URL without user and password, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def treq_url(url: str) -> str | URL:
    """Return the URL for treq, without user and password."""
    shown = public_url(url)
    return _AddressUrl.from_text(shown) if "://[" in shown else shown


class _AddressUrl(URL):
    """A URL with an IPv6 address, which treq would try to encode as a name (IDNA)."""

    def to_uri(self) -> URL:
        """Return the URL in ASCII, as it is sent."""
        return URL.to_uri(self.replace(host="localhost")).replace(host=self.host)


class DaemonClient:
    """Base of the clients of one daemon. `timeout` bounds the wait for a response, in seconds."""

    def __init__(
        self,
        reactor: Any,
        base_url: str,
        secret: str | Credentials | None = None,
        *,
        timeout: float = 60.0,
        client: Any = None,
    ) -> None:
        self._reactor = reactor
        self._base_url = base_url.rstrip("/")
        self._http = HttpClient(reactor, secret, timeout, client)

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


class HttpClient:
    """Makes requests over pooled connections; raises only `ReplicationError` and its subclasses."""

    def __init__(self, reactor: Any, secret: str | Credentials | None, timeout: float, client: Any) -> None:
        self._reactor = reactor
        self._credentials = Credentials.of(secret)
        self._timeout = timeout
        self._client = client
        self._pool: Any = None

    async def call(
        self,
        base_url: str,
        request: HttpRequest,
        answer: type[T],
        *,
        body: bytes | msgspec.Struct | None = None,
        max_bytes: int = MIB,
        timeout: float | None = None,
    ) -> T:
        """Send a request of a route to a daemon; return its decoded answer."""
        url = request.url(base_url)
        content = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        found = await self.fetch(request.method, url, content, max_bytes, timeout=timeout)
        return decode_json(answer, found, public_url(url))

    async def fetch(
        self,
        method: str,
        url: str,
        body: bytes | None,
        max_bytes: int,
        *,
        host: str | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """Return the body of a response with status 200. `host` replaces the URL's host in the header."""
        coroutine = self._fetch_body(method, url, body, max_bytes, host)
        content: bytes = await self._within(self._timeout if timeout is None else timeout, coroutine, url)
        return content

    async def open(self, method: str, url: str, body: bytes | None, *, extra_seconds: float) -> Any:
        """Return a response with status 200 whose body is not read yet."""
        return await self._within(self._timeout + extra_seconds, self._open(method, url, body), url)

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _fetch_body(
        self, method: str, url: str, body: bytes | None, max_bytes: int, host: str | None
    ) -> bytes:
        return await _verified_body(await self._open(method, url, body, host), max_bytes, public_url(url))

    async def _open(self, method: str, url: str, body: bytes | None, host: str | None = None) -> Any:
        headers: dict[str, list[str]] = {**self._credentials.headers, WANTED: ["sha-256=1"]}
        if host is not None:
            headers["host"] = [host]
        if body is not None:
            headers["content-type"] = ["application/json"]
            headers[HEADER] = [content_digest(body)]
        response = await self._treq().request(
            method,
            treq_url(url),
            headers=headers,
            data=body,
            # Redirects are not followed: they would send the secret to another host.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        if response.code != 200:
            body = await _verified_body(response, MAX_ERROR_BYTES, public_url(url))
            raise as_response_error(response.code, body, public_url(url))
        return response

    async def _within(self, seconds: float, coroutine: Any, url: str) -> Any:
        """Await a coroutine, with a timeout."""
        done: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        done.addTimeout(seconds, self._reactor)
        try:
            return await done
        except (ReplicationError, CancelledError):
            raise
        except TimedOut:
            raise NotConnected(f"{public_url(url)} has not answered within {seconds:g} seconds") from None
        except Exception as error:
            kind = NeverSent if _is_never_sent(error) else NotConnected
            raise kind(unreachable_message(self._credentials, url, error)) from error

    def _treq(self) -> Any:
        if self._client is None:
            self._client, self._pool = make_client(self._reactor, self._credentials)
        return self._client


def _is_never_sent(error: Exception) -> bool:
    from twisted.web._newclient import RequestNotSent

    # UnicodeError: an invalid host name, found before connecting.
    never = ConnectError | ConnectingCancelledError | DNSLookupError | RequestNotSent | UnicodeError
    if isinstance(error, never):
        return True
    tls_error = _tls_error(error)
    if tls_error is None:
        return False
    from synrepl.transports.tls import is_handshake_refused

    return is_handshake_refused(tls_error)


def make_client(reactor: Any, credentials: Credentials) -> tuple[Any, Any]:
    """Make a treq client; return it with its connection pool."""
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool

    from synrepl.transports.http.quiet_pool import QuietFactory

    pool = HTTPConnectionPool(reactor)
    pool._factory = QuietFactory
    return HTTPClient(Agent(reactor, credentials, connectTimeout=10.0, pool=pool)), pool


def unreachable_message(credentials: Credentials, url: str, error: Exception) -> str:
    """Describe a failed request in one line."""
    why = describe_error(error)
    if url.startswith("https:"):
        tls_error = _tls_error(error)
        if tls_error is not None:
            why = credentials.explain(urlsplit(url).hostname or "", tls_error)
    return f"{public_url(url)} cannot be reached: {why}"


def _tls_error(error: Exception) -> "SSL.Error | None":
    """Return the OpenSSL error that Twisted has wrapped; None for another failure."""
    tls_error: BaseException | None = error
    while (reasons := getattr(tls_error, "reasons", None)) and isinstance(reasons[0], Failure):
        tls_error = reasons[0].value
    if tls_error is None or not type(tls_error).__module__.startswith("OpenSSL"):
        return None
    from OpenSSL import SSL

    return tls_error if isinstance(tls_error, SSL.Error) else None


def describe_error(error: Exception) -> str:
    """Describe an error in one line; unwraps Twisted's lists of reasons."""
    reasons = getattr(error, "reasons", None)
    if reasons and isinstance(reasons[0], Failure):
        return (
            describe_error(reasons[0].value) if isinstance(reasons[0].value, Exception) else str(reasons[0])
        )
    return printable(" ".join(str(error).split()), limit=1_000) or type(error).__name__


async def _verified_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Read a body and verify its Content-Digest, if it has one."""
    body = await collect_body(response, max_bytes, url)
    if not matches_digest(body, response.headers.getRawHeaders(HEADER)):
        raise NotConnected(f"{url} sent a corrupted response: its Content-Digest does not match")
    return body


async def collect_body(response: Any, max_bytes: int, url: str) -> bytes:
    collecting = _Collector(max_bytes, url)
    response.deliverBody(collecting)
    return await collecting.done


class _Collector(Protocol):
    """Collects a body, up to a limit."""

    def __init__(self, max_bytes: int, url: str) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self.abort())
        self._room = max_bytes
        self._max_bytes = max_bytes
        self._url = url
        self._parts: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)
        elif not self.done.called:
            self._parts.clear()
            self.done.errback(RemoteProtocolError(f"{self._url} sent more than {self._max_bytes} bytes"))
            self.abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if is_complete(reason):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)

    def abort(self) -> None:
        abort(self.transport)


class ResponseLines(Protocol):
    """Splits a body into lines; pauses the connection while too many of them are queued."""

    def __init__(self) -> None:
        self.end: Failure | None = None
        self.rest: list[bytes] = []
        self._rest_bytes = 0
        self._is_too_long = False
        self._lines: deque[bytes] = deque()
        self._buffered = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        first, *others = data.split(b"\n")
        self.rest.append(first)
        self._rest_bytes += len(first)
        if others:
            *lines, last = b"".join(self.rest), *others
            self._lines += lines
            self._buffered += sum(map(len, lines)) + LINE_BYTES * len(lines)
            self.rest, self._rest_bytes = [last] if last else [], len(last)
        if self._buffered > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        if self._rest_bytes > MAX_LINE_BYTES:
            self._is_too_long, self._is_stopped = True, True
            self.rest.clear()
            abort(self.transport)
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def pop_line(self) -> bytes | None:
        """Return the next line; None if none is queued."""
        if not self._lines:
            return None
        text = self._lines.popleft()
        self._buffered -= len(text) + LINE_BYTES
        if self._is_paused and self._buffered <= MAX_BUFFERED_BYTES // 2 and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return text

    def pop_lines(self) -> list[bytes]:
        """Return all queued lines."""
        lines: list[bytes] = []
        while (text := self.pop_line()) is not None:
            lines.append(text)
        return lines

    async def wait(self) -> None:
        """Wait for more lines or the end of the response."""
        self._waiter = Deferred()
        await self._waiter

    async def wait_within(self, seconds: float, clock: IClock) -> bool:
        """Wait like `wait`; False after so many seconds of silence."""
        waiter: Deferred[None] = Deferred()
        self._waiter = waiter
        timer = clock.callLater(seconds, waiter.errback, TimedOut())
        try:
            await waiter
        except TimedOut:
            return False
        finally:
            if timer.active():
                timer.cancel()
        return True

    def check_complete(self, url: str) -> None:
        """Raises `NotConnected` unless the response is complete; `RemoteProtocolError` after a line over the
        limit.
        """
        assert self.end is not None
        if self._is_too_long:
            raise RemoteProtocolError(f"{url} sent a line of more than {MAX_LINE_BYTES} bytes")
        if not is_complete(self.end) or self.rest:
            raise NotConnected(f"{url}: the response ended early: {describe_error(self.end.value)}")  # type: ignore[arg-type]

    def stop(self) -> None:
        """Stop reading, and abort the response."""
        self._is_stopped = True
        if self.end is None:
            abort(self.transport)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


async def iterate_lines(lines: ResponseLines, url: str) -> Any:
    while True:
        while (text := lines.pop_line()) is not None:
            yield text
        if lines.end is not None:
            break
        await lines.wait()
    lines.check_complete(url)


def is_complete(reason: Failure) -> bool:
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None


def abort(transport: Any) -> None:
    """Close a connection without flushing or reading the rest."""
    if transport is not None:
        getattr(transport, "abortConnection", transport.loseConnection)()
