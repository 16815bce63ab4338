"""The error codes of files."""

from typing import Final

from synrepl.wire.error_codes import ErrorCode

ERROR_CODES: Final = {
    "checksum_mismatch": ErrorCode(400, "the bytes of a file have another checksum; nothing was stored"),
    "range_not_satisfiable": ErrorCode(416, "the `Range` is outside the file"),
    "file_not_here": ErrorCode(503, "the bytes of the file are not here yet", "retry", None, 1),
}
"""Why a file is not stored, or not sent."""
