"""Explanation of suspicious ranges of serials (`AuditSpan`): affected rows and writers. Expensive."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.pipeline.audit.comparison import AuditSpan, Comparison
from synrepl.pipeline.audit.findings import ChainBreak
from synrepl.pipeline.jobs import Progress, ignore_progress

BLOCK: Final = 16_384
"""Serials per window: a single window over all serials would run in one task."""

AT_MOST: Final = 10_000

FACT: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token", "committed_at", "digest")

PROBLEM: Final = """
CASE WHEN is_guest THEN null
    WHEN copies > top + 1 OR before = serial THEN 'doubled-row'
    WHEN copies < top + 1 THEN 'missing-row'
    WHEN previous IS NOT null AND digest <> sha2(concat_ws(' ', previous, serial, epoch, stream, writer,
        prev_token, token, unix_millis(committed_at),
        concat('[', array_join(transform(found, one -> one.row), ','), ']')), 256) THEN 'changed-row'
END AS what"""

SUSPECT: Final = (
    PROBLEM,
    *("serial", "stream", "writer", "token", "before"),
    "NOT is_guest AND before IS null AS begins",
    f"after IS null AND (is_guest OR (serial + 1) % {BLOCK} <> 0) AS ends",
    "coalesce(before < serial - 1, false) AS is_gap",
)
"""The SQL of what is wrong with a fact, and of whether a run of serials begins or ends at it."""

WRONG: Final = {
    "doubled-row": "serial {} or one of its rows is duplicated",
    "missing-row": "a row of serial {} is missing",
    "changed-row": "serial {} does not match its digest: the fact or the digest was changed",
}


def explain(
    spark: SparkSession, compared: Comparison, progress: Progress = ignore_progress
) -> list[ChainBreak]:
    """Report the problems in the suspicious ranges of serials.

    Returns the `ChainBreak`s found, including those explained by a new epoch, without those explained by
    compaction, trimming, lost facts or an unreadable file.
    """
    spans = compared.spans
    if not spans:
        return []
    files = pa.concat_tables([compared.readable(one.first, one.last) for one in spans])
    total = pc.sum(files["rows"]).as_py() or 0
    progress("rows", 0, total)
    breaks: list[ChainBreak] = []
    holes: list[ChainBreak] = []
    missing: list[tuple[int, int]] = []
    if len(files):
        # A compacted span has holes, so its serials are not checked, but its facts are.
        dense = _join([one for one in spans if not one.is_compacted])
        wrong, missing = _check_serials(compared.read(spark, files), dense)
        # The missing serials explain a broken chain.
        broken = {stream for one in spans for stream in one.broken}
        if any(one.is_uneven for one in spans):
            broken |= set(pc.unique(files["stream"]).to_pylist())
        files = files.filter(pc.is_in(files["stream"], pa.array(sorted(broken), pa.string())))
        moves = _find_breaks(compared.read(spark, files))
        _report_wrong(compared, wrong)
        breaks, holes = _follow(compared, moves)
    _report_missing(compared, missing, [*holes, *compared.tails])
    _report_unexplained(compared)
    progress("rows", total, total)
    return breaks


def _check_serials(rows: DataFrame, spans: Sequence[AuditSpan]) -> tuple[list[Any], list[tuple[int, int]]]:
    """Recompute the digest of each fact whose predecessor is known, and find missing serials.

    Returns the duplicate, incomplete and changed facts, as rows of `what` (one of `CODES`), `serial`,
    `stream`, `writer` and `token`, and the missing runs of serials.
    """
    found = F.array_sort(F.collect_list(F.struct("seq", "row"))).alias("found")
    order = "OVER (PARTITION BY block ORDER BY serial)"
    facts = (
        rows.groupBy(*FACT)
        .agg(found, F.count("*").alias("copies"), F.max("seq").cast("long").alias("top"))
        # The last fact of a block is also in the next block, as the predecessor of its first fact.
        .selectExpr("*", f"explode(sequence(serial div {BLOCK}, (serial + 1) div {BLOCK})) AS block")
        .selectExpr(
            "*",
            f"block <> serial div {BLOCK} AS is_guest",
            f"lag(serial) {order} AS before",
            f"lag(digest) {order} AS before_digest",
            f"lead(serial) {order} AS after",
        )
    )
    previous = F.when(F.expr("before = serial - 1"), F.col("before_digest"))
    for span in spans:
        previous = previous.when(F.col("serial") == span.first, F.lit(span.digest or None))
    suspects = (
        facts.withColumn("previous", previous)
        .selectExpr(*SUSPECT)
        .where("what IS NOT null OR begins OR ends OR is_gap")
        .collect()
    )
    wrong = {row[:5]: row for row in suspects if row["what"]}
    return sorted(wrong.values(), key=lambda row: row["serial"])[:AT_MOST], _missing(suspects, spans)


def _missing(suspects: Sequence[Any], spans: Sequence[AuditSpan]) -> list[tuple[int, int]]:
    """Return the missing runs of serials, from the starts and ends of the existing runs."""
    begins = {row["serial"] for row in suspects if row["begins"] or row["is_gap"]}
    ends = {row["serial"] for row in suspects if row["ends"]}
    ends |= {row["before"] for row in suspects if row["is_gap"]}
    missing = []
    for span in spans:
        known = sorted(serial for serial in begins | ends if span.first <= serial <= span.last)
        for before, after in pairwise((span.first - 1, *known, span.last + 1)):
            if after > before + 1 and (after in begins or after > span.last):
                missing.append((before + 1, after - 1))
    return missing


def _find_breaks(rows: DataFrame) -> list[Any]:
    """Return facts that do not continue the previous one of their writer, and the first of each writer.

    The columns ``before_`` are those of the previous fact, if any. Late facts are ignored.
    """
    order = "OVER (PARTITION BY stream, writer ORDER BY serial, seq)"
    return (
        rows.where("prev_token <> token")
        .selectExpr(
            *("stream", "writer", "serial", "epoch", "prev_token", "token"),
            "unix_millis(committed_at) AS committed_ms",
            *(f"lag({name}) {order} AS before_{name}" for name in ("serial", "token", "epoch")),
        )
        # The first existing row of a fact counts.
        .where("before_serial IS null OR (prev_token <> before_token AND serial <> before_serial)")
        .orderBy("serial")
        .limit(AT_MOST)
        .collect()
    )


def _follow(compared: Comparison, moves: Iterable[Any]) -> tuple[list[ChainBreak], list[ChainBreak]]:
    """Return the breaks as `explain` does, and those with missing facts. Report tokens that go back."""
    breaks, holes = [], []
    for one in moves:
        span = next(span for span in compared.spans if span.first <= one.serial <= span.last)
        is_known = one.before_serial is not None and one.before_serial >= span.first
        if is_known:
            after, expected = one.before_serial, one.before_token
        else:
            known, after = span.starts.get((one.stream, one.writer), (None, 0))
            expected = one.prev_token if known is None else known
        kind = "missing" if one.prev_token > expected else "again"
        for start in compared.table.end.epoch_starts:
            if (one.before_epoch or 0) < start.epoch <= one.epoch and start.stream in {"", one.stream}:
                kind = "epoch_start"
        is_excused = _is_excused(compared, one, span, expected, is_known=is_known)
        if one.prev_token == expected or (is_excused and kind != "epoch_start"):
            continue
        fields = {name: value for name, value in one.asDict().items() if not name.startswith("before_")}
        breaks.append(ChainBreak(**fields, expected=expected, kind=kind, after=after))
        if not is_excused and one.prev_token > expected:
            holes.append(breaks[-1])
        elif not is_excused:
            _report_chain(compared, breaks[-1])
    return breaks, holes


def _is_excused(compared: Comparison, one: Any, span: AuditSpan, expected: int, *, is_known: bool) -> bool:
    if one.stream in span.unknown:
        return True
    end, is_ahead = compared.table.end, bool(one.prev_token > expected)
    if span.is_compacted:
        return is_ahead
    # After a loss of facts, a writer continues at an earlier position, which no clock has.
    crossed = not is_known or one.before_epoch != one.epoch
    if crossed and one.prev_token < expected and any(one.stream == lost.stream for lost in end.epoch_starts):
        return True
    # The clock lacks the positions of trimmed facts.
    return end.compacted_upto > 0 and not is_known and is_ahead


def _report_wrong(compared: Comparison, wrong: Sequence[Any]) -> None:
    reported = compared.reported
    spoiled = {one.serial for one in wrong if one.what != "changed-row"} | {serial for _, serial in reported}
    for one in wrong:
        if (one.what, one.serial) in reported or (one.what == "changed-row" and one.serial in spoiled):
            continue
        why = WRONG[one.what].format(one.serial)
        compared.report(one.what, why, one.stream, one.writer, (one.token,), (one.serial,))


def _report_missing(
    compared: Comparison, missing: Sequence[tuple[int, int]], holes: Sequence[ChainBreak]
) -> None:
    """Report missing serials, with their writers if known from other facts."""
    end = compared.table.end.last_serial
    for hole in holes:
        runs = [
            (max(first, hole.after + 1), min(last, hole.serial - 1))
            for first, last in missing
            if first < hole.serial and last > hole.after
        ]
        if runs:
            tokens, serials = (hole.expected + 1, hole.prev_token), (runs[0][0], runs[-1][1])
            why = f"facts of {hole.writer} after token {hole.expected} up to {hole.prev_token} are missing"
            compared.report("missing-row", why, hole.stream, hole.writer, tokens, serials)
        elif hole.serial > end:
            why = f"the last fact of {hole.writer} has token {hole.expected}, and not {hole.prev_token} as in"
            why += " the log of the table"
            compared.found.add("table", why, hole.stream, hole.writer, serials=(end,))
        else:
            _report_chain(compared, hole)
    for first, last in missing:
        span = next((one for one in compared.spans if one.first <= first <= one.last), None)
        is_told = any(first < hole.serial and last > hole.after for hole in holes)
        if is_told or span is None or span.unknown:
            continue
        which = span.short[0].file if len(span.short) == 1 else None
        stream, file = (which.stream, which.path) if which else ("", "")
        why = f"serial {first} is missing" if first == last else f"serials {first} to {last} are missing"
        compared.found.add("missing-row", why, stream, serials=(first, last), file=file)


def _report_unexplained(compared: Comparison) -> None:
    """Report files whose rows are right and differ from the log of the table: the log is wrong."""
    wrong = {one.first_serial for one in compared.found.listed() if one.severity == "error"}
    for span in compared.spans:
        if any(serial is not None and span.first <= serial <= span.last for serial in wrong):
            continue
        for scan in span.short:
            file = scan.file
            why = f"{file.path} has {scan.rows} rows, serials {scan.first} to {scan.last}; the log of the"
            why += f" table wrongly has {file.rows} rows, serials {file.first_serial} to {file.last_serial}"
            serials = (file.first_serial, file.last_serial)
            compared.found.add("table", why, file.stream, serials=serials, file=file.path)


def _report_chain(compared: Comparison, one: ChainBreak) -> None:
    why = f"{one.writer} continues from token {one.prev_token}, but its previous fact has {one.expected}"
    tokens = (one.expected, one.prev_token)
    if one.prev_token < one.expected:
        tokens = (one.prev_token, max(one.expected, one.token))
    compared.report("broken-chain", why, one.stream, one.writer, tokens, (one.serial,))


def _join(spans: Iterable[AuditSpan]) -> list[AuditSpan]:
    joined: list[AuditSpan] = []
    for span in spans:
        if joined and joined[-1].last + 1 == span.first:
            joined[-1] = msgspec.structs.replace(joined[-1], last=span.last)
        else:
            joined.append(span)
    return joined
