"""Writer of Parquet files: one per stream and day of the rows of a task."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from synrepl.pipeline.source.rows import GROUP_ROWS, PARQUET, ROWS
from synrepl.pipeline.store import Store

__all__ = ["WrittenFile", "write_files", "write_in_tasks"]


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, with the highest token of each writer by epoch, and the epoch and digest of its last fact.

    `path` is relative to the archive, and ends with the SHA-256; `facts` counts the rows with `seq` 0.
    """

    path: str
    bytes: int
    rows: int
    facts: int
    stream: str
    date: str
    first_serial: int
    last_serial: int
    last_seq: int
    first_at_ms: int
    last_at_ms: int
    tokens: dict[int, dict[str, int]]
    epoch: int
    digest: str

    @property
    def stats(self) -> str:
        """The statistics of the file for the log of the table, as JSON."""
        at = (f"{pa.scalar(ms, pa.timestamp('ms'))}Z" for ms in (self.first_at_ms, self.last_at_ms))
        bounds = ((self.first_serial, 0), (self.last_serial, self.last_seq))
        low, high = (
            {"serial": serial, "seq": seq, "committed_at": when.replace(" ", "T")}
            for (serial, seq), when in zip(bounds, at, strict=True)
        )
        nulls = dict.fromkeys(low, 0)
        return json.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def write_in_tasks(
    frame: DataFrame, write: Callable[[Iterator[Any]], Iterator[WrittenFile]]
) -> list[WrittenFile]:
    """Call `write` in each task with the record batches of this frame. Return the files of all tasks."""
    found = frame.mapInArrow(partial(_encode_results, write), "`written` binary NOT NULL").collect()
    return [msgspec.json.decode(bytes(row.written), type=WrittenFile) for row in found]


def _encode_results(
    write: Callable[[Iterator[Any]], Iterator[WrittenFile]], batches: Iterator[Any]
) -> Iterator[Any]:
    found = [msgspec.json.encode(one) for one in write(batches)]
    yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], names=["written"])


def write_files(store: Store, rows: Iterable[Any]) -> Iterator[WrittenFile]:
    """Write record batches of rows (`source.rows.ROWS`, by serial and seq) as files.

    Files are written atomically, and become part of the archive when they are committed to its table.
    """
    open_files: dict[tuple[str, str], _File] = {}
    for given in rows:
        days = given["committed_at"].cast(pa.date32(), safe=False)
        found = pa.table({"stream": given["stream"], "day": days}).group_by(["stream", "day"]).aggregate([])
        for stream, day in zip(*(column.to_pylist() for column in found.columns), strict=True):
            is_its = pc.and_(pc.equal(given["stream"], stream), pc.equal(days, day))
            named = stream, str(day)
            if named not in open_files:
                open_files[named] = _File(*named)
            open_files[named].add(given if len(found) == 1 else given.filter(is_its))
    for file in open_files.values():
        yield file.finish(store)


class _File:
    """A file being written: compressed in memory, as its checksum is in its name."""

    def __init__(self, stream: str, date: str) -> None:
        self._stream = stream
        self._date = date
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._rows = self._facts = self._last_seq = 0
        self._times: list[int] = []
        self._tokens: dict[int, dict[str, int]] = {}
        self._first_serial = 0
        self._last: dict[str, Any] = {}
        self._data = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._data, ROWS, **PARQUET)

    def add(self, rows: Any) -> None:
        """Append rows."""
        self._first_serial = self._first_serial or rows["serial"][0].as_py()
        (self._last,) = rows.slice(len(rows) - 1).select(["serial", "epoch", "digest"]).to_pylist()
        bounds = pc.min_max(rows["committed_at"])
        times = (*self._times, bounds["min"].value // 1000, bounds["max"].value // 1000)
        self._times = [min(times), max(times)]
        self._rows += len(rows)
        self._facts += pc.sum(pc.equal(rows["seq"], 0)).as_py()
        self._last_seq = max(self._last_seq, pc.max(rows["seq"]).as_py())
        tokens = pa.table({name: rows[name] for name in ("epoch", "writer", "token")})
        for found in tokens.group_by(["epoch", "writer"]).aggregate([("token", "max")]).to_pylist():
            of_epoch = self._tokens.setdefault(found["epoch"], {})
            writer, token = found["writer"], found["token_max"]
            of_epoch[writer] = max(token, of_epoch.get(writer, token))
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= GROUP_ROWS:
            self._write()

    def finish(self, store: Store) -> WrittenFile:
        """Store the file and return its metadata."""
        self._write()
        self._writer.close()
        data = self._data.getvalue()
        name = f"{self._first_serial:012d}-{sha256(data).hexdigest()}.parquet"
        path = f"stream={quote(self._stream, safe='')}/date={self._date}/{name}"
        store.write(path, data)
        return WrittenFile(
            path=path,
            bytes=data.size,
            rows=self._rows,
            facts=self._facts,
            stream=self._stream,
            date=self._date,
            first_serial=self._first_serial,
            last_serial=self._last["serial"],
            last_seq=self._last_seq,
            first_at_ms=self._times[0],
            last_at_ms=self._times[1],
            tokens=self._tokens,
            epoch=self._last["epoch"],
            digest=self._last["digest"],
        )

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0
