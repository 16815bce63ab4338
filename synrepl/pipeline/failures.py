"""One-line explanation of a failed job, extracted from the traceback that Spark wraps it in."""

import re
from typing import Final

from synrepl.errors import ReplicationError
from synrepl.pipeline.retries import is_late_worker

__all__ = ["explain_failure"]

_OURS: Final = re.compile(r"^(?:.*: )?synrepl\.[\w.]+\.(\w+): (.+?)\s*$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+?)\s*$", re.MULTILINE)


def explain_failure(error: BaseException) -> str:
    """Return the message of a failed job as one line.

    An error in a task or a callback arrives as a Python traceback within a Java one; its last line is the
    message.
    """
    if isinstance(error, ReplicationError):
        return str(error)
    if is_late_worker(error):
        return "a Python worker of Spark did not start within 10 s: the machine is busy; run the job again"
    text = str(error).replace("\\n", "\n")
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    if python := _PYTHON.findall(text):
        return ": ".join(python[-1])
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__
