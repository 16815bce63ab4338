"""The job `compact`: folds an archive into a snapshot."""

import time
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.errors import RowError
from synrepl.pipeline.archive.row_files import WRITTEN, read_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.driver import TASK, Driver, Partitions
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.snapshot.fold import (
    MERGED,
    SERIAL_AT,
    TASK_KEYS,
    FoldInput,
    bucket_size,
    find_last_rows,
    find_tombstones,
)
from synrepl.pipeline.snapshot.part_writer import FILE, PARTS, write_parts
from synrepl.pipeline.snapshot.snapshot import PartFile, SnapshotManifest, read_snapshot, write_snapshot
from synrepl.pipeline.source.rows import row_schema
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.catalog import DECLARATIONS
from synrepl.streams.declared import StreamBody
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

FILE_ROWS: Final = 256 * 1024
"""Approximate number of keys per file; the file is in memory, compressed, while it is written."""

TASK_ROWS: Final = 16 * 1024
"""Minimum number of keys per file of a small snapshot, which is split so that all cores write."""

COUNTED: Final = pa.schema([MERGED.field(name) for name in ("bucket", "alive", "gone")])
SUMS: Final = [("alive", "sum"), ("gone", "sum")]


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The current snapshot, and the cost of making it.

    `is_new` is false if the snapshot was kept, for lack of new facts: then no file was read. Otherwise the
    whole archive was read (`full`), or the previous snapshot and the facts since. Rows of `unknown` streams,
    whose keys this release cannot compute, were left out.
    """

    snapshot: SnapshotManifest
    is_new: bool = False
    full: bool = False
    read_files: int = 0
    read_rows: int = 0
    unknown: list[str] = []
    seconds: float


@retry_late_workers
def compact(
    runner: Runner,
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
    with `full` the whole archive, with the same result. It does so as well if the archive lacks the last fact
    of the snapshot, as that of a trimmed log may: nothing tells that it has the same facts. The files of the
    previous snapshot stay until the next compaction, for its readers. Raises `BadArchive` unless the
    archive continues the snapshot, has all its files, and no other job writes the snapshot.
    """
    began = time.monotonic()
    table = ArchiveTable(archive, as_of)
    former = read_snapshot(snapshot)
    end = table.end
    there = set(_names(snapshot))
    if former is not None:
        # Two jobs that ended at once may have left a snapshot without its files: it is made again.
        full |= not there.issuperset(part.path for part in former.files)
        full |= not _is_continued(former, snapshot, table)
        if not full and former.serial == end.last_serial and former.epoch_starts == end.epoch_starts:
            return CompactResult(snapshot=former, seconds=round(time.monotonic() - began, 3))
    declared = _declared(table)
    files, inputs = _plan_input(table, snapshot, None if full else former, declared)
    streams = pc.unique(files.filter(pc.invert(files["is_part"]))["stream"]).to_pylist()
    extractor = KeyExtractor(msgspec.json.decode(declared))
    rows = pc.sum(files["rows"]).as_py() or 0
    progress("reading", 0, rows)
    written, keys = _write_files(driver_of(runner), inputs, files, end.last_serial, file_rows, progress)
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
    _clean(snapshot, made, former, there)
    missing = {part.path for part in made.files}.difference(_names(snapshot))
    if missing or read_snapshot(snapshot) != made:
        raise BadArchive(
            f"{snapshot}: another job has written a snapshot at the same time; run the job again"
        )
    return CompactResult(
        snapshot=made,
        is_new=True,
        full=full or former is None,
        read_files=len(files),
        read_rows=rows,
        unknown=sorted(one for one in streams if not extractor.knows(one)),
        seconds=round(time.monotonic() - began, 3),
    )


def _is_continued(former: SnapshotManifest, snapshot: Store, table: ArchiveTable) -> bool:
    """Whether the archive is known to have the facts of the snapshot; raises if it has others.

    The archive of a log that was trimmed since cannot tell.
    """
    end, archive = table.end, table.store
    if (former.history, former.server_name) != (end.history, end.server_name):
        raise BadArchive(f"{snapshot} is of another history or server than {archive}: use another directory")
    if former.serial > end.last_serial:
        raise BadArchive(
            f"the archive {archive} ends at serial {end.last_serial}, before serial {former.serial} of the"
            f" snapshot {snapshot}: use the archive that it was made from, or another directory"
        )
    if not end.continues(former.epoch, former.serial):
        raise BadArchive(
            f"{snapshot} has facts that the log of {archive} has lost: an epoch after {former.epoch}, that of"
            f" the snapshot, began before its serial {former.serial}; use another directory for the snapshot"
        )
    known = table.digest_at(former.serial)
    if known is not None and known != former.digest:
        raise BadArchive(
            f"{snapshot} and {archive} have different facts: their digests of serial {former.serial} differ;"
            " use another directory for the snapshot"
        )
    return known is not None


def _declared(table: ArchiveTable) -> bytes:
    """Return the streams that the archive declares, as JSON: of each name the newest declaration."""
    found: dict[str, StreamBody] = {}
    files = table.files
    paths = files.filter(pc.equal(files["stream"], DECLARATIONS.name))["path"].to_pylist()
    for rows in read_files(table.store, paths, row_schema(("row",))):
        for text in rows["row"].drop_null().to_pylist():
            with suppress(RowError):  # of a later release
                declared = DECLARATIONS.decode(text.encode(), NEWEST)
                found[declared.name] = StreamBody.of(declared)
    return msgspec.json.encode([*found.values()])


def _plan_input(
    table: ArchiveTable, snapshot: Store, former: SnapshotManifest | None, declared: bytes
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
    checksums = {part.path: part.sha256 for part in parts}
    return pa.concat_tables([named, files]), FoldInput(
        table.store, snapshot, lost, whole, checksums, declared
    )


def _write_files(
    driver: Driver, inputs: FoldInput, files: Any, upto: int, file_rows: int, progress: Progress
) -> tuple[list[PartFile], int]:
    """Write the files of the new snapshot. Return the files and the number of keys."""
    if not len(files):
        return [], 0
    with find_last_rows(driver, inputs, files, upto).kept() as last:
        counted = last.map(_count, COUNTED).collect().group_by("bucket").aggregate(SUMS)
        buckets, alive, gone = (counted[name].to_numpy() for name in ("bucket", "alive_sum", "gone_sum"))
        keys = int(alive.sum())
        if not keys:
            return [], 0
        progress("writing", 0, keys)
        tombstones = np.empty(0, np.int64)
        if gone.any() and pc.max(files["last_seq"]).as_py():
            tombstones = find_tombstones(driver, inputs, files, last)
        few = min(driver.parallelism // 2, keys // TASK_ROWS)
        ranges = _assign_ranges(buckets, alive, max(1, few, keys // TASK_KEYS))
        tasks = _split(driver, files, last, tombstones, ranges, bucket_size(upto))
        # Not `serial=`: DuckDB and others would take it for the column `serial`.
        found = tasks.map(partial(write_parts, inputs, f"upto={upto}", file_rows), WRITTEN).collect()
    written = [msgspec.json.decode(one.as_buffer(), type=PartFile) for one in found["written"]]
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


def _count(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.select(COUNTED.names)


def _split(
    driver: Driver, files: Any, last: Partitions, tombstones: Any, ranges: Any, size: int
) -> Partitions:
    """Return the kept positions, and the files that have them, with a task for each range of serials.

    `ranges` has the range of each bucket of `size` serials.
    """
    firsts, lasts = (
        ranges[np.minimum(files[name].to_numpy() // size, len(ranges) - 1)]
        for name in ("first_serial", "last_serial")
    )
    named = files.select(FILE.names).to_pylist()
    readers = [
        {TASK: number, "file": file}
        for file, first, upto in zip(named, firsts.tolist(), lasts.tolist(), strict=True)
        for number in range(first, upto + 1)
    ]
    numbers = ranges[np.minimum((tombstones >> SERIAL_AT) // size, len(ranges) - 1)]
    readers += [
        {TASK: number, "positions": tombstones[numbers == number].tobytes()}
        for number in np.unique(numbers).tolist()
    ]
    count = int(ranges[-1]) + 1
    given = driver.spread(pa.Table.from_pylist(readers, PARTS), count)
    return given.union(last.map(partial(_number, ranges), PARTS)).repartition(count)


def _number(ranges: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the positions of live rows with the number of their range (`PARTS`), of batches of `MERGED`."""
    for batch in batches:
        live = batch.filter(pc.greater(batch["alive"], 0))
        numbers = ranges[np.minimum(live["bucket"].to_numpy(), len(ranges) - 1)]
        files = pa.nulls(len(live), PARTS.field("file").type)
        yield pa.record_batch([pa.array(numbers), live["positions"], files], PARTS)


def _assign_ranges(buckets: Any, alive: Any, count: int) -> Any:
    """Split the buckets into `count` ranges of about equally many live rows; return the range of each."""
    order = np.argsort(buckets)
    buckets, alive = buckets[order], alive[order]
    ranges = ((np.cumsum(alive) - alive) * count // alive.sum()).astype(np.int32)
    return np.repeat(ranges, np.diff(buckets, prepend=-1))


def _names(store: Store) -> Iterator[str]:
    """Yield the names of the files of all snapshots."""
    for folder in (name for name in store.names("") if name.startswith("upto=")):
        yield from (f"{folder}/{name}" for name in store.names(folder))


def _clean(
    store: Store, made: SnapshotManifest, former: SnapshotManifest | None, there: AbstractSet[str]
) -> None:
    """Remove the files that neither this snapshot nor the previous one names.

    Only those that were `there` when the job began: later ones are of another job, which may still write its
    manifest.
    """
    named = {file.path for one in (made, former) if one is not None for file in one.files}
    gone = there - named
    for path in gone:
        store.remove(path)
    for folder in {path.partition("/")[0] for path in gone}:
        if not store.names(folder):
            store.remove_folder(folder)
