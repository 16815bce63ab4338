"""Scan of a file: its checksum, and the consistency of its rows. One pass, in a task.

The bytes of a file with a wrong checksum are not trusted. Parquet readers differ in the damage they detect,
and an error would fail the job. So such a file is read completely, and each value is checked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import file_digest
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.archive.row_files import PAGES_VERIFIED, UNREADABLE, open_rows, sha256_of
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import NotFound, Store

ODD_AT_MOST: Final = 50
"""Maximum number of problems reported per file."""

COLUMNS: Final = ["serial", "stream", "writer", "prev_token", "token", "seq"]

AT_ONCE: Final = 64 * 1024
"""Rows of a record batch: few, for the processor's caches."""

DAMAGE: Final = (*UNREADABLE, OSError)
"""The exceptions that pyarrow raises for damaged Parquet files."""

SUM: Final = 2**63
"""Modulus of sums of serials: sums of damaged files would not fit into JSON."""

SEEN: Final = pa.schema(
    [pa.field("rank", pa.int64(), nullable=False), pa.field("seen", pa.binary(), nullable=False)]
)
"""The result schema of tasks: `FileScan` as JSON, and the position of the file in the order of serials."""


skip_rows: Final[Callable[[Iterator[Any]], Iterable[Any]]] = partial(deque, maxlen=0)
"""Read record batches to their end, and return nothing."""


class TokenRun(msgspec.Struct, kw_only=True):
    """The facts of one writer in a file, with its positions `before` the first and `after` the last.

    Late facts do not move the position; with late facts only, both are None. `goes_on`: each fact continues
    the previous one. A fact that says that others are lost (`lost_facts`) moves it without continuing any.
    """

    before: int | None = None
    after: int | None = None
    goes_on: bool = True
    low: int
    high: int
    last_serial: int


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of one row; `what` is a code of findings."""

    what: str
    writer: str
    token: int
    serial: int
    seq: int


class ListedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as the log of the table lists it.

    Files whose serials overlap are a span; `ends_span` is true of those that have its last serial.
    """

    path: str
    stream: str
    bytes: int
    rows: int
    first_serial: int
    last_serial: int
    ends_span: bool


class FileScan(msgspec.Struct, kw_only=True):
    """The result of a scan. `serials` is the sum of the serials of the facts, modulo `SUM`.

    `unreadable` is the error of reading, if any. `digest` is that of the last row, if the file ends a span.
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
    """Scan the files of these batches (`rank_files`); each should have rows of one stream.

    Passes the record batches of each file, with these columns (at least `COLUMNS`; of a changed file: all; of
    some files with `row`), to `derive`, which must read them all. Yields the results of `derive`, and batches
    of `SEEN`.
    """
    for batch in batches:
        scans = []
        for file in msgspec.convert(batch.to_pylist(), list[ListedFile]):
            seen = FileScan(file=file)
            yield from derive(_scan_rows(store, seen, columns))
            scans.append(msgspec.json.encode(seen))
        yield pa.record_batch([batch["rank"], pa.array(scans, pa.binary())], SEEN)


def rank_files(files: Any) -> Any:
    """Return files (rows of `ArchiveTable.files`) with `rank`, their position in the order of serial.

    Adds `ends_span`, too (`ListedFile`).
    """
    firsts, lasts = (files[name].to_numpy() for name in ("first_serial", "last_serial"))
    upto = np.maximum.accumulate(lasts)
    ends = np.flatnonzero(np.append(firsts[1:] > upto[:-1], np.ones(len(files[:1]), bool)))
    ends_span = lasts == upto[ends][np.searchsorted(ends, np.arange(len(files)))]
    ranked = files.append_column("rank", pa.array(np.arange(len(files))))
    return ranked.append_column("ends_span", pa.array(ends_span))


def _scan_rows(store: Store, seen: FileScan, columns: Sequence[str]) -> Iterator[Any]:
    """Scan the file of `seen`, and yield its record batches with these columns.

    If the checksum is not that of its name, all columns are read, and the file is `unreadable` from the first
    value that cannot be read.
    """
    path = seen.file.path
    try:
        source = store.open(path)
    except NotFound:
        seen.exists = False
        return
    with source:
        seen.bytes, seen.sha256 = source.size(), file_digest(source, "sha256").hexdigest()
        source.seek(0)
        yield from _scan_source(source, seen, columns)


def _scan_source(source: Any, seen: FileScan, columns: Sequence[str]) -> Iterator[Any]:
    path, last = seen.file.path, (-1, -1)
    try:
        if seen.sha256 == sha256_of(path):
            data = open_rows(source, path, read_dictionary=["stream", "writer"])
            needed = [*columns, *(["row"] if "row" not in columns and _may_have_lost(data) else [])]
            batches = data.iter_batches(AT_ONCE, columns=needed)
        else:
            data = open_rows(source, path, **({} if sha256_of(path) else PAGES_VERIFIED))
            batches = _checked(data)
        for batch in batches:
            last = _scan_batch(seen, batch, last)
            yield batch
        groups = data.metadata.num_row_groups
        if groups and seen.file.ends_span:
            digests = data.read_row_group(groups - 1, columns=["digest"])["digest"]
            seen.digest = digests[-1].as_py() if len(digests) else ""
    except DAMAGE as error:
        seen.unreadable = (str(error) or type(error).__name__).splitlines()[0]
        seen.runs, seen.odd = {}, []


def lost_facts(rows: Any) -> Any:
    """Return which of these rows are facts that say that facts of their writer are lost (`Fact.is_lost`)."""
    is_still = pc.equal(rows["prev_token"], rows["token"])
    return pc.and_(pc.and_(is_still, pc.greater(rows["token"], 0)), pc.is_null(rows["row"])).to_numpy(
        zero_copy_only=False
    )


def _may_have_lost(data: Any) -> bool:
    """Return whether a file may have `lost_facts`: their texts are read of few files only."""
    at = data.schema_arrow.names.index("row")
    for group in range(data.num_row_groups):
        known = data.metadata.row_group(group).column(at).statistics
        if known is None or not known.has_null_count or known.null_count:
            tokens = data.read_row_group(group, ["prev_token", "token"])
            is_still = pc.and_(
                pc.equal(tokens["prev_token"], tokens["token"]), pc.greater(tokens["token"], 0)
            )
            if pc.any(is_still).as_py():
                return True
    return False


def _scan_batch(seen: FileScan, batch: Any, before: tuple[int, int]) -> tuple[int, int]:
    """Scan the next rows, after the row `before` (its serial and seq). Return the last row."""
    if not len(batch):
        return before
    serial, seq = batch["serial"].to_numpy(), batch["seq"].to_numpy()
    begins = seq == 0
    first, last = int(serial.min()), int(serial.max())
    seen.first = min(seen.first, first) if seen.rows else first
    seen.last = max(seen.last, last) if seen.rows else last
    seen.rows += len(batch)
    seen.facts += int(begins.sum())
    is_plain = bool(begins.all())
    counted = serial if is_plain else serial[begins]
    # A sum of more than 64 bits loses the highest ones, which the modulus does too.
    seen.serials = (seen.serials + int(counted.sum())) % SUM
    known = {seen.file.stream, *seen.strangers}
    seen.strangers += [name for name in pc.unique(batch["stream"]).to_pylist() if name not in known]
    is_ascending = bool((serial[1:] > serial[:-1]).all())
    if not (is_plain and is_ascending and serial[0] > before[0]):
        _scan_order(seen.odd, batch, before)
    facts = batch if is_plain else batch.filter(pa.array(begins))
    _scan_writers(seen.runs, facts, is_ascending=is_ascending)
    return int(serial[-1]), int(seq[-1])


def _scan_order(odd: list[FileProblem], batch: Any, before: tuple[int, int]) -> None:
    """Check that each row is the next of its fact, or the first of a later fact."""
    columns = zip(("serial", "seq"), before, strict=True)
    serials, seqs = (np.concatenate(([last], batch[name].to_numpy())) for name, last in columns)
    is_next = (serials[1:] == serials[:-1]) & (seqs[1:] == seqs[:-1] + 1)
    is_right = is_next | ((serials[1:] > serials[:-1]) & (seqs[1:] == 0))
    for index in np.flatnonzero(~is_right)[: ODD_AT_MOST - len(odd)].tolist():
        last, here = ((int(serials[at]), int(seqs[at])) for at in (index, index + 1))
        what = "doubled-row" if here == last else "out-of-order" if here < last else "missing-row"
        # The first missing row of the fact.
        missing = last[1] + 1 if here[0] == last[0] else 0
        writer, token = (batch[name][index].as_py() for name in ("writer", "token"))
        place = (here[0], missing) if what == "missing-row" else here
        odd.append(FileProblem(what=what, writer=writer, token=token, serial=place[0], seq=place[1]))


def _scan_writers(runs: dict[str, TokenRun], facts: Any, *, is_ascending: bool) -> None:
    writers = facts["writer"]
    coded = writers if pa.types.is_dictionary(writers.type) else writers.dictionary_encode()
    codes = coded.indices.to_numpy()
    # Numbers of 8 or 16 bits are sorted several times as fast.
    order = np.argsort(codes.astype(np.min_scalar_type(len(coded.dictionary))), kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(codes, minlength=len(coded.dictionary)))).tolist()
    columns = [facts[name].to_numpy()[order] for name in ("prev_token", "token")]
    lost = lost_facts(facts) if "row" in facts.schema.names else None
    serials = facts["serial"].to_numpy()
    for writer, (first, end) in zip(coded.dictionary.to_pylist(), pairwise(bounds), strict=True):
        if first == end:
            continue
        before, token = (column[first:end] for column in columns)
        low, high = int(token.min()), int(token.max())
        run = runs.setdefault(writer, TokenRun(low=low, high=high, last_serial=0))
        run.low, run.high = min(run.low, low), max(run.high, high)
        last = order[end - 1] if is_ascending else order[first:end]
        run.last_serial = max(run.last_serial, int(serials[last].max()))
        moves = before != token
        if lost is not None:
            moves |= lost[order[first:end]]
        starts, ends = (before, token) if moves.all() else (before[moves], token[moves])
        if len(starts):
            run.before = int(starts[0]) if run.before is None else run.before
            expected = run.before if run.after is None else run.after
            run.goes_on &= bool(starts[0] == expected and (starts[1:] == ends[:-1]).all())
            run.after = int(ends[-1])


def _checked(file: Any) -> Iterator[Any]:
    if not file.schema_arrow.equals(ROWS):
        raise ValueError("its columns are not those of an archive")
    for batch in file.iter_batches(AT_ONCE):
        batch.validate(full=True)
        if any(batch[field.name].null_count for field in ROWS if not field.nullable):
            raise ValueError("a column that must have values has nulls")
        yield batch
