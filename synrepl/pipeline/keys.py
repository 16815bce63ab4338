"""Keys of rows, computed once, when rows are read: to decode JSON in each job would be slow.

What read them may have been an older release than the daemon, or have known too few declarations: a job that
needs keys computes the missing ones again (`KeyExtractor.fill`).
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.errors import ConfigError, RowError
from synrepl.streams.declaration import stream_of
from synrepl.streams.declared import StreamBody
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class KeyExtractor:
    """Extractor of the column `key` of record batches, as the streams declare it.

    `declared` are the declared streams, as ``GET /v1/streams`` lists them. Rows of a stream whose declaration
    this release cannot read get no keys.
    """

    def __init__(self, declared: Iterable[Any] = ()) -> None:
        self._table = StreamTable.default()
        for one in declared:
            with suppress(ConfigError, msgspec.ValidationError):
                self._table |= {stream_of(msgspec.convert(one, StreamBody).declaration())}

        self._keyed = pa.array([one.name for one in self._table if one.key is not None], pa.string())

    def knows(self, stream: str) -> bool:
        """Whether this is a known stream."""
        return stream in self._table

    def extract(self, stream: str, rows: list[str | None]) -> list[str | None]:
        """Return the keys of rows of one stream as JSON arrays; None for rows without a known key."""
        declared = self._table.get(stream)
        if declared is None or declared.key is None:
            return [None] * len(rows)
        texts = [row.encode() for row in rows if row is not None]
        if len(texts) < len(rows):
            found = iter(self.extract(stream, [row for row in rows if row is not None]))
            return [None if row is None else next(found) for row in rows]
        if not texts:
            return []
        try:
            found_keys = list(map(declared.key, declared.decode_many(texts, NEWEST)))
        except RowError:
            if len(texts) == 1:
                return [None]  # This release cannot decode the row.
            return [key for row in rows for key in self.extract(stream, [row])]
        lines = _encode_lines(found_keys)
        return [*lines.decode().splitlines()] if lines.isascii() else [*map(_text, found_keys)]

    def with_keys(self, batch: Any) -> Any:
        """Return the batch of rows (`source.rows.ROWS`) with its column `key` filled."""
        streams = batch["stream"]
        position = batch.schema.get_field_index("key")
        names = pc.unique(streams).to_pylist()
        if len(names) == 1:
            found = self.extract(names[0], batch["row"].to_pylist())
        else:
            found = [None] * len(batch)
            for name in names:
                at = pc.indices_nonzero(pc.equal(streams, name))
                rows = batch["row"].take(at).to_pylist()
                for index, key in zip(at.to_pylist(), self.extract(name, rows), strict=True):
                    found[index] = key
        return batch.set_column(position, batch.schema.field(position), pa.array(found, pa.string()))

    def fill(self, rows: Any) -> Any:
        """Return these rows (a batch or a table) with the missing keys of streams that have some."""
        if not rows["key"].null_count:
            return rows
        is_lacking = pc.and_(pc.is_null(rows["key"]), pc.is_valid(rows["row"]))
        is_lacking = pc.and_(is_lacking, pc.is_in(rows["stream"], self._keyed))
        if not pc.any(is_lacking, min_count=0).as_py():
            return rows
        found = rows["key"].to_pylist()
        for name in pc.unique(rows["stream"].filter(is_lacking)).to_pylist():
            at = pc.indices_nonzero(pc.and_(is_lacking, pc.equal(rows["stream"], name)))
            texts = rows["row"].take(at).to_pylist()
            for index, key in zip(at.to_pylist(), self.extract(name, texts), strict=True):
                found[index] = key
        position = rows.schema.get_field_index("key")
        return rows.set_column(position, rows.schema.field(position), pa.array(found, pa.string()))


def _text(key: Any) -> str:
    text = _encode(key)
    return (text if text.isascii() else jsontext.dumps(key)).decode()
