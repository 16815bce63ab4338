"""The HTTP site of a daemon.

Requests have bounded bodies, and error responses no internal details.
"""

from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from twisted.internet.interfaces import IProtocolNegotiationFactory
from twisted.python.failure import Failure
from twisted.web.http import HTTPFactory, Request, datetimeToString
from zope.interface import implementer

import twisted
from synrepl.base.access import Access
from synrepl.base.time import Timer
from synrepl.base.turn_queue import TurnQueue
from synrepl.http_api.route import Route, Router
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body, encode_response
from synrepl.transports.http.authorization import AccessCheck, check_route
from synrepl.transports.http.body_stream import BodyStream
from synrepl.transports.http.handlers import own_body
from synrepl.transports.http.http_channel import ApiChannel
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire.text import printable

BODY_METHODS: Final = ("POST", "PUT")

SERVER: Final = f"TwistedWeb/{twisted.__version__}".encode()
"""The header of each answer that names the server, as Twisted's own sites have it."""

LINGER_SECONDS: Final = 10.0
"""Time that a refused client may continue to send before its connection is aborted."""


@implementer(IProtocolNegotiationFactory)
class ApiSite(HTTPFactory):
    """A site that bounds bodies, writes no access log and shows no tracebacks.

    `context` has the clock for timeouts, and the settings with the limit of bodies. The requests of all
    connections take turns in `queue`.

    It is no `twisted.web.server.Site`, whose module brings sessions, templates of pages and remote objects:
    2 MiB that no request here needs.
    """

    noisy = False
    protocol = ApiChannel  # type: ignore[assignment]  # the stubs know only the class that speaks HTTP/2 too

    def __init__(
        self, resource: Any, context: SiteContext, guard: AccessCheck, queue: TurnQueue, router: Router
    ) -> None:
        super().__init__(reactor=context.clock)  # type: ignore[arg-type]  # it asks for the time alone
        self.resource = resource
        self.admitted: set[ApiRequest] = set()
        self.context = context
        self.clock = context.clock
        self.guard = guard
        self.queue = queue
        self.router = router

    def buildProtocol(self, addr: Any) -> Any:
        channel: Any = super().buildProtocol(addr)
        channel.requestFactory, channel.site = ApiRequest, self
        return channel

    def acceptableProtocols(self) -> list[bytes]:
        """The protocols that TLS may negotiate."""
        return [b"http/1.1"]

    def recheck(self) -> None:
        """Abort the requests of peers whose key or certificate was revoked, or has other rights now.

        A request keeps the rights that it began with, and some have no end.
        """
        for request in list(self.admitted):
            before = request.access
            try:
                access = self.guard.access(request)
            except ApiError:
                access = None
            if before is None or access is None or access.grant != before.grant:
                request.channel.transport.abortConnection()

    def stop(self) -> None:
        """Drop the requests that wait for their turn, and report the log lines that were dropped."""
        self.queue.stop()
        self.resource.limited_logger.stop()

    def logPrefix(self) -> str:
        """The name of this listener in Twisted's log messages."""
        return "http"

    def log(self, request: Any) -> None:
        """Write no access log."""


class ApiRequest(Request):
    """A request that refuses a body as soon as it is known to exceed the site's limit.

    The rest of such a body is dropped as it arrives. So is the whole body of a peer that lacks the right of
    the route, and one that the route does not read.
    """

    access: Access | None = None
    """Rights of the peer; None before authentication, and if that fails."""

    _limit = 0
    _room = 0
    _is_complete = False
    _is_dropping = False
    _is_refused = False
    _is_to_be_refused = False
    """Whether the handler will answer with an error, whatever the body is."""
    _linger: Timer | None = None
    _stream: BodyStream | None = None
    """The body, if its route reads it while it arrives."""
    _begin_timer: Timer | None = None
    _admitted: "set[ApiRequest]" = set()
    channel: Any
    content: Any

    def __init__(self, channel: ApiChannel, queued: object) -> None:
        # Forms would be parsed by Twisted: no route takes one.
        super().__init__(channel, queued, parsePOSTFormSubmission=False)

    def gotLength(self, length: int | None) -> None:
        site: ApiSite = self.channel.site
        # The channel has these already, and sets them only when the request is complete.
        self.method, self.client = self.channel._command, self.channel.getPeer()
        self.uri, self._version = self.channel._path, self.channel._version
        route, is_welcome = self._admit()
        self._is_dropping = not is_welcome
        context, settings = site.context, site.context.settings
        body = own_body(route, context, self.channel._path)
        self._limit = settings.max_body_bytes if body is None else body.limit
        if route is not None and route.max_body is not None:
            self._limit = min(self._limit, route.max_body)
        self._room = self._limit
        if length != 0 and (encoding := self._content_encoding()):
            why = f"the body has the encoding {printable(encoding)}: send it as it is (identity)"
            self._refuse_body(
                ApiError("unsupported_encoding", why, headers={b"accept-encoding": b"identity"})
            )
        elif length is not None and length > self._limit:
            self._refuse_body(self._too_large())
        waits = (self.requestHeaders.getRawHeaders(b"expect") or [b""])[0].lower() == b"100-continue"
        if waits and length != 0 and self._is_to_be_refused and not self._is_refused:
            # It need not be sent. What follows on this connection may be the body all the same.
            self.requestHeaders.removeHeader(b"expect")
            self.setHeader(b"connection", b"close")
            self.content = self._stream = BodyStream(self.channel)
            self._begin_timer = Timer(site.clock, self._begin)
            self._begin_timer.start(0)
        elif route is not None and route.streams_body and is_welcome and not self._is_refused:
            self.content = self._stream = BodyStream(self.channel)
            self.channel.expect_slow_body()
            # Later: the channel may have to send 100 Continue before the answer begins.
            self._begin_timer = Timer(site.clock, self._begin)
            self._begin_timer.start(0)
        elif body is None or self._is_refused or self._is_dropping:
            super().gotLength(0 if self._is_refused or self._is_dropping else length)
        else:
            self.content = body.begin(self.channel, self._body_failed)

    def _admit(self) -> tuple[Route | None, bool]:
        """Return the route of this request, and whether its body may be stored: the peer has the right to."""
        site: ApiSite = self.channel.site
        try:
            routes, variables = site.router.find_path(self.channel._path.partition(b"?")[0])
            route = routes.get(self.method.decode("ascii"))
        except UnicodeDecodeError:
            route, variables = None, {}
        self._is_to_be_refused = True
        try:
            self.access = site.guard.access(self)
            self._admitted = site.admitted
            site.admitted.add(self)
            if route is not None:
                check_route(self.access, route, variables)
        except ApiError:
            return route, False
        self._is_to_be_refused = route is None
        return route, route is not None and route.method in BODY_METHODS

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._stream is not None:
            self._stream.write(data)
            return
        self._room -= len(data)
        if self._room < 0:
            self.content.truncate(0)
            self._refuse_body(self._too_large())
        elif not self._is_dropping:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self._is_complete = True
        if self._is_refused:
            self.channel.loseConnection()
        elif self._stream is not None:
            self._stream.end()
        else:
            super().requestReceived(command, path, version)

    def _begin(self) -> None:
        """Handle the request, whose body has not arrived yet."""
        if self.channel is not None:
            super().requestReceived(self.method, self.uri, self._version)

    def process(self) -> None:
        """Handle the request, unless its method, path or Host is malformed."""
        try:
            self.method.decode("ascii")
            unquote_to_bytes(self.path).decode("utf-8")
            _check_host(self.getRequestHostname() or b"")
        except UnicodeError:
            why = "the method must be ASCII, the path UTF-8, and Host a host name"
            self._answer(ApiError("bad_request", why))
        else:
            self.setHeader(b"server", SERVER)
            self.setHeader(b"date", datetimeToString())
            site: ApiSite = self.channel.site
            site.resource.render(self)

    def processingFailed(self, reason: Failure) -> None:
        """Report an error that no handler expects: the peer learns that there was one."""
        self._log.failure("a request for {uri} failed", failure=reason, uri=self.uri)
        if not self.startedWriting:
            self._answer(INTERNAL)
        elif self.channel is not None:
            self.channel.transport.abortConnection()

    def finish(self) -> None:
        self._admitted.discard(self)
        if self._stream is None or self._is_complete:
            super().finish()
        else:
            # The handler has answered without the rest of the body.
            self._drop_body()

    def connectionLost(self, reason: Failure) -> None:
        self._admitted.discard(self)
        for timer in (self._linger, self._begin_timer):
            if timer is not None:
                timer.stop()
        super().connectionLost(reason)

    def _answer(self, error: ApiError) -> None:
        body = api_body(error)
        self.setResponseCode(error.status)
        self.setHeader(b"Content-Type", b"application/json")
        self.setHeader(b"Content-Length", b"%d" % len(body))
        self.write(body)
        self.finish()

    def _content_encoding(self) -> str:
        """The encoding of the body, such as gzip; empty without one."""
        values = self.requestHeaders.getRawHeaders(b"content-encoding") or []
        names = ", ".join(value.decode("latin-1") for value in values).strip()
        return "" if names.lower() == "identity" else names

    def _too_large(self) -> ApiError:
        return ApiError("too_large", f"the body is longer than the limit of {self._limit} bytes")

    def _body_failed(self, error: ApiError) -> None:
        if self.channel is not None and not self._is_complete and not self._is_refused:
            self._refuse_body(error)

    def _refuse_body(self, error: ApiError) -> None:
        """Send the error at once, and let the client finish sending: a close would lose the response."""
        # Otherwise the channel would send 100 Continue.
        self.requestHeaders.removeHeader(b"expect")
        self.channel.transport.write(encode_response(error))
        self._drop_body()

    def _drop_body(self) -> None:
        """Drop what arrives, until the client has read the answer and closes."""
        site: ApiSite = self.channel.site
        self._is_refused = True
        self._linger = Timer(site.context.clock, self.channel.transport.abortConnection)
        self._linger.start(LINGER_SECONDS)


@lru_cache(maxsize=256)
def _check_host(name: bytes) -> None:
    """Raises `UnicodeError` unless this can be the name of a host."""
    name.decode("utf-8").partition(":")[0].encode("idna")
