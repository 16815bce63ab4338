"""The job `optimize`: merges small files, as many small files make an archive slow to read."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.archive.row_files import WrittenFile, read_files, write_files, write_in_tasks
from synrepl.pipeline.archive.table import ArchiveTable, CommitConflict
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store

TARGET_BYTES: Final = 128 * 1024 * 1024

FEWEST: Final = 8
"""Minimum number of files that the job `archive` merges into one."""

COMMIT_FILES: Final = 10_000
"""Approximate maximum number of files that one commit replaces."""


class MergedMeanwhile(BadArchive):
    """Another job has merged the same files."""


class OptimizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of merged files, and the number and bytes of the files made of them."""

    merged: int
    made: int
    bytes: int


@retry_late_workers
def optimize(
    runner: Runner,
    store: Store,
    *,
    target_bytes: int = TARGET_BYTES,
    fewest: int = 2,
    progress: Progress = ignore_progress,
) -> OptimizeResult:
    """Merge adjacent small files of each stream and day, at least `fewest` of them, up to `target_bytes`.

    The facts, and their order, stay the same. The merged files stay too, for readers and time travel, until
    `vacuum`. Raises `MergedMeanwhile` if another job has merged the same files, and `BadArchive` if a file is
    damaged.
    """
    table = ArchiveTable(store)
    upto = table.end.compacted_upto
    plans = plan_merges(table.files, target_bytes=target_bytes, fewest=fewest, compacted_upto=upto)
    merged = made = size = 0
    for some in _rounds(plans):
        progress("merging", merged, 0)
        removed = pa.concat_tables(some)
        paths = [plan["path"].to_pylist() for plan in some]
        written = write_in_tasks(driver_of(runner), paths, partial(_rewrite, store))
        try:
            table = table.replace(removed, written, now_ms=now_ms())
        except CommitConflict as error:
            raise MergedMeanwhile(
                f"{store}: another job has merged files meanwhile: {error}; run the job again"
            ) from error
        merged, made = merged + len(removed), made + len(written)
        size += sum(one.bytes for one in written)
    progress("merging", merged, merged)
    return OptimizeResult(merged=merged, made=made, bytes=size)


def plan_merges(files: Any, *, target_bytes: int, fewest: int, compacted_upto: int = 0) -> Iterator[Any]:
    """Yield tables of at least `fewest` adjacent small files of one stream and day, up to `target_bytes`.

    Files up to `compacted_upto` are merged apart: an audit expects no serials of them, but all of the others.

    With `fewest` above 2, no file of a merge has more bytes than its other files together. So each rewrite
    of a fact at least doubles its file, and a fact is rewritten a few times at most.
    """
    if len(files) < fewest:
        return
    files = files.sort_by([(name, "ascending") for name in ("stream", "date", "first_serial")])
    sizes = files["bytes"].to_numpy()
    ends = np.cumsum(sizes)
    is_small = sizes <= target_bytes // 2
    is_apart = ~is_small[1:] | ~is_small[:-1]
    for name in ("stream", "date"):
        column = files[name]
        is_other = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        is_apart |= is_other.fill_null(False).to_numpy()
    if compacted_upto:
        is_later = files["first_serial"].to_numpy() > compacted_upto
        is_apart |= is_later[1:] != is_later[:-1]
    bounds = np.concatenate(([0], np.nonzero(is_apart)[0] + 1, [len(files)]))
    for start in np.nonzero(np.diff(bounds) >= fewest)[0].tolist():
        first, last = bounds[start : start + 2].tolist()
        while first < last:
            limit = ends[first] - sizes[first] + target_bytes
            stop = min(last, int(np.searchsorted(ends, limit, "right")))
            yield from (files.slice(at, upto - at) for at, upto in _merges(sizes, first, stop, fewest))
            first = stop


def _merges(sizes: Any, first: int, stop: int, fewest: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of merges of adjacent files: `first` to `stop`, or parts of that.

    With `fewest` above 2, a file with more bytes than all others of its merge together is left out, and the
    files before and after it are merged apart: its rewrite would copy it for little.
    """
    if stop - first < fewest:
        return
    heaviest = first + int(np.argmax(sizes[first:stop]))
    if fewest <= 2 or 2 * sizes[heaviest] <= sizes[first:stop].sum():
        yield first, stop
    else:
        yield from _merges(sizes, first, heaviest, fewest)
        yield from _merges(sizes, heaviest + 1, stop, fewest)


def _rounds(plans: Iterator[Any]) -> Iterator[list[Any]]:
    """Group the merges of a commit, so that neither commits nor the driver's lists grow with the archive."""
    some: list[Any] = []
    count = 0
    for plan in plans:
        some.append(plan)
        count += len(plan)
        if count >= COMMIT_FILES:
            yield some
            some, count = [], 0
    if some:
        yield some


def _rewrite(store: Store, paths: Iterable[str]) -> Iterator[WrittenFile]:
    """Write these files, which follow each other, as one file (runs in a task)."""
    return write_files(store, read_files(store, paths, ROWS))
