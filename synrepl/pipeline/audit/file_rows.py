"""Reader of files with a wrong checksum, whose bytes are not trusted.

Parquet readers differ in the damage they detect, and an error in Spark's reader fails the job. So pyarrow
alone reads such a file, completely; Spark receives rows, never the file.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.source.rows import COLUMNS, ROWS, spark_schema
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AT_ONCE", "DAMAGE", "read_checked", "read_files"]

AT_ONCE: Final = 128 * 1024
"""Rows of a record batch."""

DAMAGE: Final = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError)
"""What pyarrow raises for bytes that are no Parquet file any more."""


def read_checked(source: Any) -> Iterator[Any]:
    """All rows of this open file, as valid record batches of `ROWS`. Raises one of `DAMAGE`."""
    file = pq.ParquetFile(source)
    if not file.schema_arrow.equals(ROWS):
        raise ValueError("its columns are not those of an archive")
    for batch in file.iter_batches(AT_ONCE):
        batch.validate(full=True)
        if any(batch[field.name].null_count for field in ROWS if not field.nullable):
            raise ValueError("it lacks values of a column that has no nulls")
        yield batch


def read_files(
    spark: "SparkSession", store: Store, paths: Sequence[str], changed: Collection[str]
) -> "DataFrame":
    """The rows of these files. Those that are `changed` are read by `read_checked`."""
    schema = spark_schema(COLUMNS)
    frames = []
    if whole := [path for path in paths if path not in changed]:
        frames.append(spark.read.schema(schema).parquet(*map(store.uri, whole)))
    if others := [(path,) for path in paths if path in changed]:
        named = spark.createDataFrame(others, "`path` string")
        frames.append(named.mapInArrow(partial(_read_named, store), schema))
    return reduce(lambda one, other: one.union(other), frames)


def _read_named(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for path in batch["path"].to_pylist():
            with store.filesystem.open_input_file(store.path(path)) as source:
                yield from read_checked(source)
