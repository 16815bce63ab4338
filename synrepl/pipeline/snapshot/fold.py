"""Fold of rows: the last row of each key is kept, unless it is a tombstone."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from synrepl.errors import RowError
from synrepl.ports.history import EpochStart
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

__all__ = ["find_last_rows", "is_void", "select_facts", "streams_with_tombstones"]


def streams_with_tombstones(table: StreamTable) -> list[str]:
    """Return the streams with tombstones."""
    return [stream.name for stream in table if stream.tombstone is not None and not stream.ephemeral]


def is_void(epoch_starts: Sequence[EpochStart]) -> Column:
    """Return whether a fact was lost at one of these epoch starts, as a column."""
    found = F.lit(False)
    for epoch_start in epoch_starts:
        if epoch_start.stream:
            found = found | (
                (F.col("stream") == epoch_start.stream)
                & (F.col("epoch") < epoch_start.epoch)
                & (F.col("token") > epoch_start.token)
            )
    return found


def find_last_rows(rows: DataFrame, removing: Collection[str]) -> DataFrame:
    """Return the position (serial, seq) of the last row of each key, and whether it is a tombstone.

    The text of a row is read only for streams with tombstones: reading all text is most of the cost of a
    fold.
    """
    position = F.struct("serial", "seq", _where(removing, F.col("row")).alias("row"))
    last = rows.where(F.col("key").isNotNull()).groupBy("stream", "key").agg(F.max(position).alias("at"))
    found = last.select("stream", "key", "at.serial", "at.seq", "at.row")
    return found.mapInArrow(
        _mark_gone, "`stream` string, `key` string, `serial` bigint, `seq` int, `gone` boolean"
    )


def select_facts(rows: DataFrame, last: DataFrame, removing: Collection[str], *, look: bool) -> DataFrame:
    """Return the serials of the facts to keep, each with the `seqs` of its rows that are the last of a key.

    With `look`, a tombstone is kept if a kept fact has an older row of its key: otherwise a fold of the kept
    facts would restore the key. Only facts with several rows can have such a row.
    """
    found = last.where(~F.col("gone")).groupBy("serial").agg(F.collect_list("seq").alias("seqs"))
    if not look:
        return found
    gone = last.where("gone").select("stream", "key", F.col("serial").alias("gone_at"))
    older = rows.where(F.col("stream").isin(*removing)).select("stream", "key", "serial")
    leads = (
        older.join(gone, ["stream", "key"]).where("serial < gone_at").select("serial", "gone_at").distinct()
    )
    beside = found.select("serial", F.lit(True).alias("is_kept"))
    more = _reachable(leads.join(beside, "serial", "left").toArrow())
    if not more:
        return found
    # Facts that are kept anyway have their own `seqs`; the others have none.
    none = F.array().cast("array<int>").alias("seqs")
    beyond = found.sparkSession.createDataFrame([(serial,) for serial in more], "`serial` bigint")
    return found.unionByName(beyond.join(found, "serial", "left_anti").select("serial", none))


def _reachable(leads: Any) -> list[int]:
    """Return the serials reachable from kept facts, transitively."""
    onward: dict[int, list[int]] = {}
    reached: set[int] = set()
    for start, end, is_kept in zip(*(leads[name].to_pylist() for name in leads.column_names), strict=True):
        onward.setdefault(start, []).append(end)
        if is_kept:
            reached.add(end)
    # A tombstone is later than the row it removes, so one pass in order of serial is enough.
    for start in sorted(onward):
        if start in reached:
            reached.update(onward[start])
    return sorted(reached)


def _where(streams: Collection[str], column: Column) -> Column:
    return F.when(F.col("stream").isin(*streams), column) if streams else F.lit(None).cast("string")


def _mark_gone(batches: Iterable[Any]) -> Iterator[Any]:
    """Replace `row` by `gone` (runs in a task)."""
    table = StreamTable.default()
    names = ["stream", "key", "serial", "seq", "gone"]
    for batch in batches:
        gone = [False] * len(batch)
        if batch["row"].null_count < len(batch):
            streams_rows = zip(batch["stream"].to_pylist(), batch["row"].to_pylist(), strict=True)
            gone = [row is not None and _is_gone(table[stream], row) for stream, row in streams_rows]
        columns = [batch[name] for name in names[:-1]]
        yield pa.record_batch([*columns, pa.array(gone, pa.bool_())], names=names)


def _is_gone(stream: Stream[Any], row: str) -> bool:
    assert stream.tombstone is not None
    try:
        return bool(stream.tombstone(stream.decode(row.encode(), NEWEST)))
    except RowError:
        # A row that this release cannot decode is kept.
        return False
