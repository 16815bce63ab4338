"""CommitMetrics: metrics of facts committed to the log from any source."""

from collections.abc import Sequence
from typing import Final

from synrepl.ports.metrics import Metrics
from synrepl.streams import jsontext
from synrepl.streams.facts import Fact

__all__ = ["OTHERS", "CommitMetrics"]

MAX_CACHES: Final = 500
"""Cache names with a counter of their own. Peers choose these names, so they are limited."""

OTHERS: Final = "(others)"

MAX_NAME: Final = 100


class CommitMetrics:
    """Counts bytes by stream and cache invalidations by cache. Pass `committed` to the log."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._caches: set[str] = set()

    def committed(self, facts: Sequence[Fact]) -> None:
        """Count facts that were committed."""
        sizes: dict[str, int] = {}
        for fact in facts:
            sizes[fact.stream] = sizes.get(fact.stream, 0) + len(fact.rows)
            if fact.stream == "caches":
                for row in jsontext.split(fact.rows):
                    self._metrics.invalidations.labels(self._cache(row)).inc()
        for stream, size in sizes.items():
            self._metrics.stream_bytes.labels(stream).inc(size)

    def _cache(self, row: bytes) -> str:
        """The cache named by a canonical row, whose first element it is."""
        name = row[2 : row.index(b'"', 2)].decode("ascii", "replace")
        if name in self._caches:
            return name
        if len(self._caches) >= MAX_CACHES or len(name) > MAX_NAME:
            return OTHERS
        self._caches.add(name)
        return name
