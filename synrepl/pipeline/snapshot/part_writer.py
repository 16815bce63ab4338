"""Tasks that write the files of a snapshot: each copies the facts of a range of serials, in one pass."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from synrepl.pipeline.archive.row_files import WRITTEN
from synrepl.pipeline.driver import TASK
from synrepl.pipeline.snapshot.fold import SERIAL_AT, FoldInput, positions_of
from synrepl.pipeline.snapshot.snapshot import LAST, write_part
from synrepl.pipeline.source.rows import ROWS

FILE: Final = pa.struct(
    [("path", pa.string()), ("is_part", pa.bool_()), ("after", pa.int64()), ("first_serial", pa.int64())]
)

PARTS: Final = pa.schema([(TASK, pa.int32()), ("positions", pa.binary()), ("file", FILE)])
"""What a task writes: positions of the kept rows of a range of serials, and files that may have them."""

COPY_ROWS: Final = 16 * 1024
"""Rows that are put in order at once: few, for the processor's caches, and because new memory costs time."""


def write_parts(inputs: FoldInput, folder: str, file_rows: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Write the facts at these positions (`PARTS`), in files of about `file_rows` keys.

    Yields each `PartFile` as JSON. In memory are the compressed file, the rows of a row group, and a batch of
    each file that is read.
    """
    given: list[Any] = []
    files: list[Any] = []
    for batch in batches:
        packed = batch["positions"].drop_null()
        given += (np.frombuffer(one.as_buffer(), np.int64) for one in packed)
        files += batch["file"].drop_null().to_pylist()
    positions = np.sort(np.concatenate(given)) if given else np.empty(0, np.int64)
    serials = positions >> SERIAL_AT
    cursors = [_FactCursor(inputs, file, serials) for file in files]
    count = -(-len(serials) // file_rows)
    # A fact is in one file, with all of its rows.
    lasts = np.unique(serials[np.arange(1, count + 1) * len(serials) // count - 1]) if count else serials
    steps = np.union1d(lasts, serials[COPY_ROWS::COPY_ROWS])
    for of_file in np.split(steps, np.searchsorted(steps, lasts[:-1], "right")):
        copied = (rows for last in of_file.tolist() for rows in _copy(cursors, last, positions))
        written = write_part(inputs.snapshot, folder, copied)
        if written is not None:
            yield pa.record_batch([[msgspec.json.encode(written)]], WRITTEN)


def _copy(cursors: Iterable["_FactCursor"], last: int, positions: Any) -> Iterator[Any]:
    """Yield the next rows up to serial `last`, with the column `last`, which is true at these positions."""
    rows = pa.Table.from_batches((rows for cursor in cursors for rows in cursor.read(last)), ROWS)
    at = positions_of(rows).to_numpy()
    # Each batch is sorted already, which makes this quick.
    order = np.argsort(at, kind="stable")
    rows, at = rows.take(pa.array(order)), at[order]
    # Positions of kept tombstones are odd: their rows do not count as last.
    found = np.searchsorted(positions, at)
    is_last = positions[np.minimum(found, len(positions) - 1)] == at
    yield from rows.append_column(LAST.field("last"), pa.array(is_last)).to_batches()


class _FactCursor:
    """A cursor over the facts of a file with these `serials`, in order. Opens the file when it is needed."""

    def __init__(self, inputs: FoldInput, file: dict[str, Any], serials: Any) -> None:
        self._left = inputs.read_facts(file, serials)
        self._first = file["first_serial"]
        self._waiting: Any = None

    def read(self, last: int) -> Iterator[Any]:
        """Yield record batches of the rows of the next facts, up to serial `last`."""
        while self._first <= last:
            rows = self._waiting if self._waiting is not None else next(self._left, None)
            if rows is None:
                return
            count = int(np.searchsorted(rows["serial"].to_numpy(), last, "right"))
            if count:
                yield rows.slice(0, count)
            if count < len(rows):
                self._waiting = rows.slice(count)
                return
            self._waiting = None
