"""The facts of an archive as a frame, and their counts by Spark: totals, by time bin, lag of writers, sizes.

Tasks read each file once for the facts and the scan of the audit, with pyarrow: for many small files Spark's
own reader takes three times as long, and supports only stores with drivers.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.pipeline.archive.table import Batch
from synrepl.pipeline.audit.file_scan import COLUMNS, rank_files, scan_files
from synrepl.pipeline.spark import map_to_frame
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart

READ: Final = (*COLUMNS, "epoch", "row", "committed_at")

SAME: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token")
"""The columns that are equal in all rows of a fact."""

SCHEMA: Final = pa.schema(
    [
        *((name, pa.string() if name in {"stream", "writer"} else pa.int64()) for name in SAME),
        *((name, pa.int64()) for name in ("committed_ms", "copies", "rows", "bytes", "waited_ms", "rank")),
        ("seen", pa.binary()),
    ]
)


def scan_facts(spark: SparkSession, archive: Store, files: Any, batches: Sequence[Batch]) -> DataFrame:
    """Return a line per fact of a file: `rows`, `bytes`, `committed_ms` and the archive lag `waited_ms`.

    `waited_ms` is null if unknown. `copies` is above 1 for a fact duplicated in a file; a fact in two files
    has two lines (`counted_once`). The line of a file has only `rank` and `seen` (its scan), which are null
    in lines of facts.
    """
    ends = np.array([one.last_serial for one in batches], np.int64)
    # 0 where the time is unknown, and after the last batch.
    times = np.array([*(one.archived_at_ms for one in batches), 0], np.int64)

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        return map(_filled, scan_files(archive, batches, READ, partial(_facts, ends=ends, times=times)))

    return map_to_frame(spark, rank_files(files), work, SCHEMA)


def counted_once(facts: DataFrame) -> DataFrame:
    """Merge the lines of a fact from different files into one."""
    most = ("max(rows) as rows", "max(bytes) as bytes")
    return grouped(facts, [*SAME, "committed_ms"], summed("copies"), *most, "min(waited_ms) as waited_ms")


def seconds_of(facts: DataFrame) -> DataFrame:
    """Count facts by stream, writer and second, for all plots over time."""
    return grouped(
        facts,
        ["stream", "writer", "committed_ms div 1000 as second"],
        "count(*) as facts",
        summed("rows"),
        summed("bytes"),
        "max(committed_ms) as last_ms",
        "max(token) filter (where token != prev_token) as token",
    )


def _facts(batches: Iterable[Any], ends: Any, times: Any) -> Iterator[Any]:
    """Yield the facts of a file as tables, from its rows. A fact is never split between files."""
    rest: list[Any] = []
    for batch in batches:
        rows = pa.Table.from_batches([*rest, batch])
        if not len(rows):
            continue
        # The next batch may have further rows of the last fact.
        serials = rows["serial"].to_numpy()
        last = int(np.flatnonzero(serials != serials[-1])[-1]) + 1 if (serials != serials[-1]).any() else 0
        rest = rows.slice(last).to_batches()
        if last:
            yield _merged(rows.slice(0, last), ends, times)
    if rest:
        yield _merged(pa.Table.from_batches(rest), ends, times)


def _merged(rows: Any, ends: Any, times: Any) -> Any:
    serials = rows["serial"].to_numpy()
    starts = np.flatnonzero(np.diff(serials, prepend=serials[0] - 1))
    copies = np.add.reduceat(np.equal(rows["seq"].to_numpy(), 0).astype(np.int64), starts)
    copies = np.maximum(copies, 1)
    sizes = pc.binary_length(rows["row"])
    committed_ms = rows["committed_at"].cast(pa.int64()).to_numpy()[starts] // 1000
    archived_ms = times[np.searchsorted(ends, serials[starts])]
    facts = rows.select(SAME).take(pa.array(starts))
    for name, values in (
        ("committed_ms", committed_ms),
        ("copies", copies),
        ("rows", np.add.reduceat(sizes.is_valid().to_numpy().astype(np.int64), starts) // copies),
        ("bytes", np.add.reduceat(sizes.fill_null(0).to_numpy().astype(np.int64), starts) // copies),
        ("waited_ms", pa.array(archived_ms - committed_ms, mask=archived_ms == 0)),
    ):
        facts = facts.append_column(name, pa.array(values))
    return facts


def _filled(lines: Any) -> Any:
    given = set(lines.schema.names)
    columns = [lines[one.name] if one.name in given else pa.nulls(len(lines), one.type) for one in SCHEMA]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches()[0]


MOST: Final = 200

DAY: Final = 86_400
WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
"""Widths in seconds. Each is at most 2.5 times the previous one: a long period has 80 bins or more."""

NAMES: Final = (("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


class Bins(msgspec.Struct, frozen=True):
    """`count` bins of `width` seconds. The first begins at `first`: Unix seconds, a multiple of `width`."""

    first: int
    width: int
    count: int

    @property
    def starts(self) -> list[int]:
        """The start of each bin, in Unix seconds."""
        return [self.first + index * self.width for index in range(self.count)]

    @property
    def name(self) -> str:
        """The width in words, such as ``hour`` or ``5 minutes``."""
        name, length = next(unit for unit in NAMES if self.width % unit[1] == 0)
        many = self.width // length
        return name if many == 1 else f"{many} {name}s"

    def index(self, second: int) -> int:
        """Return the index of the bin of this second."""
        return (second - self.first) // self.width


def bins_for(first_ms: int, last_ms: int, least_width: int = 1) -> Bins:
    """Return the narrowest bins, of at least this width, that cover the time with at most 200 bins."""
    first, last = first_ms // 1000, last_ms // 1000
    # The last width is for decades: the clocks were wrong, or the facts are of several servers.
    decades = -(-(last - first + 1) // (MOST - 1) // DAY + 1) * DAY
    for width in (*WIDTHS, decades):
        found = Bins(first // width * width, width, last // width - first // width + 1)
        if width >= least_width and found.count <= MOST:
            break
    return found


Row = dict[str, Any]

PERCENTILES: Final = "percentile_approx({}, array(0.5, 0.9, 0.99), 10000) as {}"


def summed(name: str) -> str:
    """Return the SQL of the sum of a column, under its name."""
    return f"sum({name}) as {name}"


SUMS: Final = [*map(summed, ("facts", "rows", "bytes"))]


def grouped(frame: DataFrame, by: Sequence[str], *sums: str) -> DataFrame:
    """Group a frame `by` these columns and compute these sums; both are SQL expressions."""
    return frame.groupBy(*map(f.expr, by)).agg(*map(f.expr, sums))


def collected(frame: DataFrame) -> list[Row]:
    """Collect a small result."""
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def queries(
    facts: DataFrame, seconds: DataFrame, *, bins: Bins, width: int, top: int
) -> dict[str, DataFrame]:
    """Return the queries of a report by name: of facts, and of their counts by second."""
    with_rows = facts.where("rows > 0")
    totals = grouped(
        facts,
        ["stream", "writer"],
        "count(*) as facts",
        *SUMS[1:],
        "count_if(rows = 0) as empty",
        "min(committed_ms) as first_ms",
        "max(committed_ms) as last_ms",
        "max(token) as token",
        "count_if(token = prev_token) as late",
        "count_if(token > prev_token + 1) as skipping",
        "coalesce(sum(token - prev_token - 1) filter (where token > prev_token), 0) as skipped",
        "count_if(copies > 1) as copied",
        PERCENTILES.format("waited_ms / 1000", "waited"),
        "max(waited_ms) / 1000 as most_seconds",
    )
    waited = ("waited[0] as median_seconds", "waited[1] as p90_seconds", "waited[2] as p99_seconds")
    sizes = grouped(
        with_rows,
        ["stream"],
        "count(*) as facts",
        PERCENTILES.format("bytes", "bytes"),
        "max(bytes) as bytes_most",
        PERCENTILES.format("rows", "rows"),
        "max(rows) as rows_most",
    )
    of_bytes = ("bytes[0] as bytes_median", "bytes[1] as bytes_p90", "bytes[2] as bytes_p99")
    powers = [f"length(bin(greatest({name}, 1))) - 1 as {name}" for name in ("bytes", "rows")]
    bin_of = f"(second - {bins.first}) div {bins.width} as bin"
    second_sets = (("stream", "writer", "second"), ("stream", "second"), ("second",))
    in_seconds = seconds.groupingSets(second_sets, "stream", "writer", "second").agg(*map(f.expr, SUMS))
    columns = ("stream", "writer", "token", "serial", "rows", "bytes", "committed_ms")
    return {
        "totals": totals.selectExpr("*", *waited).orderBy("stream", "writer"),
        "over_time": grouped(
            seconds, [bin_of, "stream", "writer"], *SUMS, "max(last_ms) as last_ms", "max(token) as token"
        ).orderBy("bin", "stream", "writer"),
        "sizes": sizes.selectExpr("*", *of_bytes, "rows[0] as rows_median", "rows[2] as rows_p99").orderBy(
            f.desc("bytes_most"), "stream"
        ),
        # Histograms of bytes and rows per fact, in powers of two.
        "spread": grouped(with_rows, powers, "count(*) as facts").orderBy("bytes", "rows"),
        "largest": facts.orderBy(f.desc("bytes"), "serial").limit(top).select(*columns),
        "hours": grouped(seconds, [f"second div {width} * {width} as at"], *SUMS).orderBy("at"),
        # The maximum of a second, by stream and writer, by stream, and of all (both None).
        "peaks": grouped(in_seconds, ["stream", "writer"], "max(facts) as facts", "max(rows) as rows"),
    }


def shared_tokens(facts: DataFrame, streams: Sequence[str]) -> dict[str, int]:
    """Return the number of tokens that several writers used, for each of these streams that has such."""
    if not streams:
        return {}
    own = facts.where(f.col("stream").isin(list(streams)) & (f.col("rows") > 0))
    tokens = grouped(own, ["stream", "token"], "min(writer) as least", "max(writer) as most")
    found = grouped(tokens.where("least != most"), ["stream"], "count(*) as tokens")
    return {row["stream"]: row["tokens"] for row in collected(found)}


def void(facts: DataFrame, epoch_starts: Sequence[EpochStart]) -> dict[int, int]:
    """Return the number of facts that each epoch start discarded, by epoch."""
    stream, epoch, token = map(f.col, ("stream", "epoch", "token"))
    counts = [
        f.count_if((stream == one.stream) & (epoch < one.epoch) & (token > one.token)).alias(str(one.epoch))
        for one in epoch_starts
        if one.stream
    ]
    (found,) = collected(facts.agg(*counts)) if counts else [{}]
    return {int(epoch): count for epoch, count in found.items()}


class WriterLag(msgspec.Struct, frozen=True):
    """The lag of a writer at the end of each bin: seconds of silence, and tokens behind the stream's newest.

    None before the first fact of the writer; for tokens, before the first fact that is not late.
    """

    stream: str
    writer: str
    silent: list[float | None]
    behind: list[int | None]

    @property
    def silent_most(self) -> float:
        """The longest silence at the end of a bin, in seconds."""
        return max((one for one in self.silent if one is not None), default=0.0)


def writer_lags(over_time: Iterable[Row], bins: Bins, *, last_ms: int) -> list[WriterLag]:
    """Return the lags in streams with several writers, from the counts by bin (`queries`)."""
    counts: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in over_time:
        counts[row["stream"]][row["writer"]][row["bin"]] = row
    made = []
    for stream, writers in sorted(counts.items()):
        if len(writers) < 2:
            continue
        lags = [WriterLag(stream, writer, [], []) for writer in sorted(writers)]
        times, tokens = dict[str, int](), dict[str, int]()
        head = 0
        for index, start in enumerate(bins.starts):
            rows = {writer: by_bin[index] for writer, by_bin in writers.items() if index in by_bin}
            times |= {writer: row["last_ms"] for writer, row in rows.items()}
            tokens |= {writer: row["token"] for writer, row in rows.items() if row["token"] is not None}
            head = max((head, *tokens.values()))
            end = min((start + bins.width) * 1000, last_ms)
            for lag in lags:
                fact_ms, token = times.get(lag.writer), tokens.get(lag.writer)
                lag.silent.append(None if fact_ms is None else max(0, end - fact_ms) / 1000)
                lag.behind.append(None if token is None else max(0, head - token))
        made += lags
    return made
