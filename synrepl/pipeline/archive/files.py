"""Files of an archive: tasks write one for each stream and day, and jobs on Spark read them."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.source.rows import COLUMNS, GROUP_ROWS, PARQUET, ROWS, row_schema, spark_schema
from synrepl.pipeline.store import Store

TASK_ROWS: Final = 2_000_000
"""Maximum rows per task, as far as files can be distributed."""

NAMED_FILES: Final = 1_000
"""Maximum number of files that Spark reads by itself: its driver keeps the name and state of each."""


def within(files: Any, first: int, last: int) -> Any:
    """Return the files (rows of `ArchiveTable.files`) whose serials overlap the range `first` to `last`."""
    is_after = pc.greater_equal(files["last_serial"], first)
    return files.filter(pc.and_(is_after, pc.less_equal(files["first_serial"], last)))


def read_rows(spark: SparkSession, store: Store, files: Any, columns: Sequence[str] = COLUMNS) -> DataFrame:
    """Return the rows of these files (rows of `ArchiveTable.files`), unordered.

    Files are read by name, as the folders also have files of other versions. Spark itself reads only up to
    `NAMED_FILES` local files; for an object store it would need jars.
    """
    schema = spark_schema(tuple(columns))
    if not len(files):
        return spark.createDataFrame([], schema.replace(" NOT NULL", ""))
    if store.is_local and len(files) <= NAMED_FILES:
        return spark.read.schema(schema).parquet(*map(store.uri, files["path"].to_pylist()))
    return map_files(spark, files, partial(_read_named, store, row_schema(tuple(columns))), schema)


def read_files(store: Store, paths: Iterable[str], schema: Any) -> Iterator[Any]:
    """Yield the record batches of these files, one file after the other, with these columns."""
    for path in paths:
        with store.filesystem.open_input_file(store.path(path)) as source:
            for rows in pq.ParquetFile(source).iter_batches(columns=schema.names):
                yield pa.record_batch([rows[name] for name in schema.names], schema=schema)


def _read_named(store: Store, schema: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from read_files(store, batch["path"].to_pylist(), schema)


def map_files(
    spark: SparkSession, files: Any, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str
) -> DataFrame:
    """Apply `work` in tasks to record batches that list files, distributed by their numbers of rows.

    `files` are rows of `ArchiveTable.files`; `schema` is that of the results, as DDL of Spark. Executors need
    synrepl, pyarrow, and the files under the same path.
    """
    rows = pc.sum(files["rows"]).as_py() or 0
    tasks = max(1, min(len(files), max(parallelism(spark), rows // TASK_ROWS)))
    # Largest first, round robin, so that the large files are spread over the tasks.
    ranked = files.sort_by([("rows", "descending")])
    numbers = np.arange(len(files), dtype=np.int32) % tasks
    ranked = ranked.append_column("task", pa.array(numbers))
    return frame_of(spark, ranked).repartitionById(tasks, "task").mapInArrow(work, schema)


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that keep the cores of this session busy."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


def frame_of(spark: SparkSession, table: Any) -> DataFrame:
    """Return an Arrow table as a frame. Chunks of columns are combined, as Spark would lose rows of some."""
    return spark.createDataFrame(table.combine_chunks())


def pack(rows: Any) -> bytes:
    """Return a table or a record batch as bytes, for a binary column of Spark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return bytes(sink.getvalue())


def unpack(packed: Any) -> Any:
    """Return the packed rows, from bytes or an Arrow buffer, as a table."""
    return pa.ipc.open_stream(packed).read_all()


class WrittenFile(msgspec.Struct, kw_only=True):
    """A file, with the highest token of each writer by epoch, and the epoch and digest of its last fact.

    `path` is relative to the archive. `facts` counts the rows with `seq` 0; `last_seq` is the highest `seq`.
    """

    stream: str
    date: str
    path: str = ""
    bytes: int = 0
    rows: int = 0
    facts: int = 0
    first_serial: int = 0
    last_serial: int = 0
    last_seq: int = 0
    first_at_ms: int = 0
    last_at_ms: int = 0
    tokens: dict[int, dict[str, int]] = {}
    epoch: int = 0
    digest: str = ""

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
    """Write record batches of rows (`source.rows.ROWS`, in order of serial and seq) as files.

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
        self._written = WrittenFile(stream=stream, date=date)
        self._waiting: list[Any] = []
        self._data = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._data, ROWS, **PARQUET)

    def add(self, rows: Any) -> None:
        made = self._written
        times = pc.min_max(rows["committed_at"])
        first_at_ms, last_at_ms = times["min"].value // 1000, times["max"].value // 1000
        if not made.rows:
            made.first_serial, made.first_at_ms = rows["serial"][0].as_py(), first_at_ms
        made.first_at_ms = min(made.first_at_ms, first_at_ms)
        made.last_at_ms = max(made.last_at_ms, last_at_ms)
        made.last_serial, made.epoch, made.digest = (
            rows[name][-1].as_py() for name in ("serial", "epoch", "digest")
        )
        made.rows += len(rows)
        made.facts += pc.sum(pc.equal(rows["seq"], 0)).as_py()
        made.last_seq = max(made.last_seq, pc.max(rows["seq"]).as_py())
        tokens = pa.table({name: rows[name] for name in ("epoch", "writer", "token")})
        for found in tokens.group_by(["epoch", "writer"]).aggregate([("token", "max")]).to_pylist():
            of_epoch = made.tokens.setdefault(found["epoch"], {})
            writer, token = found["writer"], found["token_max"]
            of_epoch[writer] = max(token, of_epoch.get(writer, token))
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= GROUP_ROWS:
            self._write()

    def finish(self, store: Store) -> WrittenFile:
        self._write()
        self._writer.close()
        made, data = self._written, self._data.getvalue()
        name = f"{made.first_serial:012d}-{sha256(data).hexdigest()}.parquet"
        made.path = f"stream={quote(made.stream, safe='')}/date={made.date}/{name}"
        made.bytes = data.size
        store.write(made.path, data)
        return made

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting = []
