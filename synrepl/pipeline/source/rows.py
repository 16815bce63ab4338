"""Rows: their schema in Arrow and Spark, and the conversion of facts to rows."""

import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "COLUMNS",
    "FACTS",
    "GROUP_ROWS",
    "PARQUET",
    "ROWS",
    "row_schema",
    "spark_schema",
    "explode",
    "split_items",
]

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

PARQUET: Final = {
    "compression": "zstd",
    "use_dictionary": ["epoch", "stream", "writer", "seq"],
    "column_encoding": dict.fromkeys(
        ["serial", "prev_token", "token", "committed_at"], "DELTA_BINARY_PACKED"
    ),
}
"""The options of Parquet files of rows: dictionaries of what repeats, differences of what ascends.

With the defaults of pyarrow files are a third larger, and take twice the time to write.
"""

GROUP_ROWS: Final = 128 * 1024
"""Rows per row group of such a file, the unit that readers load."""

COLUMNS: Final[tuple[str, ...]] = tuple(ROWS.names)

_SPARK: Final = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def row_schema(columns: tuple[str, ...], own: Iterable[Any] = ()) -> Any:
    """Return the Arrow schema of these columns, in this order; `own` are fields of a stream."""
    known = {field.name: field for field in (*ROWS, *own)}
    return pa.schema([known[name] for name in columns])


def spark_schema(columns: tuple[str, ...], own: Iterable[Any] = ()) -> str:
    """Return the Spark schema of these columns, as DDL."""
    return ", ".join(
        f"`{field.name}` {_SPARK[field.type]}" + ("" if field.nullable else " NOT NULL")
        for field in row_schema(columns, own)
    )


def split_items(rows: str) -> list[str]:
    """Return the texts of the items of a JSON array in canonical form, unchanged."""
    # Local, since a module-level object cannot be pickled by value.
    decode = json.JSONDecoder().raw_decode
    found: list[str] = []
    at = 1
    while rows[at] != "]":
        _, end = decode(rows, at)
        found.append(rows[at:end])
        at = end + 1 if rows[end] == "," else end
    return found


def explode(facts: Any) -> Any:
    """Convert a record batch of facts (`FACTS`) to one of rows (`ROWS`), with null keys.

    Most facts have one row, whose text is the array without its brackets. Only facts that contain ``],[`` or
    that have no rows are parsed.
    """
    texts = facts["rows"]
    is_plain = pc.and_(pc.invert(pc.match_substring(texts, "],[")), pc.not_equal(texts, "[]"))
    if pc.all(is_plain, min_count=0).as_py():
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(facts))
        return _rows(facts, zeros, pc.utf8_slice_codeunits(texts, 1, -1))
    positions: list[int] = []
    seqs: list[int] = []
    rows: list[str | None] = []
    for position, (text, plain) in enumerate(zip(texts.to_pylist(), is_plain.to_pylist(), strict=True)):
        found: list[Any] = [text[1:-1]] if plain else split_items(text) or [None]
        positions += [position] * len(found)
        seqs += range(len(found))
        rows += found
    return _rows(facts.take(pa.array(positions)), pa.array(seqs, pa.int32()), pa.array(rows, pa.string()))


def _rows(facts: Any, seqs: Any, rows: Any) -> Any:
    computed = {
        "seq": seqs,
        "key": pa.nulls(len(facts), pa.string()),
        "row": rows,
        "committed_at": pc.multiply(facts["committed_at_ms"], 1000).cast(pa.timestamp("us", tz="UTC")),
    }
    columns = [computed[name] if name in computed else facts[name] for name in ROWS.names]
    return pa.record_batch(columns, schema=ROWS)
