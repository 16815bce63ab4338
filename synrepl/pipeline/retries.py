"""Retries of jobs on a busy machine: Spark lets a Python worker start for 10 s, which is not configurable."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

__all__ = ["ATTEMPTS", "is_late_worker", "retry_late_workers"]

ATTEMPTS: Final = 5

_LATE: Final = "Python worker failed to connect back"
_logger: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def is_late_worker(error: BaseException) -> bool:
    """Whether a Python worker did not start in time, so that a retry may succeed."""
    return _LATE in str(error)


def retry_late_workers(job: Callable[P, T]) -> Callable[P, T]:
    """Retry a job if a Python worker starts too late, up to `ATTEMPTS` attempts in all.

    The job must be idempotent after an end at any point.
    """

    @wraps(job)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(1, ATTEMPTS):
            try:
                return job(*args, **kwargs)
            except Exception as error:
                if not is_late_worker(error):
                    raise
                _logger.warning(
                    "a Python worker of Spark did not start within 10 s: the machine is busy; retrying,"
                    " attempt %d of %d",
                    attempt + 1,
                    ATTEMPTS,
                )
        return job(*args, **kwargs)

    return run
