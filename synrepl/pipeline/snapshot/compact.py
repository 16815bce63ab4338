"""The job `compact`: folds an archive into a snapshot."""

import time
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.pipeline.archive.files import frame_of, parallelism, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.jobs import Progress, explain_failure, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.snapshot.fold import MISSING, FoldInput, bucket_size, find_last_rows, find_tombstones
from synrepl.pipeline.snapshot.snapshot import PartFile, SnapshotManifest, read_snapshot, write_snapshot
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.table import StreamTable

FILE_ROWS: Final = 256 * 1024
"""Approximate number of keys per file; the rows of a file are in memory while it is written."""

TASK_ROWS: Final = 16 * 1024
"""Minimum number of keys per file of a small snapshot, which is split so that all cores write."""


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The current snapshot, and the cost of making it.

    `is_new` is false if the snapshot was kept, for lack of new facts: then no file was read. Otherwise the
    whole archive was read (`full`), or the previous snapshot and the facts since.
    """

    snapshot: SnapshotManifest
    is_new: bool = False
    full: bool = False
    read_files: int = 0
    read_rows: int = 0
    seconds: float


@retry_late_workers
def compact(
    spark: SparkSession,
    archive: Store,
    snapshot: Store,
    *,
    full: bool = False,
    file_rows: int = FILE_ROWS,
    as_of: str | None = None,
    made_at_ms: int | None = None,
    progress: Progress = ignore_progress,
) -> CompactResult:
    """Advance the snapshot to the end of the archive, or of its version `as_of` (a number or a time).

    Reads the previous snapshot, if any, and the facts since (all facts of a stream that has lost some since);
    with `full` the whole archive, with the same result. The files of the previous snapshot stay until the
    next compaction, for its readers. Raises `BadArchive` unless the archive continues the snapshot, has all
    its files, and no other job writes the snapshot.
    """
    began = time.monotonic()
    table = ArchiveTable(archive, as_of)
    former = read_snapshot(snapshot)
    end = table.end
    if former is not None:
        _check(former, snapshot, table)
        if not full and former.serial == end.last_serial and former.epoch_starts == end.epoch_starts:
            return CompactResult(snapshot=former, seconds=round(time.monotonic() - began, 3))
    files, inputs = _plan_input(table, snapshot, None if full else former)
    rows = pc.sum(files["rows"]).as_py() or 0
    progress("reading", 0, rows)
    try:
        written, keys = _write_files(spark, inputs, files, end.last_serial, file_rows, progress)
    except PySparkException as error:
        if MISSING in str(error):
            raise BadArchive(explain_failure(error)) from error
        raise
    made = SnapshotManifest(
        epoch=end.epoch,
        serial=end.last_serial,
        digest=end.digest,
        history=end.history,
        server_name=end.server_name,
        clock=end.end,
        epoch_starts=end.epoch_starts,
        files=written,
        facts=sum(file.facts for file in written),
        rows=sum(file.rows for file in written),
        keys=keys,
        made_at_ms=now_ms() if made_at_ms is None else made_at_ms,
        archive_version=table.version,
    )
    if read_snapshot(snapshot) != former:
        raise BadArchive(f"{snapshot}: another job has written a snapshot meanwhile; run the job again")
    write_snapshot(snapshot, made)
    _clean(snapshot, made, former)
    return CompactResult(
        snapshot=made,
        is_new=True,
        full=full or former is None,
        read_files=len(files),
        read_rows=rows,
        seconds=round(time.monotonic() - began, 3),
    )


def _check(former: SnapshotManifest, snapshot: Store, table: ArchiveTable) -> None:
    end, archive = table.end, table.store
    if (former.history, former.server_name) != (end.history, end.server_name):
        raise BadArchive(f"{snapshot} is of another history or server than {archive}: use another directory")
    if former.serial > end.last_serial:
        raise BadArchive(
            f"the archive {archive} ends at serial {end.last_serial}, before serial {former.serial} of the"
            f" snapshot {snapshot}: use the archive that it was made from, or another directory"
        )
    known = _digest_at(table, former.serial)
    if known is not None and known != former.digest:
        raise BadArchive(
            f"{snapshot} and {archive} have different facts: their digests of serial {former.serial} differ;"
            " use another directory for the snapshot"
        )


def _digest_at(table: ArchiveTable, serial: int) -> str | None:
    """Return the digest at a serial; None if the archive has no such fact."""
    if table.end.last_serial == serial:
        return table.end.digest
    for path in within(table.files, serial, serial)["path"].to_pylist():
        with table.store.filesystem.open_input_file(table.store.path(path)) as source:
            found = pq.read_table(source, columns=["serial", "digest"], filters=[("serial", "=", serial)])
        if len(found):
            return str(found["digest"][0].as_py())
    return None


def _plan_input(
    table: ArchiveTable, snapshot: Store, former: SnapshotManifest | None
) -> tuple[Any, FoldInput]:
    """Return the files to read, and how: the whole archive, or `former` and the facts since.

    If facts of a stream were discarded since `former`, all its files are read: `former` lacks the rows that
    the discarded rows had replaced.
    """
    ephemeral = pa.array([one.name for one in StreamTable.default() if one.ephemeral], pa.string())
    files = table.files
    files = files.filter(pc.invert(pc.is_in(files["stream"], ephemeral)))
    lost = [start for start in table.end.epoch_starts if start.stream]
    parts, known, after = (former.files, former.epoch_starts, former.serial) if former else ([], lost, 0)
    whole = sorted({start.stream for start in lost if start not in known})
    is_whole = pc.is_in(files["stream"], pa.array(whole, pa.string()))
    files = files.append_column("is_part", pa.repeat(False, len(files)))
    files = files.append_column("after", pc.if_else(is_whole, 0, after))
    files = files.filter(pc.or_(is_whole, pc.greater(files["last_serial"], after)))
    of_part = {"stream": "", "last_seq": 1, "is_part": True, "after": 0}
    named = pa.Table.from_pylist([msgspec.structs.asdict(part) | of_part for part in parts], files.schema)
    return pa.concat_tables([named, files]), FoldInput(table.store, snapshot, lost, whole)


def _write_files(
    spark: SparkSession, inputs: FoldInput, files: Any, upto: int, file_rows: int, progress: Progress
) -> tuple[list[PartFile], int]:
    """Write the files of the new snapshot. Return the files and the number of keys."""
    if not len(files):
        return [], 0
    last = find_last_rows(spark, inputs, files, upto).persist()
    try:
        counted = last.groupBy("bucket").agg(F.sum("alive"), F.sum("gone")).collect()
        keys = sum(alive for _, alive, _ in counted)
        if not keys:
            return [], 0
        progress("writing", 0, keys)
        kept = last.where("alive > 0").select("bucket", "positions")
        if any(gone for _, _, gone in counted) and pc.max(files["last_seq"]).as_py():
            tombstones = find_tombstones(spark, inputs, files, last)
            kept = kept.union(tombstones.selectExpr(f"int(serial div {bucket_size(upto)})", "positions"))
        few = min(parallelism(spark) // 2, keys // TASK_ROWS)
        ranges = _assign_ranges(counted, max(1, few, -(-keys // file_rows)))
        tasks = _split(spark, files, kept, ranges, bucket_size(upto))
        # Not `serial=`: DuckDB and others would take it for the column `serial`.
        work = partial(inputs.write, f"upto={upto}")
        found = tasks.mapInArrow(work, "`written` binary NOT NULL").collect()
    finally:
        last.unpersist()
    written = [msgspec.json.decode(row["written"], type=PartFile) for row in found]
    written.sort(key=lambda file: file.first_serial)
    done = sum(file.keys for file in written)
    progress("writing", done, keys)
    overlaps = any(after.first_serial <= before.last_serial for before, after in pairwise(written))
    if done != keys or overlaps:
        raise BadArchive(
            f"{inputs.archive}: the written files overlap or lack keys (wrote {done} of {keys}): there are"
            " duplicate rows, or files changed meanwhile; run synrepl pipeline audit"
        )
    return written, keys


def _split(spark: SparkSession, files: Any, kept: DataFrame, ranges: list[int], size: int) -> DataFrame:
    """Return the kept positions, and the files that have them, with a task for each range of serials.

    `ranges` has the range of each bucket of `size` serials.
    """
    named = files.select(["path", "is_part", "after"])
    for name in ("first_serial", "last_serial"):
        buckets = np.minimum(files[name].to_numpy() // size, len(ranges) - 1)
        named = named.append_column(name, pa.array(np.array(ranges, np.int32)[buckets]))
    readers = frame_of(spark, named).select(
        F.explode(F.sequence("first_serial", "last_serial")).alias("range"),
        F.lit(None).cast("binary").alias("positions"),
        F.struct("path", "is_part", "after").alias("file"),
    )
    # A constant array, indexed by bucket, is faster than a chain of comparisons.
    known = F.split(F.lit(",".join(map(str, ranges))), ",").cast("array<int>")
    number = F.element_at(known, F.least(F.col("bucket") + 1, F.lit(len(ranges))))
    facts = kept.select(number.alias("range"), "positions", F.lit(None).alias("file"))
    return readers.union(facts).repartitionById(ranges[-1] + 1, "range")


def _assign_ranges(counted: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """Split the buckets into `count` ranges of about equally many live rows; return the range of each."""
    buckets, alive, _ = np.array(sorted(counted)).T
    ranges = (np.cumsum(alive) - alive) * count // alive.sum()
    return np.repeat(ranges, np.diff(buckets, prepend=-1)).tolist()


def _clean(store: Store, made: SnapshotManifest, former: SnapshotManifest | None) -> None:
    """Remove the files that neither this snapshot nor the previous one names."""
    named = {file.path for one in (made, former) if one is not None for file in one.files}
    folders = {path.partition("/")[0] for path in named}
    for folder in (name for name in store.names("") if name.startswith("upto=")):
        if folder not in folders:
            store.remove_folder(folder)
            continue
        for path in (f"{folder}/{name}" for name in store.names(folder)):
            if path not in named:
                store.remove(path)
