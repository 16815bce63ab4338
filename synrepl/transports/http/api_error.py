"""How a request is refused: a status, a code for programs, a text for people."""

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
    "as_refused",
    "ours",
    "synapse",
    "upstream_unreachable",
]

MAX_MESSAGE: Final = 1_000
"""Characters of a message; some quote what was sent."""

RETRY_SECONDS: Final = b"1"
UPSTREAM_UNREACHABLE: Final = "upstream_unreachable"


class ApiError(Exception):
    """This request gets `status`, and `code` and `message` in the body."""

    def __init__(
        self, status: int, code: str, message: str, *, more: Mapping[str, Any] | None = None, **headers: bytes
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        self.more = more or {}
        self.headers = {name.replace("_", "-").encode(): value for name, value in headers.items()}


INTERNAL: Final = ApiError(500, "internal", "something went wrong here; it is in the log of this daemon")


def upstream_unreachable(why: str) -> ApiError:
    """What was to be passed on to the primary went nowhere, as there was no connection to it."""
    return ApiError(503, UPSTREAM_UNREACHABLE, why, retry_after=RETRY_SECONDS)


def as_refused(error: BaseException) -> ApiError | None:
    """How an error that is ours is told; None if it is not."""
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
            why = "there is not enough memory for this request now; try again, or send less at once"
            return ApiError(503, "out_of_memory", why, retry_after=RETRY_SECONDS)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            why = "the daemon has no file descriptor left; raise its limit (LimitNOFILE, ulimit -n)"
            return ApiError(503, "out_of_descriptors", why, retry_after=RETRY_SECONDS)
        case StorageError(retryable=True):
            return ApiError(503, "storage_error", str(error), retry_after=RETRY_SECONDS)
        case StorageError():
            return ApiError(500, "storage_error", str(error))
    return None


def ours(refused: ApiError) -> bytes:
    """The body of a refusal under ``/v1`` and everywhere else that is ours."""
    return dumps({"error": refused.code, **refused.more, "message": refused.message})


def synapse(refused: ApiError) -> bytes:
    """The body of a refusal under ``/_synapse``."""
    code = refused.code if refused.code.startswith("M_") else "M_UNKNOWN"
    return dumps({"errcode": code, "error": refused.message})
