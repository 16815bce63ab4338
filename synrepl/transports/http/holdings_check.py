"""Checks of reads against a filtered copy's holdings.

An empty response would claim that there are no facts, so reads of streams and writers that are not held are
refused.
"""

from collections.abc import Iterable
from typing import Any

from synrepl.replication.holdings import Holdings
from synrepl.transports.http.api_error import ApiError

__all__ = ["check_held", "check_readable", "filtered_error", "set_held_header"]


def check_readable(holdings: Holdings) -> None:
    """Raises `ApiError` while this daemon has no complete copy."""
    if why := holdings.unreadable():
        raise ApiError("not_ready", why, moved_to=holdings.primary_address)


def check_held(holdings: Holdings, streams: Iterable[str] = (), writers: Iterable[str] = ()) -> None:
    """Raises `ApiError` if one of these streams or writers is not held by this daemon."""
    if why := holdings.lacks(streams, writers):
        raise filtered_error(holdings, why)


def filtered_error(holdings: Holdings, why: str) -> ApiError:
    """Make the error for a read of facts that the filter of this copy leaves out."""
    return ApiError("filtered", why, moved_to=holdings.primary_address)


def set_held_header(request: Any, holdings: Holdings) -> None:
    """Set headers that list the held streams and writers, if this copy is filtered."""
    held_filter = holdings.filter
    for name, names in (
        (b"synrepl-holds-streams", held_filter.streams),
        (b"synrepl-holds-writers", held_filter.writers),
    ):
        if names is not None:
            request.setHeader(name, ",".join(sorted(names)).encode())
