"""Writer of Parquet files: one per stream and day of the rows of a task."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from synrepl.pipeline.archive.manifest import ArchivedFile
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import Sink, Store

__all__ = ["WrittenFile", "write_files", "write_in_tasks"]

GROUP_ROWS: Final = 128 * 1024
"""Rows per row group, the unit that readers load."""


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, the highest token of each writer by epoch, and the last digest."""

    file: ArchivedFile
    tokens: dict[int, dict[str, int]]
    digest: str
    epoch: int
    first_at_ms: int
    last_at_ms: int


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


def write_files(store: Store, batch: int, rows: Iterable[Any]) -> Iterator[WrittenFile]:
    """Write record batches of rows (`source.rows.ROWS`, by serial and seq) as files of a batch.

    Files are written atomically, and become part of the archive when a manifest names them.
    """
    open_files: dict[tuple[str, str], _File] = {}
    for given in rows:
        dates = pc.strftime(given["committed_at"], format="%Y-%m-%d")
        days = pc.unique(dates).to_pylist()
        streams = pc.unique(given["stream"]).to_pylist()
        for stream in streams:
            of_stream = pc.equal(given["stream"], stream)
            for day in days:
                selection = of_stream if len(days) == 1 else pc.and_(of_stream, pc.equal(dates, day))
                part = given.filter(selection)
                if len(part):
                    position = (stream, day)
                    if position not in open_files:
                        open_files[position] = _File(store, batch, *position)
                    open_files[position].add(part)
    for file in open_files.values():
        yield file.finish()


class _File:
    """A file being written, with one row group in memory."""

    def __init__(self, store: Store, batch: int, stream: str, date: str) -> None:
        self._folder = f"stream={quote(stream, safe='')}/date={date}/batch={batch}"
        self._stream = stream
        self._date = date
        self._store = store
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._first = self._last = 0
        self._rows = self._facts = 0
        self._tokens: dict[int, dict[str, int]] = {}
        self._digest = ""
        self._epoch = 0
        self._first_ms = self._last_ms = 0
        self._name = ""
        self._context: Any = None
        self._sink: Sink
        self._writer: Any = None

    def add(self, rows: Any) -> None:
        """Append rows."""
        if not self._rows:
            self._first = rows["serial"][0].as_py()
            self._name = f"{self._folder}/{self._first:012d}-{uuid.uuid4().hex[:12]}.parquet"
            self._first_ms = _ms(rows["committed_at"][0])
        last = len(rows) - 1
        self._last = rows["serial"][last].as_py()
        self._digest = rows["digest"][last].as_py()
        self._epoch = rows["epoch"][last].as_py()
        bounds = pc.min_max(rows["committed_at"])
        self._first_ms = min(self._first_ms, _ms(bounds["min"]))
        self._last_ms = max(self._last_ms, _ms(bounds["max"]))
        self._rows += len(rows)
        self._facts += pc.sum(pc.equal(rows["seq"], 0)).as_py()
        names = {"epoch": rows["epoch"], "writer": rows["writer"], "token": rows["token"]}
        highest = pa.table(names).group_by(["epoch", "writer"]).aggregate([("token", "max")])
        for found in highest.to_pylist():
            tokens = self._tokens.setdefault(found["epoch"], {})
            tokens[found["writer"]] = max(found["token_max"], tokens.get(found["writer"], found["token_max"]))
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= GROUP_ROWS:
            self._write()

    def finish(self) -> WrittenFile:
        """Close the file and return its metadata."""
        self._write()
        self._writer.close()
        self._context.__exit__(None, None, None)
        return WrittenFile(
            file=ArchivedFile(
                path=self._name,
                rows=self._rows,
                sha256=self._sink.sha256,
                bytes=self._sink.bytes,
                stream=self._stream,
                date=self._date,
                facts=self._facts,
                first_serial=self._first,
                last_serial=self._last,
            ),
            tokens=self._tokens,
            digest=self._digest,
            epoch=self._epoch,
            first_at_ms=self._first_ms,
            last_at_ms=self._last_ms,
        )

    def _write(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._context = self._store.writing(self._name)
            self._sink = self._context.__enter__()
            self._writer = pq.ParquetWriter(
                pa.PythonFile(_OpenFile(self._sink), mode="w"), ROWS, compression="zstd"
            )
        self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0


class _OpenFile:
    """Adapter from `Sink` to the file interface of pyarrow."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Any) -> int:
        return self._sink.write(data)

    def tell(self) -> int:
        return self._sink.bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def seekable(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


def _ms(at: Any) -> int:
    return int(at.value) // 1000
