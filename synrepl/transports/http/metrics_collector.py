"""The numbers that are only worth knowing when somebody looks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from synrepl.ports.metrics import OTHERS, POSITION_WRITERS, Metrics
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay import REPLICA_STATES
from synrepl.storage import Log

if TYPE_CHECKING:
    from synrepl.replication.status import StatusFiles, StatusIngest, StatusReplication

__all__ = ["collect"]


def collect(
    metrics: Metrics,
    log: Log,
    publisher: Publisher,
    bringing: "StatusIngest | None" = None,
    copies: "StatusReplication | None" = None,
    files: "StatusFiles | None" = None,
) -> None:
    """Set the gauges that show where things stand now: positions, and how far this daemon and its followers
    are."""
    for stream, positions in log.positions_by_stream().items():
        for writer, token in _folded(positions):
            metrics.position.labels(stream, writer).set(token)
    readers = [follower.reader for follower in publisher.followers if follower.reader is not None]
    parts = [part for part in (bringing, copies) if part is not None]
    rows = [part.lag_rows() for part in parts] + [publisher.lag_rows(reader) for reader in readers]
    seconds = [part.lag_seconds() for part in parts] + [publisher.lag_seconds(reader) for reader in readers]
    metrics.lag_rows.set(max(rows, default=0))
    metrics.lag_seconds.set(max(seconds, default=0.0))
    metrics.readers_behind.set(sum(reader.is_behind for reader in readers))
    metrics.epoch.set(log.epoch)
    metrics.serial.set(log.serial)
    metrics.begin_serial.set(log.trimmed_upto.serial)
    if copies is not None:
        _refresh_copies(metrics, copies.status())
    if files is not None:
        _refresh_files(metrics, files.status())
    waiting = getattr(publisher, "send_buffer_bytes", None)
    if waiting is not None:
        metrics.send_buffer.set(waiting() if callable(waiting) else waiting)


def _folded(positions: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Where the first writers of a stream are, and the highest position of all others together.

    The first are those that the log names first, so that a series goes on while this daemon runs.
    """
    own = [writer for writer in islice(positions, POSITION_WRITERS) if writer != OTHERS]
    for writer in own:
        yield writer, positions[writer]
    if len(own) < len(positions):
        shown = frozenset(own)
        yield OTHERS, max(token for writer, token in positions.items() if writer not in shown)


def _refresh_copies(metrics: Metrics, told: Mapping[str, Any]) -> None:
    for role in ("primary", "replica", "fenced"):
        metrics.role.labels(role).set(role == told["role"])
    states = Counter(one["state"] for one in told["replicas"])
    for state in REPLICA_STATES:
        metrics.replicas.labels(state).set(states[state])
    used = [one["used"] for one in told["leases"] if one["ended"] is None]
    metrics.lease_used.set(max(used, default=0.0))
    join = (told["upstream"] or {}).get("join")
    metrics.join_remaining.set(0 if join is None else join["total"] - join["done"])


def _refresh_files(metrics: Metrics, told: Mapping[str, Any]) -> None:
    metrics.files_stored.set(told["stored"])
    metrics.files_stored_bytes.set(told["stored_bytes"])
    metrics.files_wanted.set(told["wanted"])
    metrics.files_failing.set(len(told["failing"]))
    metrics.files_quarantined.set(told["quarantined"])
