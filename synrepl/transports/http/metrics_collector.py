"""Gauges that are computed when metrics are scraped."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from synrepl.ports.metrics import OTHERS, POSITION_WRITERS, Metrics
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay import REPLICA_STATES
from synrepl.storage import Log

if TYPE_CHECKING:
    from synrepl.replication.status import StatusPart, StatusSource

__all__ = ["collect"]


def collect(
    metrics: Metrics,
    log: Log,
    publisher: Publisher,
    ingest: "StatusSource | None" = None,
    replication: "StatusSource | None" = None,
    files: "StatusPart | None" = None,
) -> None:
    """Set the gauges of positions, lag, replicas, leases and files to their current values."""
    for stream, positions in log.positions_by_stream().items():
        for writer, token in _limited(positions):
            metrics.position.labels(stream, writer).set(token)
    readers = [follower.reader for follower in publisher.followers if follower.reader is not None]
    parts = [part for part in (ingest, replication) if part is not None]
    rows = [part.lag_rows() for part in parts] + [publisher.lag_rows(reader) for reader in readers]
    seconds = [part.lag_seconds() for part in parts] + [publisher.lag_seconds(reader) for reader in readers]
    metrics.lag_rows.set(max(rows, default=0))
    metrics.lag_seconds.set(max(seconds, default=0.0))
    metrics.readers_behind.set(sum(reader.is_behind for reader in readers))
    metrics.epoch.set(log.epoch)
    metrics.serial.set(log.serial)
    metrics.begin_serial.set(log.trimmed_upto.serial)
    if replication is not None:
        _collect_replication(metrics, replication.status())
    if files is not None:
        _collect_files(metrics, files.status())
    buffered = getattr(publisher, "send_buffer_bytes", None)
    if buffered is not None:
        metrics.send_buffer.set(buffered() if callable(buffered) else buffered)


def _limited(positions: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Return the positions of a stream's first writers, and the highest of all other writers as one series.

    The order is the log's, so that a series continues while this daemon runs.
    """
    own = [writer for writer in islice(positions, POSITION_WRITERS) if writer != OTHERS]
    for writer in own:
        yield writer, positions[writer]
    if len(own) < len(positions):
        shown = frozenset(own)
        yield OTHERS, max(token for writer, token in positions.items() if writer not in shown)


def _collect_replication(metrics: Metrics, status: Mapping[str, Any]) -> None:
    for role in ("primary", "replica", "fenced"):
        metrics.role.labels(role).set(role == status["role"])
    states = Counter(entry["state"] for entry in status["replicas"])
    for state in REPLICA_STATES:
        metrics.replicas.labels(state).set(states[state])
    used = [entry["used"] for entry in status["leases"] if entry["ended"] is None]
    metrics.lease_used.set(max(used, default=0.0))
    join = (status["upstream"] or {}).get("join")
    metrics.join_remaining.set(0 if join is None else join["total"] - join["done"])


def _collect_files(metrics: Metrics, status: Mapping[str, Any]) -> None:
    metrics.files_stored.set(status["stored"])
    metrics.files_stored_bytes.set(status["stored_bytes"])
    metrics.files_wanted.set(status["wanted"])
    metrics.files_failing.set(len(status["failing"]))
    metrics.files_quarantined.set(status["quarantined"])
