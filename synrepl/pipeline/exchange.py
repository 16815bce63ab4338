"""Exchange of rows between tasks: split by the task that gets them, and packed as bytes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa


def split(rows: Any, numbers: Any) -> Iterator[tuple[int, Any]]:
    """Yield each number with the rows that have it in `numbers`, in their order.

    `rows` is a table or a record batch.
    """
    if not len(rows):
        return
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    if len(found) > 1:
        rows = rows.take(pa.array(order))
    sizes = np.diff(firsts, append=len(rows))
    for number, first, size in zip(found.tolist(), firsts.tolist(), sizes.tolist(), strict=True):
        yield number, rows.slice(first, size)


def pack(rows: Any, *, compression: str | None = None) -> bytes:
    """Return a table or a record batch as bytes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write(rows)
    return bytes(sink.getvalue())


def unpack(packed: Any) -> Any:
    """Return the packed rows, from bytes or an Arrow buffer, as a table."""
    return pa.ipc.open_stream(packed).read_all()
