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

__all__ = ["Column", "Table", "as_csv", "as_html", "folded", "named", "silent_writers", "tables"]

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
    columns = [column for column in columns if any(_formatted(column, row) not in {None, ""} for row in rows)]
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


def _formatted(column: Column, row: Mapping[str, Any]) -> object:
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

HEADS: Final[Mapping[str, str]] = {
    "again": "went back",
    "at_ms": "began",
    "behind": "tokens behind at the end",
    "bytes": "bytes of rows",
    "bytes_median": "median",
    "bytes_most": "largest",
    "bytes_p90": "90 %",
    "bytes_p99": "99 %",
    "committed_ms": "committed",
    "copied": "duplicates",
    "doubles": "tokens of several writers",
    "empty": "without rows",
    "ended_ms": "ended",
    "epoch_start": "new epoch",
    "held_bytes": "retained",
    "keyed": "of entries",
    "keys": "distinct keys",
    "lag_rows": "facts behind",
    "last_ms": "last fact",
    "longest_seconds": "longest silence",
    "meant": "invalidations",
    "meant_per_row": "per row",
    "median_seconds": "median",
    "missing": "gaps",
    "most_seconds": "maximum",
    "mostly": "mostly in",
    "p90_seconds": "90 %",
    "p99_seconds": "99 %",
    "peak_facts": "peak facts per s",
    "peak_rows": "peak rows per s",
    "prev_token": "previous token",
    "reason": "reason",
    "registered": "kind",
    "rows_median": "rows, median",
    "rows_most": "rows, maximum",
    "rows_p99": "rows, 99 %",
    "share_of_rows": "of all rows",
    "silent_seconds": "silent at the end",
    "skipping": "facts after unused tokens",
    "skipped": "unused tokens",
    "told_as": "announced as",
    "void": "void facts",
    "whole": "of whole caches",
    "why": "reason",
}
"""Titles of columns whose key is no title."""


def tables(measured: Measurements) -> dict[str, Table]:
    """Return all tables by name; a table without data has no rows."""
    found = measured.invalidations
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
        _table("largest", measured.largest, "stream writer token serial rows bytes committed_ms"),
        _names(measured),
        _table("caches", found.caches if found else (), "cache invalidations whole keys told_as"),
        _table("keys", found.keys if found else (), "cache key invalidations"),
        _table("subjects", found.subjects if found else (), "key invalidations caches mostly"),
        _invalidations(measured),
        _chains(measured),
        _breaks(measured),
        _epoch_starts(measured),
        _leases(measured),
    )
    return {table.name: table for table in made}


def silent_writers(measured: Measurements) -> Table:
    """Return the lag of writers at the end of the archive, the most silent first."""
    rows = [
        {
            "stream": one.stream,
            "writer": one.writer,
            "silent_seconds": one.silent[-1],
            "behind": one.behind[-1],
            "longest_seconds": one.silent_most,
        }
        for one in sorted(measured.lags, key=lambda one: -(one.silent[-1] or 0.0))
    ]
    return _table("silence", rows, "stream writer silent_seconds behind longest_seconds")


def _table(
    name: str, rows: Sequence[Row], keys: str, heads: Mapping[str, str] = HEADS, *, hidden: str = ""
) -> Table:
    """Return a table with these columns. Those in `hidden` are in the file only; `heads` are other titles."""
    columns = []
    for key in keys.split():
        head = "" if key in hidden.split() else heads.get(key, HEADS.get(key, key))
        columns.append(Column(key, head, _formatter(key)))
    return Table(name, tuple(columns), rows)


def _formatter(key: str) -> Callable[[Any], object] | None:
    """Return the format of a column on the page, which follows from the unit in its key."""
    if key.endswith("_ms"):
        return at
    if key.endswith("_seconds"):
        return span
    if key.startswith("bytes") or key.endswith("bytes"):
        return size
    return FORMATS.get(key)


def _streams(measured: Measurements) -> Table:
    sums: dict[str, Row] = defaultdict(lambda: defaultdict(int))
    for row in measured.totals:
        total = sums[row["stream"]]
        total["writers"] += 1
        for name in ("facts", "rows", "bytes"):
            total[name] += row[name]
    whole = measured.total("rows")
    rows = []
    for stream in measured.streams():
        total = sums[stream]
        facts, peak = measured.peaks.get((stream, None), (0, 0))
        of_all = total["rows"] / whole if whole else 0.0
        rows.append(
            {**total, "stream": stream, "share_of_rows": of_all, "peak_facts": facts, "peak_rows": peak}
        )
    return _table("streams", rows, "stream writers facts rows share_of_rows bytes peak_facts peak_rows")


def _writers(measured: Measurements) -> Table:
    rows = []
    for row in sorted(measured.totals, key=lambda row: (-row["rows"], row["stream"], row["writer"])):
        facts, peak = measured.peaks.get((row["stream"], row["writer"]), (0, 0))
        rows.append({**row, "peak_facts": facts, "peak_rows": peak})
    keys = "stream writer facts rows bytes empty peak_facts peak_rows token first_ms last_ms"
    return _table("writers", rows, keys, {"token": "last token"}, hidden="first_ms")


def _throughput(measured: Measurements) -> Table:
    starts = measured.bins.starts
    rows = [{**row, "from": _iso(starts[row["bin"]])} for row in measured.over_time]
    return _table("throughput", rows, "from stream writer facts rows bytes")


def _lag(measured: Measurements) -> Table:
    rows = []
    for row in measured.totals:
        if row["waited"] is None:
            continue
        half, nine, most = (value / 1000 for value in row["waited"])
        lags = {"median_seconds": half, "p90_seconds": nine, "p99_seconds": most}
        rows.append({**row, **lags, "most_seconds": row["waited_most"] / 1000})
    rows.sort(key=lambda row: (-row["most_seconds"], row["stream"], row["writer"]))
    return _table("lag", rows, "stream writer facts median_seconds p90_seconds p99_seconds most_seconds")


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
    return _table("batches", rows, "batch facts last_ms archived_ms lag_seconds")


def _silence(measured: Measurements) -> Table:
    rows = []
    for one in measured.lags:
        for start, silent, behind in zip(measured.bins.starts, one.silent, one.behind, strict=True):
            if silent is not None:
                row = {"to": _iso(start + measured.bins.width), "stream": one.stream, "writer": one.writer}
                rows.append({**row, "silent_seconds": silent, "tokens_behind": behind})
    return _table("silence", rows, "to stream writer silent_seconds tokens_behind")


def _hours(measured: Measurements) -> Table:
    rows = [{**row, "from": _iso(row["at"])} for row in measured.hours]
    rows.sort(key=lambda row: (-row["facts"], row["at"]))
    head = "hour from" if measured.hours_width == 3600 else "minute from"
    return _table("hours", rows, "from facts rows bytes", {"from": head})


def _spread(measured: Measurements) -> Table:
    rows = [
        {"bytes_from": 2 ** row["bytes"], "rows_from": 2 ** row["rows"], "facts": row["facts"]}
        for row in measured.spread
    ]
    return _table("spread", rows, "bytes_from rows_from facts")


def _sizes(measured: Measurements) -> Table:
    rows = []
    for row in sorted(measured.sizes, key=lambda row: (-row["bytes_most"], row["stream"])):
        half, nine, most = row["bytes"]
        rows_half, _, rows_most = row["rows"]
        of_bytes = {"bytes_median": half, "bytes_p90": nine, "bytes_p99": most}
        rows.append({**row, **of_bytes, "rows_median": rows_half, "rows_p99": rows_most})
    keys = "stream facts bytes_median bytes_p90 bytes_p99 bytes_most rows_median rows_p99 rows_most"
    return _table("sizes", rows, keys, {"facts": "facts with rows"})


def _names(measured: Measurements) -> Table:
    rows = []
    for row in measured.invalidations.names if measured.invalidations is not None else ():
        meant = row["keyed"] + row["whole"]
        name = UNREADABLE if row["name"] is None else row["name"]
        rows.append({**row, "name": name, "meant": meant, "meant_per_row": meant / (row["rows"] or 1)})
    return _table("names", rows, "name rows meant meant_per_row keyed whole misshapen unreadable")


def _invalidations(measured: Measurements) -> Table:
    starts = measured.minutes.starts
    found = measured.invalidations
    rows = [{**row, "from": _iso(starts[row["bin"]])} for row in (found.minutes if found else ())]
    return _table("invalidations", rows, "from rows keyed whole busiest_minute")


def _chains(measured: Measurements) -> Table:
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in measured.broken:
        counts[one.stream, one.writer][one.kind] += 1
    rows = []
    for row in measured.totals:
        broken = counts[row["stream"], row["writer"]]
        kinds = {kind: broken[kind] for kind in ("missing", "again", "epoch_start")}
        rows.append({**row, **kinds, "doubles": measured.doubles.get(row["stream"], 0)})
    rows.sort(key=lambda row: (-row["missing"] - row["again"], -row["copied"], row["stream"], row["writer"]))
    keys = "stream writer facts missing again epoch_start copied late skipping skipped doubles"
    return _table("chains", rows, keys)


def _breaks(measured: Measurements) -> Table:
    rows = [msgspec.structs.asdict(one) for one in measured.broken]
    keys = "stream writer kind serial expected prev_token token committed_ms"
    return _table("breaks", rows, keys, {"expected": "expected previous token"})


def _epoch_starts(measured: Measurements) -> Table:
    rows = [
        {
            **msgspec.structs.asdict(epoch_start),
            "token": epoch_start.token if epoch_start.stream else None,
            "void": measured.voided.get(epoch_start.epoch, 0),
        }
        for epoch_start in (measured.covers.epoch_starts if measured.covers is not None else ())
    ]
    keys = "epoch at_ms serial why stream token void"
    return _table("epoch_starts", rows, keys, {"serial": "after serial", "token": "void after token"})


def _leases(measured: Measurements) -> Table:
    daemon = measured.daemon
    rows = [] if daemon is None else list(_lease_rows(daemon.status, daemon.leases))
    keys = "name uuid registered state serial lag_rows held_bytes used ended_ms reason"
    return _table("leases", rows, keys, {"serial": "retains after serial"}, hidden="uuid")


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


def _unless_zero(value: int) -> str:
    return f"{value:,}" if value else ""


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


BLANK_ZEROS: Final = (
    *("again", "copied", "doubles", "epoch_start", "late", "misshapen"),
    *("missing", "skipped", "skipping", "unreadable", "void"),
)

FORMATS: Final[Mapping[str, Callable[[Any], object]]] = {
    "from": lambda value: value.replace("T", " ").replace(":00Z", " UTC"),
    "key": _key,
    "meant_per_row": lambda value: f"{value:.1f}",
    "name": lambda name: shortened(name, 80),
    "registered": lambda is_registered: "replica" if is_registered else "anonymous",
    "share_of_rows": lambda part: share(part, 1),
    "used": lambda part: share(part, 1),
    **dict.fromkeys(BLANK_ZEROS, _unless_zero),
}
"""Formats of columns on the page, other than by unit."""
