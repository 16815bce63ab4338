"""Pacing of micro-batches: a batch is due with enough facts, or after the maximum delay."""

import time
from collections.abc import Callable

from synrepl.pipeline.source.options import SourceOptions

__all__ = ["BatchPacer"]


class BatchPacer:
    """The pacer of one query. The first micro-batch is due at once, as the age of its facts is unknown."""

    def __init__(self, options: SourceOptions, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._seconds = seconds
        self._began: float | None = None

    def is_due(self, waiting: int) -> bool:
        """Whether to start a micro-batch now, with `waiting` facts. If so, the delay starts again."""
        enough, now = self._options.min_offsets, self._seconds()
        if enough is not None and waiting < enough:
            is_late = self._began is None or now - self._began >= self._options.max_delay_seconds
            if not (waiting and is_late):
                return False
        self._began = now
        return True
