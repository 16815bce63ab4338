"""Counts of facts by Spark, with small results: totals, by time bin, lag of writers, sizes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.ports.history import EpochStart

__all__ = [
    "DAY",
    "Bins",
    "bins_for",
    "Row",
    "SHARES",
    "by_writer",
    "collected",
    "largest",
    "over_time",
    "peaks",
    "shared_tokens",
    "sizes_by_stream",
    "spread",
    "void",
    "when",
    "WriterLag",
    "writer_lags",
]

MOST: Final = 200

DAY: Final = 86_400
WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
"""Widths in seconds. Each is at most 2.5 times the previous one, so that there are at least 80 bins."""

NAMES: Final = (("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


class Bins(msgspec.Struct, frozen=True):
    """`count` bins, each `width` seconds; the first begins at `first` (Unix seconds, a multiple of it)."""

    first: int
    width: int
    count: int

    @property
    def starts(self) -> list[int]:
        """The start of each bin, in Unix seconds."""
        return [self.first + index * self.width for index in range(self.count)]

    @property
    def name(self) -> str:
        """The width in words, as in `a bin is ...`."""
        for name, length in NAMES:
            if self.width % length == 0:
                many = self.width // length
                return name if many == 1 else f"{many} {name}s"
        raise AssertionError("every width is whole seconds")

    def index(self, second: int) -> int:
        """Return the index of the bin of this second."""
        return (second - self.first) // self.width


def bins_for(first_ms: int, last_ms: int) -> Bins:
    """Return the narrowest bins that cover the time with at most 200 bins."""
    first, last = first_ms // 1000, last_ms // 1000
    for width in WIDTHS:
        found = Bins(first // width * width, width, last // width - first // width + 1)
        if found.count <= MOST:
            return found
    # Decades: the clocks were wrong, or the facts are of several servers.
    width = -(-(last - first + 1) // (MOST - 1) // DAY + 1) * DAY
    return Bins(first // width * width, width, last // width - first // width + 1)


Row = dict[str, Any]

SHARES: Final = (0.5, 0.9, 0.99)
"""The reported percentiles."""

ACCURACY: Final = 10_000


def collected(frame: DataFrame) -> list[Row]:
    """Collect a small result."""
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def by_writer(facts: DataFrame) -> list[Row]:
    """Return the totals of each writer of each stream."""
    skipped = f.when(f.col("token") > f.col("prev_token"), f.col("token") - f.col("prev_token") - 1)
    return collected(
        facts.groupBy("stream", "writer")
        .agg(
            f.count("*").alias("facts"),
            f.sum("rows").alias("rows"),
            f.sum("bytes").alias("bytes"),
            f.count_if(f.col("rows") == 0).alias("empty"),
            f.min("committed_ms").alias("first_ms"),
            f.max("committed_ms").alias("last_ms"),
            f.max("token").alias("token"),
            f.count_if(f.col("token") == f.col("prev_token")).alias("late"),
            f.count_if(skipped > 0).alias("skipping"),
            f.coalesce(f.sum(skipped), f.lit(0)).alias("skipped"),
            f.count_if(f.col("copies") > 1).alias("copied"),
            _percentiles("waited_ms").alias("waited"),
            f.max("waited_ms").alias("waited_most"),
            f.min("waited_ms").alias("waited_least"),
        )
        .orderBy("stream", "writer")
    )


def sizes_by_stream(facts: DataFrame) -> list[Row]:
    """Return percentiles of the bytes and rows of facts with rows, by stream."""
    return collected(
        facts.where("rows > 0")
        .groupBy("stream")
        .agg(
            f.count("*").alias("facts"),
            _percentiles("bytes").alias("bytes"),
            f.max("bytes").alias("bytes_most"),
            _percentiles("rows").alias("rows"),
            f.max("rows").alias("rows_most"),
        )
        .orderBy("stream")
    )


def spread(facts: DataFrame) -> list[Row]:
    """Return histograms of bytes and rows per fact, in powers of two."""
    return collected(
        facts.where("rows > 0")
        .groupBy(
            f.expr("length(bin(greatest(bytes, 1))) - 1").alias("bytes"),
            f.expr("length(bin(rows)) - 1").alias("rows"),
        )
        .agg(f.count("*").alias("facts"))
        .orderBy("bytes", "rows")
    )


def largest(facts: DataFrame, top: int) -> list[Row]:
    """Return the facts with the most bytes."""
    columns = ("stream", "writer", "token", "serial", "rows", "bytes", "committed_ms")
    return collected(facts.orderBy(f.desc("bytes"), "serial").limit(top).select(*columns))


def peaks(seconds: DataFrame) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """Return the maximum facts and rows per second by stream and writer, by stream, and of all (None)."""
    sets = (("stream", "writer", "second"), ("stream", "second"), ("second",))
    found = collected(
        seconds.groupingSets(sets, "stream", "writer", "second")
        .agg(f.sum("facts").alias("facts"), f.sum("rows").alias("rows"))
        .groupBy("stream", "writer")
        .agg(f.max("facts").alias("facts"), f.max("rows").alias("rows"))
    )
    return {(row["stream"], row["writer"]): (row["facts"], row["rows"]) for row in found}


def over_time(seconds: DataFrame, bins: Bins) -> list[Row]:
    """Return the counts of each writer of each stream by bin, without empty bins."""
    position = f.expr(f"(second - {bins.first}) div {bins.width}")
    return collected(
        seconds.groupBy(position.alias("bin"), "stream", "writer")
        .agg(
            f.sum("facts").alias("facts"),
            f.sum("rows").alias("rows"),
            f.sum("bytes").alias("bytes"),
            f.max("last_ms").alias("last_ms"),
            f.max("token").alias("token"),
        )
        .orderBy("bin", "stream", "writer")
    )


def when(seconds: DataFrame, width: int) -> list[Row]:
    """Return the counts of each interval of `width` seconds, which starts `at` (Unix seconds)."""
    at = f.expr(f"second div {width} * {width}")
    return collected(
        seconds.groupBy(at.alias("at"))
        .agg(f.sum("facts").alias("facts"), f.sum("rows").alias("rows"), f.sum("bytes").alias("bytes"))
        .orderBy("at")
    )


def shared_tokens(facts: DataFrame, streams: Sequence[str]) -> dict[str, int]:
    """Return for streams with several writers the number of tokens that several of them used."""
    if not streams:
        return {}
    found = (
        facts.where(f.col("stream").isin(list(streams)) & (f.col("rows") > 0))
        .groupBy("stream", "token")
        .agg(f.min("writer").alias("least"), f.max("writer").alias("most"))
        .where("least != most")
        .groupBy("stream")
        .agg(f.count("*").alias("tokens"))
    )
    return {row["stream"]: row["tokens"] for row in collected(found)}


def void(facts: DataFrame, epoch_starts: Sequence[EpochStart]) -> dict[int, int]:
    """Return the number of facts that each epoch made void, by epoch."""
    counts = [
        f.count_if(
            (f.col("stream") == one.stream) & (f.col("epoch") < one.epoch) & (f.col("token") > one.token)
        ).alias(str(one.epoch))
        for one in epoch_starts
        if one.stream
    ]
    return (
        {int(epoch): count for row in collected(facts.agg(*counts)) for epoch, count in row.items()}
        if counts
        else {}
    )


def _percentiles(column: str) -> Any:
    return f.percentile_approx(column, list(SHARES), ACCURACY)


class WriterLag(msgspec.Struct, frozen=True):
    """The lag of a writer at the end of each bin: seconds of silence, and tokens behind the stream's newest.

    None before the first fact of the writer.
    """

    stream: str
    writer: str
    silent: list[float | None]
    behind: list[int | None]

    @property
    def silent_most(self) -> float:
        """The longest silence at the end of a bin, in seconds."""
        return max((one for one in self.silent if one is not None), default=0.0)


def writer_lags(over_time: Iterable[Mapping[str, Any]], bins: Bins, *, last_ms: int) -> list[WriterLag]:
    """Return the lags in streams with several writers, from the counts by bin (`counts.over_time`)."""
    seen: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for row in over_time:
        seen[row["stream"]][row["writer"]][row["bin"]] = row
    ends = [min((start + bins.width) * 1000, last_ms) for start in bins.starts]
    made = []
    for stream, writers in sorted(seen.items()):
        if len(writers) < 2:
            continue
        heads: list[int] = []
        head = 0
        for position in range(bins.count):
            tokens = (found[position]["token"] for found in writers.values() if position in found)
            head = max((token for token in tokens if token is not None), default=head)
            heads.append(max(head, heads[-1]) if heads else head)
        for writer, found in sorted(writers.items()):
            silent: list[float | None] = []
            behind: list[int | None] = []
            fact_ms: int | None = None
            token: int | None = None
            for position in range(bins.count):
                if position in found:
                    row = found[position]
                    fact_ms = row["last_ms"]
                    token = row["token"] if row["token"] is not None else token
                silent.append(None if fact_ms is None else max(0, ends[position] - fact_ms) / 1000)
                behind.append(None if token is None else max(0, heads[position] - token))
            made.append(WriterLag(stream, writer, silent, behind))
    return made
