"""Error responses of a daemon, as exceptions."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected, ReplicationError
from synrepl.wire.error_codes import ERROR_CODES, is_retryable

__all__ = [
    "AheadOfLog",
    "Fork",
    "NeverSent",
    "NotForwarded",
    "NotHereYet",
    "OtherEpoch",
    "OtherHistory",
    "ApiResponseError",
    "Trimmed",
    "as_response_error",
]


class NeverSent(NotConnected):
    """The request was not sent: there was no connection."""


class ApiResponseError(ReplicationError):
    """The server responded with an error: `status`, `code` and `message`.

    `body` is the response if it was a JSON object. `retryable` tells whether the same request can succeed
    later.
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


class _OtherLog(ApiResponseError):
    """The reader's position is not in the server's log, which ends at `serial` of `epoch`."""

    @property
    def serial(self) -> int:
        """The end of the server's log."""
        return _integer(self.body.get("serial"))

    @property
    def epoch(self) -> int:
        """The epoch of the server's log."""
        return _integer(self.body.get("epoch"))


class AheadOfLog(_OtherLog):
    """The reader has facts that the server's log, which ends at `serial` of `epoch`, lacks."""


class Fork(_OtherLog):
    """The histories diverged: the server has another fact at the reader's position, or that epoch had ended
    before.
    """


class OtherEpoch(_OtherLog):
    """The reader knows a later epoch than the server: another daemon has become primary."""


class OtherHistory(_OtherLog):
    """The server's log has another history than the reader's; it never was a copy."""


class Trimmed(_OtherLog):
    """The server has trimmed facts that the reader lacks, up to `trimmed_upto`."""

    @property
    def trimmed_upto(self) -> int:
        """The serial up to which the server's log was trimmed."""
        return _integer(self.body.get("trimmed_upto"))


class NotHereYet(ApiResponseError):
    """The server's log did not reach `serial` in time. Posted facts are committed at its upstream."""

    @property
    def serial(self) -> int:
        """The requested serial."""
        return _integer(self.body.get("serial"))


class NotForwarded(ReplicationError):
    """The facts were not stored, are not here yet, or their outcome is unknown: `code` tells which.

    `more` is for the response, as is `status`, which replaces that of the code.
    """

    def __init__(self, code: str, why: str, *, status: int | None = None, **more: Any) -> None:
        super().__init__(why)
        self.code = code
        self.status = ERROR_CODES[code].status if status is None else status
        self.more = more


_TYPES: Final[dict[str, type[ApiResponseError]]] = {
    "ahead_of_log": AheadOfLog,
    "fork": Fork,
    "other_epoch": OtherEpoch,
    "other_history": OtherHistory,
    "trimmed": Trimmed,
    "not_here_yet": NotHereYet,
}


def as_response_error(status: int, body: bytes, url: str) -> ApiResponseError:
    """Convert an error response, of a daemon or of Synapse."""
    try:
        value = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = {}
    errcode, error, message = (_text(value.get(key)) for key in ("errcode", "error", "message"))
    code = errcode or error or "error"
    why = " ".join((error if errcode else message).split())[:1000] or "no reason given"
    error_type = _TYPES.get(code, ApiResponseError)
    return error_type(url=url, status=status, code=code, message=why, body=value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
