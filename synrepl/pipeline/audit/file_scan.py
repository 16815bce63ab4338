"""Scan of a file: its checksum, and the consistency of its rows. One pass, in a task.

The bytes of a file with a wrong checksum are not trusted. Parquet readers differ in the damage they detect,
and an error in Spark's reader fails the job. So pyarrow alone reads such a file, completely; Spark receives
rows, never the file.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.archive.reading import map_files, read_rows
from synrepl.pipeline.archive.table import sha256_of
from synrepl.pipeline.source.rows import COLUMNS as ALL_COLUMNS
from synrepl.pipeline.source.rows import ROWS, spark_schema
from synrepl.pipeline.store import NotFound, Store

__all__ = [
    "SEEN",
    "FileProblem",
    "FileScan",
    "ListedFile",
    "TokenRun",
    "rank_files",
    "read_checked",
    "read_files",
    "scan_files",
]

ODD_AT_MOST: Final = 50
"""Maximum number of problems reported per file."""

COLUMNS: Final = ["serial", "stream", "writer", "prev_token", "token", "seq"]

AT_ONCE: Final = 128 * 1024
"""Rows of a record batch."""

DAMAGE: Final = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError)
"""What pyarrow raises for bytes that are no Parquet file any more."""

SUM: Final = 2**63
"""Modulus of sums of serials: sums of damaged files would not fit into JSON."""

SEEN: Final = "`rank` bigint NOT NULL, `seen` binary NOT NULL"
"""The result schema of tasks: `FileScan` as JSON, and the position of the file in the order of serials."""


def skip_rows(rows: Iterator[Any]) -> Iterable[Any]:
    """Read record batches to their end, and return nothing."""
    for _ in rows:
        pass
    return ()


class TokenRun(msgspec.Struct, kw_only=True):
    """The facts of one writer in a file, with its positions `before` the first and `after` the last.

    Late facts do not move the position; with late facts only, both are None. `goes_on`: each fact continues
    the previous one.
    """

    before: int | None = None
    after: int | None = None
    goes_on: bool = True
    low: int
    high: int
    last_serial: int


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of one row."""

    what: str
    writer: str
    token: int
    serial: int
    seq: int


class ListedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as the log of the table lists it."""

    path: str
    stream: str
    bytes: int
    rows: int
    first_serial: int
    last_serial: int


class FileScan(msgspec.Struct, kw_only=True):
    """The result of a scan. `serials` is the sum of the serials of the facts; `digest` is that of the last.

    `strangers` are the streams of rows that belong to another file.
    """

    file: ListedFile
    exists: bool = True
    bytes: int = 0
    sha256: str = ""
    unreadable: str = ""
    rows: int = 0
    facts: int = 0
    serials: int = 0
    first: int = 0
    last: int = 0
    digest: str = ""
    strangers: list[str] = []
    runs: dict[str, TokenRun] = {}
    odd: list[FileProblem] = []


def scan_files(
    store: Store,
    batches: Iterable[Any],
    columns: Sequence[str] = COLUMNS,
    derive: Callable[[Iterator[Any]], Iterable[Any]] = skip_rows,
) -> Iterator[Any]:
    """Scan the files of these batches (`rank_files`), which should have rows of one stream.

    Yields what `derive` makes of the record batches of each file, with these columns (at least `COLUMNS`),
    and batches of `SEEN`.
    """
    for batch in batches:
        scans = []
        for file in msgspec.convert(batch.to_pylist(), list[ListedFile]):
            seen = FileScan(file=file)
            yield from derive(_scan_rows(store, seen, columns))
            scans.append(msgspec.json.encode(seen))
        yield pa.record_batch([batch["rank"], pa.array(scans, pa.binary())], names=["rank", "seen"])


def rank_files(files: Any) -> Any:
    """Return files (rows of `ArchiveTable.files`) with `rank`, their position in the order of serial."""
    return files.append_column("rank", pa.array(np.arange(len(files))))


def _scan_rows(store: Store, seen: FileScan, columns: Sequence[str]) -> Iterator[Any]:
    """Scan the file of `seen`, and yield its record batches with these columns.

    If the checksum is not that of its name, all columns are read, and the file is `unreadable` from the first
    value that cannot be read.
    """
    path = seen.file.path
    try:
        seen.bytes, seen.sha256 = store.size(path), store.sha256(path)
    except NotFound:
        seen.exists = False
        return
    rows = _Rows(seen)
    try:
        with store.open(path) as source:
            if seen.sha256 != sha256_of(path):
                for batch in read_checked(source):
                    rows.add(batch)
                    seen.digest = batch["digest"][-1].as_py() if len(batch) else seen.digest
                    yield batch
                return
            data = pq.ParquetFile(source, read_dictionary=["stream", "writer"])
            for batch in data.iter_batches(AT_ONCE, columns=list(columns)):
                rows.add(batch)
                yield batch
            if groups := data.metadata.num_row_groups:
                last = data.read_row_group(groups - 1, columns=["digest"])["digest"]
                seen.digest = last[-1].as_py() if len(last) else ""
    except DAMAGE as error:
        seen.unreadable = (str(error) or type(error).__name__).splitlines()[0]
        seen.runs, seen.odd = {}, []


class _Rows:
    """The rows of a file, scanned in order."""

    def __init__(self, seen: FileScan) -> None:
        self._seen = seen
        self._serial = self._seq = -1

    def add(self, batch: Any) -> None:
        """Scan the next rows."""
        if not len(batch):
            return
        seen = self._seen
        serial, seq = batch["serial"].to_numpy(), batch["seq"].to_numpy()
        begins = seq == 0
        first, last = int(serial.min()), int(serial.max())
        seen.first = min(seen.first, first) if seen.rows else first
        seen.last = max(seen.last, last) if seen.rows else last
        seen.rows += len(batch)
        seen.facts += int(begins.sum())
        counted = serial if begins.all() else serial[begins]
        # In two halves, whose sums fit into 64 bits.
        high, low = int((counted >> 32).sum()), int((counted & 0xFFFF_FFFF).sum())
        seen.serials = (seen.serials + (high << 32) + low) % SUM
        known = {seen.file.stream, *seen.strangers}
        seen.strangers += [name for name in pc.unique(batch["stream"]).to_pylist() if name not in known]
        self._check_order(batch, serial, seq)
        self._scan_writers(batch if counted is serial else batch.filter(pa.array(begins)))

    def _check_order(self, batch: Any, serial: Any, seq: Any) -> None:
        """Check that each row is the next of its fact, or the first of a later fact."""
        serials = np.concatenate(([self._serial], serial))
        seqs = np.concatenate(([self._seq], seq))
        self._serial, self._seq = int(serial[-1]), int(seq[-1])
        is_next = (serials[1:] == serials[:-1]) & (seqs[1:] == seqs[:-1] + 1)
        is_right = is_next | ((serials[1:] > serials[:-1]) & (seqs[1:] == 0))
        odd = self._seen.odd
        for position in np.flatnonzero(~is_right)[: ODD_AT_MOST - len(odd)].tolist():
            before = (int(serials[position]), int(seqs[position]))
            here = (int(serial[position]), int(seq[position]))
            what = "doubled-row" if here == before else "out-of-order" if here < before else "missing-row"
            # The first missing row of the fact.
            missing = before[1] + 1 if here[0] == before[0] else 0
            writer, token = (batch[name][position].as_py() for name in ("writer", "token"))
            place = (here[0], missing) if what == "missing-row" else here
            odd.append(FileProblem(what=what, writer=writer, token=token, serial=place[0], seq=place[1]))

    def _scan_writers(self, facts: Any) -> None:
        writers = facts["writer"]
        coded = writers if pa.types.is_dictionary(writers.type) else writers.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(
            codes.astype(np.uint16) if len(coded.dictionary) < 1 << 16 else codes, kind="stable"
        )
        bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1)).tolist()
        columns = [facts[name].to_numpy()[order] for name in ("prev_token", "token", "serial")]
        for writer, (first, end) in zip(coded.dictionary.to_pylist(), pairwise(bounds), strict=True):
            if first == end:
                continue
            before, token, serial = (column[first:end] for column in columns)
            low, high = int(token.min()), int(token.max())
            run = self._seen.runs.setdefault(writer, TokenRun(low=low, high=high, last_serial=0))
            run.low, run.high = min(run.low, low), max(run.high, high)
            run.last_serial = max(run.last_serial, int(serial.max()))
            moves = before != token
            starts, ends = (before, token) if moves.all() else (before[moves], token[moves])
            if len(starts):
                run.before = int(starts[0]) if run.before is None else run.before
                expected = run.before if run.after is None else run.after
                run.goes_on &= bool(starts[0] == expected and (starts[1:] == ends[:-1]).all())
                run.after = int(ends[-1])


def read_checked(source: Any) -> Iterator[Any]:
    """All rows of this open file, as valid record batches of `ROWS`. Raises one of `DAMAGE`."""
    file = pq.ParquetFile(source)
    if not file.schema_arrow.equals(ROWS):
        raise ValueError("its columns are not those of an archive")
    for batch in file.iter_batches(AT_ONCE):
        batch.validate(full=True)
        if any(batch[field.name].null_count for field in ROWS if not field.nullable):
            raise ValueError("it lacks values of a column that has no nulls")
        yield batch


def read_files(spark: SparkSession, store: Store, files: Any, changed: Collection[str]) -> DataFrame:
    """The rows of these files. Those that are `changed` are read by `read_checked`."""
    is_changed = pc.is_in(files["path"], pa.array(sorted(changed), pa.string()))
    whole = read_rows(spark, store, files.filter(pc.invert(is_changed)))
    if not pc.any(is_changed).as_py():
        return whole
    others = map_files(
        spark, files.filter(is_changed), partial(_read_named, store), spark_schema(ALL_COLUMNS)
    )
    return whole.union(others)


def _read_named(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for path in batch["path"].to_pylist():
            with store.filesystem.open_input_file(store.path(path)) as source:
                yield from read_checked(source)
