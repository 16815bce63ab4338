"""Reading of files of an archive on Spark: as rows, or by a function in tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.source.rows import COLUMNS, row_schema, spark_schema
from synrepl.pipeline.store import Store

TASK_ROWS: Final = 2_000_000
"""Maximum rows per task, as far as files can be distributed."""

NAMED_FILES: Final = 1_000
"""Maximum number of files that Spark reads by itself: its driver keeps the name and state of each."""


def within(files: Any, first: int, last: int) -> Any:
    """Return the files (rows of `ArchiveTable.files`) with serials from `first` to `last`."""
    is_after = pc.greater_equal(files["last_serial"], first)
    return files.filter(pc.and_(is_after, pc.less_equal(files["first_serial"], last)))


def read_rows(spark: SparkSession, store: Store, files: Any, columns: Sequence[str] = COLUMNS) -> DataFrame:
    """Return the rows of these files (rows of `ArchiveTable.files`), unordered.

    Files are read by name, as the folders also have files of other versions. Spark itself reads only up to
    `NAMED_FILES` local files; for an object store it would need jars.
    """
    schema = spark_schema(tuple(columns))
    if not len(files):
        return spark.createDataFrame([], schema.replace(" NOT NULL", ""))
    if store.is_local and len(files) <= NAMED_FILES:
        return spark.read.schema(schema).parquet(*map(store.uri, files["path"].to_pylist()))
    return map_files(spark, files, partial(_read_named, store, row_schema(tuple(columns))), schema)


def read_files(store: Store, paths: Iterable[str], schema: Any) -> Iterator[Any]:
    """Yield the record batches of these files, one file after the other, with these columns."""
    for path in paths:
        with store.filesystem.open_input_file(store.path(path)) as source:
            for rows in pq.ParquetFile(source).iter_batches(columns=schema.names):
                yield pa.record_batch([rows[name] for name in schema.names], schema=schema)


def _read_named(store: Store, schema: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from read_files(store, batch["path"].to_pylist(), schema)


def map_files(
    spark: SparkSession, files: Any, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str
) -> DataFrame:
    """Apply `work` in tasks to record batches of files, distributed by size. Its results have `schema`.

    Executors need synrepl, pyarrow, and the files under the same path.
    """
    rows = pc.sum(files["rows"]).as_py() or 0
    tasks = max(1, min(len(files), max(parallelism(spark), rows // TASK_ROWS)))
    # Largest first, round robin, so that the large files are spread over the tasks.
    ranked = files.sort_by([("rows", "descending")])
    numbers = np.arange(len(files), dtype=np.int32) % tasks
    ranked = ranked.append_column("task", pa.array(numbers))
    return frame_of(spark, ranked).repartitionById(tasks, "task").mapInArrow(work, schema)


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that keep the cores of this session busy."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


def frame_of(spark: SparkSession, table: Any) -> DataFrame:
    """Return an Arrow table as a frame. Of columns in several chunks, Spark would lose rows."""
    return spark.createDataFrame(table.combine_chunks())


def pack(rows: Any) -> bytes:
    """Return a table or a record batch as bytes, for a binary column of Spark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return bytes(sink.getvalue())


def unpack(packed: Any) -> Any:
    """Return the packed rows, from bytes or an Arrow buffer, as a table."""
    return pa.ipc.open_stream(packed).read_all()
