"""Writer of the files of a snapshot."""

import uuid
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.pipeline.snapshot.snapshot import LAST, PartFile
from synrepl.pipeline.store import Store

__all__ = ["FILE_ROWS", "WRITTEN", "write_parts"]

FILE_ROWS: Final = 256 * 1024
"""Approximate rows per file, which are in memory while the file is written."""

GROUP_ROWS: Final = 128 * 1024

WRITTEN: Final = "`written` binary NOT NULL, `keys` bigint NOT NULL"
"""The result schema of tasks: a `PartFile` as JSON, and the number of its rows that are the last of a key."""


def write_parts(store: Store, folder: str, file_rows: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Write record batches (`snapshot.LAST`, by serial and seq) as files, and yield batches of `WRITTEN`.

    A fact is never split between files. Files are written atomically.
    """
    waiting: list[Any] = []
    rows = 0
    for given in batches:
        waiting.append(pa.record_batch([given[name] for name in LAST.names], schema=LAST))
        rows += len(given)
        while rows > file_rows:
            table = pa.Table.from_batches(waiting)
            upto = _end_of_facts(table, file_rows)
            if not upto:
                break
            yield _write(store, folder, table.slice(0, upto))
            waiting = table.slice(upto).to_batches()
            rows -= upto
    if rows:
        yield _write(store, folder, pa.Table.from_batches(waiting))


def _end_of_facts(table: Any, most: int) -> int:
    """Return how many of the first `most` rows belong to facts that end among them."""
    begins = pc.indices_nonzero(pc.equal(table["seq"].slice(0, most + 1), 0))
    return int(begins[-1].as_py()) if len(begins) else 0


def _write(store: Store, folder: str, table: Any) -> Any:
    first = table["serial"][0].as_py()
    name = f"{folder}/part-{first:012d}-{uuid.uuid4().hex[:12]}.parquet"
    made = pa.BufferOutputStream()
    pq.write_table(table, made, compression="zstd", row_group_size=GROUP_ROWS)
    data = made.getvalue()
    store.write(name, data)
    file = PartFile(
        path=name,
        rows=len(table),
        facts=pc.sum(pc.equal(table["seq"], 0)).as_py(),
        sha256=sha256(data).hexdigest(),
        bytes=data.size,
        first_serial=first,
        last_serial=table["serial"][-1].as_py(),
    )
    keys = pc.sum(table["last"]).as_py() or 0
    return pa.record_batch(
        [pa.array([msgspec.json.encode(file)], pa.binary()), pa.array([keys], pa.int64())],
        names=["written", "keys"],
    )
