"""Common parts of the jobs: the progress callback, retries on a busy machine, one-line failures."""

import logging
import re
import time
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from synrepl.errors import ReplicationError

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the amount done and the total (0 if the same as before, or unknown)."""


def ignore_progress(step: str, done: int, total: int) -> None:
    """Discard a report of progress."""


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


ATTEMPTS: Final = 5

# Spark lets a Python worker start for 10 s, which is not configurable.
_LATE: Final = "Python worker failed to connect back"
_logger: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def is_late_worker(error: BaseException) -> bool:
    """Whether a Python worker did not start in time, so that a retry may succeed."""
    return _LATE in str(error)


def retry_late_workers(job: Callable[P, T]) -> Callable[P, T]:
    """Retry a job if a Python worker starts too late, up to `ATTEMPTS` attempts in all.

    The job must be safe to repeat after it failed at any point.
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


_OURS: Final = re.compile(r"^(?:.*: )?synrepl\.[\w.]+\.(\w+): (.+?)\s*$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+?)\s*$", re.MULTILINE)

_NO_PYTHON: Final = re.compile(r'(Cannot run program "[^"]*"[^\n]*)(?s:.*)PythonWorkerFactory')
_OTHER_PYTHON: Final = re.compile(r"PYTHON_VERSION_MISMATCH|No module named ")

PYTHON_ADVICE: Final = (
    "; the tasks of Spark need a Python of the driver's version, with pyarrow: set PYSPARK_PYTHON to that of"
    " the environment in which synrepl[spark] is installed"
)


def explain_failure(error: BaseException) -> str:
    """Return the message of a failed job as one line.

    An error in a task or a callback arrives as a Python traceback inside a Java one. The message is the last
    line of the Python traceback, or the first line of another error.
    """
    if isinstance(error, ReplicationError):
        return str(error)
    if is_late_worker(error):
        return "a Python worker of Spark did not start within 10 s: the machine is busy; run the job again"
    text = str(error).replace("\\n", "\n")
    if missing := _NO_PYTHON.search(text):
        return missing[1] + PYTHON_ADVICE
    return _message(error, text) + (PYTHON_ADVICE if _OTHER_PYTHON.search(text) else "")


def _message(error: BaseException, text: str) -> str:
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    if python := _PYTHON.findall(text):
        return ": ".join(python[-1])
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__
