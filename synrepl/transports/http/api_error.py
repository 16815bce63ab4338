"""Errors of the HTTP API: a status, a code for programs, a message for people."""

import errno
from collections.abc import Mapping
from typing import Any, Final

from twisted.web.http import RESPONSES

from synrepl.base.response_errors import NotForwarded, OwnResponse
from synrepl.declarations import all_error_codes
from synrepl.errors import StorageError, UnknownStream
from synrepl.storage.append_errors import GivenElsewhere, KeyReused, ReadOnlyHere
from synrepl.storage.private_files import DiskFull
from synrepl.wire.jsontext import dumps

MAX_MESSAGE: Final = 1_000
"""A longer message is cut to this many characters: some messages quote the request."""

RETRY_SECONDS: Final = 1


class ApiError(Exception):
    """An error response, with the status and headers of its code, and a body with the fields of `more`.

    `status` replaces that of the code. It is required for another daemon's code that this one lacks.
    """

    def __init__(
        self,
        code: str,
        message: str,
        /,
        *,
        status: int | None = None,
        headers: Mapping[bytes, bytes] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        self.more = more
        self.headers = dict(headers or {})
        codes = all_error_codes()
        kind = codes[code] if status is None else codes.get(code)
        self.status = status or codes[code].status
        if kind is not None and kind.status == self.status:
            if kind.retryable is not None:
                more.setdefault("retryable", kind.retryable)
            if kind.retry_after is not None:
                self.headers[b"retry-after"] = b"%d" % kind.retry_after


INTERNAL: Final = ApiError("internal", "internal error; see the log of this daemon")


def as_api_error(error: BaseException) -> ApiError | None:
    """Convert a known exception to its response; None for an unknown one."""
    more: dict[str, Any]
    match error:
        case ApiError():
            return error
        case OwnResponse():
            return _own(error)
        case UnknownStream():
            return ApiError("unknown_stream", str(error))
        case ReadOnlyHere():
            retry = {b"retry-after": b"%d" % RETRY_SECONDS}
            more = {"retryable": error.retryable, "moved_to": error.moved_to}
            return ApiError(error.code, str(error), status=503, headers=retry, **more)
        case NotForwarded():
            return ApiError(error.code, str(error), status=error.status, **error.more)
        case GivenElsewhere():
            return ApiError(error.code, str(error))
        case KeyReused():
            return ApiError("idempotency_key_reused", str(error))
        case MemoryError():
            why = "not enough memory for this request: retry later, or send smaller requests"
            return ApiError("out_of_memory", why)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            why = "the daemon has no file descriptors left: raise its limit (LimitNOFILE, ulimit -n)"
            return ApiError("out_of_descriptors", why)
        case DiskFull():
            return ApiError("disk_full", str(error))
        case StorageError(retryable=True):
            return ApiError("storage_error", str(error))
        case StorageError():
            return ApiError("storage_error", str(error), status=500)
    return None


def _own(error: OwnResponse) -> ApiError:
    code, message, status, retry_after, more = error.response()
    retry = {} if retry_after is None else {b"retry-after": b"%d" % retry_after}
    return ApiError(code, message, status=status, headers=retry, **more)


def api_body(error: ApiError) -> bytes:
    """Encode an error of the API's own routes."""
    return dumps({"error": error.code, **error.more, "message": error.message})


def encode_response(error: ApiError) -> bytes:
    """Encode a whole response, after which the connection is closed: for errors outside of a request."""
    body = api_body(error)
    headers = error.headers | {
        b"connection": b"close",
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
    }
    lines = b"".join(b"%b: %b\r\n" % header for header in headers.items())
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (error.status, RESPONSES[error.status], lines, body)


def synapse_body(error: ApiError) -> bytes:
    """Encode an error of a route under ``/_synapse``."""
    code = error.code if error.code.startswith("M_") else "M_UNKNOWN"
    return dumps({"errcode": code, "error": error.message})
