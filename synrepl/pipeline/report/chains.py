"""Check of the chains of facts: `prev_token` names the previous fact of a writer, so a loss is detected."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from synrepl.pipeline.report.counts import Row, collected
from synrepl.ports.history import EpochStart

__all__ = ["ChainBreak", "breaks", "suspicious", "shared_tokens", "void"]

MOST: Final = 10_000
"""Maximum number of examined breaks."""


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A fact whose `prev_token` is not `expected`, the position of its writer.

    `kind` is ``missing`` (facts between them are missing), ``again`` (tokens are repeated) or ``epoch_start``
    (explained by a new epoch between them).
    """

    stream: str
    writer: str
    serial: int
    epoch: int
    expected: int
    prev_token: int
    token: int
    committed_ms: int
    kind: str


def breaks(
    facts: DataFrame,
    totals: Iterable[Row],
    *,
    before: dict[str, dict[str, int]],
    epoch_starts: Sequence[EpochStart] = (),
    compacted: int | None = None,
) -> list[ChainBreak]:
    """Return all breaks, in order. Only facts of writers with suspicious totals are examined one by one.

    `before` are the initial positions of writers. Up to the serial `compacted` the facts have no chain.
    """
    suspects = suspicious(totals, before=before, compacted=compacted)
    if not suspects:
        return []
    streams, writers = sorted({stream for stream, _ in suspects}), sorted({writer for _, writer in suspects})
    chosen = facts.where(f.col("stream").isin(streams) & f.col("writer").isin(writers))
    chosen = chosen.where(f.col("token") != f.col("prev_token"))
    if compacted is not None:
        chosen = chosen.where(f.col("serial") > compacted)
    window = Window.partitionBy("stream", "writer").orderBy("serial")
    found = (
        chosen.withColumn("expected", f.lag("token").over(window))
        .withColumn("epoch_before", f.lag("epoch").over(window))
        .where("expected is null or expected != prev_token")
        .orderBy("serial")
        .limit(MOST + len(suspects))
    )
    columns = ("stream", "writer", "serial", "epoch", "prev_token", "token", "committed_ms")
    suspected = set(suspects)
    made = []
    for row in collected(found.select(*columns, "expected", "epoch_before")):
        if (row["stream"], row["writer"]) not in suspected:
            continue
        expected = row["expected"]
        if expected is None:
            expected = before.get(row["stream"], {}).get(row["writer"])
            if expected is None or expected == row["prev_token"]:
                # The first fact of the writer: its predecessor is unknown.
                continue
        kind = _kind(row, expected, epoch_starts)
        fields = {name: row[name] for name in columns}
        made.append(ChainBreak(**fields, expected=expected, kind=kind))
    return made[:MOST]


def suspicious(
    totals: Iterable[Row], *, before: dict[str, dict[str, int]], compacted: int | None = None
) -> list[tuple[str, str]]:
    """Return the streams and writers whose totals do not fit a complete chain without duplicates."""
    return [
        (row["stream"], row["writer"])
        for row in totals
        if compacted is not None or not _is_whole(row, before)
    ]


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
    made = [epoch_start for epoch_start in epoch_starts if epoch_start.stream]
    if not made:
        return {}
    counts = [
        f.count_if(
            (f.col("stream") == epoch_start.stream)
            & (f.col("epoch") < epoch_start.epoch)
            & (f.col("token") > epoch_start.token)
        ).alias(str(position))
        for position, epoch_start in enumerate(made)
    ]
    (found,) = collected(facts.agg(*counts))
    return {epoch_start.epoch: found[str(position)] for position, epoch_start in enumerate(made)}


def _is_whole(row: Row, before: dict[str, dict[str, int]]) -> bool:
    if row["begins_after"] is None:
        # All facts of the writer were late.
        return True
    known = before.get(row["stream"], {}).get(row["writer"], row["begins_after"])
    return bool(
        known == row["begins_after"]
        and not row["backwards"]
        and not row["copied"]
        and row["moved"] == row["ends_at"] - row["begins_after"]
        and row["hashes"] == row["ends"]
    )


def _kind(row: Row, expected: int, epoch_starts: Sequence[EpochStart]) -> str:
    epoch_before = row["epoch_before"] or 0
    for epoch_start in epoch_starts:
        if epoch_before < epoch_start.epoch <= row["epoch"] and epoch_start.stream in {"", row["stream"]}:
            return "epoch_start"
    return "missing" if row["prev_token"] > expected else "again"
