"""Reading of files of an archive on Spark: as rows, or by a function in tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.source.rows import COLUMNS, spark_schema
from synrepl.pipeline.store import Store

__all__ = ["map_files", "read_rows", "within"]

TASK_ROWS: Final = 2_000_000
"""Maximum rows per task, as far as files can be distributed."""


def within(files: Any, first: int, last: int) -> Any:
    """Return the files (rows of `ArchiveTable.files`) with serials from `first` to `last`."""
    is_after = pc.greater_equal(files["last_serial"], first)
    return files.filter(pc.and_(is_after, pc.less_equal(files["first_serial"], last)))


def read_rows(spark: SparkSession, store: Store, files: Any, columns: Sequence[str] = COLUMNS) -> DataFrame:
    """Return the rows of these files (rows of `ArchiveTable.files`), unordered.

    The files are read by name: others in the folders are not part of this version of the archive.
    """
    schema = spark_schema(tuple(columns))
    if not len(files):
        return spark.createDataFrame([], schema.replace(" NOT NULL", ""))
    return spark.read.schema(schema).parquet(*map(store.uri, files["path"].to_pylist()))


def map_files(
    spark: SparkSession, files: Any, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str
) -> DataFrame:
    """Apply `work` in tasks to record batches of files, distributed by size. `schema` is that of its results.

    Executors need synrepl, pyarrow, and the files under the same path.
    """
    hint = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    rows = sum(files["rows"].to_pylist())
    tasks = max(1, min(len(files), max(hint, rows // TASK_ROWS)))
    # Largest first, round robin, so that the large files are spread over the tasks.
    ranked = files.sort_by([("rows", "descending")])
    ranked = ranked.append_column("task", pa.array([at % tasks for at in range(len(files))], pa.int32()))
    return spark.createDataFrame(ranked).repartitionById(tasks, "task").mapInArrow(work, schema)
