"""Whether what a reader holds is a part of our history. Each way in which it is not is told apart.

Someone whose history is beside ours must hear of it at once: it would otherwise be given facts that do not
follow from what it has, or wait in silence for ever.
"""

from collections.abc import Iterable
from typing import Any

from synrepl.ports.interfaces import ILog
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["check", "digests", "trimmed"]


async def check(log: ILog, wanted: ChangelogQuery) -> None:
    """Raises `ApiError` unless `wanted` can be read from this log without anything missing or beside it."""
    since, epoch = wanted.since, wanted.epoch
    if wanted.history is not None and wanted.history != log.history:
        raise _refused(log, "other_history", f"this log is of history {log.history}")
    if epoch is not None and epoch > log.epoch:
        # Someone else took over, and this daemon has not heard of it yet: that may pass.
        why = f"epoch {epoch} is later than any that is known here, which is {log.epoch}"
        raise _refused(log, "other_epoch", why, retryable=True)
    if since > log.serial:
        raise _refused(log, "ahead_of_log", f"serial {since} is beyond this log, at {log.serial}")
    if since < log.trimmed_upto.serial and not wanted.compacted:
        raise trimmed(log, since)
    held = None if wanted.digest is None else await log.digest_at(since)
    if held is not None:
        if held != wanted.digest:
            raise _refused(log, "fork", f"the digest of serial {since} is another one here")
    elif epoch is not None:
        for epoch_start in log.epoch_starts:
            if epoch_start.epoch > epoch and epoch_start.serial < since:
                began = f"epoch {epoch_start.epoch} began after serial {epoch_start.serial}"
                why = f"{began}, before {since} of epoch {epoch}"
                raise _refused(log, "fork", why)


def trimmed(log: ILog, since: int) -> ApiError:
    """What a reader from before the beginning of the log is told."""
    trimmed_upto = log.trimmed_upto.serial
    why = f"the log was trimmed up to serial {trimmed_upto}; compacted=true gives what is left after {since}"
    return _refused(log, "trimmed", why, status=410, trimmed_upto=trimmed_upto)


async def digests(log: ILog, serials: Iterable[int]) -> dict[str, Any]:
    """The digest at each of these serials, null where it is not known, and where the log stands."""
    found = {str(serial): await log.digest_at(serial) for serial in sorted(set(serials))}
    return {"epoch": log.epoch, "serial": log.serial, "history": log.history, "digests": found}


def _refused(
    log: ILog, code: str, message: str, *, status: int = 409, retryable: bool = False, **more: Any
) -> ApiError:
    told = {"serial": log.serial, "epoch": log.epoch, **more, "retryable": retryable}
    return ApiError(status, code, message, more=told)
