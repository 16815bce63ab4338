"""The functions that handle routes: each is tied to its route where it stands, with `handles`."""

from collections.abc import Awaitable, Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, get_type_hints

import msgspec

from synrepl.http_api.route import Route
from synrepl.rooms import Room, rooms

if TYPE_CHECKING:
    from synrepl.transports.http.api_error import ApiError
    from synrepl.transports.http.http_channel import ApiChannel

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_FUNCTIONS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {}
"""By the name of the route."""


class IBody(Protocol):
    """Takes the body of a request as it arrives, as Twisted writes it, in place of a temporary file.

    After `close`, or `truncate`, what came is dropped.
    """

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def tell(self) -> int: ...

    def seek(self, offset: int, whence: int = 0) -> int: ...

    def read(self, count: int = -1) -> bytes: ...

    def truncate(self, size: int = 0) -> int: ...


class OwnBody(NamedTuple):
    """How a handler takes the body of a request, of at most `limit` bytes.

    `begin` is called with the channel on which it will arrive, and with a function that is called if the rest
    of it need not be sent.
    """

    limit: int
    begin: "Callable[[ApiChannel, Callable[[ApiError], None]], IBody]"


B = TypeVar("B", bound="Callable[[Any, bytes], OwnBody | None]")

_BODIES: Final[dict[str, "Callable[[Any, bytes], OwnBody | None]"]] = {}
"""By the name of the route."""


class Handler(NamedTuple):
    """The function that handles a route, and the structs of its body and answer.

    `body` is None if the function takes no body, and `bytes` if it takes one that is not JSON; `answer` is
    None if the function returns no struct.
    """

    function: Callable[..., Awaitable[Any]]
    answer: Any
    body: Any = None
    decoder: "msgspec.json.Decoder[Any] | None" = None
    absent_body: bytes = b""
    """The body if none is sent: ``{}`` if all fields have defaults, else empty, which is refused."""


def handles(route: Route) -> Callable[[F], F]:
    """Decorator: this function handles requests of the route.

    It takes the `Call`, and the body as a struct if the route has one; its signature has the structs of body
    and answer. Raises `ValueError` if another function does so already.
    """

    def tie(function: F) -> F:
        if _FUNCTIONS.setdefault(route.name, function) is not function:
            raise ValueError(f"two functions handle {route.method} {route.path}")
        return function

    return tie


def takes_body(route: Route) -> Callable[[B], B]:
    """Decorator: this function says how the body of a request of the route is taken, by the request's URI.

    With None it is taken as any other. The handler finds the `IBody` as the `content` of its request.
    """

    def tie(function: B) -> B:
        _BODIES[route.name] = function
        return function

    return tie


def own_body(route: Route | None, context: Any, uri: bytes) -> OwnBody | None:
    """Return how the body of a request with this URI is taken; None: as any other."""
    if route is None:
        return None
    _import_functions(route.name)
    find = _BODIES.get(route.name)
    return None if find is None else find(context, uri)


@cache
def _import_functions(name: str) -> None:
    """Import the functions of a room with the first request for one of its routes; most daemons get none."""
    if (room := _rooms_of_routes().get(name)) is not None:
        room.import_handlers()


@cache
def _rooms_of_routes() -> dict[str, Room]:
    return {route.name: room for room in rooms() for route in room.routes()}


@lru_cache
def handler_of(name: str) -> Handler:
    """Return the handler of the route with this name. Raises `KeyError` without one."""
    _import_functions(name)
    function = _FUNCTIONS[name]
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
