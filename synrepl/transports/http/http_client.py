"""The client of a daemon's API, over pooled connections."""

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar
from urllib.parse import urlsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, DNSLookupError

from synrepl.base.response_errors import NeverSent
from synrepl.base.time import Timer
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import read_error
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.key_rules import LOCALHOST, localhost_exposure
from synrepl.transports.credentials import Credentials
from synrepl.transports.failures import describe_error, root_cause
from synrepl.transports.http.headers import CONTENT_DIGEST, WANT_DIGEST, content_digest
from synrepl.transports.http.response_body import BodyChunks, verified_body
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without TLS should not load OpenSSL.
    from OpenSSL import SSL

T = TypeVar("T")

MIB: Final = 1024 * 1024
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
MAX_ERROR_BYTES: Final = 64 * 1024


def decode_json(expected: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} sent an invalid response: {printable(str(error))}") from error


@dataclass(eq=False, repr=False)
class HttpClient:
    """Sends requests of routes to a daemon. Unless cancelled, it raises only `ReplicationError`s.

    `base_url` is the URL of the daemon; without it, each request names one. A request may take `timeout`
    seconds, with its whole response in `call` and `read`. With `is_homeserver`, the secret is that of the
    processes of a homeserver. `client` is a treq client, for tests.
    """

    reactor: Any
    base_url: str = ""
    _: KW_ONLY
    secret: InitVar[str | Credentials | None] = None
    timeout: float = 60.0
    is_homeserver: bool = False
    client: Any = None

    def __post_init__(self, secret: str | Credentials | None) -> None:
        self._credentials = Credentials.of(secret)
        self._pool: Any = None

    async def call(self, request: HttpRequest, answer: type[T], *, base_url: str = "", **options: Any) -> T:
        """Send a request; return its decoded answer. `options` and errors are those of `read`."""
        found = await self.read(request, base_url=base_url, **options)
        return decode_json(answer, found, public_url(request.url(base_url or self.base_url)))

    async def read(
        self,
        request: HttpRequest,
        *,
        base_url: str = "",
        body: bytes | msgspec.Struct | None = None,
        max_bytes: int = MIB,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> bytes:
        """Return the body of the response if its status is 200, else raise `HttpError`.

        `headers` are added to the usual ones, or replace them.
        """
        url = request.url(base_url or self.base_url)
        content = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body

        async def read() -> bytes:
            response = await self._open(request.method, url, content, headers)
            return await verified_body(response, max_bytes, public_url(url))

        found: bytes = await self._within(self.timeout if timeout is None else timeout, read(), url)
        return found

    async def open(
        self, request: HttpRequest, *, wait: float = 0.0, headers: Mapping[str, str] = NO_HEADERS
    ) -> Any:
        """Return the response if its status is 200, its body unread; else raise `HttpError`.

        `wait` adds to the timeout, in seconds.
        """
        url = request.url(self.base_url)
        return await self._within(self.timeout + wait, self._open(request.method, url, headers=headers), url)

    async def send(
        self,
        request: HttpRequest,
        headers: Mapping[str, str] = NO_HEADERS,
        body: Any = None,
        *,
        base_url: str = "",
        progress: Callable[[], int] = lambda: 0,
    ) -> Any:
        """Return the response, of any status, its body unread. `body` is an `IBodyProducer`.

        The timeout restarts as long as `progress` grows.
        """
        url = request.url(base_url or self.base_url)
        sending = self._send(request.method, url, headers, body)
        return await self._within(self.timeout, sending, url, progress=progress)

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _open(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> Any:
        usual = {WANT_DIGEST: "sha-256=1"}
        if body is not None:
            usual |= {"content-type": "application/json", CONTENT_DIGEST: content_digest(body)}
        response = await self._send(method, url, {**usual, **headers}, body)
        if response.code != 200:
            refused = await verified_body(response, MAX_ERROR_BYTES, public_url(url))
            raise read_error(response.code, refused, url=public_url(url))
        return response

    async def _send(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> Any:
        # With the first request, as treq itself.
        from synrepl.transports.http.treq_url import treq_url

        if self.client is None:
            self.client, self._pool = make_client(self.reactor, self._credentials)
        authorization = self._credentials.headers_for(url, is_homeserver=self.is_homeserver)
        return await self.client.request(
            method,
            treq_url(url),
            headers={**authorization, **{name: [value] for name, value in headers.items()}},
            data=body,
            # Redirects are not followed: they would send the secret to another host.
            allow_redirects=False,
            unbuffered=True,
            reactor=self.reactor,
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

        timer = Timer(self.reactor, check)
        timer.start(seconds)
        try:
            return await done
        except ReplicationError:
            raise
        except Exception as error:
            why, cause = describe_error(error), root_cause(error)
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
    cause = root_cause(error)
    if not _is_tls_error(cause):
        return False
    from synrepl.transports.tls import is_handshake_refused

    return is_handshake_refused(cause)


def make_client(reactor: Any, credentials: Credentials) -> tuple[Any, Any]:
    """Return a client of treq, and its pool of connections. Heads are bounded, and nothing is unpacked."""
    # Loaded with the first request: followers over TCP have this module, too.
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool

    from synrepl.transports.http.https_policy import HttpsPolicy
    from synrepl.transports.http.response_head import BoundedHeadFactory

    pool = HTTPConnectionPool(reactor)
    pool._factory = BoundedHeadFactory
    usual = Agent(reactor, HttpsPolicy(credentials), connectTimeout=10.0)
    endpoints = _Endpoints(reactor, credentials, usual)
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
        if not (why := localhost_exposure(str(getattr(peer, "host", "")), insecure=False)):
            return protocol
        protocol.transport.abortConnection()
        raise NeverSent(why)


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


def _origin(url: str) -> str:
    """Return the scheme, host and port of a URL, which may be invalid."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + re.split("[/?#]", rest, maxsplit=1)[0]
