"""The facts of an archive as DataFrames, from which everything else is counted.

Tasks read the files with pyarrow. For many small files Spark's own reader takes twenty times as long per
file, and supports only stores with drivers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.pipeline.archive.reading import map_files
from synrepl.pipeline.archive.table import Batch
from synrepl.pipeline.store import Store

__all__ = [
    "Part",
    "parts_of",
    "read",
    "read_by_executors",
    "counted_once",
    "facts_of",
    "read_facts",
    "seconds_of",
]


class Part(msgspec.Struct, frozen=True):
    """A file."""

    path: str
    rows: int


def parts_of(files: Any, stream: str | None = None) -> Any:
    """Return the files (rows of `ArchiveTable.files`) of one stream, or all."""
    return files if stream is None else files.filter(pc.equal(files["stream"], stream))


def read(store: Store, part: Part, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches of a file, no larger than a row group."""
    with store.filesystem.open_input_file(store.path(part.path)) as source:
        yield from pq.ParquetFile(source).iter_batches(batch_size=128 * 1024, columns=list(columns))


def read_by_executors(
    spark: SparkSession, parts: Any, schema: str, work: Callable[[Iterable[Part]], Iterator[Any]]
) -> DataFrame:
    """Apply `work` to these files in tasks. `schema` is the schema of its record batches."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from work(map(Part, batch["path"].to_pylist(), batch["rows"].to_pylist()))

    return map_files(spark, parts, run, schema)


READ: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token", "seq", "row", "committed_at")

SAME: Final = ("epoch", "stream", "writer", "prev_token", "token", "committed_ms")
"""The columns that are equal in all lines of a fact."""

SUMMED: Final = ("copies", "rows", "bytes")

SCHEMA: Final = (
    "serial bigint, epoch bigint, stream string, writer string, prev_token bigint, token bigint,"
    " committed_ms bigint, copies bigint, rows bigint, bytes bigint, waited_ms bigint"
)


def facts_of(spark: SparkSession, archive: Store, files: Any, batches: Sequence[Batch]) -> DataFrame:
    """Return a line per fact of a file: `rows`, `bytes`, `committed_ms` and the archive lag `waited_ms`.

    `waited_ms` is null if unknown. `copies` is above 1 for a fact duplicated in a file; a fact in two files
    has two lines (`counted_once`).
    """
    ends = np.array([one.last_serial for one in batches], np.int64)
    # 0 where the time is unknown, and after the last batch.
    times = np.array([*(one.archived_at_ms for one in batches), 0], np.int64)

    def work(parts: Iterable[Part]) -> Iterator[Any]:
        for part in parts:
            yield from read_facts(archive, part, ends, times)

    return read_by_executors(spark, files, SCHEMA, work)


def read_facts(archive: Store, part: Part, ends: Any, times: Any) -> Iterator[Any]:
    """Yield the facts of one file as record batches. A fact is never split between files.

    `ends` are the last serials of batches, `times` when they were archived.
    """
    rest: Any = None
    for batch in read(archive, part, READ):
        lines = _lines(batch)
        if rest is not None:
            lines = pa.concat_tables([rest, lines])
        facts = _facts(lines)
        # The next batch may have further rows of the last fact.
        last = len(facts) - 1
        rest = facts.slice(last)
        yield from _finished(facts.slice(0, last), ends, times)
    if rest is not None:
        yield from _finished(rest, ends, times)


def counted_once(facts: DataFrame) -> DataFrame:
    """Merge each fact's copies from different files into one row."""
    return facts.groupBy("serial", *SAME).agg(
        f.sum("copies").alias("copies"),
        f.max("rows").alias("rows"),
        f.max("bytes").alias("bytes"),
        f.min("waited_ms").alias("waited_ms"),
    )


def seconds_of(facts: DataFrame) -> DataFrame:
    """Count facts by stream, writer and second, for all plots over time."""
    return facts.groupBy("stream", "writer", f.expr("committed_ms div 1000").alias("second")).agg(
        f.count("*").alias("facts"),
        f.sum("rows").alias("rows"),
        f.sum("bytes").alias("bytes"),
        f.max("committed_ms").alias("last_ms"),
        f.max(f.when(f.col("token") != f.col("prev_token"), f.col("token"))).alias("token"),
    )


def _lines(batch: Any) -> Any:
    columns = {name: batch[name] for name in ("serial", *SAME[:-1])}
    columns["committed_ms"] = pc.divide(batch["committed_at"].cast(pa.int64()), 1000)
    columns["copies"] = pc.equal(batch["seq"], 0).cast(pa.int64())
    columns["rows"] = pc.is_valid(batch["row"]).cast(pa.int64())
    columns["bytes"] = pc.fill_null(pc.binary_length(batch["row"]), 0).cast(pa.int64())
    return pa.table(columns)


def _facts(lines: Any) -> Any:
    sums = [*((name, "first") for name in SAME), *((name, "sum") for name in SUMMED)]
    found = lines.group_by("serial", use_threads=False).aggregate(sums)
    names = {"serial": "serial"} | {f"{name}_{how}": name for name, how in sums}
    return found.select(list(names)).rename_columns(list(names.values()))


def _finished(facts: Any, ends: Any, times: Any) -> Iterator[Any]:
    if not len(facts):
        return
    copies = pc.max_element_wise(facts["copies"], 1)
    columns = {name: facts[name] for name in ("serial", *SAME, "copies")}
    columns["rows"] = pc.divide(facts["rows"], copies)
    columns["bytes"] = pc.divide(facts["bytes"], copies)
    archived = times[np.searchsorted(ends, facts["serial"].to_numpy())]
    columns["waited_ms"] = pc.subtract(pa.array(archived, mask=archived == 0), facts["committed_ms"])
    yield from pa.table(columns).combine_chunks().to_batches()
