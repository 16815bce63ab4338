"""Check that a reader's position lies in this log's history, with a code for each kind of mismatch.

A reader on a diverged history must be refused at once. Otherwise it would receive facts that do not follow
its own, or wait forever.
"""

from collections.abc import Iterable
from typing import Any

from synrepl.ports.interfaces import ILog
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["check", "read_digests", "trimmed_error"]


async def check(log: ILog, query: ChangelogQuery) -> None:
    """Raises `ApiError` unless this log contains the reader's position and every fact after it."""
    since, epoch = query.since, query.epoch
    if query.history is not None and query.history != log.history:
        raise _refusal(
            log, "other_history", f"the reader's log has another history; this log has history {log.history}"
        )
    if epoch is not None and epoch > log.epoch:
        # Another daemon may have taken over, unknown to this one so far: retryable.
        why = f"epoch {epoch} is later than {log.epoch}, the latest epoch that this daemon knows"
        raise _refusal(log, "other_epoch", why, retryable=True)
    if since > log.serial:
        raise _refusal(log, "ahead_of_log", f"serial {since} is beyond the end of this log, {log.serial}")
    if since < log.trimmed_upto.serial and not query.compacted:
        raise trimmed_error(log, since)
    own_digest = None if query.digest is None else await log.digest_at(since)
    if own_digest is not None:
        if own_digest != query.digest:
            raise _refusal(
                log, "fork", f"the reader's log has diverged: serial {since} has another digest in this log"
            )
    elif epoch is not None:
        for epoch_start in log.epoch_starts:
            if epoch_start.epoch > epoch and epoch_start.serial < since:
                began = f"epoch {epoch_start.epoch} began after serial {epoch_start.serial}"
                why = f"the reader's log has diverged: {began}, before its serial {since} of epoch {epoch}"
                raise _refusal(log, "fork", why)


def trimmed_error(log: ILog, since: int) -> ApiError:
    """Make the error for a reader whose position was trimmed."""
    trimmed_upto = log.trimmed_upto.serial
    why = (
        f"the log was trimmed up to serial {trimmed_upto}; "
        f"request the remaining facts after {since} with compacted=true"
    )
    return _refusal(log, "trimmed", why, status=410, trimmed_upto=trimmed_upto)


async def read_digests(log: ILog, serials: Iterable[int]) -> dict[str, Any]:
    """Return the digest at each of these serials (None if unknown), and the log's head."""
    found = {str(serial): await log.digest_at(serial) for serial in sorted(set(serials))}
    return {"epoch": log.epoch, "serial": log.serial, "history": log.history, "digests": found}


def _refusal(
    log: ILog, code: str, message: str, *, status: int = 409, retryable: bool = False, **extra: Any
) -> ApiError:
    more = {"serial": log.serial, "epoch": log.epoch, **extra, "retryable": retryable}
    return ApiError(status, code, message, more=more)
