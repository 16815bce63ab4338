"""The functions that handle routes: each is tied to its route where it stands, with `handles`."""

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec

from synrepl.http_api.route import Route

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_FUNCTIONS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {}
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


@lru_cache
def handler_of(name: str) -> Handler:
    """Return the handler of the route with this name. Raises `KeyError` without one."""
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
