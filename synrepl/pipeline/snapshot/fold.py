"""Fold of rows: the last row of each key is kept, unless it is a tombstone.

Tasks read the files. Spark shuffles keys and positions only, never rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.errors import RowError
from synrepl.pipeline.archive.reading import map_files
from synrepl.pipeline.snapshot.parts import write_parts
from synrepl.pipeline.snapshot.snapshot import LAST
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.ports.history import EpochStart
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

__all__ = ["MISSING", "FoldReader", "find_last_rows", "find_tombstones", "is_gone", "serial_of"]

MISSING: Final = "a file is missing"

SEQ_BITS: Final = 20
"""Bits of `seq` in a position: ``serial << 21 | seq << 1``, and 1 if the row is a tombstone."""

TASK_KEYS: Final = 1_000_000
"""Keys that a task folds in memory."""

POSITIONS: Final = "`stream` string, `key` string, `at` bigint"
"""The result schema of tasks: keys with the position of a row."""


def serial_of(at: str) -> Column:
    """Return the serial of a position, as a column."""
    return F.shiftright(at, SEQ_BITS + 1)


def is_gone(at: str) -> Column:
    """Return whether a position is that of a tombstone, as a column."""
    return F.col(at).bitwiseAND(1) == 1


class FoldReader(msgspec.Struct, frozen=True):
    """Reader of the input in tasks: files of an archive, and the parts of its previous snapshot.

    Parts are read without the streams `whole`, and files without facts that were `lost` at an epoch start.
    The files arrive as record batches with the columns of `ArchiveTable.files`, `is_part`, and `after`: only
    facts with a greater serial are read.
    """

    archive: Store
    snapshot: Store
    lost: list[EpochStart]
    whole: list[str]

    def fold(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the position of the last row of each key in these files, as batches of `POSITIONS`.

        The text of a row is read only for streams with tombstones: it is most of a file.
        """
        removing = _streams_with_tombstones()
        found: list[Any] = []
        for rows in self._read_all(batches, removing, within=lambda rows: pc.is_valid(rows["key"])):
            found.append(_mark_gone(_find_last(_positions(rows)), rows, removing))
            if sum(map(len, found)) >= TASK_KEYS:
                found = [_find_last(pa.concat_tables(found))]
                if len(found[0]) >= TASK_KEYS // 2:
                    yield from found.pop().to_batches()
        if found:
            yield from _find_last(pa.concat_tables(found)).to_batches()

    def older_rows(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the positions of rows that may have a tombstone, of all facts with several rows.

        The last row of a record batch is always included, as its fact may continue.
        """
        removing = _streams_with_tombstones()

        def within(rows: Any) -> Any:
            seq = rows["seq"].to_numpy()
            has_several = (seq > 0) | np.append(seq[1:] > 0, [True])
            return pc.and_(pc.is_in(rows["stream"], pa.array(removing, pa.string())), pa.array(has_several))

        for rows in self._read_all(batches, within=within):
            yield from _positions(rows).to_batches()

    def write(self, folder: str, file_rows: int, batches: Iterable[Any]) -> Iterator[Any]:
        """Write a range of serials: the facts `at` these positions, from the files that have them."""
        given: list[Any] = []
        files: list[Any] = []
        for batch in batches:
            given.append(batch["at"].drop_null().to_numpy())
            files += batch["file"].drop_null().to_pylist()
        positions = np.sort(np.concatenate(given)) if given else np.empty(0, np.int64)
        serials = np.unique(positions >> (SEQ_BITS + 1))
        if not len(serials):
            return
        live = positions[(positions & 1) == 0]
        kept = []
        for file in files:
            for rows in self._read(file, ROWS.names, serials):
                is_last = pa.array(_is_in(_at(rows).to_numpy(), live))
                kept.append(rows.cast(ROWS).append_column(LAST.field("last"), is_last))
        if kept:
            table = pa.concat_tables(kept).sort_by([("serial", "ascending"), ("seq", "ascending")])
            yield from write_parts(self.snapshot, folder, file_rows, table.to_batches())

    def _read_all(
        self,
        batches: Iterable[Any],
        with_text: Sequence[str] = (),
        *,
        within: Callable[[Any], Any],
    ) -> Iterator[Any]:
        """Yield tables of the rows of these files: those that `within` selects, some with their text."""
        columns = ["serial", "seq", "stream", "key"]
        for batch in batches:
            for file in batch.to_pylist():
                has_text = file["is_part"] or file["stream"] in with_text
                for rows in self._read(file, [*columns, "row"] if has_text and with_text else columns):
                    yield rows.filter(within(rows))

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
                is_kept = None
                if serials is not None:
                    found = data.read_row_group(group, columns=["serial"])["serial"].to_numpy()
                    is_kept = _is_in(found, serials)
                    if not is_kept.any():
                        continue
                rows = data.read_row_group(group, columns=names)
                if file["after"]:
                    is_new = rows["serial"].to_numpy() > file["after"]
                    is_kept = is_new if is_kept is None else is_kept & is_new
                if is_kept is not None and not is_kept.all():
                    rows = rows.filter(pa.array(is_kept))
                if file["is_part"] and self.whole:
                    rows = rows.filter(pc.invert(pc.is_in(rows["stream"], pa.array(self.whole))))
                yield self._without_lost(rows).select(list(columns))

    def _without_lost(self, rows: Any) -> Any:
        for start in self.lost:
            is_before = pc.and_(pc.equal(rows["stream"], start.stream), pc.less(rows["epoch"], start.epoch))
            rows = rows.filter(pc.invert(pc.and_(is_before, pc.greater(rows["token"], start.token))))
        return rows


def find_last_rows(spark: SparkSession, reader: FoldReader, files: Any) -> DataFrame:
    """Return the position `at` of the last row of each key; stream and key only of tombstones."""
    folded = map_files(spark, files, reader.fold, POSITIONS)
    last = folded.groupBy("stream", "key").agg(F.max("at").alias("at"))
    return last.select(*(F.when(is_gone("at"), F.col(name)).alias(name) for name in ("stream", "key")), "at")


def find_tombstones(spark: SparkSession, reader: FoldReader, files: Any, last: DataFrame) -> DataFrame:
    """Return the positions of the tombstones to keep.

    A tombstone is kept if a kept fact has an older row of its key: otherwise a fold of the kept facts would
    restore the key. Only facts with several rows can have such a row. The kept tombstone may be in such a
    fact itself, so this is repeated, once for each step of the longest chain.
    """
    gone = last.where(is_gone("at")).withColumnRenamed("at", "end")
    removing = pa.array(_streams_with_tombstones(), pa.string())
    files = files.filter(pc.or_(files["is_part"], pc.is_in(files["stream"], removing)))
    older = map_files(spark, files, reader.older_rows, POSITIONS)
    pairs = older.join(gone, ["stream", "key"]).where("at < end")
    leads = pairs.select(serial_of("at").alias("serial"), "end").distinct().persist()
    kept = last.where(~is_gone("at")).select(serial_of("at").alias("serial"))
    reached = found = leads.join(kept, "serial", "left_semi").select("end").distinct().localCheckpoint()
    while not reached.isEmpty():
        further = leads.join(reached.select(serial_of("end").alias("serial")), "serial", "left_semi")
        reached = further.select("end").distinct().join(found, "end", "left_anti").localCheckpoint()
        found = found.union(reached)
    return found.withColumnRenamed("end", "at")


def _at(rows: Any) -> Any:
    """Return the positions of rows. Raises `BadArchive` for a fact of more rows than a position can have."""
    seq = rows["seq"].cast(pa.int64())
    if (pc.max(seq).as_py() or 0) >> SEQ_BITS:
        raise BadArchive(f"a fact has more than {1 << SEQ_BITS:,} rows")
    return pc.add(pc.shift_left(rows["serial"], SEQ_BITS + 1), pc.shift_left(seq, 1))


def _positions(rows: Any) -> Any:
    return pa.table({"stream": rows["stream"], "key": rows["key"], "at": _at(rows)})


def _find_last(positions: Any) -> Any:
    found = positions.group_by(["stream", "key"]).aggregate([("at", "max")])
    return pa.table({"stream": found["stream"], "key": found["key"], "at": found["at_max"]})


def _is_in(values: Any, known: Any) -> Any:
    """Return for each value whether it is one of these ascending values."""
    found = np.searchsorted(known, values)
    return (found < len(known)) & (known[np.minimum(found, len(known) - 1)] == values)


def _streams_with_tombstones() -> list[str]:
    return [one.name for one in StreamTable.default() if one.tombstone is not None and not one.ephemeral]


def _mark_gone(last: Any, rows: Any, removing: Sequence[str]) -> Any:
    """Set the lowest bit of the positions `last` of rows that are tombstones, by the text of `rows`."""
    if "row" not in rows.column_names:
        return last
    at = last["at"].to_numpy().copy()
    places = pc.index_in(last["at"], pa.chunked_array(_at(rows)).combine_chunks())
    table = StreamTable.default()
    for name in removing:
        mine = np.nonzero(pc.equal(last["stream"], name).to_numpy())[0]
        texts = rows["row"].take(places.take(pa.array(mine))).to_pylist()
        at[mine] |= np.array(_are_tombstones(table[name], [text.encode() for text in texts]), np.int64)
    return last.set_column(2, "at", pa.array(at))


def _are_tombstones(stream: Stream[Any], texts: list[bytes]) -> list[bool]:
    """Return whether each of these rows is a tombstone. A row that this release cannot decode is none."""
    assert stream.tombstone is not None
    try:
        return [bool(stream.tombstone(row)) for row in stream.decode_many(texts, NEWEST)] if texts else []
    except RowError:
        if len(texts) == 1:
            return [False]
        return [is_one for text in texts for is_one in _are_tombstones(stream, [text])]
