"""Jobs on a busy machine: Spark gives a Python worker ten seconds to start, and takes no setting for it."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

__all__ = ["ATTEMPTS", "is_late_worker", "retried"]

ATTEMPTS: Final = 5

_LATE: Final = "Python worker failed to connect back"
_logger: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def is_late_worker(error: BaseException) -> bool:
    """Whether Spark gave up on a Python worker that had not started in time. Trying again helps."""
    return _LATE in str(error)


def retried(job: Callable[P, T]) -> Callable[P, T]:
    """Run this again, `ATTEMPTS` times in all, while Spark gives up on Python workers that start late.

    The job must be one that can be run again after it ended at any point.
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
                    "a Python worker of Spark did not start within 10 s, as the machine is busy:"
                    " trying again, attempt %d of %d",
                    attempt + 1,
                    ATTEMPTS,
                )
        return job(*args, **kwargs)

    return run
