"""The error codes of the homeserver."""

from typing import Final

from synrepl.wire.error_codes import ErrorCode

ERROR_CODES: Final = {
    "not_invalidated": ErrorCode(
        502,
        "the homeserver's database or Redis failed",
        "the message says whether rows were written; repeat the request",
    ),
}
"""Why the caches of the watched homeserver are not invalidated."""
