"""Conversion of record batches of facts to record batches of rows."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.schema import ROWS

__all__ = ["explode", "split_items"]


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
    """Convert a record batch of facts (`schema.FACTS`) to one of rows (`schema.ROWS`), with null keys.

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
