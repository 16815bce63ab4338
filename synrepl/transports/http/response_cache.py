"""Responses that take long to make, kept for a moment: whoever asks more often costs no more."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from synrepl.http_api.route import Route
from synrepl.ports.access import Access
from synrepl.ports.interfaces import IClock

FRESH_SECONDS: Final = 1.0


class Response(NamedTuple):
    """A body, and the headers that its handler set."""

    body: bytes
    headers: Sequence[tuple[bytes, Sequence[bytes]]]


class ResponseCache:
    """The last response of each route to peers with the same rights; it is fresh for `FRESH_SECONDS`.

    `kind` tells apart responses of a route that has several types of content.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._responses: dict[object, tuple[float, Response]] = {}

    def find(self, route: Route, access: Access | None, kind: str) -> Response | None:
        """Return the response, if it is fresh."""
        made_at, response = self._responses.get(_key(route, access, kind), (0.0, None))
        return response if self._is_fresh(made_at) else None

    def store(self, route: Route, access: Access | None, kind: str, response: Response) -> None:
        """Keep a response that was made now, and drop those that are not fresh."""
        self._responses = {key: found for key, found in self._responses.items() if self._is_fresh(found[0])}
        self._responses[_key(route, access, kind)] = (self._clock.seconds(), response)

    def _is_fresh(self, made_at: float) -> bool:
        # Not one of the future: the clock was set back since.
        return 0 <= self._clock.seconds() - made_at < FRESH_SECONDS

    def clear(self) -> None:
        """Drop all responses: they tell of a state that a request has changed."""
        self._responses.clear()


def _key(route: Route, access: Access | None, kind: str) -> object:
    if access is None:
        return route.name, kind, None
    # A key with some streams sees its own leases among those of others.
    return (
        route.name,
        kind,
        (access.rights, access.streams, access.name if access.streams is not None else ""),
    )
