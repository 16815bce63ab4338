"""Progress callback of a job."""

from collections.abc import Callable

__all__ = ["Progress", "ignore_progress"]

Progress = Callable[[str, int, int], None]
"""Called with the step, the amount done and the total. The total is 0 if unchanged or unknown."""


def ignore_progress(step: str, done: int, total: int) -> None:
    """Discard a report of progress."""
