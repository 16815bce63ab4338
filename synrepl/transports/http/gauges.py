"""The numbers that are only worth knowing when somebody looks."""

from typing import TYPE_CHECKING

from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log

if TYPE_CHECKING:
    from synrepl.replication.status import DescribedSources

__all__ = ["refresh"]


def refresh(
    metrics: Metrics, log: Log, publisher: Publisher, sources: "DescribedSources | None" = None
) -> None:
    """Set the gauges that show where things stand now: positions, and how far the followers are."""
    for stream, positions in log.clock().items():
        for writer, token in positions.items():
            metrics.position.labels(stream, writer).set(token)
    readers = [follower.reader for follower in publisher.followers if follower.reader is not None]
    rows, seconds = (sources.lag_rows(), sources.lag_seconds()) if sources is not None else (0, 0.0)
    metrics.lag_rows.set(max(rows, *(publisher.lag_rows(reader) for reader in readers), 0))
    metrics.lag_seconds.set(max(seconds, *(publisher.lag_seconds(reader) for reader in readers), 0.0))
    metrics.readers_behind.set(sum(reader.is_behind for reader in readers))
    waiting = getattr(publisher, "send_buffer_bytes", None)
    if waiting is not None:
        metrics.send_buffer.set(waiting() if callable(waiting) else waiting)
