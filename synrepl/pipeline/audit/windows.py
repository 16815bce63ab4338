"""Window queries over rows: missing, duplicate and changed rows, and broken chains. Expensive."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["DigestBreak", "Serials", "SerialSpan", "WrongFacts", "check_serials", "find_breaks"]

BLOCK: Final = 16_384
"""Serials per window: a single window over all serials would run in one task."""

AT_MOST: Final = 10_000


class SerialSpan(msgspec.Struct, frozen=True):
    """Serials from `first` to `last`, all of which should exist, and the digest before them, if known."""

    first: int
    last: int
    digest: str


class WrongFacts(msgspec.Struct, frozen=True):
    """A duplicate, incomplete or changed fact; `what` is one of `CODES`."""

    what: str
    serial: int
    stream: str
    writer: str
    token: int


class Serials(msgspec.Struct, frozen=True):
    """The wrong facts of some spans, and the missing runs of serials."""

    wrong: list[WrongFacts]
    missing: list[tuple[int, int]]


class DigestBreak(msgspec.Struct, frozen=True):
    """A fact that does not continue the previous fact of its writer, as far as known."""

    stream: str
    writer: str
    serial: int
    epoch: int
    prev_token: int
    token: int
    committed_ms: int
    before_serial: int | None
    before_token: int | None
    before_epoch: int | None


def check_serials(found: DataFrame, spans: Sequence[SerialSpan]) -> Serials:
    """Recompute the digest of every fact from that of its predecessor, and find missing serials."""
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
    for span in spans:
        previous = previous.when(F.col("serial") == span.first, F.lit(span.digest or None))
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
    suspects = (
        facts.select(
            "serial",
            "stream",
            "writer",
            "token",
            "before",
            what.alias("what"),
            begins.alias("begins"),
            ends.alias("ends"),
            is_gap.alias("is_gap"),
        )
        .where("what is not null or begins or ends or is_gap")
        .collect()
    )
    wrong = sorted(
        {
            WrongFacts(r["what"], r["serial"], r["stream"], r["writer"], r["token"])
            for r in suspects
            if r["what"]
        },
        key=lambda one: one.serial,
    )
    return Serials(wrong[:AT_MOST], _missing(suspects, spans))


def _missing(suspects: Sequence[Any], spans: Sequence[SerialSpan]) -> list[tuple[int, int]]:
    """Return the missing runs of serials, from the starts and ends of the existing runs."""
    begins = sorted({row["serial"] for row in suspects if row["begins"] or row["is_gap"]})
    ends = sorted(
        {row["serial"] for row in suspects if row["ends"]}
        | {row["before"] for row in suspects if row["is_gap"]}
    )
    missing = []
    for span in spans:
        there = span.first - 1
        starts = [serial for serial in begins if span.first <= serial <= span.last]
        stops = [serial for serial in ends if span.first <= serial <= span.last]
        for start in starts:
            upto = max([there, *(stop for stop in stops if stop < start)])
            if start > upto + 1:
                missing.append((upto + 1, start - 1))
            there = start
        upto = max([there, *stops]) if starts or stops else span.first - 1
        if upto < span.last:
            missing.append((upto + 1, span.last))
    return missing


def find_breaks(rows: DataFrame) -> list[DigestBreak]:
    """Return facts that do not continue the previous one of their writer, and the first of each writer.

    Late facts are ignored.
    """
    order = Window.partitionBy("stream", "writer").orderBy("serial", "seq")
    found = (
        rows.where("prev_token <> token")
        .withColumn("committed_ms", F.unix_millis("committed_at"))
        .select("stream", "writer", "serial", "seq", "epoch", "prev_token", "token", "committed_ms")
        .withColumn("before_serial", F.lag("serial").over(order))
        .withColumn("before_token", F.lag("token").over(order))
        .withColumn("before_epoch", F.lag("epoch").over(order))
        # The first existing row of a fact counts.
        .where("before_serial is null or (prev_token <> before_token and serial <> before_serial)")
        .drop("seq")
        .orderBy("serial")
        .limit(AT_MOST)
    )
    return [DigestBreak(**row.asDict()) for row in found.collect()]
