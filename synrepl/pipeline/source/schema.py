"""The columns of a row, in Arrow and in Spark: what the source gives is what archives hold."""

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
"""What a daemon answers: a line for each fact, its rows a JSON array."""

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
"""A line for each row.

`seq` is the place of a row in its fact, from 0. `row` is its canonical JSON text, null in the one line of a
fact without rows (which certifies how far its writer is). `key` is the JSON array of what the row is about
(rows with the same stream and key replace each other), null where its stream has no keys.
"""

COLUMNS: Final[tuple[str, ...]] = tuple(ROWS.names)

_SPARK: Final = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def row_schema(columns: tuple[str, ...]) -> Any:
    """The Arrow schema of these columns, in this order."""
    return pa.schema([ROWS.field(name) for name in columns])


def spark_schema(columns: tuple[str, ...]) -> str:
    """The same for Spark, as DDL."""
    return ", ".join(
        f"`{field.name}` {_SPARK[field.type]}" + ("" if field.nullable else " NOT NULL")
        for field in row_schema(columns)
    )
