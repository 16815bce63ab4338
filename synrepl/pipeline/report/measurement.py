"""Measurement of an archive: the Spark queries of a report, one after the other."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from synrepl.pipeline.archive.table import ArchiveTable, Batch
from synrepl.pipeline.jobs import Progress
from synrepl.pipeline.report import chains, counts
from synrepl.pipeline.report.chains import ChainBreak
from synrepl.pipeline.report.counts import Bins, Row, WriterLag, bins_for, writer_lags
from synrepl.pipeline.report.daemon_status import DaemonStatus
from synrepl.pipeline.report.facts import counted_once, facts_of, parts_of, seconds_of
from synrepl.pipeline.report.invalidations import CACHES, Invalidations, invalidations
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart

__all__ = ["Arrival", "Coverage", "arrivals", "coverage", "Measurements", "STEPS", "measure"]


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of an archive.

    `lines` are the rows of the Parquet files: one more for each fact without rows. Up to the serial
    `compacted` the archive has only the facts that the trimmed log still had.
    """

    server_name: str
    history: str
    first_serial: int
    last_serial: int
    first_ms: int
    last_ms: int
    archived_ms: int
    facts: int
    lines: int
    batches: int
    files: int
    file_bytes: int
    writers: dict[str, list[str]]
    epochs: tuple[int, int]
    compacted: int | None
    epoch_starts: list[EpochStart]
    digest: str

    @property
    def seconds(self) -> float:
        """The time from the first commit to the last."""
        return (self.last_ms - self.first_ms) / 1000

    @property
    def all_writers(self) -> list[str]:
        """The names of the writers of all streams."""
        return sorted({writer for names in self.writers.values() for writer in names})


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that were archived together as `batch`. The last of them was committed at `last_at_ms`."""

    batch: int
    first_serial: int
    last_serial: int
    facts: int
    last_at_ms: int
    archived_at_ms: int

    @property
    def seconds(self) -> float:
        """The archive lag of the last fact. Negative if the clocks of daemon and archive differ."""
        return (self.archived_at_ms - self.last_at_ms) / 1000


def arrivals(batches: Sequence[Batch]) -> list[Arrival]:
    """Return the arrivals of the batches with facts, as far as known."""
    return [
        Arrival(
            batch=one.version,
            first_serial=one.first_serial,
            last_serial=one.last_serial,
            facts=one.facts,
            last_at_ms=one.last_at_ms,
            archived_at_ms=one.archived_at_ms,
        )
        for one in batches
        if one.facts and one.archived_at_ms
    ]


def coverage(files: Any, batches: Sequence[Batch]) -> Coverage | None:
    """Return the coverage of these files (rows of `ArchiveTable.files`) and batches; None without facts."""
    nonempty = [batch for batch in batches if batch.facts]
    if not nonempty:
        return None
    last = batches[-1]
    first_epoch = min((epoch_start.epoch for epoch_start in last.epoch_starts), default=last.epoch + 1) - 1
    return Coverage(
        server_name=last.server_name,
        history=last.history,
        first_serial=batches[0].first_serial,
        last_serial=last.last_serial,
        first_ms=min(batch.first_at_ms for batch in nonempty),
        last_ms=max(batch.last_at_ms for batch in nonempty),
        archived_ms=max(batch.archived_at_ms for batch in nonempty),
        facts=sum(batch.facts for batch in nonempty),
        lines=sum(batch.rows for batch in nonempty),
        batches=len(batches),
        files=len(files),
        file_bytes=pc.sum(files["bytes"]).as_py() or 0,
        writers={stream: sorted(writers) for stream, writers in sorted(last.end.items())},
        epochs=(min(first_epoch, last.epoch), last.epoch),
        compacted=last.compacted_upto or None,
        epoch_starts=list(last.epoch_starts),
        digest=last.digest,
    )


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all measurements of one report.

    Without `covers` the archive has no facts. `daemon` is None unless a daemon was requested.
    """

    position: str
    top: int
    covers: Coverage | None = None
    daemon: DaemonStatus | None = None
    bins: Bins = Bins(0, 1, 1)
    totals: list[Row] = []
    peaks: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    over_time: list[Row] = []
    hours: list[Row] = []
    hours_width: int = 3600
    sizes: list[Row] = []
    spread: list[Row] = []
    largest: list[Row] = []
    arrivals: list[Arrival] = []
    lags: list[WriterLag] = []
    broken: list[ChainBreak] = []
    doubles: dict[str, int] = {}
    voided: dict[int, int] = {}
    invalidations: Invalidations | None = None
    minutes: Bins = Bins(0, 60, 1)

    def total(self, column: str) -> int:
        """Return a total of all writers of all streams."""
        return sum(row[column] for row in self.totals)

    def writers(self) -> list[str]:
        """Return the writers with facts, by number of rows."""
        return self._by_rows("writer")

    def streams(self) -> list[str]:
        """Return the streams with facts, by number of rows."""
        return self._by_rows("stream")

    def _by_rows(self, kind: str) -> list[str]:
        rows: dict[str, int] = {}
        for row in self.totals:
            rows[row[kind]] = rows.get(row[kind], 0) + row["rows"]
        return sorted(rows, key=lambda name: (-rows[name], name))


STEPS: Final = 7
DAY_SECONDS: Final = 86_400


def measure(
    spark: SparkSession,
    archive: Store,
    *,
    top: int,
    daemon: DaemonStatus | None,
    as_of: str | None = None,
    progress: Progress,
) -> Measurements:
    """Measure an archive. Raises `BadArchive`."""
    progress("reading the table", 0, STEPS)
    table = ArchiveTable.if_any(archive, as_of)
    files, batches = (None, []) if table is None else (table.files, table.batches())
    covers = coverage(files, batches)
    if table is None or covers is None:
        return Measurements(position=str(archive), top=top, daemon=daemon)
    bins = bins_for(covers.first_ms, covers.last_ms)
    # After the compacted part, if any.
    before = table.end.origin
    facts = facts_of(spark, archive, files, batches).persist()
    seconds = facts
    try:
        progress("counting facts", 1, STEPS)
        totals = counts.by_writer(facts)
        is_dense = sum(row["facts"] for row in totals) == covers.facts
        if not is_dense or chains.suspicious(totals, before=before, compacted=covers.compacted):
            # Duplicate facts affect only these counts; finding them costs as much again.
            twice, facts = facts, counted_once(facts).persist()
            totals = counts.by_writer(facts)
            twice.unpersist()
        seconds = seconds_of(facts).persist()
        progress("counting facts over time", 2, STEPS)
        over_time = counts.over_time(seconds, bins)
        width = 3600 if covers.seconds >= DAY_SECONDS else 60
        hours = counts.when(seconds, width)
        peaks = counts.peaks(seconds)
        progress("measuring sizes", 3, STEPS)
        sizes = counts.sizes_by_stream(facts)
        spread = counts.spread(facts)
        largest = counts.largest(facts, top)
        progress("checking for gaps", 4, STEPS)
        broken = chains.breaks(
            facts,
            totals,
            before=before,
            epoch_starts=covers.epoch_starts,
            compacted=covers.compacted,
        )
        shared = [stream for stream, writers in covers.writers.items() if len(writers) > 1]
        doubles = chains.shared_tokens(facts, shared)
        voided = chains.void(facts, covers.epoch_starts)
        progress("expanding cache invalidations", 5, STEPS)
        minutes = bins if bins.width >= 60 else _minutes(covers.first_ms, covers.last_ms)
        parts = parts_of(files, CACHES)
        announced = invalidations(spark, archive, parts, minutes, top) if len(parts) else None
    finally:
        seconds.unpersist()
        facts.unpersist()
    return Measurements(
        position=str(archive),
        top=top,
        covers=covers,
        daemon=daemon,
        bins=bins,
        totals=totals,
        peaks=peaks,
        over_time=over_time,
        hours=hours,
        hours_width=width,
        sizes=sizes,
        spread=spread,
        largest=largest,
        arrivals=arrivals(batches),
        lags=writer_lags(over_time, bins, last_ms=covers.last_ms),
        broken=broken,
        doubles=doubles,
        voided=voided,
        invalidations=announced,
        minutes=minutes,
    )


def _minutes(first_ms: int, last_ms: int) -> Bins:
    first, last = first_ms // 60_000, last_ms // 60_000
    return Bins(first * 60, 60, last - first + 1)
