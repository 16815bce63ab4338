"""Making requests: whole answers, and lines of answers that have no end."""

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
from synrepl.ports.interfaces import IClock
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.client_errors import as_refusal
from synrepl.transports.http.content_digest import HEADER, WANTED, content_digest, is_intact
from synrepl.wire.blocks import MAX_HELD
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # A daemon without TLS need not have it in memory.
    from OpenSSL import SSL

__all__ = [
    "MAX_ERROR_BYTES",
    "DaemonClient",
    "HttpClient",
    "ResponseLines",
    "NeverSent",
    "abort",
    "collected",
    "decoded",
    "each",
    "is_whole",
    "make_client",
    "public",
    "reason",
    "requested",
    "unreachable",
]

T = TypeVar("T")

MIB: Final = 1024 * 1024
LINE_BYTES: Final = 64
"""What a line counts beside its text: empty ones wait in memory too."""
HELD_BYTES: Final = MIB
"""Lines of a changelog that wait for whoever reads them before the connection is read no further."""
MAX_LINE_BYTES: Final = MAX_HELD
"""In a line of a changelog, as in a block: one fact of the largest size, or all that nobody keeps."""
MAX_ERROR_BYTES: Final = 64 * 1024


class NeverSent(NotConnected):
    """There was no connection to send it on: the server has seen nothing of it."""


def decoded(shape: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} gave a wrong answer: {printable(str(error))}") from error


def public(url: str) -> str:
    """The URL as people may see it: without a user and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def requested(url: str) -> str | URL:
    """The URL as treq is to be given it: without a user and a password."""
    shown = public(url)
    return _AddressUrl.from_text(shown) if "://[" in shown else shown


class _AddressUrl(URL):
    """A URL with an address of IPv6. treq would encode the address as a name (IDNA), which it is not."""

    def to_uri(self) -> URL:
        """All in ASCII, as it is sent."""
        return URL.to_uri(self.replace(host="localhost")).replace(host=self.host)


class DaemonClient:
    """A daemon of ours, over HTTP. `timeout` bounds, in seconds, the wait for an answer to begin."""

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
    """Makes requests over a few connections that are kept, and turns every failure into one of ours."""

    def __init__(self, reactor: Any, secret: str | Credentials | None, timeout: float, client: Any) -> None:
        self._reactor = reactor
        self._credentials = Credentials.of(secret)
        self._timeout = timeout
        self._client = client
        self._pool: Any = None

    async def whole(
        self,
        method: str,
        url: str,
        body: bytes | None,
        max_bytes: int,
        *,
        host: str | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """A whole answer of status 200. `host` is said in the header in place of the URL's."""
        work = self._get_whole(method, url, body, max_bytes, host)
        got: bytes = await self._within(self._timeout if timeout is None else timeout, work, url)
        return got

    async def begin(self, method: str, url: str, body: bytes | None, *, extra_seconds: float) -> Any:
        """An answer of status 200 whose body is still to come."""
        return await self._within(self._timeout + extra_seconds, self._get(method, url, body), url)

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _get_whole(
        self, method: str, url: str, body: bytes | None, max_bytes: int, host: str | None
    ) -> bytes:
        return await _intact(await self._get(method, url, body, host), max_bytes, public(url))

    async def _get(self, method: str, url: str, body: bytes | None, host: str | None = None) -> Any:
        headers: dict[str, list[str]] = {**self._credentials.headers, WANTED: ["sha-256=1"]}
        if host is not None:
            headers["host"] = [host]
        if body is not None:
            headers["content-type"] = ["application/json"]
            headers[HEADER] = [content_digest(body)]
        response = await self._treq().request(
            method,
            requested(url),
            headers=headers,
            data=body,
            # To follow a redirection would show the secret to whoever it names.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        if response.code != 200:
            said = await _intact(response, MAX_ERROR_BYTES, public(url))
            raise as_refusal(response.code, said, public(url))
        return response

    async def _within(self, seconds: float, work: Any, url: str) -> Any:
        """What `work` gives, in time."""
        done: Deferred[Any] = Deferred.fromCoroutine(work)
        done.addTimeout(seconds, self._reactor)
        try:
            return await done
        except (ReplicationError, CancelledError):
            raise
        except TimedOut:
            raise NotConnected(f"{public(url)} has not answered within {seconds:g} seconds") from None
        except Exception as error:
            kind = NeverSent if _is_never_sent(error) else NotConnected
            raise kind(unreachable(self._credentials, url, error)) from error

    def _treq(self) -> Any:
        if self._client is None:
            self._client, self._pool = make_client(self._reactor, self._credentials)
        return self._client


def _is_never_sent(error: Exception) -> bool:
    from twisted.web._newclient import RequestNotSent

    # UnicodeError: a host that is no name, which is found out before there is a connection.
    never = ConnectError | ConnectingCancelledError | DNSLookupError | RequestNotSent | UnicodeError
    if isinstance(error, never):
        return True
    found = _tls_error(error)
    if found is None:
        return False
    from synrepl.transports.tls import is_handshake_refused

    return is_handshake_refused(found)


def make_client(reactor: Any, credentials: Credentials) -> tuple[Any, Any]:
    """A treq client, and the pool of its connections."""
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool

    from synrepl.transports.http.quiet_pool import QuietFactory

    pool = HTTPConnectionPool(reactor)
    pool._factory = QuietFactory
    return HTTPClient(Agent(reactor, credentials, connectTimeout=10.0, pool=pool)), pool


def unreachable(credentials: Credentials, url: str, error: Exception) -> str:
    """That there was no answer, and why, in one line."""
    why = reason(error)
    if url.startswith("https:"):
        found = _tls_error(error)
        if found is not None:
            why = credentials.explain(urlsplit(url).hostname or "", found)
    return f"{public(url)} cannot be reached: {why}"


def _tls_error(error: Exception) -> "SSL.Error | None":
    """What OpenSSL said, where Twisted wraps it; None if it is another failure."""
    found: BaseException | None = error
    while (reasons := getattr(found, "reasons", None)) and isinstance(reasons[0], Failure):
        found = reasons[0].value
    if found is None or not type(found).__module__.startswith("OpenSSL"):
        return None
    from OpenSSL import SSL

    return found if isinstance(found, SSL.Error) else None


def reason(error: Exception) -> str:
    """One line, also where Twisted wraps the reasons."""
    reasons = getattr(error, "reasons", None)
    if reasons and isinstance(reasons[0], Failure):
        return reason(reasons[0].value) if isinstance(reasons[0].value, Exception) else str(reasons[0])
    return printable(" ".join(str(error).split()), limit=1_000) or type(error).__name__


async def _intact(response: Any, max_bytes: int, url: str) -> bytes:
    """A body that came as it was sent, as far as the server says how that was."""
    body = await collected(response, max_bytes, url)
    if not is_intact(body, response.headers.getRawHeaders(HEADER)):
        raise NotConnected(f"{url} gave an answer that was changed on the way")
    return body


async def collected(response: Any, max_bytes: int, url: str) -> bytes:
    collecting = _Collector(max_bytes, url)
    response.deliverBody(collecting)
    return await collecting.done


class _Collector(Protocol):
    """Gathers a body, up to a bound."""

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
            self.done.errback(RemoteProtocolError(f"{self._url} gave more than {self._max_bytes} bytes"))
            self.abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if is_whole(reason):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)

    def abort(self) -> None:
        abort(self.transport)


class ResponseLines(Protocol):
    """Cuts a body into lines, and lets the sender wait while too much of it is held here."""

    def __init__(self) -> None:
        self.end: Failure | None = None
        self.rest: list[bytes] = []
        self._rest_bytes = 0
        self._is_too_long = False
        self._lines: deque[bytes] = deque()
        self._held = 0
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
            self._held += sum(map(len, lines)) + LINE_BYTES * len(lines)
            self.rest, self._rest_bytes = [last] if last else [], len(last)
        if self._held > HELD_BYTES and not self._is_paused:
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

    def take(self) -> bytes | None:
        """The next line; None if there is none just now."""
        if not self._lines:
            return None
        text = self._lines.popleft()
        self._held -= len(text) + LINE_BYTES
        if self._is_paused and self._held <= HELD_BYTES // 2 and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return text

    def take_all(self) -> list[bytes]:
        """All lines that are here."""
        lines: list[bytes] = []
        while (text := self.take()) is not None:
            lines.append(text)
        return lines

    async def changed(self) -> None:
        """Returns when there is more, or no more."""
        self._waiter = Deferred()
        await self._waiter

    async def changed_within(self, seconds: float, clock: IClock) -> bool:
        """Whether there is more, or no more, before so many seconds have passed in silence."""
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

    def check_whole(self, url: str) -> None:
        """Raises `NotConnected` unless it came to its proper end; `RemoteProtocolError` after a line that was
        too long."""
        assert self.end is not None
        if self._is_too_long:
            raise RemoteProtocolError(f"{url} gave a line of more than {MAX_LINE_BYTES} bytes")
        if not is_whole(self.end) or self.rest:
            raise NotConnected(f"{url} broke off: {reason(self.end.value)}")  # type: ignore[arg-type]

    def stop(self) -> None:
        """Read no further."""
        self._is_stopped = True
        if self.end is None:
            abort(self.transport)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


async def each(lines: ResponseLines, url: str) -> Any:
    while True:
        while (text := lines.take()) is not None:
            yield text
        if lines.end is not None:
            break
        await lines.changed()
    lines.check_whole(url)


def is_whole(reason: Failure) -> bool:
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None


def abort(transport: Any) -> None:
    """Close it without waiting for what is still coming."""
    if transport is not None:
        getattr(transport, "abortConnection", transport.loseConnection)()
