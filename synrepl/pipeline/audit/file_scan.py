"""Scan of a file: its checksum, and the consistency of its rows. One pass, in a task.

The bytes of a file with a wrong checksum are not trusted. Parquet readers differ in the damage they detect,
and an error in Spark's reader fails the job. So pyarrow alone reads such a file, completely; Spark receives
rows, never the file.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
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
    "read_checked",
    "read_files",
    "scan_file",
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
    first_serial: int
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


def scan_files(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    """Scan the files of these batches (`ArchiveTable.files` with `rank`). Yields batches of `SEEN`."""
    for batch in batches:
        for rank, file in zip(batch["rank"].to_pylist(), batch.to_pylist(), strict=True):
            seen = msgspec.json.encode(scan_file(store, msgspec.convert(file, ListedFile)))
            columns = [pa.array([rank], pa.int64()), pa.array([seen], pa.binary())]
            yield pa.record_batch(columns, names=["rank", "seen"])


def scan_file(store: Store, file: ListedFile) -> FileScan:
    """Scan a file, which should have rows of its stream, and the checksum in its name.

    If the checksum is right, only the columns for the order are read. Otherwise all columns are read, and the
    file is `unreadable` if any value cannot be read.
    """
    seen = FileScan(file=file)
    try:
        seen.bytes = store.size(file.path)
        seen.sha256 = store.sha256(file.path)
    except NotFound:
        seen.exists = False
        return seen
    try:
        with store.filesystem.open_input_file(store.path(file.path)) as source:
            rows = _Rows(seen, file.stream)
            if seen.sha256 != sha256_of(file.path):
                for batch in read_checked(source):
                    rows.add(batch)
                    seen.digest = batch["digest"][-1].as_py() if len(batch) else seen.digest
                return seen
            data = pq.ParquetFile(source)
            for batch in data.iter_batches(AT_ONCE, columns=COLUMNS):
                rows.add(batch)
            if data.metadata.num_row_groups:
                last = data.read_row_group(data.metadata.num_row_groups - 1, columns=["digest"])
                seen.digest = last["digest"][-1].as_py() if len(last) else ""
    except DAMAGE as error:
        seen.unreadable = (str(error) or type(error).__name__).splitlines()[0]
        seen.runs, seen.odd = {}, []
    return seen


class _Rows:
    """The rows of a file, scanned in order."""

    def __init__(self, seen: FileScan, stream: str) -> None:
        self._seen = seen
        self._stream = stream
        self._serial = self._seq = -1

    def add(self, batch: Any) -> None:
        """Scan the next rows."""
        seen = self._seen
        if not len(batch):
            return
        serial, seq = batch["serial"].to_numpy(), batch["seq"].to_numpy()
        begins = seq == 0
        if not seen.rows:
            seen.first = seen.last = int(serial[0])
        seen.rows += len(batch)
        seen.facts += int(begins.sum())
        seen.serials = (seen.serials + sum(serial[begins].tolist())) % SUM
        seen.first = min(seen.first, int(serial.min()))
        seen.last = max(seen.last, int(serial.max()))
        for name in pc.unique(batch["stream"]).to_pylist():
            if name != self._stream and name not in seen.strangers:
                seen.strangers = [*seen.strangers, name]
        self._check_order(batch, serial, seq)
        self._scan_writers(batch.filter(pa.array(begins)))

    def _check_order(self, batch: Any, serial: Any, seq: Any) -> None:
        """Check that each row is the next of its fact, or the first of a later fact."""
        serials = np.concatenate(([self._serial], serial))
        seqs = np.concatenate(([self._seq], seq))
        self._serial, self._seq = int(serial[-1]), int(seq[-1])
        is_same = serials[1:] == serials[:-1]
        is_right = np.where(
            is_same, seqs[1:] == seqs[:-1] + 1, (serials[1:] > serials[:-1]) & (seqs[1:] == 0)
        )
        for position in np.nonzero(~is_right)[0].tolist():
            if len(self._seen.odd) >= ODD_AT_MOST:
                return
            before = (int(serials[position]), int(seqs[position]))
            here = (int(serial[position]), int(seq[position]))
            what = "doubled-row" if here == before else "out-of-order" if here < before else "missing-row"
            odd = FileProblem(
                what=what,
                writer=batch["writer"][position].as_py(),
                token=batch["token"][position].as_py(),
                serial=here[0],
                # The first missing row of the fact.
                seq=before[1] + 1
                if what == "missing-row" and here[0] == before[0]
                else 0
                if what == "missing-row"
                else here[1],
            )
            self._seen.odd = [*self._seen.odd, odd]

    def _scan_writers(self, facts: Any) -> None:
        coded = pc.dictionary_encode(facts["writer"])
        codes = coded.indices.to_numpy()
        before, token = facts["prev_token"].to_numpy(), facts["token"].to_numpy()
        serial = facts["serial"].to_numpy()
        for code, writer in enumerate(coded.dictionary.to_pylist()):
            mine = codes == code
            tokens, serials = token[mine], serial[mine]
            run = self._seen.runs.get(writer)
            if run is None:
                run = TokenRun(
                    low=int(tokens[0]),
                    high=int(tokens[0]),
                    first_serial=int(serials[0]),
                    last_serial=int(serials[0]),
                )
                self._seen.runs = {**self._seen.runs, writer: run}
            run.low, run.high = min(run.low, int(tokens.min())), max(run.high, int(tokens.max()))
            run.first_serial = min(run.first_serial, int(serials.min()))
            run.last_serial = max(run.last_serial, int(serials.max()))
            moves = mine & (before != token)
            starts, ends = before[moves], token[moves]
            if not len(starts):
                continue
            if run.before is None:
                run.before = int(starts[0])
            elif run.after != int(starts[0]):
                run.goes_on = False
            if (starts[1:] != ends[:-1]).any():
                run.goes_on = False
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
