"""Whether a micro-batch is worth while: there is enough for it, or what there is has waited long enough."""

import time
from collections.abc import Callable

from synrepl.pipeline.source.options import SourceOptions

__all__ = ["BatchPacer"]


class BatchPacer:
    """Of one query. Its first micro-batch is due at once: how long facts have waited for it is not known."""

    def __init__(self, options: SourceOptions, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._seconds = seconds
        self._began: float | None = None

    def is_due(self, waiting: int) -> bool:
        """Whether to begin one now, with so many facts that wait; then it counts as begun."""
        enough, now = self._options.min_offsets, self._seconds()
        if enough is not None and waiting < enough:
            is_late = self._began is None or now - self._began >= self._options.max_delay_seconds
            if not (waiting and is_late):
                return False
        self._began = now
        return True
