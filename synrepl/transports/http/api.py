"""Dispatch of requests to the handlers of their routes, with access checks and error responses."""

from collections.abc import Callable, Collection
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from synrepl.http_api.route import BadParameter, Route, RouteTable
from synrepl.http_api.routes import ROUTES
from synrepl.ports.access import Right
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body, as_api_error, synapse_body
from synrepl.transports.http.authorization import AccessCheck, check_content_type, check_right, check_streams
from synrepl.transports.http.call import Call
from synrepl.transports.http.headers import (
    CONTENT_DIGEST,
    WANT_DIGEST,
    content_digest,
    headers,
    matches_digest,
)
from synrepl.transports.http.server import Services
from synrepl.wire import jsontext

if TYPE_CHECKING:
    from synrepl.transports.http.changelog_routes import ChangelogFeed  # loaded with the first reader

T = TypeVar("T")

UNAUTHORIZED: Final = 401
SYNAPSE: Final = b"/_synapse/"


class Handler(NamedTuple):
    """The function that handles a route, and the structs of its body and answer.

    `body` is None if the function takes no struct, `answer` if it returns none.
    """

    function: Callable[..., Any]
    answer: Any
    body: Any = None
    decoder: "msgspec.json.Decoder[Any] | None" = None
    absent_body: bytes = b""
    """The body if none is sent: ``{}`` if all fields have defaults, else empty, which is refused."""


@lru_cache
def handler_of(name: str) -> Handler:
    """Find the handler of the route with this name. Modules are loaded on first use, to save memory."""
    module, _, function_name = name.partition(".")
    function = getattr(import_module(f"synrepl.transports.http.{module}_routes"), function_name)
    hints = get_type_hints(function)
    answer = hints.pop("return")
    if not (isinstance(answer, type) and issubclass(answer, msgspec.Struct)):
        answer = None
    _, *bodies = hints.values()
    if not bodies:
        return Handler(function, answer)
    is_required = any(field.required for field in msgspec.structs.fields(bodies[0]))
    decoder = msgspec.json.Decoder(bodies[0])
    return Handler(function, answer, bodies[0], decoder, b"" if is_required else b"{}")


class Api(Resource):
    """Handles the requests of all routes.

    Every failure becomes a JSON response without internal details, or aborts a response that has begun.
    """

    isLeaf = True
    _logger = Logger()
    _routes = RouteTable(ROUTES)

    def __init__(self, services: Services, guard: AccessCheck) -> None:
        super().__init__()
        self.services = services
        self.started_at = services.clock.seconds()
        self.feed: ChangelogFeed | None = None
        """Feeds all readers that follow the changelog; None before the first of them."""
        self._guard = guard

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
        routes, variables = self._routes.find([part.decode("utf-8") for part in request.postpath])
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
            refused = self._as_refusal(request, error)
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
        _check_digest(call.request)
        call.query = _read_parameters(call.request, call.route)
        handler = handler_of(call.route.name)
        return await handler.function(call, *_read_body(call, handler))

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
        if route.right is not None:
            check_right(request.access, Right(route.right))
        if stream := call.path.get("stream", route.stream):
            check_streams(request.access, stream)
        if request.method == b"POST":
            check_content_type(request)

    def _as_refusal(self, request: Any, error: Exception) -> ApiError:
        refused = as_api_error(error)
        if refused is None:
            self._logger.failure("{method} {path} failed", method=request.method, path=request.path)
            return INTERNAL
        if isinstance(error, MemoryError | OSError):
            self._logger.error("refused a request for {path}: {why}", path=request.path, why=refused)
        return refused


def _url_refusal(request: Any, method: str, allowed: Collection[str]) -> ApiError:
    """Make the error for an unknown URL, or for a method that is not among the `allowed` ones of a URL."""
    is_synapse = request.path.startswith(SYNAPSE)
    if not allowed:
        if is_synapse:
            return ApiError("M_UNRECOGNIZED", "Unrecognized request")
        return ApiError("not_found", "no such URL in this API (docs/reference/http.md)")
    methods = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
    headers = {b"allow": methods.encode()}
    if is_synapse:
        return ApiError("M_UNRECOGNIZED", "Unrecognized request", status=405, headers=headers)
    why = f"{method} is not supported for this URL; use {methods}"
    return ApiError("method_not_allowed", why, headers=headers)


def _read_body(call: Call, handler: Handler) -> list[Any]:
    if handler.decoder is None:
        return []
    limit = call.route.max_body
    body = call.request.content.read(-1 if limit is None else limit + 1)
    if limit is not None and len(body) > limit:
        raise ApiError("too_large", f"the body is longer than the limit of {limit} bytes")
    return [decode_body(handler.decoder, body or handler.absent_body)]


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a JSON body. Raises `ApiError`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError("bad_request", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("bad_json", f"the body is not JSON: {error}") from error
    except RecursionError:
        raise ApiError("bad_json", "the JSON body is nested too deeply") from None


def _read_parameters(request: Any, route: Route) -> dict[str, Any]:
    """Return the values of the route's parameters, by name; unknown ones are ignored. Raises `ApiError`."""
    texts = [(one, request.args.get(one.name.encode(), ())) for one in route.query]
    texts += [(one, request.requestHeaders.getRawHeaders(one.name.encode()) or ()) for one in route.headers]
    try:
        return {one.name: one.kind.read(one.name, found) for one, found in texts}
    except BadParameter as error:
        raise ApiError(error.code, error.why) from None


def _encode(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return msgspec.json.encode(content) if isinstance(content, msgspec.Struct) else jsontext.dumps(content)


def _check_digest(request: Any) -> None:
    digests = headers(request, CONTENT_DIGEST)
    if not digests or request.method != b"POST":  # the path of a file has its checksum
        return
    body = request.content.read()
    request.content.seek(0)
    if not matches_digest(body, digests):
        raise ApiError("garbled", "the body does not match its Content-Digest: send the request again")
