"""Schema of rows in Arrow and Spark, shared by the source and archives."""

from typing import Any, Final

import pyarrow as pa

__all__ = ["COLUMNS", "FACTS", "ROWS", "row_schema", "spark_schema"]

FACTS: Final = pa.schema(
    [
        pa.field("serial", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("writer", pa.string(), nullable=False),
        pa.field("prev_token", pa.int64(), nullable=False),
        pa.field("token", pa.int64(), nullable=False),
        pa.field("rows", pa.string(), nullable=False),
        pa.field("committed_at_ms", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)
"""The schema of a daemon's response: a line per fact, with its rows as a JSON array."""

ROWS: Final = pa.schema(
    [
        *(FACTS.field(name) for name in ("serial", "epoch", "stream", "writer", "prev_token", "token")),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("row", pa.string()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        FACTS.field("digest"),
    ]
)
"""The schema of rows: a line per row.

`seq` is the index of the row in its fact, from 0. `row` is its canonical JSON text, null in the only line of
a fact without rows (which certifies the position of its writer). `key` is the key of the row as a JSON array
(a row replaces rows of the same stream and key), null if the stream has no keys.
"""

COLUMNS: Final[tuple[str, ...]] = tuple(ROWS.names)

_SPARK: Final = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def row_schema(columns: tuple[str, ...]) -> Any:
    """Return the Arrow schema of these columns, in this order."""
    return pa.schema([ROWS.field(name) for name in columns])


def spark_schema(columns: tuple[str, ...]) -> str:
    """Return the Spark schema of these columns, as DDL."""
    return ", ".join(
        f"`{field.name}` {_SPARK[field.type]}" + ("" if field.nullable else " NOT NULL")
        for field in row_schema(columns)
    )
