"""The routes of the core and of all installed rooms."""

from functools import cache

from synrepl.http_api.route import HttpRequest, Route
from synrepl.http_api.routes import ROUTES, STATUS
from synrepl.rooms import rooms


@cache
def all_routes() -> tuple[Route, ...]:
    """Return all routes, those of the core first."""
    return (*ROUTES, *(route for room in rooms() for route in room.routes()))


@cache
def status_request() -> HttpRequest:
    """Return the request of the status; its answer is checked for the keys of all installed rooms too.

    A daemon need not have the rooms that are installed here.
    """
    request, shape = STATUS.request(), dict(STATUS.answer)
    for room in rooms():
        shape |= {key: (None, one) for key, one in room.status_shape().items()}
    return request._replace(answer=shape)
