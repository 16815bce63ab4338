"""Dispatch of requests to the handlers of their routes, with access checks and error responses."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from io import SEEK_END
from traceback import clear_frames
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.access import Keyring
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.rights import parameter_operation
from synrepl.base.turn_queue import TurnQueue
from synrepl.declarations import all_routes
from synrepl.errors import suggest
from synrepl.http_api.route import BadParameter, Parameter, Route, Router
from synrepl.missing_rooms import missing_url
from synrepl.transports.http import (
    append_batch_routes,
    append_routes,
    append_stream_routes,
    changelog_routes,
    command_routes,
    openapi_routes,
    refused_routes,
    row_routes,
    status_routes,
    stream_routes,
)
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body, as_api_error, synapse_body
from synrepl.transports.http.authorization import AccessCheck, check, check_content_type, check_route
from synrepl.transports.http.bodies import decode_body
from synrepl.transports.http.call import Call, IEndlessChangelog
from synrepl.transports.http.handlers import Handler, handler_of
from synrepl.transports.http.headers import (
    CONTENT_DIGEST,
    WANT_DIGEST,
    content_digest,
    headers,
    matches_digest,
)
from synrepl.transports.http.large_body import LARGE_BYTES
from synrepl.transports.http.server import ApiSite
from synrepl.transports.http.shared_work import SharedWork
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire import jsontext

T = TypeVar("T")

ROUTE_MODULES: Final = (
    append_batch_routes,
    append_routes,
    append_stream_routes,
    changelog_routes,
    command_routes,
    openapi_routes,
    refused_routes,
    row_routes,
    status_routes,
    stream_routes,
)
"""The modules whose functions handle the routes of the core."""

UNAUTHORIZED: Final = 401
NOT_DONE_YET: Final = 1
"""What a resource of `twisted.web` returns if it answers later: that of `twisted.web.server` (`ApiSite`)."""
SYNAPSE: Final = b"/_synapse/"
CLOSED: Final = "/v1/"
"""Routes under this path refuse unknown parameters: a misspelled one would silently do nothing."""


class Api:
    """Handles the requests of all routes.

    Every failure becomes a JSON response without internal details, or aborts a response that has begun. It
    can be served as a resource of `twisted.web` too, as treq's fakes do it in tests.
    """

    isLeaf = True
    _logger = Logger()

    def __init__(self, context: SiteContext, guard: AccessCheck, queue: TurnQueue, router: Router) -> None:
        self.queue = queue
        self.context = context
        self.started_at = context.clock.seconds()
        self.endless: IEndlessChangelog | None = None
        """Feeds all readers that follow the changelog; None before the first of them."""
        self.limited_logger = LimitedLogger(self._logger, context.clock)
        self._guard = guard
        self._router = router
        self.shared = SharedWork()

    def render(self, request: Any) -> int:
        """Handle a request; it is cancelled when the connection is lost."""
        ended: Deferred[None] = request.notifyFinish()

        def respond(body: bytes | None) -> None:
            if not ended.called:
                request.write(body or b"")
                request.finish()

        def failed(failure: Failure) -> None:
            if not ended.called:
                request.processingFailed(failure)

        work = Deferred.fromCoroutine(self._serve(request))
        work.addCallback(respond).addErrback(failed)
        ended.addErrback(lambda _: work.cancel())
        return NOT_DONE_YET

    async def _serve(self, request: Any) -> bytes | None:
        """Return the body of the response; None if the handler wrote the response itself."""
        method = request.method.decode("ascii")
        routes, variables = self._router.find_path(request.path)
        route = routes.get("GET" if method == "HEAD" else method)
        try:
            if route is None:
                raise _url_refusal(request, method, routes)
            content = await self._answer(Call(self, route, request, variables))
            if content is None:
                return None
            body = _encode(content)
            if not request.responseHeaders.hasHeader(b"content-type"):
                request.setHeader(b"content-type", route.content_type.encode())
        except CancelledError:
            raise
        except Exception as error:
            refused = self.as_refusal(request, error)
            request.setResponseCode(refused.status)
            for name, value in refused.headers.items():
                request.setHeader(name, value)
            body = synapse_body(refused) if request.path.startswith(SYNAPSE) else api_body(refused)
            request.setHeader(b"content-type", b"application/json")
        request.setHeader(b"content-length", b"%d" % len(body))
        if request.requestHeaders.hasHeader(WANT_DIGEST):
            request.setHeader(CONTENT_DIGEST.encode(), content_digest(body).encode())
        return body

    async def _answer(self, call: Call) -> Any:
        """Return what the handler answers; None if it wrote the response itself."""
        self._check_access(call)
        call.query = _read_parameters(call.request, call.route)
        for parameter in call.route.query:
            if parameter.right and call.query[parameter.name]:
                check(call.access, parameter_operation(call.route, parameter))
        handler = handler_of(call.route.name)
        return await handler.function(call, *await self._read_body(call, handler))

    async def _read_body(self, call: Call, handler: Handler) -> list[Any]:
        """Return the decoded body as a list; an empty one if the handler takes none. Raises `ApiError`."""
        request = call.request
        if request.method != b"POST":  # the path of a file has its checksum
            return []

        def read() -> list[Any]:
            body = request.content.read()
            _check_digest(request, body)
            if handler.body is bytes:
                return [body]
            if handler.decoder is None:
                if body[:3] not in (b"", b"{}"):
                    raise ApiError("bad_request", "this request has no fields: send no body, or {}")
                return []
            return [decode_body(handler.decoder, body or handler.absent_body)]

        is_large = request.content.seek(0, SEEK_END) > LARGE_BYTES
        request.content.seek(0)
        return await self.context.thread.run(read) if is_large else read()

    async def decode_large(self, decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
        """Decode a large JSON body in a thread. Raises `ApiError`."""
        return await self.context.thread.run(lambda: decode_body(decoder, body))

    def _check_access(self, call: Call) -> None:
        """Check the peer's rights, and the type of the body. Raises `ApiError`."""
        route, request = call.route, call.request
        try:
            request.access = getattr(request, "access", None) or self._guard.access(request)
        except ApiError as refused:
            if refused.status != UNAUTHORIZED:
                raise
            if route.right is None:
                return
            if request.path.startswith(SYNAPSE):
                raise ApiError("M_UNKNOWN", "Internal server error", status=500) from refused
            raise
        check_route(request.access, route, call.path)
        if request.method == b"POST":
            check_content_type(request, route.body_type, has_body=route.streams_body)

    def as_refusal(self, request: Any, error: Exception) -> ApiError:
        """Return the error that the client is told; one that is not expected is logged."""
        if isinstance(error, MemoryError):
            # Its frames hold the body. They are in a reference cycle, which would be collected much later.
            clear_frames(error.__traceback__)
        refused = as_api_error(error)
        if refused is None:
            self._logger.failure("{method} {path} failed", method=request.method, path=request.path)
            return INTERNAL
        if isinstance(error, MemoryError | OSError):
            self._logger.error("refused a request for {path}: {why}", path=request.path, why=refused)
        return refused


def make_site(context: SiteContext, *, keys: Keyring | None = None) -> ApiSite:
    """Make a site that serves what this context has.

    With `keys`, every route with a right needs one of them, as ``Authorization: Bearer`` or as a certificate.
    Without keys, requests for host names of other sites are refused (`AccessCheck`).
    """
    # Waiting requests end when this daemon must not be read any more.
    context.publisher.read_gate.subscribers.append(lambda why: context.publisher.waiters.wake_readers())
    guard = AccessCheck(
        keys if keys is not None else Keyring(), lambda: context.settings.hosts(context.log.notes)
    )
    queue = TurnQueue(context.clock)
    router = Router(all_routes())
    return ApiSite(Api(context, guard, queue, router), context, guard, queue, router)


def _url_refusal(request: Any, method: str, allowed: Collection[str]) -> ApiError:
    """Make the error for an unknown URL, or for a method that is not among the `allowed` ones of a URL."""
    is_synapse = request.path.startswith(SYNAPSE)
    if not allowed:
        if is_synapse:
            return ApiError("M_UNRECOGNIZED", "Unrecognized request")
        parts = [unquote(part) for part in request.path.decode("utf-8", "replace")[1:].split("/")]
        why = missing_url(parts) or "GET /v1/openapi.json lists all"
        return ApiError("not_found", f"no such URL in this API; {why}")
    methods = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
    headers = {b"allow": methods.encode()}
    if is_synapse:
        return ApiError("M_UNRECOGNIZED", "Unrecognized request", status=405, headers=headers)
    why = f"{method} is not supported for this URL; use {methods}"
    return ApiError("method_not_allowed", why, headers=headers)


def _read_parameters(request: Any, route: Route) -> dict[str, Any]:
    """Return the values of the route's parameters, by name. Raises `ApiError`, also for unknown ones."""
    if not request.args and not route.headers:
        return dict(_absent(route.query))
    if route.path.startswith(CLOSED):
        known = [one.name for one in route.query]
        for name in request.args:
            if (given := name.decode(errors="replace")) not in known:
                raise ApiError("bad_request", f"unknown parameter {given[:40]!r}{suggest(given, known)}")
    texts = [(one, request.args.get(one.name.encode(), ())) for one in route.query]
    texts += [(one, request.requestHeaders.getRawHeaders(one.name.encode()) or ()) for one in route.headers]
    return _values(texts)


@lru_cache
def _absent(query: tuple[Parameter, ...]) -> dict[str, Any]:
    """Return the values of these parameters in a request without any."""
    return _values((one, ()) for one in query)


def _values(texts: Iterable[tuple[Parameter, Sequence[bytes]]]) -> dict[str, Any]:
    try:
        return {one.name: one.kind.read(one.name, found) for one, found in texts}
    except BadParameter as error:
        raise ApiError(error.code, error.why) from None


def _encode(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return msgspec.json.encode(content) if isinstance(content, msgspec.Struct) else jsontext.dumps(content)


def _check_digest(request: Any, body: bytes) -> None:
    """Raises `ApiError` unless the body matches its Content-Digest."""
    digests = headers(request, CONTENT_DIGEST)
    if digests and not matches_digest(body, digests):
        raise ApiError("garbled", "the body does not match its Content-Digest: send the request again")
