"""Reads of what this daemon does not hold are refused: an empty answer would say that there is nothing."""

from collections.abc import Iterable
from typing import Any, Final

from synrepl.replication.holdings import Holdings
from synrepl.transports.http.api_error import ApiError

__all__ = ["NOT_READY_SECONDS", "check_held", "check_readable", "filtered", "say_held"]

NOT_READY_SECONDS: Final = b"5"


def check_readable(holdings: Holdings) -> None:
    """Raises `ApiError` while there is no whole copy here."""
    if why := holdings.unreadable():
        more = {"retryable": True, "moved_to": holdings.primary_address}
        raise ApiError(503, "not_ready", why, more=more, retry_after=NOT_READY_SECONDS)


def check_held(holdings: Holdings, streams: Iterable[str] = (), writers: Iterable[str] = ()) -> None:
    """Raises `ApiError` if facts of one of these streams or writers are not held here."""
    if why := holdings.lacks(streams, writers):
        raise filtered(holdings, why)


def filtered(holdings: Holdings, why: str) -> ApiError:
    """A refusal of what the filter of this copy has left out."""
    more = {"retryable": False, "moved_to": holdings.primary_address}
    return ApiError(409, "filtered", why, more=more)


def say_held(request: Any, holdings: Holdings) -> None:
    """Say in the head of an answer what is held, where that is not everything."""
    held = holdings.filter
    for name, names in ((b"synrepl-holds-streams", held.streams), (b"synrepl-holds-writers", held.writers)):
        if names is not None:
            request.setHeader(name, ",".join(sorted(names)).encode())
