"""The fold: of all rows with one key the last one counts, unless it says that the key is gone."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from synrepl.errors import RowError
from synrepl.ports.history import EpochStart
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["declaring", "is_void", "kept", "winners"]


def declaring(table: StreamTable) -> list[str]:
    """The streams whose rows may say that their key is gone."""
    return [stream.name for stream in table if stream.tombstone is not None and not stream.ephemeral]


def is_void(epoch_starts: Sequence[EpochStart]) -> "Column":
    """Whether a row is of a fact that counts no more, as of these turns."""
    found = F.lit(False)
    for epoch_start in epoch_starts:
        if epoch_start.stream:
            found = found | (
                (F.col("stream") == epoch_start.stream)
                & (F.col("epoch") < epoch_start.epoch)
                & (F.col("token") > epoch_start.token)
            )
    return found


def winners(rows: "DataFrame", declaring: Collection[str]) -> "DataFrame":
    """The place (serial, seq) of the last row of each stream and key, and whether it says that it is `gone`.

    The text of rows comes along only where it is needed to know that: reading all of it costs most of a fold.
    """
    position = F.struct("serial", "seq", _where(declaring, F.col("row")).alias("row"))
    last = rows.where(F.col("key").isNotNull()).groupBy("stream", "key").agg(F.max(position).alias("at"))
    found = last.select("stream", "key", "at.serial", "at.seq", "at.row")
    return found.mapInArrow(
        _judged, "`stream` string, `key` string, `serial` bigint, `seq` int, `gone` boolean"
    )


def kept(rows: "DataFrame", last: "DataFrame", declaring: Collection[str], *, look: bool) -> "DataFrame":
    """The serials of the facts to be kept, each with the places `seqs` of those of its rows that are last.

    With `look`, facts that say of a key that it is gone are kept if one that is kept has an older row of it:
    otherwise who has these facts alone would bring it back. Only facts with several rows can have one.
    """
    found = last.where(~F.col("gone")).groupBy("serial").agg(F.collect_list("seq").alias("seqs"))
    if not look:
        return found
    gone = last.where("gone").select("stream", "key", F.col("serial").alias("gone_at"))
    older = rows.where(F.col("stream").isin(*declaring)).select("stream", "key", "serial")
    leads = (
        older.join(gone, ["stream", "key"]).where("serial < gone_at").select("serial", "gone_at").distinct()
    )
    beside = found.select("serial", F.lit(True).alias("is_kept"))
    more = _reached(leads.join(beside, "serial", "left").toArrow())
    if not more:
        return found
    # Some of them may be kept anyway; then these have rows that are last, and others do not.
    none = F.array().cast("array<int>").alias("seqs")
    beyond = found.sparkSession.createDataFrame([(serial,) for serial in more], "`serial` bigint")
    return found.unionByName(beyond.join(found, "serial", "left_anti").select("serial", none))


def _reached(leads: Any) -> list[int]:
    """Where one gets from facts that are kept, and from there, and so on."""
    onward: dict[int, list[int]] = {}
    reached: set[int] = set()
    for start, end, is_kept in zip(*(leads[name].to_pylist() for name in leads.column_names), strict=True):
        onward.setdefault(start, []).append(end)
        if is_kept:
            reached.add(end)
    # What is gone is said later than it was: one pass in order of serial gets everywhere.
    for start in sorted(onward):
        if start in reached:
            reached.update(onward[start])
    return sorted(reached)


def _where(streams: Collection[str], column: "Column") -> "Column":
    return F.when(F.col("stream").isin(*streams), column) if streams else F.lit(None).cast("string")


def _judged(batches: Iterable[Any]) -> Iterator[Any]:
    """On executors: `row` becomes `gone`."""
    table = StreamTable.default()
    names = ["stream", "key", "serial", "seq", "gone"]
    for batch in batches:
        gone = [False] * len(batch)
        if batch["row"].null_count < len(batch):
            said = zip(batch["stream"].to_pylist(), batch["row"].to_pylist(), strict=True)
            gone = [row is not None and _is_gone(table[stream], row) for stream, row in said]
        columns = [batch[name] for name in names[:-1]]
        yield pa.record_batch([*columns, pa.array(gone, pa.bool_())], names=names)


def _is_gone(stream: Stream[Any], row: str) -> bool:
    assert stream.tombstone is not None
    try:
        return bool(stream.tombstone(stream.decode(row.encode(), NEWEST)))
    except RowError:
        # What this release cannot read may be true all the same.
        return False
