"""Reads that wait until the log has reached a serial."""

from typing import Any, Final

from synrepl.replication.log_waiters import LogWaiters, TooManyWaiting
from synrepl.storage import Log
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError
from synrepl.transports.http.query import integer, seconds

__all__ = ["not_here_yet_error", "read_your_writes"]

MAX_WAIT_SECONDS: Final = 300.0
WAIT_SECONDS: Final = 10.0


async def read_your_writes(request: Any, log: Log, waiters: LogWaiters) -> None:
    """Wait until the log reaches the ``min_serial`` of this request.

    Raises `ApiError` on timeout, and at the limit of waiters.
    """
    serial = integer(request, "min_serial", 0)
    timeout = seconds(request, "timeout", highest=MAX_WAIT_SECONDS, default=WAIT_SECONDS)
    try:
        is_here = await waiters.wait_for(serial, timeout)
    except TooManyWaiting as error:
        raise ApiError(503, "too_many_waiting", str(error), retry_after=RETRY_SECONDS) from error
    if not is_here:
        raise not_here_yet_error(serial, log.serial)


def not_here_yet_error(serial: int, at: int, **more: Any) -> ApiError:
    """Make the error for a log that did not reach the serial in time."""
    why = f"serial {serial} has not arrived yet; this log is at {at}"
    return ApiError(
        504, "not_here_yet", why, more={"serial": serial, "at": at, **more}, retry_after=RETRY_SECONDS
    )
