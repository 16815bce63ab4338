"""Fold of rows: the last row of each key is kept, unless it is a tombstone (a row that deletes its key).

A tombstone that a kept fact needs is kept too (`find_tombstones`). Tasks read the files. Only keys and
positions go from task to task, packed as Arrow data: a row of Spark for each key would take most of the time.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.errors import RowError
from synrepl.pipeline.archive.files import WRITTEN, are_lost, map_files
from synrepl.pipeline.driver import TASK, Driver, Partitions
from synrepl.pipeline.packing import pack, unpack
from synrepl.pipeline.snapshot.snapshot import LAST, write_part
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.ports.history import EpochStart
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

SEQ_BITS: Final = 20
SERIAL_AT: Final = SEQ_BITS + 1
"""A position is ``serial << SERIAL_AT | seq << 1``, plus 1 if the row is a tombstone."""

TASK_KEYS: Final = 1_000_000
"""Approximate number of keys that a task folds in memory."""

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

SAMPLED_BYTES: Final = 24
"""Number of bytes of a key, spread evenly over it, whose checksum chooses the task of the key."""

FNV_PRIME: Final = 0x01000193

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

PARTS: Final = pa.schema(
    [
        (TASK, pa.int32()),
        ("positions", pa.binary()),
        ("file", pa.struct([("path", pa.string()), ("is_part", pa.bool_()), ("after", pa.int64())])),
    ]
)
"""What a task writes: positions of the kept rows of a range of serials, and files that may have them."""


def bucket_size(upto: int) -> int:
    """Return the number of serials of a bucket, in a log of `upto` serials."""
    return max(1, min(-(-upto // BUCKETS), BUCKET_SERIALS))


class FoldInput(msgspec.Struct, frozen=True):
    """Reader of the input in tasks: files of an archive, and the parts of its previous snapshot.

    Rows that the epoch starts `lost` have discarded are left out; of parts, all rows of the streams `whole`
    are left out. The files arrive as record batches with the columns of `ArchiveTable.files`, `is_part`, and
    `after`: only facts with a greater serial are read.
    """

    archive: Store
    snapshot: Store
    lost: list[EpochStart]
    whole: list[str]

    def fold(self, tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the position of the last row of each key in these files, as batches of `FOLDED`.

        With very many keys, a batch has the last rows of a part of the files. The texts of rows, most of a
        file, are read only of parts of a snapshot and of streams with tombstones.
        """
        removing = _streams_with_tombstones()
        found: list[Any] = []
        for rows in self._read_all(batches, removing):
            keyed = rows.filter(pc.is_valid(rows["key"]))
            found.append(_positions(keyed, removing if "row" in keyed.column_names else ()))
            if sum(map(len, found)) >= TASK_KEYS:
                found = [_find_last(pa.concat_tables(found))]
                if len(found[0]) >= TASK_KEYS // 2:
                    yield _distribute(found.pop(), tasks)
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

    def write(self, folder: str, batches: Iterable[Any]) -> Iterator[Any]:
        """Write the facts at these positions, of a range of serials. Yields the `PartFile` as JSON."""
        given: list[Any] = []
        files: list[Any] = []
        for batch in batches:
            packed = batch["positions"].drop_null()
            given += (np.frombuffer(one.as_buffer(), np.int64) for one in packed)
            files += batch["file"].drop_null().to_pylist()
        positions = np.sort(np.concatenate(given)) if given else np.empty(0, np.int64)
        serials = positions >> SERIAL_AT
        if not len(serials):
            return
        kept = []
        for file in files:
            for rows in self._read(file, ROWS.names, serials):
                # Positions of kept tombstones are odd: their rows do not count as last.
                is_last = pa.array(_is_in(_at(rows).to_numpy(), positions))
                kept.append(rows.cast(ROWS).append_column(LAST.field("last"), is_last))
        if kept:
            rows = pa.concat_tables(kept).sort_by([("serial", "ascending"), ("seq", "ascending")])
            yield pa.record_batch([pa.array([write_part(self.snapshot, folder, rows)], pa.binary())], WRITTEN)

    def _read_all(self, batches: Iterable[Any], with_text: Sequence[str] = ()) -> Iterator[Any]:
        """Yield tables of the rows of these files, for the streams `with_text` with the text of rows."""
        columns = ["serial", "seq", "stream", "key"]
        for file in (file for batch in batches for file in batch.to_pylist()):
            has_text = bool(with_text) and (file["is_part"] or file["stream"] in with_text)
            yield from self._read(file, [*columns, "row"] if has_text else columns)

    def _read(self, file: dict[str, Any], columns: Sequence[str], serials: Any = None) -> Iterator[Any]:
        """Yield tables of the rows of a file, only those of these `serials` (ascending), if given.

        Raises `BadArchive` if there is no such file.
        """
        store = self.snapshot if file["is_part"] else self.archive
        names = [*columns, *(("epoch", "token") if self.lost else ())]
        try:
            source = store.filesystem.open_input_file(store.path(file["path"]))
        except FileNotFoundError as error:
            raise BadArchive(f"{store}: a file is missing: {file['path']}") from error
        with source:
            data = pq.ParquetFile(source)
            for group in range(data.num_row_groups):
                if serials is not None and not _overlaps(data.metadata.row_group(group), serials):
                    continue
                is_kept: Any = True
                if serials is not None:
                    # First the smallest column: there may be nothing to keep.
                    found = data.read_row_group(group, columns=["serial"])["serial"].to_numpy()
                    is_kept = _is_in(found, serials)
                    if not is_kept.any():
                        continue
                rows = data.read_row_group(group, columns=names)
                if file["after"]:
                    is_kept = is_kept & (rows["serial"].to_numpy() > file["after"])
                if not np.all(is_kept):
                    rows = rows.filter(pa.array(is_kept))
                if file["is_part"] and self.whole:
                    rows = rows.filter(pc.invert(pc.is_in(rows["stream"], pa.array(self.whole))))
                for start in self.lost:
                    rows = rows.filter(pc.invert(are_lost(rows, start)))
                yield rows.select(list(columns))


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
    numbers = _checksums(positions["key"].combine_chunks()) % tasks
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(tasks + 1)).tolist()
    positions = positions.take(pa.array(order))
    packed = [pack(positions.slice(first, last - first)) for first, last in pairwise(bounds)]
    return pa.record_batch([pa.array(range(tasks), pa.int32()), pa.array(packed, pa.binary())], FOLDED)


def _checksums(keys: Any) -> Any:
    """Return a checksum of some bytes of each key. A call for each key would take longer."""
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    text, first, last = np.frombuffer(data, np.uint8), bounds[:-1], np.diff(bounds) - 1
    found = last.astype(np.uint32)
    for part in range(SAMPLED_BYTES):
        found = found * np.uint32(FNV_PRIME) + text[first + last * part // (SAMPLED_BYTES - 1)]
    return found >> 8


def _merge(size: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the last position of each key, by buckets of `size` serials, as batches of `MERGED`."""
    found = [unpack(keys.as_buffer()) for batch in batches for keys in batch["keys"]]
    if not found:
        return
    last = _find_last(pa.concat_tables(found))
    at = last["at"].to_numpy()
    is_gone = (at & 1) == 1
    live = np.sort(at[~is_gone])
    buckets, firsts = np.unique((live >> SERIAL_AT) // size, return_index=True)
    parts = np.split(live, firsts[1:])[: len(buckets)]
    gone = last.filter(pa.array(is_gone))
    columns = [
        pa.array([*buckets, 0], pa.int32()),
        pa.array([*map(len, parts), 0], pa.int64()),
        pa.array([*(part.tobytes() for part in parts), b""], pa.binary()),
        pa.array([0] * len(buckets) + [len(gone)], pa.int64()),
        pa.array([None] * len(buckets) + [pack(gone) if len(gone) else None], pa.binary()),
    ]
    yield pa.record_batch(columns, MERGED)


def _spread_tombstones(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the tombstones of these batches (`MERGED`), as batches of `KEYED`."""
    for batch in batches:
        for packed in batch["tombstones"].drop_null():
            yield from _keyed(unpack(packed.as_buffer()), tasks, is_end=True)


def _keyed(positions: Any, tasks: int, *, is_end: bool) -> Iterator[Any]:
    """Yield keys with positions as batches of `KEYED`: all of a key for the same task."""
    positions = positions.filter(pc.is_valid(positions["key"]))
    if len(positions):
        numbers = pa.array(_checksums(positions["key"].combine_chunks()) % tasks).cast(pa.int32())
        ends = pa.repeat(is_end, len(positions))
        table = pa.table([numbers, *(positions[name] for name in ("stream", "key", "at")), ends], KEYED)
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


def _at(rows: Any) -> Any:
    """Return the positions of rows. Raises `BadArchive` for a fact of more rows than a position can have."""
    seq = rows["seq"].cast(pa.int64())
    if (pc.max(seq).as_py() or 0) >> SEQ_BITS:
        serial = rows["serial"][pc.index(seq, pc.max(seq)).as_py()]
        raise BadArchive(f"cannot compact serial {serial}: the fact has more than {1 << SEQ_BITS:,} rows")
    return pc.add(pc.shift_left(rows["serial"], SERIAL_AT), pc.shift_left(seq, 1))


def _positions(rows: Any, removing: Sequence[str] = ()) -> Any:
    """Return the keys of rows with their positions, marked as tombstones in the streams `removing`."""
    at = _at(rows).to_numpy().copy()
    table = StreamTable.default()
    for name in removing:
        is_its = pc.equal(rows["stream"], name)
        texts = rows["row"].filter(is_its).cast(pa.binary()).to_pylist()
        at[is_its.to_numpy()] |= np.array(_are_tombstones(table[name], texts), np.int64)
    return pa.table({"stream": rows["stream"], "key": rows["key"], "at": at})


def _find_last(positions: Any) -> Any:
    # Numbers in place of the names of streams are grouped in half the time.
    coded = positions.set_column(0, "stream", positions["stream"].dictionary_encode())
    found = coded.group_by(["stream", "key"], use_threads=False).aggregate([("at", "max")])
    stream = found["stream"].cast(pa.string())
    return pa.table({"stream": stream, "key": found["key"], "at": found["at_max"]})


def _overlaps(group: Any, serials: Any) -> bool:
    """Return whether a row group may have one of these ascending serials, by its statistics."""
    columns = [group.column(number) for number in range(group.num_columns)]
    (found,) = (column.statistics for column in columns if column.path_in_schema == "serial")
    return found is None or bool(found.min <= serials[-1] and serials[0] <= found.max)


def _is_in(values: Any, known: Any) -> Any:
    """Return for each value whether it is one of these ascending values."""
    found = np.searchsorted(known, values)
    return (found < len(known)) & (known[np.minimum(found, len(known) - 1)] == values)


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
