"""What is counted in Spark of facts, each answer small: totals, time, sizes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from synrepl.pipeline.report.bins import Bins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "SHARES",
    "by_writer",
    "collected",
    "largest",
    "over_time",
    "peaks",
    "sizes_by_stream",
    "spread",
    "when",
]

Row = dict[str, Any]

SHARES: Final = (0.5, 0.9, 0.99)
"""The percentiles that are told."""

ACCURACY: Final = 10_000


def collected(frame: "DataFrame") -> list[Row]:
    """All of a small answer."""
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def by_writer(facts: "DataFrame") -> list[Row]:
    """The totals of each writer of each stream, and what its chain of tokens needs to be judged by.

    In a whole chain every token but the last is the `prev_token` of one other fact. So the exclusive or of
    the hashes of all tokens and `prev_token`s leaves those at its ends, and their differences add up; what
    comes twice is told by the sum, as the exclusive or is not.
    """
    from pyspark.sql import functions as f

    on_time = f.col("token") != f.col("prev_token")
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
            f.count_if(~on_time).alias("late"),
            f.count_if(skipped > 0).alias("skipping"),
            f.coalesce(f.sum(skipped), f.lit(0)).alias("skipped"),
            f.count_if(f.col("copies") > 1).alias("copied"),
            f.count_if(f.col("token") < f.col("prev_token")).alias("backwards"),
            f.min_by("prev_token", f.when(on_time, f.col("serial"))).alias("begins_after"),
            f.max_by("token", f.when(on_time, f.col("serial"))).alias("ends_at"),
            f.sum(f.when(on_time, (f.col("token") - f.col("prev_token")).cast("decimal(38,0)"))).alias(
                "moved"
            ),
            f.bit_xor(
                f.when(on_time, f.xxhash64("token").bitwiseXOR(f.xxhash64("prev_token"))).otherwise(f.lit(0))
            ).alias("hashes"),
            _percentiles("waited_ms").alias("waited"),
            f.max("waited_ms").alias("waited_most"),
            f.min("waited_ms").alias("waited_least"),
        )
        .withColumn(
            "ends",
            f.coalesce(f.xxhash64("begins_after").bitwiseXOR(f.xxhash64("ends_at")), f.lit(0)),
        )
        .orderBy("stream", "writer")
    )


def sizes_by_stream(facts: "DataFrame") -> list[Row]:
    """How large facts are: of those with rows, the percentiles of their bytes and of their rows."""
    from pyspark.sql import functions as f

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


def spread(facts: "DataFrame") -> list[Row]:
    """How many facts have so many bytes, and so many rows: each from 2 to the power of its number on."""
    from pyspark.sql import functions as f

    return collected(
        facts.where("rows > 0")
        .groupBy(
            f.expr("length(bin(greatest(bytes, 1))) - 1").alias("bytes"),
            f.expr("length(bin(rows)) - 1").alias("rows"),
        )
        .agg(f.count("*").alias("facts"))
        .orderBy("bytes", "rows")
    )


def largest(facts: "DataFrame", top: int) -> list[Row]:
    """The facts with the most bytes."""
    from pyspark.sql import functions as f

    columns = ("stream", "writer", "token", "serial", "rows", "bytes", "committed_ms")
    return collected(facts.orderBy(f.desc("bytes"), "serial").limit(top).select(*columns))


def peaks(seconds: "DataFrame") -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """The most facts, and the most rows, in one second: of a writer of a stream, of a stream (None as its
    writer), and of all (None twice)."""
    from pyspark.sql import functions as f

    frames = [
        seconds.select("stream", "writer", "second", "facts", "rows"),
        seconds.groupBy("stream", f.lit(None).cast("string").alias("writer"), "second").agg(
            f.sum("facts").alias("facts"), f.sum("rows").alias("rows")
        ),
    ]
    frames.append(
        seconds.groupBy(
            f.lit(None).cast("string").alias("stream"), f.lit(None).cast("string").alias("writer"), "second"
        ).agg(f.sum("facts").alias("facts"), f.sum("rows").alias("rows"))
    )
    found = collected(
        frames[0]
        .unionByName(frames[1])
        .unionByName(frames[2])
        .groupBy("stream", "writer")
        .agg(f.max("facts").alias("facts"), f.max("rows").alias("rows"))
    )
    return {(row["stream"], row["writer"]): (row["facts"], row["rows"]) for row in found}


def over_time(seconds: "DataFrame", bins: Bins) -> list[Row]:
    """What each writer of each stream did in each bin, where it did something; `bin` is its number."""
    from pyspark.sql import functions as f

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


def when(seconds: "DataFrame", width: int) -> list[Row]:
    """What came in each hour, or minute: from `at` (Unix seconds), for `width` seconds."""
    from pyspark.sql import functions as f

    at = f.expr(f"second div {width} * {width}")
    return collected(
        seconds.groupBy(at.alias("at"))
        .agg(f.sum("facts").alias("facts"), f.sum("rows").alias("rows"), f.sum("bytes").alias("bytes"))
        .orderBy("at")
    )


def _percentiles(column: str, shares: Sequence[float] = SHARES) -> Any:
    from pyspark.sql import functions as f

    return f.percentile_approx(column, list(shares), ACCURACY)
