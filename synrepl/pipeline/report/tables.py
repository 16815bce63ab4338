"""Tables: complete as CSV with plain numbers, shortened on the page with formatted numbers."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

import msgspec

from synrepl.html.humanize import at, number, printable, share, shortened, size, span
from synrepl.html.markup import Markup, details, element, text
from synrepl.pipeline.report.measurement import Measurements

__all__ = ["Column", "Table", "as_csv", "as_html", "folded", "named", "tables"]

Row = dict[str, Any]


class Column(msgspec.Struct, frozen=True):
    """A column: `key` is its name in rows and CSV, with the unit; `head` its title on the page, if shown.

    `shown` formats a value for the page; by default text is shortened and numbers are grouped.
    """

    key: str
    head: str = ""
    shown: Callable[[Any], object] | None = None


class Table(msgspec.Struct, frozen=True):
    """A table: rows by the keys of its columns. `name` is the name of its file."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return f"{self.name}.csv"


def as_csv(table: Table) -> bytes:
    """Return the whole table as CSV. An unknown value is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([_plain(row.get(column.key)) for column in table.columns] for row in table.rows)
    return out.getvalue().encode("utf-8", "backslashreplace")


def as_html(
    table: Table, *, at_most: int = 50, extra: Mapping[str, Sequence[Markup]] | None = None
) -> Markup:
    """Render the table for the page; rows beyond `at_most` are only in the file.

    The table scrolls if there is no room. `extra` are columns of plots, before the second column.
    """
    columns = [column for column in table.columns if column.head]
    rows = table.rows[:at_most]
    columns = [column for column in columns if any(_said(column, row) not in {None, ""} for row in rows)]
    if not columns:
        return Markup()
    numbers = {
        column.key
        for column in columns
        if not column.key.endswith("_ms") and all(_is_number(row.get(column.key)) for row in rows)
    }
    pictures = extra or {}
    heads = [f'<th scope="col"{_kind(column, numbers)}>{escape(column.head)}</th>' for column in columns]
    heads[1:1] = [f'<th scope="col">{escape(head)}</th>' for head in pictures]
    lines = []
    for position, row in enumerate(rows):
        cells = [_cell(column, row.get(column.key), numbers) for column in columns]
        cells[1:1] = [f"<td>{drawn[position]}</td>" for drawn in pictures.values()]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    beyond = len(table.rows) - len(rows)
    more = f"; {beyond:,} more rows are in it" if beyond else ""
    files = Markup(f'<p class="files">{named(table.file)}{more}</p>')
    return Markup(f'<div class="slim" tabindex="0" role="region" aria-label="table">{body}</div>{files}')


def folded(summary: str, table: Table, *, at_most: int = 50) -> Markup:
    """Render the table, collapsed."""
    return details(summary, as_html(table, at_most=at_most)) if table.rows else Markup()


def named(file: str) -> Markup:
    """Render a link to a file of the report."""
    return element("a", file, href=file, download=file if file.endswith(".csv") else None)


def _plain(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _said(column: Column, row: Mapping[str, Any]) -> object:
    value = row.get(column.key)
    return value if column.shown is None or value is None else column.shown(value)


def _kind(column: Column, numbers: set[str]) -> str:
    return ' class="number"' if column.key in numbers else ""


def _cell(column: Column, value: Any, numbers: set[str]) -> str:
    kind = _kind(column, numbers)
    if value is None:
        return f"<td{kind}></td>"
    if column.shown is not None:
        return f"<td{kind}>{text(column.shown(value))}</td>"
    if isinstance(value, int | float):
        return f"<td{kind}>{number(value)}</td>"
    whole = str(value)
    shown = shortened(whole)
    title = f' title="{escape(printable(whole[:500]))}"' if shown != whole else ""
    return f"<td{kind}{title}>{escape(shown)}</td>"


UNREADABLE: Final = "(rows that cannot be read)"


def tables(measured: Measurements) -> dict[str, Table]:
    """Return all tables by name; a table without data has no rows."""
    made = (
        _streams(measured),
        _writers(measured),
        _throughput(measured),
        _lag(measured),
        _batches(measured),
        _silence(measured),
        _hours(measured),
        _spread(measured),
        _sizes(measured),
        _largest(measured),
        _names(measured),
        _caches(measured),
        _keys(measured),
        _subjects(measured),
        _invalidations(measured),
        _chains(measured),
        _breaks(measured),
        _turns(measured),
        _leases(measured),
    )
    return {table.name: table for table in made}


def _streams(measured: Measurements) -> Table:
    sums: dict[str, Row] = {}
    for row in measured.totals:
        one = sums.setdefault(row["stream"], defaultdict(int, stream=row["stream"], writers=0))
        one["writers"] += 1
        for name in ("facts", "rows", "bytes"):
            one[name] += row[name]
    whole = measured.total("rows")
    rows = []
    for stream in measured.streams():
        one = sums[stream]
        facts, peak = measured.peaks.get((stream, None), (0, 0))
        said = {
            "share_of_rows": one["rows"] / whole if whole else 0.0,
            "peak_facts": facts,
            "peak_rows": peak,
        }
        rows.append({**one, **said})
    return Table(
        "streams",
        (
            Column("stream", "stream"),
            Column("writers", "writers"),
            Column("facts", "facts"),
            Column("rows", "rows"),
            Column("share_of_rows", "of all rows", lambda value: share(value, 1)),
            Column("bytes", "bytes of rows", size),
            Column("peak_facts", "most facts in 1 s"),
            Column("peak_rows", "most rows in 1 s"),
        ),
        rows,
    )


def _writers(measured: Measurements) -> Table:
    rows = []
    for row in sorted(measured.totals, key=lambda row: (-row["rows"], row["stream"], row["writer"])):
        facts, peak = measured.peaks.get((row["stream"], row["writer"]), (0, 0))
        rows.append({**row, "peak_facts": facts, "peak_rows": peak})
    return Table(
        "writers",
        (
            Column("stream", "stream"),
            Column("writer", "writer"),
            Column("facts", "facts"),
            Column("rows", "rows"),
            Column("bytes", "bytes of rows", size),
            Column("empty", "without rows"),
            Column("peak_facts", "most facts in 1 s"),
            Column("peak_rows", "most rows in 1 s"),
            Column("token", "last token"),
            Column("first_ms"),
            Column("last_ms", "last fact", at),
        ),
        rows,
    )


def _throughput(measured: Measurements) -> Table:
    starts = measured.bins.starts
    rows = [{**row, "from": _iso(starts[row["bin"]])} for row in measured.over_time]
    columns = ("from", "stream", "writer", "facts", "rows", "bytes")
    return Table("throughput", tuple(Column(name) for name in columns), rows)


def _lag(measured: Measurements) -> Table:
    rows = []
    for row in measured.totals:
        if row["waited"] is None:
            continue
        half, nine, most = (value / 1000 for value in row["waited"])
        said = {"median_seconds": half, "p90_seconds": nine, "p99_seconds": most}
        rows.append({**row, **said, "most_seconds": row["waited_most"] / 1000})
    rows.sort(key=lambda row: (-row["most_seconds"], row["stream"], row["writer"]))
    return Table(
        "lag",
        (
            Column("stream", "stream"),
            Column("writer", "writer"),
            Column("facts", "facts"),
            Column("median_seconds", "half within", span),
            Column("p90_seconds", "90 % within", span),
            Column("p99_seconds", "99 % within", span),
            Column("most_seconds", "longest", span),
        ),
        rows,
    )


def _batches(measured: Measurements) -> Table:
    rows = [
        {
            "batch": one.batch,
            "facts": one.facts,
            "last_ms": one.last_at_ms,
            "archived_ms": one.archived_at_ms,
            "lag_seconds": one.seconds,
        }
        for one in measured.arrivals
    ]
    columns = ("batch", "facts", "last_ms", "archived_ms", "lag_seconds")
    return Table("batches", tuple(Column(name) for name in columns), rows)


def _silence(measured: Measurements) -> Table:
    starts = measured.bins.starts
    rows = []
    for one in measured.standing:
        for start, silent, behind in zip(starts, one.silent, one.behind, strict=True):
            if silent is not None:
                said = {"to": _iso(start + measured.bins.width), "stream": one.stream, "writer": one.writer}
                rows.append({**said, "silent_seconds": silent, "tokens_behind": behind})
    columns = ("to", "stream", "writer", "silent_seconds", "tokens_behind")
    return Table("silence", tuple(Column(name) for name in columns), rows)


def _hours(measured: Measurements) -> Table:
    rows = [{**row, "from": _iso(row["at"])} for row in measured.hours]
    rows.sort(key=lambda row: (-row["facts"], row["at"]))
    of = "hour" if measured.hours_width == 3600 else "minute"
    return Table(
        "hours",
        (
            Column("from", f"{of} from", lambda value: value.replace("T", " ").replace(":00Z", " UTC")),
            Column("facts", "facts"),
            Column("rows", "rows"),
            Column("bytes", "bytes of rows", size),
        ),
        rows,
    )


def _spread(measured: Measurements) -> Table:
    rows = [
        {"bytes_from": 2 ** row["bytes"], "rows_from": 2 ** row["rows"], "facts": row["facts"]}
        for row in measured.spread
    ]
    return Table("spread", tuple(Column(name) for name in ("bytes_from", "rows_from", "facts")), rows)


def _sizes(measured: Measurements) -> Table:
    rows = []
    for row in sorted(measured.sizes, key=lambda row: (-row["bytes_most"], row["stream"])):
        half, nine, most = row["bytes"]
        rows_half, _, rows_most = row["rows"]
        said = {"bytes_median": half, "bytes_p90": nine, "bytes_p99": most, "bytes_most": row["bytes_most"]}
        of_rows = {"rows_median": rows_half, "rows_p99": rows_most, "rows_most": row["rows_most"]}
        rows.append({"stream": row["stream"], "facts": row["facts"], **said, **of_rows})
    return Table(
        "sizes",
        (
            Column("stream", "stream"),
            Column("facts", "facts with rows"),
            Column("bytes_median", "median", size),
            Column("bytes_p90", "90 %", size),
            Column("bytes_p99", "99 %", size),
            Column("bytes_most", "largest", size),
            Column("rows_median", "rows, median"),
            Column("rows_p99", "rows, 99 %"),
            Column("rows_most", "rows, most"),
        ),
        rows,
    )


def _largest(measured: Measurements) -> Table:
    return Table(
        "largest",
        (
            Column("stream", "stream"),
            Column("writer", "writer"),
            Column("token", "token"),
            Column("serial", "serial"),
            Column("rows", "rows"),
            Column("bytes", "bytes of rows", size),
            Column("committed_ms", "committed", at),
        ),
        measured.largest,
    )


def _names(measured: Measurements) -> Table:
    told = measured.invalidations
    rows = []
    for row in told.names if told is not None else ():
        meant = row["keyed"] + row["whole"]
        name = UNREADABLE if row["name"] is None else row["name"]
        rows.append({**row, "name": name, "meant": meant, "meant_per_row": meant / (row["rows"] or 1)})
    return Table(
        "names",
        (
            Column("name", "name as it was told", _named),
            Column("rows", "rows"),
            Column("meant", "invalidations meant"),
            Column("meant_per_row", "of one row", lambda value: f"{value:.1f}"),
            Column("keyed", "of an entry"),
            Column("whole", "of a whole cache"),
            Column("misshapen", "misshapen", _unless_zero),
            Column("unreadable", "unreadable", _unless_zero),
        ),
        rows,
    )


def _caches(measured: Measurements) -> Table:
    told = measured.invalidations
    return Table(
        "caches",
        (
            Column("cache", "cache"),
            Column("invalidations", "invalidations"),
            Column("whole", "of all of it"),
            Column("keys", "different keys"),
            Column("told_as", "told as"),
        ),
        told.caches if told is not None else (),
    )


def _keys(measured: Measurements) -> Table:
    told = measured.invalidations
    return Table(
        "keys",
        (Column("cache", "cache"), Column("key", "key", _key), Column("invalidations", "invalidations")),
        told.keys if told is not None else (),
    )


def _subjects(measured: Measurements) -> Table:
    told = measured.invalidations
    return Table(
        "subjects",
        (
            Column("key", "key", _key),
            Column("invalidations", "invalidations"),
            Column("caches", "in caches"),
            Column("mostly", "most in"),
        ),
        told.subjects if told is not None else (),
    )


def _invalidations(measured: Measurements) -> Table:
    told = measured.invalidations
    starts = measured.minutes.starts
    rows = [{**row, "from": _iso(starts[row["bin"]])} for row in (told.minutes if told is not None else ())]
    columns = ("from", "rows", "keyed", "whole", "busiest_minute")
    return Table("invalidations", tuple(Column(name) for name in columns), rows)


def _chains(measured: Measurements) -> Table:
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in measured.broken:
        counts[one.stream, one.writer][one.kind] += 1
    rows = []
    for row in measured.totals:
        broken = counts[row["stream"], row["writer"]]
        said = {kind: broken[kind] for kind in ("missing", "again", "epoch_start")}
        rows.append({**row, **said, "doubles": measured.doubles.get(row["stream"], 0)})
    rows.sort(key=lambda row: (-row["missing"] - row["again"], -row["copied"], row["stream"], row["writer"]))
    return Table(
        "chains",
        (
            Column("stream", "stream"),
            Column("writer", "writer"),
            Column("facts", "facts"),
            Column("missing", "missing before", _unless_zero),
            Column("again", "went back", _unless_zero),
            Column("epoch_start", "new epoch", _unless_zero),
            Column("copied", "there twice", _unless_zero),
            Column("late", "late", _unless_zero),
            Column("skipping", "skip tokens", _unless_zero),
            Column("skipped", "tokens skipped", _unless_zero),
            Column("doubles", "told by others too", _unless_zero),
        ),
        rows,
    )


def _breaks(measured: Measurements) -> Table:
    rows = [
        {
            "stream": one.stream,
            "writer": one.writer,
            "kind": one.kind,
            "serial": one.serial,
            "expected": one.expected,
            "prev_token": one.prev_token,
            "token": one.token,
            "committed_ms": one.committed_ms,
        }
        for one in measured.broken
    ]
    return Table(
        "breaks",
        (
            Column("stream", "stream"),
            Column("writer", "writer"),
            Column("kind", "kind"),
            Column("serial", "at serial"),
            Column("expected", "had come to"),
            Column("prev_token", "goes on after"),
            Column("token", "token"),
            Column("committed_ms", "committed", at),
        ),
        rows,
    )


def _turns(measured: Measurements) -> Table:
    epoch_starts = measured.covers.epoch_starts if measured.covers is not None else []
    rows = [
        {
            "epoch": epoch_start.epoch,
            "serial": epoch_start.serial,
            "at_ms": epoch_start.at_ms,
            "why": epoch_start.why,
            "stream": epoch_start.stream,
            "token": epoch_start.token if epoch_start.stream else None,
            "void": measured.voided.get(epoch_start.epoch, 0),
        }
        for epoch_start in epoch_starts
    ]
    return Table(
        "epoch_starts",
        (
            Column("epoch", "epoch"),
            Column("at_ms", "began", at),
            Column("serial", "after serial"),
            Column("why", "why"),
            Column("stream", "stream"),
            Column("token", "void beyond"),
            Column("void", "void facts", _unless_zero),
        ),
        rows,
    )


def _leases(measured: Measurements) -> Table:
    daemon = measured.daemon
    columns = (
        Column("name", "name"),
        Column("uuid"),
        Column("registered", "kind", lambda value: "replica" if value else "anonymous"),
        Column("state", "state"),
        Column("serial", "kept beyond serial"),
        Column("lag_rows", "facts behind"),
        Column("held_bytes", "holds back", size),
        Column("used", "used", lambda value: share(value, 1)),
        Column("ended_ms", "ended", at),
        Column("reason", "why"),
    )
    rows = [] if daemon is None else list(_lease_rows(daemon.status, daemon.leases))
    return Table("leases", columns, rows)


def _lease_rows(status: Row, leases: list[Row]) -> Iterable[Row]:
    replicas = status.get("replicas") or []
    known = {one.get("uuid"): one for one in replicas if isinstance(one, dict)}
    order = sorted(leases, key=lambda one: (one.get("ended") is None, -_number(one.get("used"))))
    for one in order:
        replica = known.get(one.get("uuid"), {})
        # The response of a daemon is not trusted: a value that is not a number is not shown as one.
        yield {
            "name": str(one.get("name") or "(no name)"),
            "uuid": str(one.get("uuid", "")),
            "registered": bool(one.get("registered")),
            "state": "ended" if one.get("ended") is not None else str(replica.get("state") or "held"),
            "serial": int(_number(one.get("serial"))),
            "lag_rows": int(_number(replica["lag_rows"])) if "lag_rows" in replica else None,
            "held_bytes": int(_number(one.get("held_bytes"))),
            "used": _number(one.get("used")),
            "ended_ms": None if one.get("ended") is None else int(1000 * _number(one.get("ended"))),
            "reason": str(one.get("reason") or ""),
        }


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _key(text: str) -> str:
    """For people: without the brackets of the JSON array, which the file has."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = [text]
    return shortened(", ".join(map(str, parts)) if parts else "(no arguments)")


def _named(name: str) -> str:
    return shortened(name, 80)


def _unless_zero(value: int) -> str:
    return f"{value:,}" if value else ""


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
