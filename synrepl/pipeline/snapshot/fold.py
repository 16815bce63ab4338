"""Fold of rows: the last row of each key is kept, unless it is a tombstone (a row that deletes its key).

A tombstone that a kept fact needs is kept too (`find_tombstones`). Tasks read the files. Spark shuffles only
keys and positions, packed as Arrow data: a row of Spark for each key would take most of the time.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.errors import RowError
from synrepl.pipeline.archive.files import map_files, pack, parallelism, unpack
from synrepl.pipeline.snapshot.snapshot import LAST, write_part
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.ports.history import EpochStart
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

MISSING: Final = "a file is missing"

SEQ_BITS: Final = 20
SERIAL_AT: Final = SEQ_BITS + 1
"""A position is ``serial << SERIAL_AT | seq << 1``, plus 1 if the row is a tombstone."""

TASK_KEYS: Final = 1_000_000
"""Approximate number of keys that a task folds in memory."""

BUCKETS: Final = 4_096
"""Usual number of buckets: equal ranges of serials, whose rows are counted to make files of equal size."""

BUCKET_SERIALS: Final = 64 * 1024
"""Maximum number of serials of a bucket: a very long log has more than `BUCKETS`."""

FOLDED: Final = "`task` int, `keys` binary"
"""The result schema of `fold`: keys with positions (`pack`), and the task that is to merge them."""

MERGED: Final = "`bucket` int, `alive` bigint, `positions` binary, `gone` bigint, `tombstones` binary"
"""The result schema of `_merge`: the positions of the live rows of a bucket, or the tombstones of a task."""

SAMPLED_BYTES: Final = 24
"""Number of bytes of a key, spread evenly over it, whose checksum chooses the task of the key."""

FNV_PRIME: Final = 0x01000193

POSITIONS: Final = "`stream` string, `key` string, `at` bigint"
"""The schema of keys with the position of a row."""


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

    def older_rows(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the positions of rows in facts with several rows, of the streams with tombstones.

        The last row of a record batch is always included, as its fact may continue.
        """
        removing = pa.array(_streams_with_tombstones(), pa.string())
        for rows in self._read_all(batches):
            seq = rows["seq"].to_numpy()
            has_several = pa.array((seq > 0) | np.append(seq[1:] > 0, [True]))
            found = rows.filter(pc.and_(pc.is_in(rows["stream"], removing), has_several))
            yield from _positions(found).to_batches()

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
            yield pa.record_batch([[write_part(self.snapshot, folder, rows)]], names=["written"])

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
            raise BadArchive(f"{store}: {MISSING}: {file['path']}") from error
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
                    is_its = pc.equal(rows["stream"], start.stream)
                    is_before = pc.and_(is_its, pc.less(rows["epoch"], start.epoch))
                    rows = rows.filter(pc.invert(pc.and_(is_before, pc.greater(rows["token"], start.token))))
                yield rows.select(list(columns))


def find_last_rows(spark: SparkSession, inputs: FoldInput, files: Any, upto: int) -> DataFrame:
    """Return the positions of the last rows of all keys (`MERGED`)."""
    tasks = max(parallelism(spark), (pc.sum(files["rows"]).as_py() or 0) // TASK_KEYS)
    folded = map_files(spark, files, partial(inputs.fold, tasks), FOLDED)
    return folded.repartitionById(tasks, "task").mapInArrow(partial(_merge, bucket_size(upto)), MERGED)


def find_tombstones(spark: SparkSession, inputs: FoldInput, files: Any, last: DataFrame) -> DataFrame:
    """Return the tombstones to keep: their `serial`, and `positions`.

    A tombstone is kept if a kept fact has an older row of its key: otherwise a fold of the kept facts would
    restore the key. Only facts with several rows can have such a row. The kept tombstone may be in such a
    fact itself, so the search is repeated, once for each step of the longest chain.
    """
    gone = last.mapInArrow(_unpack_tombstones, POSITIONS).withColumnRenamed("at", "end")
    removing = pa.array(_streams_with_tombstones(), pa.string())
    files = files.filter(pc.or_(files["is_part"], pc.is_in(files["stream"], removing)))
    older = map_files(spark, files, inputs.older_rows, POSITIONS)
    pairs = older.join(gone, ["stream", "key"]).where("at < end")
    serial = partial(F.shiftright, numBits=SERIAL_AT)
    leads = pairs.select(serial("at").alias("serial"), "end").distinct().persist()
    kept = last.mapInArrow(_unpack_serials, "`serial` bigint")
    reached = found = leads.join(kept, "serial", "left_semi").select("end").distinct().localCheckpoint()
    while not reached.isEmpty():
        further = leads.join(reached.select(serial("end").alias("serial")), "serial", "left_semi")
        reached = further.select("end").distinct().join(found, "end", "left_anti").localCheckpoint()
        found = found.union(reached)
    return found.mapInArrow(_pack_positions, "`serial` bigint, `positions` binary")


def _distribute(positions: Any, tasks: int) -> Any:
    """Return keys as a batch of `FOLDED`: all positions of a key go to the same task."""
    numbers = _checksums(positions["key"].combine_chunks()) % tasks
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(tasks + 1)).tolist()
    positions = positions.take(pa.array(order))
    packed = [pack(positions.slice(first, last - first)) for first, last in pairwise(bounds)]
    return pa.record_batch([pa.array(range(tasks), pa.int32()), packed], names=["task", "keys"])


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
        [*(part.tobytes() for part in parts), b""],
        pa.array([0] * len(buckets) + [len(gone)], pa.int64()),
        [None] * len(buckets) + [pack(gone) if len(gone) else None],
    ]
    yield pa.record_batch(columns, names=["bucket", "alive", "positions", "gone", "tombstones"])


def _unpack_tombstones(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for packed in batch["tombstones"].drop_null():
            yield from unpack(packed.as_buffer()).to_batches()


def _unpack_serials(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for packed in batch["positions"]:
            serials = np.unique(np.frombuffer(packed.as_buffer(), np.int64) >> SERIAL_AT)
            yield pa.record_batch([pa.array(serials)], names=["serial"])


def _pack_positions(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        at = batch["end"].to_numpy()
        packed = [one.tobytes() for one in at]
        yield pa.record_batch([pa.array(at >> SERIAL_AT), packed], names=["serial", "positions"])


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
