"""The job `optimize`: merges small files, as many small files make an archive slow to read."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from synrepl.pipeline.archive.committer import add_action
from synrepl.pipeline.archive.table import ArchiveTable, CommitConflict
from synrepl.pipeline.archive.writer import WrittenFile, write_files, write_in_tasks
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store

__all__ = ["FEWEST", "OptimizeResult", "optimize", "plan_merges", "rewrite_files"]

TARGET_BYTES: Final = 128 * 1024 * 1024

FEWEST: Final = 8
"""Minimum number of files that the job `archive` merges into one."""


class OptimizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of merged files, and of the files that replaced them."""

    merged: int
    made: int
    bytes: int


@retry_late_workers
def optimize(
    spark: SparkSession,
    store: Store,
    *,
    target_bytes: int = TARGET_BYTES,
    fewest: int = 2,
    progress: Progress = ignore_progress,
) -> OptimizeResult:
    """Merge adjacent small files of each stream and day, at least `fewest` of them, up to `target_bytes`.

    The facts, and their order, stay the same. The merged files stay too, for readers and time travel, until
    `vacuum`. Raises `BadArchive` if another job has merged the same files meanwhile.
    """
    table = ArchiveTable(store)
    plans = list(plan_merges(table.files, target_bytes=target_bytes, fewest=fewest))
    progress("merging", 0, len(plans))
    if not plans:
        return OptimizeResult(merged=0, made=0, bytes=0)
    merged = pa.concat_tables(plans)
    paths = pa.table({"paths": pa.array([plan["path"].to_pylist() for plan in plans])})
    written = write_in_tasks(
        spark.createDataFrame(paths).repartition(len(plans)), partial(_rewrite_all, store)
    )
    now = now_ms()
    try:
        table.replace(merged, [add_action(one, now, data_change=False) for one in written], now_ms=now)
    except CommitConflict as error:
        raise BadArchive(
            f"{store}: another job has merged files meanwhile: {error}; run the job again"
        ) from error
    progress("merging", len(plans), len(plans))
    return OptimizeResult(merged=len(merged), made=len(written), bytes=sum(one.bytes for one in written))


def plan_merges(files: Any, *, target_bytes: int, fewest: int) -> Iterator[Any]:
    """Yield tables of files to merge into one.

    With `fewest` above 2, no file of a merge has more bytes than the others together: so a fact is rewritten
    only into a file at least twice as large, a few times at most.
    """
    files = files.sort_by([(name, "ascending") for name in ("stream", "date", "first_serial")])
    sizes = files["bytes"].to_pylist()
    partitions = zip(files["stream"].to_pylist(), files["date"].to_pylist(), range(len(files)), strict=True)
    for _, group in groupby(partitions, key=lambda one: one[:2]):
        run: list[int] = []
        for _, _, position in group:
            is_small = sizes[position] <= target_bytes // 2
            if not is_small or sum(sizes[one] for one in run) + sizes[position] > target_bytes:
                yield from _merges(files, run, sizes, fewest)
                run = []
            if is_small:
                run.append(position)
        yield from _merges(files, run, sizes, fewest)


def _merges(files: Any, run: list[int], sizes: Sequence[int], fewest: int) -> Iterator[Any]:
    """Yield the merges of a run, without the files that are too large for the others."""
    if len(run) < fewest:
        return
    heaviest = max(range(len(run)), key=lambda position: sizes[run[position]])
    if fewest <= 2 or 2 * sizes[run[heaviest]] <= sum(sizes[one] for one in run):
        yield files.take(run)
    else:
        yield from _merges(files, run[:heaviest], sizes, fewest)
        yield from _merges(files, run[heaviest + 1 :], sizes, fewest)


def rewrite_files(store: Store, paths: Sequence[str]) -> Iterator[WrittenFile]:
    """Write the rows of these files, which follow each other, as one file (runs in a task)."""
    yield from write_files(store, _rows(store, paths))


def _rewrite_all(store: Store, plans: Iterator[Any]) -> Iterator[WrittenFile]:
    for plan in plans:
        for paths in plan["paths"].to_pylist():
            yield from rewrite_files(store, paths)


def _rows(store: Store, paths: Sequence[str]) -> Iterator[Any]:
    for path in paths:
        with store.filesystem.open_input_file(store.path(path)) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=list(ROWS.names)):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=ROWS)
