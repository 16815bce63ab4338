"""Fold of rows: the last row of each key is kept, unless it is a tombstone (a row that deletes its key).

A tombstone that a kept fact needs is kept too (`find_tombstones`). Tasks read the files. Only keys and
positions go from task to task, packed as Arrow data: a row of Spark for each key would take most of the time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.base.history import EpochStart
from synrepl.errors import RowError
from synrepl.pipeline.archive.row_files import are_lost, map_files, open_verified_rows, sha256_of
from synrepl.pipeline.driver import TASK, Driver, Partitions
from synrepl.pipeline.exchange import pack, split, unpack
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.snapshot.snapshot import DAMAGED
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

SEQ_BITS: Final = 20
SERIAL_AT: Final = SEQ_BITS + 1
"""A position is ``serial << SERIAL_AT | seq << 1``, plus 1 if the row is a tombstone."""

TASK_KEYS: Final = 1_000_000
"""Approximate number of keys that a task folds in memory, or copies."""

FOLD_ROWS: Final = 64 * 1024
"""Number of rows whose keys are grouped at once before they go to tasks: few, for the processor's caches."""

BUCKETS: Final = 4_096
"""Usual number of buckets: equal ranges of serials, whose rows are counted to make files of equal size."""

BUCKET_SERIALS: Final = 64 * 1024
"""Maximum number of serials of a bucket: a very long log has more than `BUCKETS`."""

FOLDED: Final = pa.schema([(TASK, pa.int32()), ("keys", pa.binary())])
"""The result schema of `fold`: keys with positions (`pack`), and the task that is to merge them."""

MERGED: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("alive", pa.int64()),
        ("positions", pa.binary()),
        ("gone", pa.int64()),
        ("tombstones", pa.binary()),
    ]
)
"""The result schema of `_merge`: the positions of the live rows of a bucket, or the tombstones of a task."""

WORD: Final = 8
SAMPLED_WORDS: Final = 4
"""Number of words (of `WORD` bytes) of a key, spread evenly over it, whose checksum chooses its task."""

MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)

BATCH_ROWS: Final = 32 * 1024
"""Rows that are read at once of each file of which facts are copied."""

KEYED: Final = pa.schema(
    [
        (TASK, pa.int32()),
        ("stream", pa.string()),
        ("key", pa.string()),
        ("at", pa.int64()),
        ("is_end", pa.bool_()),
    ]
)
"""Keys with the position of a row: of the tombstone that deletes the key (`is_end`), or of another row."""

LEADS: Final = pa.schema(
    [(TASK, pa.int32()), ("serial", pa.int64()), ("end", pa.int64()), ("tombstone", pa.int64())]
)
"""The serial of a fact with an older row of the key that the tombstone at `end` deletes. Without an end it is
that of a kept fact, or (in `tombstone` too) of a fact with a tombstone."""


def bucket_size(upto: int) -> int:
    """Return the number of serials of a bucket, in a log of `upto` serials."""
    return max(1, min(-(-upto // BUCKETS), BUCKET_SERIALS))


class FoldInput(msgspec.Struct, frozen=True):
    """Reader of the input in tasks: files of an archive, and the parts of its previous snapshot.

    A task decodes in its own thread: there is a task for each core, which the threads of Arrow would share.

    Rows that the epoch starts `lost` have discarded are left out; of parts, all rows of the streams `whole`
    are left out. The files arrive as record batches with the columns of `ArchiveTable.files`, `is_part`, and
    `after`: only facts with a greater serial are read. `checksums` are those of the parts, by path.
    `declared` has the declared streams, as JSON: keys that the archive lacks are computed again.
    """

    archive: Store
    snapshot: Store
    lost: list[EpochStart]
    whole: list[str]
    checksums: dict[str, str]
    declared: bytes = b"[]"

    def fold(self, tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the position of the last row of each key in these files, as batches of `FOLDED`.

        A batch has the last rows of a part of the files. The texts of rows, most of a
        file, are read only of parts of a snapshot and of streams with tombstones.
        """
        removing = _streams_with_tombstones()
        found: list[Any] = []
        for rows in self._read_all(batches, removing):
            keyed = rows.filter(pc.is_valid(rows["key"]))
            found.append(_positions(keyed, removing if "row" in keyed.column_names else ()))
            if sum(map(len, found)) >= FOLD_ROWS:
                yield _distribute(_find_last(pa.concat_tables(found)), tasks)
                found = []
        if found:
            yield _distribute(_find_last(pa.concat_tables(found)), tasks)

    def older_rows(self, tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the positions of rows in facts with several rows, of the streams with tombstones (`KEYED`).

        The last row of a record batch is always included, as its fact may continue.
        """
        removing = pa.array(_streams_with_tombstones(), pa.string())
        for rows in self._read_all(batches):
            seq = rows["seq"].to_numpy()
            has_several = pa.array((seq > 0) | np.append(seq[1:] > 0, [True]))
            found = rows.filter(pc.and_(pc.is_in(rows["stream"], removing), has_several))
            yield from _keyed(_positions(found), tasks, is_end=False)

    def read_facts(self, file: Mapping[str, Any], serials: Any) -> Iterator[Any]:
        """Yield the rows (`ROWS`) of those facts in a file that have one of these serials, in their order.

        `serials` are ascending. The record batches are small, unless another program has written the file in
        another order.
        """
        extractor = _extractor(self.declared)
        with self._open(file) as data:
            for groups in _row_groups(data.metadata, serials):
                # First the smallest column: there may be nothing to read.
                found = data.read_row_groups(groups, ["serial"], use_threads=False)["serial"].to_numpy()
                first, end = np.searchsorted(serials, (found.min(), found.max() + 1))
                is_its = np.isin(found, serials[first:end]) & (found > file["after"])
                if not is_its.any():
                    continue
                if np.any(found[1:] < found[:-1]):
                    rows = data.read_row_groups(groups, ROWS.names).filter(pa.array(is_its)).sort_by("serial")
                    rows = extractor.fill(rows)
                    yield from self._without_lost(rows, file).combine_chunks().to_batches()
                    continue
                for batch in data.iter_batches(BATCH_ROWS, groups, ROWS.names, use_threads=False):
                    is_kept, is_its = is_its[: len(batch)], is_its[len(batch) :]
                    rows = batch if is_kept.all() else batch.filter(pa.array(is_kept))
                    yield self._without_lost(extractor.fill(rows), file)

    def _read_all(self, batches: Iterable[Any], with_text: Sequence[str] = ()) -> Iterator[Any]:
        """Yield tables of the rows of these files, for the streams `with_text` with the text of rows.

        The column `stream` is a dictionary.
        """
        of_lost = ["epoch", "token"] if self.lost else []
        extractor = _extractor(self.declared)
        for file in (file for batch in batches for file in batch.to_pylist()):
            columns = ["serial", "seq", "stream", "key"]
            if with_text and (file["is_part"] or file["stream"] in with_text):
                columns.append("row")
            with self._open(file, read_dictionary=["stream"]) as data:
                for group in range(data.num_row_groups):
                    lacks = _may_lack_keys(data.metadata, group)
                    read = {*columns, *of_lost, *(["row"] if lacks else [])}
                    rows = data.read_row_group(group, sorted(read), use_threads=False)
                    if lacks:
                        rows = extractor.fill(rows)
                    if file["after"]:
                        rows = rows.filter(pc.greater(rows["serial"], file["after"]))
                    yield self._without_lost(rows, file).select(columns)

    def _open(self, file: Mapping[str, Any], **options: Any) -> AbstractContextManager[Any]:
        """Open a Parquet file. Raises `BadArchive` if it is missing or damaged."""
        path = file["path"]
        if file["is_part"]:
            return open_verified_rows(self.snapshot, path, self.checksums[path], DAMAGED, **options)
        return open_verified_rows(self.archive, path, sha256_of(path), **options)

    def _without_lost(self, rows: Any, file: Mapping[str, Any]) -> Any:
        if file["is_part"] and self.whole:
            rows = rows.filter(pc.invert(pc.is_in(rows["stream"], pa.array(self.whole))))
        for start in self.lost:
            rows = rows.filter(pc.invert(are_lost(rows, start)))
        return rows


def find_last_rows(driver: Driver, inputs: FoldInput, files: Any, upto: int) -> Partitions:
    """Return the positions of the last rows of all keys (`MERGED`)."""
    tasks = max(driver.parallelism, (pc.sum(files["rows"]).as_py() or 0) // TASK_KEYS)
    folded = map_files(driver, files, partial(inputs.fold, tasks), FOLDED)
    return folded.repartition(tasks).map(partial(_merge, bucket_size(upto)), MERGED)


def find_tombstones(driver: Driver, inputs: FoldInput, files: Any, last: Partitions) -> Any:
    """Return the positions of the tombstones to keep, ascending.

    A tombstone is kept if a kept fact has an older row of its key: otherwise a fold of the kept facts would
    restore the key. Only facts with several rows can have such a row. The kept tombstone may be in such a
    fact itself, so the search is repeated, once for each step of the longest chain.
    """
    removing = pa.array(_streams_with_tombstones(), pa.string())
    files = files.filter(pc.or_(files["is_part"], pc.is_in(files["stream"], removing)))
    tasks = driver.parallelism
    gone = last.map(partial(_spread_tombstones, tasks), KEYED)
    older = map_files(driver, files, partial(inputs.older_rows, tasks), KEYED)
    leads = gone.union(older).repartition(tasks).map(partial(_find_leads, tasks), LEADS)
    serials = last.map(partial(_spread_serials, tasks), LEADS)
    # Few: a lead counts if its fact is kept, or may be, for a tombstone in it.
    found = leads.union(serials).repartition(tasks).map(_find_useful_leads, LEADS).collect()
    is_kept = pc.is_null(found["tombstone"])
    kept = found["end"].filter(is_kept).to_pylist()
    further: dict[int, list[int]] = {}
    for tombstone, end in zip(*(found[name].to_pylist() for name in ("tombstone", "end")), strict=True):
        if tombstone is not None:
            further.setdefault(tombstone, []).append(end)
    reached = set(kept)
    while kept:
        for end in further.pop(kept.pop() >> SERIAL_AT, ()):
            if end not in reached:
                reached.add(end)
                kept.append(end)
    return np.array(sorted(reached), np.int64)


def _distribute(positions: Any, tasks: int) -> Any:
    """Return keys as a batch of `FOLDED`: all positions of a key go to the same task."""
    given = split(positions, _tasks_of(positions["key"].combine_chunks(), tasks))
    return pa.RecordBatch.from_pylist([{TASK: task, "keys": pack(its)} for task, its in given], FOLDED)


def _tasks_of(keys: Any, tasks: int) -> Any:
    """Return the task of each key: a checksum of some words of it. A call for each key would take longer."""
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    at, sizes = bounds[:-1].copy(), np.diff(bounds)
    text = np.append(np.frombuffer(data, np.uint8)[: bounds[-1]], np.zeros(WORD, np.uint8))
    # A word begins at each byte.
    words = np.ndarray(len(text) - WORD + 1, "<u8", text, strides=(1,))
    steps = np.maximum(sizes - WORD, 0) // (SAMPLED_WORDS - 1)
    # Of a short key without what follows it.
    masks = np.uint64(2**64 - 1) >> (8 * np.maximum(WORD - sizes, 0)).astype(np.uint64)
    found = sizes.astype(np.uint64)
    for _ in range(SAMPLED_WORDS):
        found += words[at] & masks
        found *= MULTIPLIER
        at += steps
    return ((found >> np.uint64(32)) % np.uint64(tasks)).astype(np.min_scalar_type(tasks))


def _merge(size: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the last position of each key, by buckets of `size` serials, as batches of `MERGED`."""
    found = [unpack(keys.as_buffer()) for batch in batches for keys in batch["keys"]]
    if not found:
        return
    last = _find_last(pa.concat_tables(found))
    at = last["at"].to_numpy()
    is_gone = (at & 1) == 1
    live = np.sort(at[~is_gone])
    buckets = ((live >> SERIAL_AT) // size).astype(np.int32)
    firsts = np.flatnonzero(np.diff(buckets, prepend=-1))
    ends = np.append(firsts, len(live))
    buffers = [None, pa.py_buffer((ends * live.itemsize).astype(np.int32)), pa.py_buffer(live)]
    positions = pa.Array.from_buffers(pa.binary(), len(firsts), buffers)
    none, nothing = np.zeros(len(firsts), np.int64), pa.nulls(len(firsts), pa.binary())
    yield pa.record_batch([pa.array(buckets[firsts]), np.diff(ends), positions, none, nothing], MERGED)
    gone = last.filter(pa.array(is_gone))
    if len(gone):
        yield pa.record_batch([[0], [0], [b""], [len(gone)], [pack(gone)]], MERGED)


def _spread_tombstones(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the tombstones of these batches (`MERGED`), as batches of `KEYED`."""
    for batch in batches:
        for packed in batch["tombstones"].drop_null():
            yield from _keyed(unpack(packed.as_buffer()), tasks, is_end=True)


def _keyed(positions: Any, tasks: int, *, is_end: bool) -> Iterator[Any]:
    """Yield keys with positions as batches of `KEYED`: all of a key for the same task."""
    positions = positions.filter(pc.is_valid(positions["key"]))
    if len(positions):
        numbers = _tasks_of(positions["key"].combine_chunks(), tasks)
        stream = positions["stream"].cast(pa.string())
        ends = pa.repeat(is_end, len(positions))
        columns = [pa.array(numbers.astype(np.int32)), stream, positions["key"], positions["at"], ends]
        table = pa.table(columns, KEYED)
        yield from table.to_batches()


def _find_leads(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the serials of facts with an older row of a tombstone's key, and the tombstones (`LEADS`)."""
    rows = pa.Table.from_batches(batches, KEYED)
    names = ["stream", "key", "at"]
    gone = rows.filter(rows["is_end"]).select(names).rename_columns(["stream", "key", "end"])
    pairs = rows.filter(pc.invert(rows["is_end"])).select(names).join(gone, ["stream", "key"], None, "inner")
    pairs = pairs.filter(pc.less(pairs["at"], pairs["end"]))
    serials = pc.shift_right(pairs["at"], SERIAL_AT)
    leads = pa.table({"serial": serials, "end": pairs["end"]}).group_by(["serial", "end"]).aggregate([])
    yield from _leads(tasks, leads["serial"].to_numpy(), leads["end"])


def _spread_serials(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the serials of kept facts, and those of tombstones (`LEADS`), of batches of `MERGED`."""
    for batch in batches:
        for packed in batch["positions"]:
            serials = np.unique(np.frombuffer(packed.as_buffer(), np.int64) >> SERIAL_AT)
            yield from _leads(tasks, serials, pa.nulls(len(serials), pa.int64()))
        for packed in batch["tombstones"].drop_null():
            serials = np.unique(unpack(packed.as_buffer())["at"].to_numpy() >> SERIAL_AT)
            yield from _leads(tasks, serials, pa.nulls(len(serials), pa.int64()), tombstones=serials)


def _leads(tasks: int, serials: Any, ends: Any, tombstones: Any = None) -> Iterator[Any]:
    if not len(serials):
        return
    numbers = pa.array((serials % tasks).astype(np.int32))
    marks = pa.nulls(len(serials), pa.int64()) if tombstones is None else pa.array(tombstones)
    yield from pa.table([numbers, pa.array(serials), ends, marks], LEADS).to_batches()


def _find_useful_leads(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the leads whose facts are kept, and those of facts with tombstones, marked with the serials."""
    rows = pa.Table.from_batches(batches, LEADS)
    leads = rows.filter(pc.is_valid(rows["end"]))
    others = rows.filter(pc.is_null(rows["end"]))
    is_tombstone = pc.is_valid(others["tombstone"])
    is_kept = pc.is_in(leads["serial"], others["serial"].filter(pc.invert(is_tombstone)).combine_chunks())
    kept, rest = leads.filter(is_kept), leads.filter(pc.invert(is_kept))
    ends = pc.unique(kept["end"])
    yield from _leads(1, np.zeros(len(ends), np.int64), ends)
    rest = rest.filter(pc.is_in(rest["serial"], others["serial"].filter(is_tombstone).combine_chunks()))
    serials = rest["serial"].to_numpy()
    yield from _leads(1, serials, rest["end"], tombstones=serials)


def positions_of(rows: Any) -> Any:
    """Return the positions of rows. Raises `BadArchive` for a fact of more rows than a position can have."""
    seq = rows["seq"].cast(pa.int64())
    if (pc.max(seq).as_py() or 0) >> SEQ_BITS:
        serial = rows["serial"][pc.index(seq, pc.max(seq)).as_py()]
        raise BadArchive(f"cannot compact serial {serial}: the fact has more than {1 << SEQ_BITS:,} rows")
    return pc.add(pc.shift_left(rows["serial"], SERIAL_AT), pc.shift_left(seq, 1))


def _positions(rows: Any, removing: Sequence[str] = ()) -> Any:
    """Return the keys of rows with their positions, marked as tombstones in the streams `removing`."""
    at = positions_of(rows).to_numpy().copy()
    table = StreamTable.default()
    for name in removing:
        may_be = pc.equal(rows["stream"], name)
        for head in table[name].lasting_heads:
            may_be = pc.and_not(may_be, pc.starts_with(rows["row"], head.decode()))
        texts = rows["row"].filter(may_be).cast(pa.binary()).to_pylist()
        at[may_be.to_numpy()] |= np.array(_are_tombstones(table[name], texts), np.int64)
    return pa.table({"stream": rows["stream"], "key": rows["key"], "at": at})


def _find_last(positions: Any) -> Any:
    # By numbers: a group by dictionaries takes twice as long.
    streams = positions["stream"].combine_chunks()
    coded = positions.set_column(0, "stream", streams.indices)
    found = coded.group_by(["stream", "key"], use_threads=False).aggregate([("at", "max")])
    codes = found["stream"].combine_chunks()
    stream = pa.DictionaryArray.from_arrays(codes, streams.dictionary)
    return pa.table({"stream": stream, "key": found["key"], "at": found["at_max"]})


@lru_cache(maxsize=1)
def _extractor(declared: bytes) -> KeyExtractor:
    return KeyExtractor(msgspec.json.decode(declared))


def _may_lack_keys(metadata: Any, group: int) -> bool:
    """Whether rows of a row group may have texts and no keys, by its statistics, if it has any."""
    columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
    known = {one.path_in_schema: one.statistics for one in columns if one.path_in_schema in ("key", "row")}
    counts = {None if one is None or not one.has_null_count else one.null_count for one in known.values()}
    return len(counts) > 1 or None in counts


def _row_groups(metadata: Any, serials: Any) -> list[list[int]]:
    """Return the row groups of a file that may have one of these ascending serials, in order of serial.

    Those whose serials overlap are in one list. What a group has is known by its statistics, if it has any.
    """
    found: list[list[int]] = []
    upto = 0
    for low, high, group in sorted(
        _serial_range(metadata, group) for group in range(metadata.num_row_groups)
    ):
        if low <= serials[-1] and serials[0] <= high:
            if found and low < upto:
                found[-1].append(group)
            else:
                found.append([group])
            upto = max(upto, high)
    return found


def _serial_range(metadata: Any, group: int) -> tuple[int, int, int]:
    """Return the first and last serial that a row group may have, and its number."""
    columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
    (known,) = (column.statistics for column in columns if column.path_in_schema == "serial")
    return (0, 2**63 - 1, group) if known is None else (known.min, known.max, group)


def _streams_with_tombstones() -> list[str]:
    return [one.name for one in StreamTable.default() if one.tombstone is not None and not one.ephemeral]


def _are_tombstones(stream: Stream[Any], texts: list[bytes]) -> list[bool]:
    """Return whether each of these rows is a tombstone. A row that this release cannot decode is none."""
    assert stream.tombstone is not None
    try:
        return [*map(stream.tombstone, stream.decode_many(texts, NEWEST))] if texts else []
    except RowError:
        if len(texts) == 1:
            return [False]
        return [is_one for text in texts for is_one in _are_tombstones(stream, [text])]
