"""The facts of an archive as a frame, from which everything else is counted, with the scans of its files.

Tasks read each file once for both, with pyarrow: for many small files Spark's own reader takes three times as
long, and supports only stores with drivers.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.archive.reading import map_files
from synrepl.pipeline.archive.table import Batch
from synrepl.pipeline.audit.file_scan import COLUMNS, rank_files, scan_files
from synrepl.pipeline.report.counts import grouped, summed
from synrepl.pipeline.store import Store

READ: Final = (*COLUMNS, "epoch", "row", "committed_at")

SAME: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token")
"""The columns that are equal in all rows of a fact."""

SCHEMA: Final = pa.schema(
    [
        *((name, pa.string() if name in {"stream", "writer"} else pa.int64()) for name in SAME),
        *((name, pa.int64()) for name in ("committed_ms", "copies", "rows", "bytes", "waited_ms", "rank")),
        ("seen", pa.binary()),
    ]
)

DDL: Final = ", ".join(
    f"{field.name} {({pa.string(): 'string', pa.binary(): 'binary'}).get(field.type, 'bigint')}"
    for field in SCHEMA
)


def scan_facts(spark: SparkSession, archive: Store, files: Any, batches: Sequence[Batch]) -> DataFrame:
    """Return a line per fact of a file: `rows`, `bytes`, `committed_ms` and the archive lag `waited_ms`.

    `waited_ms` is null if unknown. `copies` is above 1 for a fact duplicated in a file; a fact in two files
    has two lines (`counted_once`). The line of a file has only `rank` and `seen` (its scan), which are null
    in lines of facts.
    """
    ends = np.array([one.last_serial for one in batches], np.int64)
    # 0 where the time is unknown, and after the last batch.
    times = np.array([*(one.archived_at_ms for one in batches), 0], np.int64)

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        return map(_filled, scan_files(archive, batches, READ, partial(_facts, ends=ends, times=times)))

    return map_files(spark, rank_files(files), work, DDL)


def counted_once(facts: DataFrame) -> DataFrame:
    """Merge the lines of a fact from different files into one."""
    most = ("max(rows) as rows", "max(bytes) as bytes")
    return grouped(facts, [*SAME, "committed_ms"], summed("copies"), *most, "min(waited_ms) as waited_ms")


def seconds_of(facts: DataFrame) -> DataFrame:
    """Count facts by stream, writer and second, for all plots over time."""
    return grouped(
        facts,
        ["stream", "writer", "committed_ms div 1000 as second"],
        "count(*) as facts",
        summed("rows"),
        summed("bytes"),
        "max(committed_ms) as last_ms",
        "max(token) filter (where token != prev_token) as token",
    )


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


def _filled(lines: Any) -> Any:
    given = set(lines.schema.names)
    columns = [lines[one.name] if one.name in given else pa.nulls(len(lines), one.type) for one in SCHEMA]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches()[0]
