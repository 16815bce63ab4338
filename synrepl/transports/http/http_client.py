"""HTTP client of a daemon."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar
from urllib.parse import urlsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, DNSLookupError
from twisted.python.url import URL

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.ports.response_errors import NeverSent, as_response_error
from synrepl.ports.time import Timer
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.headers import CONTENT_DIGEST, WANT_DIGEST, content_digest, matches_digest
from synrepl.transports.http.response_body import collect_body, describe_error, root_cause
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without TLS should not load OpenSSL.
    from OpenSSL import SSL

__all__ = ["MAX_ERROR_BYTES", "HttpClient", "decode_json"]

T = TypeVar("T")

MIB: Final = 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024


def decode_json(expected: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} sent an invalid response: {printable(str(error))}") from error


def _treq_url(url: str) -> str | URL:
    """Return the URL for treq, without user and password."""
    shown = public_url(url)
    return _AddressUrl.from_text(shown) if "://[" in shown else shown


class _AddressUrl(URL):
    """A URL with an IPv6 address, which treq would try to encode as a name (IDNA)."""

    def to_uri(self) -> URL:
        return URL.to_uri(self.replace(host="localhost")).replace(host=self.host)


class HttpClient:
    """Client of a daemon over pooled connections; raises only `ReplicationError` and its subclasses.

    `base_url` is the URL of the daemon; without it, each request names one. `timeout` bounds the wait for a
    response, in seconds. `client` is a treq client, for tests.
    """

    def __init__(
        self,
        reactor: Any,
        base_url: str = "",
        secret: str | Credentials | None = None,
        *,
        timeout: float = 60.0,
        client: Any = None,
    ) -> None:
        self._reactor = reactor
        self._base_url = base_url.rstrip("/")
        self._credentials = Credentials.of(secret)
        self._timeout = timeout
        self._client = client
        self._pool: Any = None

    async def call(
        self,
        request: HttpRequest,
        answer: type[T],
        *,
        base_url: str | None = None,
        body: bytes | msgspec.Struct | None = None,
        max_bytes: int = MIB,
        timeout: float | None = None,
    ) -> T:
        """Send a request of a route; return its decoded answer."""
        url = request.url(base_url or self._base_url)
        content = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        found = await self.read(request.method, url, content, max_bytes, timeout=timeout)
        return decode_json(answer, found, public_url(url))

    async def read(
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

        async def read() -> bytes:
            response = await self._open(method, url, body, host)
            return await _verified_body(response, max_bytes, public_url(url))

        content: bytes = await self._within(self._timeout if timeout is None else timeout, read(), url)
        return content

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _open(self, method: str, url: str, body: bytes | None = None, host: str | None = None) -> Any:
        """Return a response with status 200 whose body is not read yet."""
        headers: dict[str, list[str]] = {WANT_DIGEST: ["sha-256=1"]}
        if host is not None:
            headers["host"] = [host]
        if body is not None:
            headers["content-type"] = ["application/json"]
            headers[CONTENT_DIGEST] = [content_digest(body)]
        response = await self._send(method, url, headers, body)
        if response.code != 200:
            body = await _verified_body(response, MAX_ERROR_BYTES, public_url(url))
            raise as_response_error(response.code, body, public_url(url))
        return response

    async def _send(self, method: str, url: str, headers: dict[str, list[str]], body: Any) -> Any:
        """Send a request with these headers, and the secret; return the response, its body unread."""
        if self._client is None:
            self._client, self._pool = _make_client(self._reactor, self._credentials)
        return await self._client.request(
            method,
            _treq_url(url),
            headers={**self._credentials.headers, **headers},
            data=body,
            # Redirects are not followed: they would send the secret to another host.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )

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

        timer = Timer(self._reactor, check)
        timer.start(seconds)
        try:
            return await done
        except ReplicationError:
            raise
        except CancelledError:
            if timer.is_active:
                raise
            raise NotConnected(f"{public_url(url)} has not answered within {seconds:g} seconds") from None
        except Exception as error:
            why, cause = describe_error(error), root_cause(error)
            if url.startswith("https:") and _is_tls_error(cause):
                why = self._credentials.explain(urlsplit(url).hostname or "", cause)
            kind = NeverSent if _is_never_sent(error) else NotConnected
            raise kind(f"{public_url(url)} cannot be reached: {why}") from error
        finally:
            timer.stop()


def _is_never_sent(error: Exception) -> bool:
    # Imported here, as is TLS below: followers over TCP have this module, and make no request.
    from twisted.web._newclient import RequestNotSent

    # UnicodeError: an invalid host name, found before connecting.
    never = ConnectError | ConnectingCancelledError | DNSLookupError | RequestNotSent | UnicodeError
    if isinstance(error, never):
        return True
    cause = root_cause(error)
    if not _is_tls_error(cause):
        return False
    from synrepl.transports.tls import is_handshake_refused

    return is_handshake_refused(cause)


def _make_client(reactor: Any, credentials: Credentials) -> tuple[Any, Any]:
    # Loaded with the first request: followers over TCP have this module, too.
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool, _HTTP11ClientFactory

    class QuietFactory(_HTTP11ClientFactory):
        """Twisted's factory without a log line per connection."""

        noisy = False

    pool = HTTPConnectionPool(reactor)
    pool._factory = QuietFactory
    return HTTPClient(Agent(reactor, credentials, connectTimeout=10.0, pool=pool)), pool


def _is_tls_error(error: BaseException | None) -> "TypeGuard[SSL.Error]":
    # By its module: the process of another error may not have OpenSSL.
    return type(error).__module__ == "OpenSSL.SSL"


async def _verified_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Read a body and verify its Content-Digest, if it has one."""
    body = await collect_body(response, max_bytes, url)
    if not matches_digest(body, response.headers.getRawHeaders(CONTENT_DIGEST)):
        raise NotConnected(f"{url} sent a corrupted response: its Content-Digest does not match")
    return body
