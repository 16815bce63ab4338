"""Window queries over rows: missing, duplicate and changed rows, and broken chains. Expensive."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["FIELDS", "SerialSpan", "check_serials", "find_breaks"]

BLOCK: Final = 16_384
"""Serials per window: a single window over all serials would run in one task."""

AT_MOST: Final = 10_000

FIELDS: Final = ("stream", "writer", "serial", "epoch", "prev_token", "token", "committed_ms")


SerialSpan = tuple[int, int, str]
"""The first and last of serials that should all exist, and the digest before them (empty if unknown)."""


def check_serials(found: DataFrame, spans: Sequence[SerialSpan]) -> tuple[list[Any], list[tuple[int, int]]]:
    """Recompute the digest of every fact from that of its predecessor, and find missing serials.

    Returns the duplicate, incomplete and changed facts, as rows of `what` (one of `CODES`), `serial`,
    `stream`, `writer` and `token`, and the missing runs of serials.
    """
    block = F.floor(F.col("serial") / BLOCK)
    is_last = F.col("serial") % BLOCK == BLOCK - 1
    rows = F.array_sort(F.collect_list(F.struct("seq", "row")))
    facts = (
        found.groupBy("serial", "epoch", "stream", "writer", "prev_token", "token", "committed_at", "digest")
        .agg(rows.alias("found"), F.count("*").alias("count"), F.max("seq").cast("long").alias("top"))
        # The last fact of a block is also in the next block, as the predecessor of its first fact.
        .withColumn("block", F.explode(F.when(is_last, F.array(block, block + 1)).otherwise(F.array(block))))
        .withColumn("is_guest", F.col("block") != block)
    )
    order = Window.partitionBy("block").orderBy("serial")
    facts = (
        facts.withColumn("before", F.lag("serial").over(order))
        .withColumn("before_digest", F.lag("digest").over(order))
        .withColumn("after", F.lead("serial").over(order))
    )
    previous = F.when(F.col("before") == F.col("serial") - 1, F.col("before_digest"))
    for first, _, digest in spans:
        previous = previous.when(F.col("serial") == first, F.lit(digest or None))
    text = F.concat(F.lit("["), F.array_join(F.transform("found", lambda one: one["row"]), ","), F.lit("]"))
    parts = ["serial", "epoch", "stream", "writer", "prev_token", "token"]
    digested = F.concat_ws(" ", previous, *parts, F.unix_millis("committed_at"), text)
    is_doubled = (F.col("count") > F.col("top") + 1) | (F.col("before") == F.col("serial"))
    what = (
        F.when(F.col("is_guest"), None)
        .when(is_doubled, "doubled-row")
        .when(F.col("count") < F.col("top") + 1, "missing-row")
        .when(previous.isNotNull() & (F.sha2(digested, 256) != F.col("digest")), "changed-row")
    )
    begins = ~F.col("is_guest") & F.col("before").isNull()
    ends = F.col("after").isNull() & (F.col("is_guest") | ~is_last)
    is_gap = F.coalesce(F.col("before") < F.col("serial") - 1, F.lit(False))
    fact = ["serial", "stream", "writer", "token"]
    edges = [begins.alias("begins"), ends.alias("ends"), is_gap.alias("is_gap")]
    suspects = (
        facts.select(what.alias("what"), *fact, "before", *edges)
        .where("what is not null or begins or ends or is_gap")
        .collect()
    )
    wrong = {tuple(row[name] for name in ("what", *fact)): row for row in suspects if row["what"]}
    return sorted(wrong.values(), key=lambda row: row["serial"])[:AT_MOST], _missing(suspects, spans)


def _missing(suspects: Sequence[Any], spans: Sequence[SerialSpan]) -> list[tuple[int, int]]:
    """Return the missing runs of serials, from the starts and ends of the existing runs."""
    begins = {row["serial"] for row in suspects if row["begins"] or row["is_gap"]}
    ends = {row["serial"] for row in suspects if row["ends"]}
    ends |= {row["before"] for row in suspects if row["is_gap"]}
    missing = []
    for first, last, _ in spans:
        known = sorted(serial for serial in begins | ends if first <= serial <= last)
        for before, after in pairwise((first - 1, *known, last + 1)):
            if after > before + 1 and (after in begins or after > last):
                missing.append((before + 1, after - 1))
    return missing


def find_breaks(rows: DataFrame) -> list[Any]:
    """Return facts that do not continue the previous one of their writer, and the first of each writer.

    The columns are `FIELDS`, and `before_serial`, `before_token` and `before_epoch` of the previous fact, if
    any. Late facts are ignored.
    """
    order = Window.partitionBy("stream", "writer").orderBy("serial", "seq")
    found = (
        rows.where("prev_token <> token")
        .withColumn("committed_ms", F.unix_millis("committed_at"))
        .select(*FIELDS, "seq")
        .withColumn("before_serial", F.lag("serial").over(order))
        .withColumn("before_token", F.lag("token").over(order))
        .withColumn("before_epoch", F.lag("epoch").over(order))
        # The first existing row of a fact counts.
        .where("before_serial is null or (prev_token <> before_token and serial <> before_serial)")
        .drop("seq")
        .orderBy("serial")
        .limit(AT_MOST)
    )
    return found.collect()
