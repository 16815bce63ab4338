"""Tables as bytes: in binary columns of Spark, and between tasks."""

from typing import Any

import pyarrow as pa


def pack(rows: Any) -> bytes:
    """Return a table or a record batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return bytes(sink.getvalue())


def unpack(packed: Any) -> Any:
    """Return the packed rows, from bytes or an Arrow buffer, as a table."""
    return pa.ipc.open_stream(packed).read_all()
