"""Files of an archive: tasks write one for each stream and day, and read them."""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.base.history import EpochStart
from synrepl.pipeline.driver import Driver, Partitions, Work, spread
from synrepl.pipeline.source.rows import GROUP_ROWS, PARQUET, ROWS
from synrepl.pipeline.store import BadArchive, NotFound, Store

TASK_ROWS: Final = 2_000_000
"""Maximum rows per task, as far as files can be distributed."""

WRITTEN: Final = pa.schema([pa.field("written", pa.binary(), nullable=False)])
"""The results of tasks that write: descriptions of files, as JSON."""

T = TypeVar("T")


def within(files: Any, first: int, last: int) -> Any:
    """Return the files (rows of `ArchiveTable.files`) whose serials overlap the range `first` to `last`."""
    is_after = pc.greater_equal(files["last_serial"], first)
    return files.filter(pc.and_(is_after, pc.less_equal(files["first_serial"], last)))


DAMAGED: Final = (
    "synrepl pipeline audit tells which facts it has; put a copy of the file back, or archive into a new"
    " directory while the log or a replica still has them"
)
"""What to do about a damaged file of an archive."""

UNREADABLE: Final = (pa.ArrowException, ValueError, KeyError, TypeError, IndexError)
"""The exceptions that pyarrow raises for damaged Parquet files, besides OSError."""

PAGES_VERIFIED: Final = {"page_checksum_verification": True}
"""How a file of another program is opened, whose name has no checksum."""

_SHA256: Final = re.compile(r"-([0-9a-f]{64})\.parquet$")


def sha256_of(path: str) -> str:
    """Return the SHA-256 in the name of a file; empty for a file of another program."""
    found = _SHA256.search(path)
    return "" if found is None else found[1]


_STREAM_FOLDER: Final = re.compile(r"(?:^|/)stream=([^/]+)/")


def open_rows(source: Any, path: str, **options: Any) -> Any:
    """Open a Parquet file of rows, with the options of `pyarrow.parquet.ParquetFile`.

    Other programs that rewrite a table leave the columns of its partitions out of the files, as Delta Lake
    has it, and the rows in any order. Such a file is sorted in memory, and read from a copy with its stream,
    which its folder names.
    """
    data = pq.ParquetFile(source)
    folder = _STREAM_FOLDER.search(path)
    if folder is not None and {*ROWS.names} - {*data.schema_arrow.names} == {"stream"}:
        rows = data.read()
        rows = rows.append_column("stream", pa.repeat(unquote(folder[1]), len(rows)))
        rows = rows.select(ROWS.names).cast(ROWS).sort_by([("serial", "ascending"), ("seq", "ascending")])
        source = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as its reader
        with pq.ParquetWriter(source, ROWS, **PARQUET) as copy:
            copy.write_table(rows, GROUP_ROWS)
        source.seek(0)
        data = pq.ParquetFile(source)
    return pq.ParquetFile(source, metadata=data.metadata, **options) if options else data


@contextmanager
def open_verified_rows(
    store: Store, path: str, sha256: str | None, hint: str = DAMAGED, **options: Any
) -> Iterator[Any]:
    """Open a file as `open_rows` does, if it has this SHA-256.

    If that is unknown (empty) the checksums of its pages are verified while it is read, and nothing if it is
    None. Raises `BadArchive` for a file that is missing or damaged, also when it turns out while it is read.
    """
    try:
        source = store.open_verified(path, sha256, hint) if sha256 else store.open(path)
        with source:
            yield open_rows(source, path, **options, **(PAGES_VERIFIED if sha256 == "" else {}))
    except NotFound as error:
        raise BadArchive(f"{store}: a file is missing: {path}") from error
    except UNREADABLE as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise BadArchive(f"{store}: {path} cannot be read: {why}; {hint}") from error


def read_files(
    store: Store, paths: Iterable[str], schema: Any, *, is_examined: bool = False
) -> Iterator[Any]:
    """Yield the record batches of these files, one file after the other, with these columns.

    Raises `BadArchive` for a file whose bytes have not the checksum in its name, unless `is_examined`: then
    it was read before, and told.
    """
    for path in paths:
        with open_verified_rows(store, path, None if is_examined else sha256_of(path)) as data:
            for rows in data.iter_batches(columns=schema.names):
                yield pa.record_batch([rows[name] for name in schema.names], schema=schema)


def are_lost(rows: Any, start: EpochStart) -> Any:
    """Return which rows (`stream`, `epoch`, `token`) an epoch that began with a loss has discarded."""
    is_before = pc.and_(pc.equal(rows["stream"], start.stream), pc.less(rows["epoch"], start.epoch))
    return pc.and_(is_before, pc.greater(rows["token"], start.token))


def read_listed(
    store: Store, batches: Iterable[Any], schema: Any, *, is_examined: bool = False
) -> Iterator[Any]:
    """Yield the record batches of the files that these batches list, as tasks of `map_files` get them."""
    paths = (path for batch in batches for path in batch["path"].to_pylist())
    return read_files(store, paths, schema, is_examined=is_examined)


def map_files(driver: Driver, files: Any, work: Work, schema: Any) -> Partitions:
    """Apply `work` in tasks to record batches that list files, distributed by their numbers of rows.

    `files` are rows of `ArchiveTable.files`; `schema` is that of the results. Executors of Spark need
    synrepl, pyarrow, and the files under the same path.
    """
    rows = pc.sum(files["rows"]).as_py() or 0
    tasks = max(1, min(len(files), max(driver.parallelism, rows // TASK_ROWS)))
    # Largest first, in turn, so that the large files are spread over the tasks.
    return spread(driver, files.sort_by([("rows", "descending")]), tasks).map(work, schema)


class RowFile:
    """A Parquet file of rows, which is made in memory: its checksum is known before it is written."""

    def __init__(self, schema: Any) -> None:
        self._waiting: list[Any] = []
        self._data = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._data, schema, **PARQUET)

    def add(self, rows: Any) -> None:
        """Add a record batch. Rows wait until they fill a row group."""
        self._waiting.append(rows)
        while sum(map(len, self._waiting)) >= GROUP_ROWS:
            self._write()

    def finish(self) -> Any:
        """Return the file, as an Arrow buffer."""
        if self._waiting:
            self._write()
        self._writer.close()
        return self._data.getvalue()

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._writer.write_table(rows.slice(0, GROUP_ROWS))
        self._waiting = rows.slice(GROUP_ROWS).to_batches()


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
    driver: Driver, works: Sequence[T], write: Callable[[T], Iterable[WrittenFile]]
) -> list[WrittenFile]:
    """Call `write` with each of these works, in a task for each. Return the files of all tasks."""
    if not works:
        return []
    numbers = pa.table({"number": pa.array(range(len(works)), pa.int64())})
    tasks = spread(driver, numbers, len(works)).map(partial(_write_works, works, write), WRITTEN)
    return [msgspec.json.decode(one.as_buffer(), type=WrittenFile) for one in tasks.collect()["written"]]


def _write_works(
    works: Sequence[T], write: Callable[[T], Iterable[WrittenFile]], batches: Iterator[Any]
) -> Iterator[Any]:
    for batch in batches:
        for number in batch["number"].to_pylist():
            made = [msgspec.json.encode(one) for one in write(works[number])]
            yield pa.record_batch([pa.array(made, pa.binary())], WRITTEN)


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
    """A file being written, whose checksum is in its name."""

    def __init__(self, stream: str, date: str) -> None:
        self._written = WrittenFile(stream=stream, date=date)
        self._rows = RowFile(ROWS)

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
        self._rows.add(rows)

    def finish(self, store: Store) -> WrittenFile:
        made, data = self._written, self._rows.finish()
        name = f"{made.first_serial:012d}-{sha256(data).hexdigest()}.parquet"
        made.path = f"stream={quote(made.stream, safe='')}/date={made.date}/{name}"
        made.bytes = data.size
        store.write(made.path, data)
        return made
