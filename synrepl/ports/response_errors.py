"""Error responses of a daemon, as exceptions."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected, ReplicationError
from synrepl.wire.error_codes import ERROR_CODES, is_retryable


class NeverSent(NotConnected):
    """The request was not sent: there was no connection."""


class ApiResponseError(ReplicationError):
    """The server responded with an error: `status`, `code` and `message`.

    `body` is the response if it was a JSON object, else empty. `retryable` tells whether the same request can
    succeed later.
    """

    def __init__(
        self, *, url: str, status: int, code: str, message: str, body: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message
        self.body = body or {}
        self.retryable = is_retryable(status, code, self.body)


class NotForwarded(ReplicationError):
    """Posted facts were not stored, are not here yet, or their outcome is unknown: `code` tells which.

    `status` is that of the response (None: that of the code); `more` has further fields of its body.
    """

    def __init__(self, code: str, why: str, *, status: int | None = None, **more: Any) -> None:
        super().__init__(why)
        self.code = code
        self.status = ERROR_CODES[code].status if status is None else status
        self.more = more


def as_response_error(status: int, body: bytes, url: str) -> ApiResponseError:
    """Convert an error response, of a daemon or of Synapse."""
    try:
        value = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = {}
    errcode, error, message = (_text(value.get(key)) for key in ("errcode", "error", "message"))
    code = errcode or error or "error"
    why = " ".join((error if errcode else message).split())[:1000] or NO_REASON.get(status, "no reason given")
    return ApiResponseError(url=url, status=status, code=code, message=why, body=value)


NO_REASON: Final = {
    413: "a proxy on the way takes no body of this size: raise its limit (nginx: client_max_body_size)",
    502: "a proxy on the way cannot reach the daemon",
    504: "a proxy on the way had no answer of the daemon in time",
}
"""What is most likely if an answer has a status, and is not a daemon's."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
