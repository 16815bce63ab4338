"""The scan of an archive for its facts. Tasks read each file once, for them and for the scan of the audit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.row_files import map_files
from synrepl.pipeline.audit.file_scan import COLUMNS, SEEN, rank_files, scan_files
from synrepl.pipeline.driver import TASK, Driver, Partitions
from synrepl.pipeline.store import Store

READ: Final = (*COLUMNS, "epoch", "row", "committed_at")

SAME: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token")
"""The columns that are equal in all rows of a fact."""

FACTS: Final = pa.schema(
    [
        *((name, pa.string() if name in {"stream", "writer"} else pa.int64()) for name in SAME),
        *((name, pa.int64()) for name in ("committed_ms", "copies", "rows", "bytes", "waited_ms")),
    ]
)

SCANNED: Final = pa.schema([*FACTS, ("rank", pa.int64()), ("seen", pa.binary())])
"""The lines of `scan_facts`: of facts (`FACTS`), and of files (`SEEN`); the other columns are null."""

CHUNK_ROWS: Final = 128 * 1024
"""Rows that a task counts at once."""

MERGED_FACTS: Final = 500_000
"""Facts whose lines a task merges, in its memory."""


def scan_facts(driver: Driver, archive: Store, files: Any, batches: Sequence[Batch]) -> Partitions:
    """Return a line per fact of a file, and one per file with its scan (`SCANNED`).

    `rows` and `bytes` are those of a fact, `committed_ms` its time and `waited_ms` its archive lag, null if
    unknown. `copies` is above 1 for a fact duplicated in a file; a fact in two files has two lines
    (`counted_once`).
    """
    ends = np.array([one.last_serial for one in batches], np.int64)
    # 0 where the time is unknown, and after the last batch.
    times = np.array([*(one.archived_at_ms for one in batches), 0], np.int64)
    work = partial(_scan, archive, partial(_facts, ends=ends, times=times))
    return map_files(driver, rank_files(files), work, SCANNED)


def scans_of(lines: Partitions) -> Partitions:
    """Return the scans of files (`SEEN`) in the lines of `scan_facts`."""
    return lines.map(partial(_select, pc.is_valid, SEEN), SEEN)


def facts_of(lines: Partitions) -> Partitions:
    """Return the facts (`FACTS`) in the lines of `scan_facts`."""
    return lines.map(partial(_select, pc.is_null, FACTS), FACTS)


def counted_once(facts: Partitions, count: int) -> Partitions:
    """Merge the lines of a fact from different files into one. There are about `count` facts."""
    tasks = count // MERGED_FACTS + 1
    numbered = facts.map(partial(_number, tasks), pa.schema([(TASK, pa.int32()), *FACTS]))
    return numbered.repartition(tasks).map(_merge_lines, FACTS)


def _scan(
    archive: Store, derive: Callable[[Iterator[Any]], Iterable[Any]], batches: Iterable[Any]
) -> Iterator[Any]:
    filled = (batch for lines in scan_files(archive, batches, READ, derive) for batch in _filled(lines))
    for lines in joined(filled):
        yield from lines.combine_chunks().to_batches()


def _filled(lines: Any) -> Any:
    given = set(lines.schema.names)
    columns = [lines[one.name] if one.name in given else pa.nulls(len(lines), one.type) for one in SCANNED]
    return pa.table(columns, names=SCANNED.names).cast(SCANNED).to_batches()


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """Join record batches to tables of `CHUNK_ROWS` rows, or some more: small files make small batches."""
    some: list[Any] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += len(batch)
        if count >= CHUNK_ROWS:
            yield pa.Table.from_batches(some)
            some, count = [], 0
    if count:
        yield pa.Table.from_batches(some)


def _select(is_its: Callable[[Any], Any], schema: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        its = batch.filter(is_its(batch["seen"]))
        yield pa.record_batch([its[name] for name in schema.names], schema)


def _number(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        numbers = pa.array((batch["serial"].to_numpy() % tasks).astype(np.int32))
        yield pa.record_batch([numbers, *batch.columns], [TASK, *FACTS.names])


def _merge_lines(batches: Iterable[Any]) -> Iterator[Any]:
    how = {"copies": "sum", "rows": "max", "bytes": "max", "waited_ms": "min"}
    lines = [batch.select(FACTS.names) for batch in batches]
    same = [name for name in FACTS.names if name not in how]
    merged = pa.Table.from_batches(lines, FACTS).group_by(same).aggregate([*how.items()])
    columns = [merged[f"{name}_{how[name]}" if name in how else name] for name in FACTS.names]
    yield from pa.table(columns, FACTS.names).cast(FACTS).combine_chunks().to_batches()


def _facts(batches: Iterable[Any], ends: Any, times: Any) -> Iterator[Any]:
    """Yield the facts of a file as tables, from its rows. A fact is never split between files."""
    rest: list[Any] = []
    for batch in batches:
        rows = pa.Table.from_batches([*rest, batch])
        if not len(rows):
            continue
        # The next batch may have further rows of the last fact.
        serials = rows["serial"].to_numpy()
        last = int(np.flatnonzero(serials != serials[-1])[-1]) + 1 if (serials != serials[-1]).any() else 0
        rest = rows.slice(last).to_batches()
        if last:
            yield _merged(rows.slice(0, last), ends, times)
    if rest:
        yield _merged(pa.Table.from_batches(rest), ends, times)


def _merged(rows: Any, ends: Any, times: Any) -> Any:
    serials = rows["serial"].to_numpy()
    starts = np.flatnonzero(np.diff(serials, prepend=serials[0] - 1))
    copies = np.add.reduceat(np.equal(rows["seq"].to_numpy(), 0).astype(np.int64), starts)
    copies = np.maximum(copies, 1)
    sizes = pc.binary_length(rows["row"])
    committed_ms = rows["committed_at"].cast(pa.int64()).to_numpy()[starts] // 1000
    archived_ms = times[np.searchsorted(ends, serials[starts])]
    facts = rows.select(SAME).take(pa.array(starts))
    for name, values in (
        ("committed_ms", committed_ms),
        ("copies", copies),
        ("rows", np.add.reduceat(sizes.is_valid().to_numpy().astype(np.int64), starts) // copies),
        ("bytes", np.add.reduceat(sizes.fill_null(0).to_numpy().astype(np.int64), starts) // copies),
        ("waited_ms", pa.array(archived_ms - committed_ms, mask=archived_ms == 0)),
    ):
        facts = facts.append_column(name, pa.array(values))
    return facts
