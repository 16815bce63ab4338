"""Listings of a report. The page shows the first rows of a listing, a CSV file has all."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from synrepl.pipeline.report.counts import Bins, Row
from synrepl.pipeline.report.measurement import Measurements, lag_seconds


class Listing(msgspec.Struct, frozen=True):
    """A listing. Its rows map the keys of columns, which name the unit, to values. Its file is `name`.csv."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]


FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a text begins with that a spreadsheet takes for a formula (OWASP, "CSV Injection"). The last four are
the full-width forms of the first."""


def as_csv(listing: Listing) -> bytes:
    """Return the listing as CSV, with numbers of up to 3 decimals. An unknown value is an empty cell.

    Names and keys come from whoever writes to the homeserver: before one that a spreadsheet would take for a
    formula stands an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    # The other leaves a carriage return without quotes, which would end the row.
    quoted = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(listing.columns)
    for row in listing.rows:
        cells = [_cell(row.get(key)) for key in listing.columns]
        (quoted if any("\r" in str(cell) for cell in cells) else writer).writerow(cells)
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


COLUMNS: Final[Mapping[str, str]] = {
    "streams": "stream writers facts rows share_of_rows bytes peak_facts peak_rows",
    "writers": "stream writer facts rows bytes empty peak_facts peak_rows token first_ms last_ms",
    "throughput": "from stream writer facts rows bytes",
    "lag": "stream writer facts median_seconds p90_seconds p99_seconds most_seconds",
    "batches": "batch facts last_ms archived_ms lag_seconds",
    "silence": "to stream writer silent_seconds tokens_behind",
    "hours": "from facts rows bytes",
    "spread": "bytes_from rows_from facts",
    "sizes": "stream facts bytes_median bytes_p90 bytes_p99 bytes_most rows_median rows_p99 rows_most",
    "largest": "stream writer token serial rows bytes committed_ms",
    "names": "name rows meant meant_per_row keyed whole misshapen unreadable",
    "caches": "cache invalidations whole keys told_as",
    "keys": "cache key invalidations",
    "subjects": "key invalidations caches mostly",
    "invalidations": "from rows keyed whole busiest_minute",
    "chains": "stream writer facts missing lost again epoch_start copied late skipping skipped doubles",
    "breaks": "stream writer kind serial expected prev_token token committed_ms",
    "epoch_starts": "epoch at_ms serial why stream token void",
    "leases": "name uuid registered state serial lag_rows held_bytes used ended_ms reason",
}
"""The listings and their columns."""


def listings(measured: Measurements) -> dict[str, Listing]:
    """Return all listings by name; a listing without data has no rows."""
    totals, covers, found = measured.totals, measured.covers, measured.invalidations
    rows: dict[str, Iterable[Row]] = {
        "streams": [_stream(measured, stream) for stream in measured.names("stream")],
        "writers": _ranked("rows", [row | _peaks(measured, row["stream"], row["writer"]) for row in totals]),
        "throughput": _from(measured.over_time, measured.bins),
        "lag": _ranked("most_seconds", [row for row in totals if row["most_seconds"] is not None]),
        "batches": [
            {
                "batch": batch.version,
                "facts": batch.facts,
                "last_ms": batch.last_at_ms,
                "archived_ms": batch.archived_at_ms,
                "lag_seconds": lag_seconds(batch),
            }
            for batch in measured.batches
        ],
        "silence": [
            {
                "to": _iso(start + measured.bins.width),
                "stream": one.stream,
                "writer": one.writer,
                "silent_seconds": silent,
                "tokens_behind": behind,
            }
            for one in measured.lags
            for start, silent, behind in zip(measured.bins.starts, one.silent, one.behind, strict=True)
            if silent is not None
        ],
        "hours": [
            row | {"from": _iso(row["at"])}
            for row in sorted(measured.hours, key=lambda row: (-row["facts"], row["at"]))
        ],
        "spread": [
            {"bytes_from": 2 ** row["bytes"], "rows_from": 2 ** row["rows"], "facts": row["facts"]}
            for row in measured.spread
        ],
        "sizes": measured.sizes,
        "largest": measured.largest,
        "chains": _chains(measured),
        "breaks": map(msgspec.structs.asdict, measured.broken),
        "epoch_starts": [
            msgspec.structs.asdict(one)
            | {"token": one.token if one.stream else None, "void": measured.voided.get(one.epoch, 0)}
            for one in (covers.last.epoch_starts if covers is not None else ())
        ],
        "leases": _leases(measured),
    }
    if found is not None:
        rows |= {name: getattr(found, name) for name in ("names", "caches", "keys", "subjects")}
        rows["invalidations"] = _from(found.minutes, measured.minutes)
    return {name: _listing(name, rows.get(name, ()), columns) for name, columns in COLUMNS.items()}


def silent_writers(measured: Measurements) -> Listing:
    """Return the lag of writers that share a stream, at the end of the archive, the most silent first."""
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
    return _listing("silence", rows, "stream writer silent_seconds behind longest_seconds")


def _listing(name: str, rows: Iterable[Row], keys: str) -> Listing:
    columns = tuple(keys.split())
    return Listing(name, columns, [{key: row.get(key) for key in columns} for row in rows])


def _ranked(column: str, rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row[column], row["stream"], row["writer"]))


def _stream(measured: Measurements, stream: str) -> Row:
    own = [row for row in measured.totals if row["stream"] == stream]
    sums = {name: sum(row[name] for row in own) for name in ("facts", "rows", "bytes")}
    share = sums["rows"] / (measured.total("rows") or 1)
    return {"stream": stream, "writers": len(own), "share_of_rows": share, **sums} | _peaks(measured, stream)


def _peaks(measured: Measurements, stream: str, writer: str | None = None) -> Row:
    facts, rows = measured.peaks.get((stream, writer), (0, 0))
    return {"peak_facts": facts, "peak_rows": rows}


def _from(rows: Iterable[Row], bins: Bins) -> list[Row]:
    return [row | {"from": _iso(bins.starts[row["bin"]])} for row in rows]


def _chains(measured: Measurements) -> list[Row]:
    kinds = ("missing", "lost", "again", "epoch_start")
    counts = Counter((one.stream, one.writer, one.kind) for one in measured.broken)
    rows = [
        {
            **row,
            **{kind: counts[row["stream"], row["writer"], kind] for kind in kinds},
            "doubles": measured.doubles.get(row["stream"], 0),
        }
        for row in _ranked("copied", measured.totals)
    ]
    return sorted(rows, key=lambda row: -row["missing"] - row["lost"] - row["again"])


def _leases(measured: Measurements) -> Iterable[Row]:
    """Return the leases: ended ones first, then those that retain most. The daemon is not trusted."""
    if measured.daemon is None:
        return
    replicas = measured.daemon.status.get("replicas") or []
    known = {one.get("uuid"): one for one in replicas if isinstance(one, dict)}
    leases = measured.daemon.leases
    for one in sorted(leases, key=lambda one: (one.get("ended") is None, -_number(one.get("used")))):
        replica = known.get(one.get("uuid"), {})
        ended = one.get("ended")
        yield {
            "name": str(one.get("name") or "(no name)"),
            "uuid": str(one.get("uuid", "")),
            "registered": bool(one.get("registered")),
            "state": "ended" if ended is not None else str(replica.get("state") or "held"),
            "serial": int(_number(one.get("serial"))),
            "lag_rows": int(_number(replica["lag_rows"])) if "lag_rows" in replica else None,
            "held_bytes": int(_number(one.get("held_bytes"))),
            "used": _number(one.get("used")),
            "ended_ms": None if ended is None else int(1000 * _number(ended)),
            "reason": str(one.get("reason") or ""),
        }


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
