"""Plans and times of statements, as psql shows them."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.relations import known_relations
from synrepl.homeserver.explanation.server_rows import SIZE, Rows, Said, is_count, seconds_of, steps_of
from synrepl.html.humanize import counted, several
from synrepl.wire.text import printable

_WHOLE: Final = re.compile(
    r"Seq Scan on (?P<table>\w{1,63})(?:.{0,200}?actual time=[\d.]{1,50} rows=(?P<rows>[\d.]{1,20})"
    r" loops=(?P<loops>\d{1,12})|.{0,100}?\brows=(?P<guessed>\d{1,15}) )",
    re.ASCII,
)
"""A table that is read as a whole: how many rows that were, or are guessed to be."""
_FILTERED: Final = re.compile(r"Rows Removed by Filter: (?P<rows>\d{1,15})", re.ASCII)
_TOOK: Final = re.compile(r"Execution Time: (?P<ms>[\d.]{1,20}) ms", re.ASCII)
MANY_ROWS: Final = 100_000
PLAN: Final = "query plan"
"""The column of a table that EXPLAIN prints."""


def told_of_plan(rows: Rows) -> Said:
    """A plan of a statement: what was read as a whole, and thrown away."""
    lines = [row.get(PLAN, "") for row in rows]
    took = next((float(found["ms"]) / 1000 for one in lines if (found := _TOOK.search(one))), None)
    words = [
        "How PostgreSQL runs a statement (EXPLAIN)"
        + (f"; it took {took:,.3g} s." if took is not None else ".")
    ]
    whole: dict[str, int] = {}
    for at, line in enumerate(lines):
        if (found := _WHOLE.search(line)) is None:
            continue
        removed = next(
            (int(one["rows"]) for text in lines[at + 1 : at + 4] if (one := _FILTERED.search(text))), 0
        )
        read = int(float(found["rows"] or found["guessed"]) + removed) * int(found["loops"] or 1)
        whole[found["table"]] = max(read, whole.get(found["table"], 0))
    by_size = sorted(whole.items(), key=lambda one: -one[1])
    large = {name: read for name, read in by_size if read >= MANY_ROWS}
    if took is None and large:
        words.append("The numbers of rows are guesses of PostgreSQL; EXPLAIN (ANALYZE, BUFFERS) counts them.")
    if took is not None and took < 1 and large:
        return Said([*words, "It reads a large table as a whole, and is quick all the same."], [])
    if not large:
        return Said([*words, "It reads no large table as a whole."] if took is not None else words, [])
    told = several([f"{printable(name)} ({read:,} rows)" for name, read in large.items()])
    return Said(
        [
            f"It reads the whole of {told}: no index fits it, or PostgreSQL does not know that one would.",
            *words,
        ],
        [
            (
                f"ANALYZE {printable(next(iter(large)))}, and look again: after a restore, an upgrade or many"
                " deletions the statistics are not there, or old"
            ),
            (
                "SELECT * FROM background_updates: an index may still be made in the background; \\d TABLE"
                " shows those that are there, INVALID ones too (DROP INDEX, and make it again)"
            ),
            (
                "if it is a statement of Synapse, and its indexes are all there: update, as newer releases"
                " may ask otherwise"
            ),
            *steps_of(large),
        ],
        "look",
    )


QUOTE: Final = "'"
"""Where the first literal of a statement begins: what comes after it may be a secret."""
SLOW: Final = 1_000.0
"""From how many milliseconds on average a statement is slow."""
_SPENT: Final = ("total_exec_time", "total_time", "total", "total_ms", "ms")
_EACH: Final = ("mean_exec_time", "mean_time", "mean", "avg", "avg_time", "mean_ms")


def _milliseconds(row: Mapping[str, str], names: Sequence[str]) -> float:
    """What one of these columns has, in ms; 0: none has any."""
    for text in (row[name] for name in names if name in row):
        if (lasted := seconds_of(text)) >= 0:
            return lasted * 1000.0
        if SIZE.fullmatch(plain := text.replace(",", "")):
            return float(plain)
    return 0.0


def told_of_statements(rows: Rows) -> Said:
    """The statements that took most of the time."""
    spent = []
    for row in rows:
        calls, total, each = (row.get("calls", ""), _milliseconds(row, _SPENT), _milliseconds(row, _EACH))
        count = int(calls.replace(",", "")) if is_count(calls.replace(",", "")) else 0
        spent.append((total or each * count, each or total / max(1, count), count, row.get("query", "")))
    total, each, count, query = max(spent, default=(0.0, 0.0, 0, ""))
    if not total:
        return Said(["Statements and how often they ran (pg_stat_statements)."], [])
    words = [
        (
            "Statements by the time that PostgreSQL spent on them since pg_stat_statements_reset(), or since"
            f" they were counted. Most in this text: {total / 1000:,.1f} s in {count:,} calls, {each:,.3g} ms"
            f" each: {excerpt(query.partition(QUOTE)[0])}"
        ),
        "A large sum may come of many calls: that is load, and by itself no fault.",
    ]
    slow = sorted((one for one in spent if one[1] >= SLOW), reverse=True)
    tables = [name for name in known_relations() for one in slow if re.search(rf"\b{name}\b", one[3])]
    if not slow:
        return Said([*words, "None here takes a second on average."], [])
    return Said(
        [f"{counted(len(slow), 'statement')} here takes a second or more on average.", *words],
        [
            (
                "EXPLAIN (ANALYZE, BUFFERS) of a SELECT among these, with values (it runs it); ANALYZE of its"
                " tables after a restore or an upgrade; SELECT * FROM background_updates for an index that is"
                " still to be made"
            ),
            *steps_of(dict.fromkeys(tables)),
        ],
        "look",
    )
