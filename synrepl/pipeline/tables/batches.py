"""The rows of a DataFrame as an Arrow stream, of which the driver holds one batch at a time."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["stream_batches"]


def stream_batches(frame: DataFrame) -> Any:
    """Return the rows as a record batch reader, in order. Partitions are computed when they are read.

    PySpark's own stream of a DataFrame fails for columns with times.
    """
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.RecordBatchReader.from_batches(schema, _read(frame, schema))


def _read(frame: DataFrame, schema: Any) -> Iterator[Any]:
    for row in frame.mapInArrow(_encode, "`batch` binary NOT NULL").toLocalIterator():
        for batch in pa.ipc.open_stream(row.batch):
            yield batch.cast(schema)


def _encode(batches: Iterable[Any]) -> Iterator[Any]:
    """Encode record batches as values of a column (runs in a task)."""
    for batch in batches:
        encoded = pa.BufferOutputStream()
        with pa.ipc.new_stream(encoded, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch({"batch": pa.array([encoded.getvalue().to_pybytes()], pa.binary())})
