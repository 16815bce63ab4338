"""The job `compact`: folds an archive into a snapshot."""

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.pipeline.archive.reading import read_rows, within
from synrepl.pipeline.archive.table import ArchiveTable, Batch
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.snapshot import fold
from synrepl.pipeline.snapshot.parts import FILE_ROWS, WRITTEN, write_parts
from synrepl.pipeline.snapshot.snapshot import (
    LAST_DDL,
    PartFile,
    SnapshotManifest,
    folder_of,
    read_snapshot,
    write_snapshot,
)
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.table import StreamTable

__all__ = ["CompactResult", "compact"]

BUCKETS: Final = 4_096
"""Number of equal ranges of serials whose rows are counted, to find ranges with equally many rows."""


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The current snapshot, and the cost of making it.

    `is_new` is false if there were no new facts. With `full` the whole archive was read, otherwise the
    previous snapshot and the facts since.
    """

    snapshot: SnapshotManifest
    is_new: bool
    full: bool
    read_files: int
    read_rows: int
    seconds: float


class _SnapshotReader(msgspec.Struct, frozen=True):
    """The input of a compaction.

    Of the `parts` of the previous snapshot, all streams except `whole` are read; of the `archived` files (as
    in `ArchiveTable.files`) the streams `whole`, and facts after the serial `after`.
    """

    archived: Any
    parts: list[PartFile] = []
    whole: list[str] = []
    after: int = 0

    @property
    def rows(self) -> int:
        return (pc.sum(self.archived["rows"]).as_py() or 0) + sum(part.rows for part in self.parts)

    @property
    def may_have_several(self) -> bool:
        """Whether a fact may have more than one row."""
        return (pc.max(self.archived["last_seq"]).as_py() or 0) > 0 or any(
            part.rows > part.facts for part in self.parts
        )


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
    """Advance the snapshot to the end of the archive, or to its end `as_of` a version or time.

    Reads the previous snapshot and the facts since; with `full` the whole archive, with the same result. The
    files of the previous snapshot stay until the next compaction, for its readers. Raises `BadArchive` unless
    snapshot and archive are of the same log.
    """
    began = time.monotonic()
    table = ArchiveTable(archive, as_of)
    former = read_snapshot(snapshot)
    end = table.end
    if former is not None:
        _check(former, snapshot, table)
        if not full and former.serial == end.last_serial and former.epoch_starts == end.epoch_starts:
            return CompactResult(
                snapshot=former, is_new=False, full=False, read_files=0, read_rows=0, seconds=_since(began)
            )
    streams = StreamTable.default()
    reading = _plan_input(table, None if full else former, streams)
    progress("reading", 0, reading.rows)
    try:
        written, keys = _write_files(spark, archive, snapshot, reading, end, streams, file_rows, progress)
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise BadArchive(f"{archive}: a file is missing: {error.getMessage()}") from error
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
        raise BadArchive(f"{snapshot}: another job has written a snapshot meanwhile; this one is discarded")
    write_snapshot(snapshot, made)
    _clean(snapshot, made, former)
    return CompactResult(
        snapshot=made,
        is_new=True,
        full=full or former is None,
        read_files=len(reading.archived) + len(reading.parts),
        read_rows=reading.rows,
        seconds=_since(began),
    )


def _check(former: SnapshotManifest, snapshot: Store, table: ArchiveTable) -> None:
    """Raise `BadArchive` unless the archive continues this snapshot."""
    end, archive = table.end, table.store
    if (former.history, former.server_name) != (end.history, end.server_name):
        raise BadArchive(
            f"{snapshot} has another history than {archive}; use another directory for the snapshot"
        )
    if former.serial > end.last_serial:
        raise BadArchive(f"{snapshot} is at serial {former.serial}, {archive} ends at {end.last_serial}")
    known = _digest_at(table, former.serial)
    if known is not None and known != former.digest:
        raise BadArchive(
            f"{snapshot} has another history than {archive}: the digests of serial {former.serial} differ"
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
    table: ArchiveTable, former: SnapshotManifest | None, streams: StreamTable
) -> _SnapshotReader:
    """Return the input: the whole archive, or `former` and the facts since.

    A stream with rows that have become void since is read whole: `former` lacks the rows that the void ones
    replaced.
    """
    files = table.files
    ephemeral = pa.array([stream.name for stream in streams if stream.ephemeral], pa.string())
    kept = files.filter(pc.invert(pc.is_in(files["stream"], ephemeral)))
    if former is None:
        return _SnapshotReader(kept)
    whole = sorted(
        {
            epoch_start.stream
            for epoch_start in table.end.epoch_starts
            if epoch_start not in former.epoch_starts and epoch_start.stream
        }
    )
    is_new = pc.greater(kept["last_serial"], former.serial)
    is_whole = pc.is_in(kept["stream"], pa.array(whole, pa.string()))
    return _SnapshotReader(kept.filter(pc.or_(is_new, is_whole)), former.files, whole, former.serial)


def _write_files(
    spark: SparkSession,
    archive: Store,
    snapshot: Store,
    reading: _SnapshotReader,
    end: Batch,
    streams: StreamTable,
    file_rows: int,
    progress: Progress,
) -> tuple[list[PartFile], int]:
    """Write the files of the new snapshot. Return the files and the number of keys."""
    rows = _rows(spark, archive, snapshot, reading)
    if rows is None:
        return [], 0
    rows = rows.where(~fold.is_void(end.epoch_starts))
    removing = fold.streams_with_tombstones(streams)
    last = fold.find_last_rows(rows, removing).persist()
    try:
        counted = _count_buckets(last, end.last_serial)
        keys = sum(alive for _, alive, _ in counted)
        is_gone = any(gone for _, _, gone in counted)
        progress("reading", reading.rows, reading.rows)
        progress("writing", 0, keys)
        facts = fold.select_facts(rows, last, removing, look=is_gone and reading.may_have_several)
        ranges = _assign_ranges(counted, file_rows)
        found = (
            rows.join(facts, "serial")
            .withColumn("last", F.array_contains("seqs", F.col("seq")))
            .drop("seqs")
            .repartitionById(max(ranges, default=0) + 1, _range_of(ranges, _bucket(end.last_serial)))
            .sortWithinPartitions("serial", "seq")
            .mapInArrow(partial(_write_task, snapshot, folder_of(end.last_serial), file_rows), WRITTEN)
        )
        written: list[PartFile] = []
        done = 0
        for row in found.collect():
            written.append(msgspec.json.decode(row["written"], type=PartFile))
            done += row["keys"]
        progress("writing", done, keys)
    finally:
        last.unpersist()
    written.sort(key=lambda file: file.first_serial)
    overlaps = any(after.first_serial <= before.last_serial for before, after in pairwise(written))
    if done != keys or overlaps:
        raise BadArchive(
            f"{archive}: found {keys} keys but wrote {done}: there are duplicate rows, or files changed"
            f" meanwhile; run synrepl pipeline audit"
        )
    return written, keys


def _rows(spark: SparkSession, archive: Store, snapshot: Store, reading: _SnapshotReader) -> DataFrame | None:
    found: DataFrame | None = None
    if len(reading.archived):
        found = read_rows(spark, archive, reading.archived)
        if reading.after:
            # A merged file may contain facts of `parts` too.
            found = found.where((F.col("serial") > reading.after) | F.col("stream").isin(*reading.whole))
    if reading.parts:
        paths = [snapshot.uri(part.path) for part in reading.parts]
        former = spark.read.schema(LAST_DDL).parquet(*paths).drop("last")
        if reading.whole:
            former = former.where(~F.col("stream").isin(*reading.whole))
        found = former if found is None else found.unionByName(former)
    return found


def _bucket(upto: int) -> Column:
    return F.floor(F.col("serial") / F.lit(max(1, -(-upto // BUCKETS))))


def _count_buckets(last: DataFrame, upto: int) -> list[tuple[int, int, int]]:
    """Return for each range of serials its number, its last rows of live keys, and those of removed keys."""
    gone = F.sum(F.col("gone").cast("int"))
    counted = last.groupBy(_bucket(upto)).agg(F.count("*") - gone, gone).collect()
    return sorted((row[0], row[1], row[2]) for row in counted)


def _assign_ranges(counted: Iterable[tuple[int, int, int]], file_rows: int) -> list[int]:
    """Return for each bucket the number of its range. A range has about as many rows as a file."""
    ranges: list[int] = []
    number = rows = 0
    for bucket, alive, _ in counted:
        if rows and rows + alive > file_rows:
            number, rows = number + 1, 0
        ranges += [number] * (bucket + 1 - len(ranges))
        rows += alive
    return ranges


def _range_of(ranges: Sequence[int], bucket: Column) -> Column:
    """Return `ranges` as a column: a constant array indexed by bucket, faster than a chain of comparisons."""
    known = F.split(F.lit(",".join(map(str, ranges))), ",").cast("array<int>")
    return F.element_at(known, (bucket + 1).cast("int"))


def _write_task(store: Store, folder: str, file_rows: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Write the files of a snapshot (runs in a task)."""
    return write_parts(store, folder, file_rows, batches)


def _clean(store: Store, made: SnapshotManifest, former: SnapshotManifest | None) -> None:
    """Remove the files that neither this snapshot nor the previous one names."""
    named = {file.path for one in (made, former) if one is not None for file in one.files}
    folders = {path.partition("/")[0] for path in named}
    for folder in store.names(""):
        if not folder.startswith("upto="):
            continue
        if folder not in folders:
            store.remove_folder(folder)
            continue
        for name in store.names(folder):
            if f"{folder}/{name}" not in named:
                store.remove(f"{folder}/{name}")


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
