"""Errors of requests that daemons send to each other."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from synrepl.errors import NotConnected, ReplicationError
from synrepl.wire.error_codes import ERROR_CODES


class ErrorResponse(NamedTuple):
    """A response of the HTTP API that refuses: its code, its message, and further fields of its body.

    `status` replaces that of the code; `retry_after` is in seconds (None: that of the code).
    """

    code: str
    message: str
    status: int | None = None
    retry_after: int | None = None
    more: Mapping[str, Any] = MappingProxyType({})


class OwnResponse:
    """Mix-in of errors that say themselves how the HTTP API answers, such as those of rooms."""

    def response(self) -> ErrorResponse:
        """Return the response."""
        raise NotImplementedError


class NeverSent(NotConnected):
    """The request was not sent: there was no connection."""


class NotForwarded(ReplicationError):
    """Posted facts were not stored, are not here yet, or their outcome is unknown: `code` tells which.

    `status` is that of the response (None: that of the code); `more` has further fields of its body.
    """

    def __init__(self, code: str, why: str, *, status: int | None = None, **more: Any) -> None:
        super().__init__(why)
        self.code = code
        self.status = ERROR_CODES[code].status if status is None else status
        self.more = more
