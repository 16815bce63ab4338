"""Errors of the HTTP API: a status, a code for programs, a message for people."""

import errno
from collections.abc import Mapping
from typing import Any, Final

from synrepl.errors import StorageError, UnknownStream
from synrepl.replication.roles import ReadOnlyHere
from synrepl.storage import GivenElsewhere, KeyReused
from synrepl.streams.jsontext import dumps

__all__ = [
    "INTERNAL",
    "RETRY_SECONDS",
    "UPSTREAM_UNREACHABLE",
    "ApiError",
    "as_api_error",
    "api_body",
    "synapse_body",
    "unreachable_error",
]

MAX_MESSAGE: Final = 1_000
"""Maximum length of a message in characters; some quote the request."""

RETRY_SECONDS: Final = b"1"
UPSTREAM_UNREACHABLE: Final = "upstream_unreachable"


class ApiError(Exception):
    """An error response: `status`, and a body with `code`, `message` and the fields of `more`."""

    def __init__(
        self, status: int, code: str, message: str, *, more: Mapping[str, Any] | None = None, **headers: bytes
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        self.more = more or {}
        self.headers = {name.replace("_", "-").encode(): value for name, value in headers.items()}


INTERNAL: Final = ApiError(500, "internal", "internal error; see the log of this daemon")


def unreachable_error(why: str) -> ApiError:
    """Make the error for a write that was not sent, because the primary could not be connected to."""
    return ApiError(503, UPSTREAM_UNREACHABLE, why, retry_after=RETRY_SECONDS)


def as_api_error(error: BaseException) -> ApiError | None:
    """Convert a known exception to its response; None for an unknown one."""
    match error:
        case ApiError():
            return error
        case UnknownStream():
            return ApiError(404, "unknown_stream", str(error))
        case ReadOnlyHere():
            more = {"retryable": error.retryable, "moved_to": error.moved_to}
            return ApiError(503, error.code, str(error), more=more, retry_after=RETRY_SECONDS)
        case GivenElsewhere():
            return ApiError(409, error.code, str(error))
        case KeyReused():
            return ApiError(409, "idempotency_key_reused", str(error))
        case MemoryError():
            why = "not enough memory for this request: retry later, or send smaller requests"
            return ApiError(503, "out_of_memory", why, retry_after=RETRY_SECONDS)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            why = "the daemon has no file descriptors left: raise its limit (LimitNOFILE, ulimit -n)"
            return ApiError(503, "out_of_descriptors", why, retry_after=RETRY_SECONDS)
        case StorageError(retryable=True):
            return ApiError(503, "storage_error", str(error), retry_after=RETRY_SECONDS)
        case StorageError():
            return ApiError(500, "storage_error", str(error))
    return None


def api_body(error: ApiError) -> bytes:
    """Encode an error of the API's own routes."""
    return dumps({"error": error.code, **error.more, "message": error.message})


def synapse_body(error: ApiError) -> bytes:
    """Encode an error of a route under ``/_synapse``."""
    code = error.code if error.code.startswith("M_") else "M_UNKNOWN"
    return dumps({"errcode": code, "error": error.message})
