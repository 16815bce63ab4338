"""What the core and all installed rooms declare together: commands of the wire, routes, error codes.

Each function imports what it returns: whoever asks for routes need not load the commands.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from synrepl.rooms import rooms

if TYPE_CHECKING:
    from synrepl.http_api.route import HttpRequest, Route
    from synrepl.wire.error_codes import ErrorCode
    from synrepl.wire.grammar import Command


@cache
def all_commands() -> "tuple[type[Command], ...]":
    """Return all commands of the wire, those of the core first."""
    from synrepl.wire.commands import declared_commands

    return (*declared_commands(), *(command for room in rooms() for command in room.wire_commands()))


@cache
def all_routes() -> "tuple[Route, ...]":
    """Return all routes, those of the core first."""
    from synrepl.http_api.routes import ROUTES

    return (*ROUTES, *(route for room in rooms() for route in room.routes()))


@cache
def status_request() -> "HttpRequest":
    """Return the request of the status; its answer is checked for the keys of all installed rooms too.

    A daemon need not have the rooms that are installed here.
    """
    from synrepl.http_api.routes import STATUS

    request, shape = STATUS.request(), dict(STATUS.answer)
    for room in rooms():
        shape |= {key: (None, one) for key, one in room.status_shape().items()}
    return request._replace(answer=shape)


@cache
def all_error_codes() -> "Mapping[str, ErrorCode]":
    """Return what each code means, those of the core first."""
    from synrepl.wire.error_codes import ERROR_CODES

    others = {code: kind for room in rooms() for code, kind in room.error_codes().items()}
    return MappingProxyType(ERROR_CODES | others)
