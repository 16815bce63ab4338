"""Check that a reader's position lies in this log's history, with the codes that HTTP has for a mismatch."""

from typing import Any, Final

from synrepl.ports.interfaces import ILog
from synrepl.replication.admission import ReaderPosition, history_mismatch, position_mismatch
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["check", "trimmed_error"]

CODES: Final = {"ahead": "ahead_of_log"}
"""Codes that have another name over HTTP."""


async def check(log: ILog, query: ChangelogQuery) -> None:
    """Raises `ApiError` unless this log contains the reader's position and every fact after it."""
    reader = ReaderPosition(
        history=query.history,
        serial=query.since,
        epoch=query.epoch,
        digest=query.digest,
        compacted=query.compacted,
        digest_decides=True,
    )
    mismatch = history_mismatch(log, reader) or await position_mismatch(log, reader)
    if mismatch is None:
        return
    if mismatch.code == "trimmed":
        raise trimmed_error(log, query.since)
    raise _refusal(log, CODES.get(mismatch.code, mismatch.code), mismatch.message)


def trimmed_error(log: ILog, since: int) -> ApiError:
    """Make the error for a reader whose position was trimmed."""
    trimmed_upto = log.trimmed_upto.serial
    why = (
        f"the log was trimmed up to serial {trimmed_upto}; "
        f"request the remaining facts after {since} with compacted=true"
    )
    return _refusal(log, "trimmed", why, trimmed_upto=trimmed_upto)


def _refusal(log: ILog, code: str, message: str, **extra: Any) -> ApiError:
    return ApiError(code, message, serial=log.serial, epoch=log.epoch, **extra)
