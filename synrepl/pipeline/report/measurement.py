"""Measurement of an archive: the Spark queries of a report, one after the other."""

from typing import TYPE_CHECKING, Final

from synrepl.pipeline.archive.manifest import manifests
from synrepl.pipeline.progress import Progress
from synrepl.pipeline.report import chains, counts
from synrepl.pipeline.report.bins import Bins, bins_for
from synrepl.pipeline.report.coverage import coverage, positions_before
from synrepl.pipeline.report.daemon_status import DaemonStatus
from synrepl.pipeline.report.facts import counted_once, facts_of, seconds_of
from synrepl.pipeline.report.files import parts_of
from synrepl.pipeline.report.invalidations import CACHES, invalidations
from synrepl.pipeline.report.measurements import Measurements
from synrepl.pipeline.report.writer_lag import standings
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["STEPS", "measure"]


STEPS: Final = 7
DAY_SECONDS: Final = 86_400


def measure(
    spark: "SparkSession", archive: Store, *, top: int, daemon: DaemonStatus | None, progress: Progress
) -> Measurements:
    """Measure an archive. Raises `BadArchive`."""
    progress("reading manifests", 0, STEPS)
    found = manifests(archive)
    covers = coverage(found)
    if covers is None:
        return Measurements(position=str(archive), top=top, daemon=daemon)
    bins = bins_for(covers.first_ms, covers.last_ms)
    before = positions_before(found)
    facts = facts_of(spark, archive, found).persist()
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
        doubles = chains.told_by_many(facts, shared)
        voided = chains.void(facts, covers.epoch_starts)
        progress("expanding cache invalidations", 5, STEPS)
        minutes = bins if bins.width >= 60 else _minutes(covers.first_ms, covers.last_ms)
        parts = parts_of(found, CACHES)
        told = invalidations(spark, archive, parts, minutes, top) if parts else None
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
        arrivals=[one for manifest in found for one in manifest.all_arrivals],
        standing=standings(over_time, bins, last_ms=covers.last_ms),
        broken=broken,
        doubles=doubles,
        voided=voided,
        invalidations=told,
        minutes=minutes,
    )


def _minutes(first_ms: int, last_ms: int) -> Bins:
    first, last = first_ms // 60_000, last_ms // 60_000
    return Bins(first * 60, 60, last - first + 1)
