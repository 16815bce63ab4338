"""Errors of requests that daemons send to each other."""

from typing import Any

from synrepl.errors import NotConnected, ReplicationError
from synrepl.wire.error_codes import ERROR_CODES


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
