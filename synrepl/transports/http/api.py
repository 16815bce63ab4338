"""Dispatch of requests to the handlers of their routes, with access checks and error responses."""

import re
import typing
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from io import SEEK_END
from traceback import clear_frames
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from synrepl.errors import suggest
from synrepl.http_api.route import BadParameter, Parameter, Route
from synrepl.http_api.routes import ROUTER
from synrepl.ports.access import Keyring, Right
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.rights import parameter_operation
from synrepl.ports.turn_queue import TurnQueue
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body, as_api_error, synapse_body
from synrepl.transports.http.authorization import AccessCheck, check, check_content_type, check_route
from synrepl.transports.http.call import Call, IEndlessChangelog
from synrepl.transports.http.headers import (
    CONTENT_DIGEST,
    WANT_DIGEST,
    accepted_type,
    content_digest,
    headers,
    matches_digest,
)
from synrepl.transports.http.large_body import LARGE_BYTES, split_facts
from synrepl.transports.http.response_cache import Response, ResponseCache
from synrepl.transports.http.server import ApiSite, Services
from synrepl.wire import jsontext

T = TypeVar("T")

UNAUTHORIZED: Final = 401
SYNAPSE: Final = b"/_synapse/"
CLOSED: Final = "/v1/"
"""Routes under this path refuse unknown parameters: a misspelled one would silently do nothing."""

_unknown_field: Final = re.compile(r"unknown field `(.*?)`(?: - at |\Z)", re.DOTALL)

FACTS_FIELDS: Final = frozenset({"facts", "appends"})
"""The fields of bodies that may have many facts."""


class Handler(NamedTuple):
    """The function that handles a route, and the structs of its body and answer.

    `body` is None if the function takes no body, and `bytes` if it takes one that is not JSON; `answer` is
    None if the function returns no struct.
    """

    function: Callable[..., Any]
    answer: Any
    body: Any = None
    decoder: "msgspec.json.Decoder[Any] | None" = None
    absent_body: bytes = b""
    """The body if none is sent: ``{}`` if all fields have defaults, else empty, which is refused."""


@lru_cache
def handler_of(name: str) -> Handler:
    """Find the handler of the route with this name, in a module that is imported for it."""
    module, _, function_name = name.partition(".")
    function = getattr(import_module(f"synrepl.transports.http.{module}_routes"), function_name)
    hints = get_type_hints(function)
    answer = hints.pop("return")
    if not (isinstance(answer, type) and issubclass(answer, msgspec.Struct)):
        answer = None
    _, *bodies = hints.values()
    if not bodies or bodies == [bytes]:
        return Handler(function, answer, *bodies)
    is_required = any(field.required for field in msgspec.structs.fields(bodies[0]))
    decoder = msgspec.json.Decoder(bodies[0])
    return Handler(function, answer, bodies[0], decoder, b"" if is_required else b"{}")


class Api(Resource):
    """Handles the requests of all routes.

    Every failure becomes a JSON response without internal details, or aborts a response that has begun.
    """

    isLeaf = True
    _logger = Logger()

    def __init__(self, services: Services, guard: AccessCheck, queue: TurnQueue) -> None:
        super().__init__()
        self.queue = queue
        self.services = services
        self.started_at = services.clock.seconds()
        self.endless: IEndlessChangelog | None = None
        """Feeds all readers that follow the changelog; None before the first of them."""
        self.native_transports: dict[str, Any] = {}
        """The native connections of replicas, by id."""
        self.limited_logger = LimitedLogger(self._logger, services.clock)
        self._guard = guard
        self._cache = ResponseCache(services.clock)
        self._making: defaultdict[str, DeferredLock] = defaultdict(DeferredLock)
        """By the name of a route: held while a response for the cache is made."""
        self._handlers: dict[str, Handler] = {}
        self._modules: dict[str, ModuleType] = {}

    async def load(self, module: str) -> ModuleType:
        """Import a module on first use, to save memory; in a thread, since some take half a second."""
        if module not in self._modules:
            self._modules[module] = await self.services.thread.run(lambda: import_module(module))
        return self._modules[module]

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
        routes, variables = ROUTER.find_path(request.path)
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
        if (handler := self._handlers.get(name := call.route.name)) is None:
            handler = self._handlers[name] = await self.services.thread.run(lambda: handler_of(name))
        if call.route.is_cached:
            return await self._answer_from_cache(call, handler)
        answer = await handler.function(call, *await self._read_body(call, handler))
        if call.route.right == Right.ADMINISTER and call.route.method != "GET":
            self._cache.clear()  # who administers sees the effect at once
        return answer

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
        return await self.services.thread.run(read) if is_large else read()

    async def decode_large(self, decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
        """Decode a large JSON body in a thread. Raises `ApiError`."""
        return await self.services.thread.run(lambda: decode_body(decoder, body))

    @staticmethod
    async def _make(call: Call, handler: Handler) -> Response:
        headers = call.request.responseHeaders
        before = {name for name, _ in headers.getAllRawHeaders()}
        body = _encode(await handler.function(call))
        own = [(name, values) for name, values in headers.getAllRawHeaders() if name not in before]
        return Response(body, own)

    async def _answer_from_cache(self, call: Call, handler: Handler) -> bytes:
        request, headers = call.request, call.request.responseHeaders
        kind = accepted_type(request, call.route.other_types)
        async with self._making[call.route.name]:
            # Others may ask while one is made in a thread: they take the same.
            response = self._cache.find(call.route, request.access, kind)
            if response is None:
                response = await self._make(call, handler)
                self._cache.store(call.route, request.access, kind, response)
        for name, values in response.headers:
            headers.setRawHeaders(name, values)
        return response.body

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


def make_site(services: Services, *, keys: Keyring | None = None) -> ApiSite:
    """Make a site that serves these services.

    With `keys`, every route with a right needs one of them, as ``Authorization: Bearer`` or as a certificate.
    Without keys, requests for host names of other sites are refused (`AccessCheck`).
    """
    # Waiting requests end when this daemon must not be read any more.
    services.publisher.holdings.subscribers.append(lambda why: services.publisher.waiters.wake_readers())
    guard = AccessCheck(
        keys if keys is not None else Keyring(), lambda: services.settings.hosts(services.log.notes)
    )
    queue = TurnQueue(services.clock)
    return ApiSite(Api(services, guard, queue), services, guard, queue)


def _url_refusal(request: Any, method: str, allowed: Collection[str]) -> ApiError:
    """Make the error for an unknown URL, or for a method that is not among the `allowed` ones of a URL."""
    is_synapse = request.path.startswith(SYNAPSE)
    if not allowed:
        if is_synapse:
            return ApiError("M_UNRECOGNIZED", "Unrecognized request")
        return ApiError("not_found", "no such URL in this API; GET /v1/openapi.json lists all")
    methods = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
    headers = {b"allow": methods.encode()}
    if is_synapse:
        return ApiError("M_UNRECOGNIZED", "Unrecognized request", status=405, headers=headers)
    why = f"{method} is not supported for this URL; use {methods}"
    return ApiError("method_not_allowed", why, headers=headers)


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a JSON body. Raises `ApiError`, which names a known field that is near to an unknown one."""
    facts: list[list[msgspec.Raw]] = []
    if len(body) > LARGE_BYTES and _may_have_facts(decoder.type):
        body, facts = split_facts(body)
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        unknown = _unknown_field.search(str(error))
        near = suggest(unknown[1], sorted(_field_names(decoder.type))) if unknown else ""
        raise ApiError("bad_request", f"{error}{near}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("bad_json", f"the body is not JSON: {jsontext.why_refused(body, error)}") from error
    except RecursionError:
        raise ApiError("bad_json", "the JSON body is nested too deeply") from None
    if facts:
        _restore_facts(decoded, facts)
    return decoded


def _may_have_facts(kind: Any) -> bool:
    return not FACTS_FIELDS.isdisjoint(field.name for field in msgspec.structs.fields(kind))


def _restore_facts(decoded: Any, facts: list[list[msgspec.Raw]]) -> None:
    """Give the facts that were cut out of a body back to its appends."""
    appends = [decoded] if hasattr(decoded, "facts") else getattr(decoded, "appends", [])
    if len(appends) != len(facts):
        raise ApiError("bad_json", "the body has facts in an unexpected place, or twice")
    for append, own in zip(appends, facts, strict=True):
        append.facts = own


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


def _field_names(kind: Any) -> set[str]:
    """The names of the fields of a struct, and of the structs in them."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return set().union(*map(_field_names, typing.get_args(kind)))
    names: set[str] = set()
    for field in msgspec.structs.fields(kind):
        names |= {field.encode_name} | _field_names(field.type)
    return names


def _encode(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return msgspec.json.encode(content) if isinstance(content, msgspec.Struct) else jsontext.dumps(content)


def _check_digest(request: Any, body: bytes) -> None:
    """Raises `ApiError` unless the body matches its Content-Digest."""
    digests = headers(request, CONTENT_DIGEST)
    if digests and not matches_digest(body, digests):
        raise ApiError("garbled", "the body does not match its Content-Digest: send the request again")
