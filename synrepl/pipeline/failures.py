"""What a person is told when a job fails: our own words, out of the many lines in which Spark wraps them."""

import re
from typing import Final

from synrepl.errors import ReplicationError
from synrepl.pipeline.retries import is_late_worker

__all__ = ["words"]

_OURS: Final = re.compile(r"^(?:.*: )?synrepl\.[\w.]+\.(\w+): (.+?)\s*$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+?)\s*$", re.MULTILINE)


def words(error: BaseException) -> str:
    """One line.

    What was raised in a task, or called back by Spark, arrives as the text of a Python traceback within that
    of a Java one; its last line is what was said.
    """
    if isinstance(error, ReplicationError):
        return str(error)
    if is_late_worker(error):
        return "a Python worker of Spark did not start within 10 s, as the machine is busy; run it again"
    told = str(error).replace("\\n", "\n")
    if ours := _OURS.findall(told):
        return str(ours[-1][1])
    if python := _PYTHON.findall(told):
        return ": ".join(python[-1])
    lines = told.strip().splitlines()
    return lines[0] if lines else type(error).__name__
