"""Facts become rows: whole record batches at a time."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.schema import ROWS

__all__ = ["exploded", "split"]


def split(rows: str) -> list[str]:
    """The texts of the items of a JSON array in canonical form, each as it stands there."""
    # Made here: what is made by a module cannot travel by value.
    decode = json.JSONDecoder().raw_decode
    found: list[str] = []
    at = 1
    while rows[at] != "]":
        _, end = decode(rows, at)
        found.append(rows[at:end])
        at = end + 1 if rows[end] == "," else end
    return found


def exploded(facts: Any) -> Any:
    """A record batch of facts (`columns.FACTS`) as one of rows (`columns.ROWS`), all keys null.

    Most facts have one row, whose text is that of the array without its brackets. Only those that might have
    more, as two rows are parted by ``],[``, are looked into; and those that have none.
    """
    texts = facts["rows"]
    is_plain = pc.and_(pc.invert(pc.match_substring(texts, "],[")), pc.not_equal(texts, "[]"))
    if pc.all(is_plain, min_count=0).as_py():
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(facts))
        return _rows(facts, zeros, pc.utf8_slice_codeunits(texts, 1, -1))
    places: list[int] = []
    seqs: list[int] = []
    rows: list[str | None] = []
    for position, (text, plain) in enumerate(zip(texts.to_pylist(), is_plain.to_pylist(), strict=True)):
        found: list[Any] = [text[1:-1]] if plain else split(text) or [None]
        places += [position] * len(found)
        seqs += range(len(found))
        rows += found
    return _rows(facts.take(pa.array(places)), pa.array(seqs, pa.int32()), pa.array(rows, pa.string()))


def _rows(facts: Any, seqs: Any, rows: Any) -> Any:
    given = {
        "seq": seqs,
        "key": pa.nulls(len(facts), pa.string()),
        "row": rows,
        "committed_at": pc.multiply(facts["committed_at_ms"], 1000).cast(pa.timestamp("us", tz="UTC")),
    }
    columns = [given[name] if name in given else facts[name] for name in ROWS.names]
    return pa.record_batch(columns, schema=ROWS)
