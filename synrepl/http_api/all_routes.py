"""The routes of the core and of all installed rooms."""

from functools import cache

from synrepl.http_api.route import Route
from synrepl.http_api.routes import ROUTES
from synrepl.rooms import rooms


@cache
def all_routes() -> tuple[Route, ...]:
    """Return all routes, those of the core first."""
    return (*ROUTES, *(route for room in rooms() for route in room.routes()))
