"""The page of a report: findings first, then a section per question of an operator."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from synrepl.html.humanize import at, number, share, shortened, size, span
from synrepl.html.templates import load_template
from synrepl.pipeline.report.charts import Picture
from synrepl.pipeline.report.measurement import Measurements
from synrepl.pipeline.report.tables import Table, silent_writers
from synrepl.pipeline.report.verdict import KINDS, Advice

__all__ = ["STATES", "page", "shown", "state"]

STATES: Mapping[str, str] = {
    "bad": "Facts are missing or wrong",
    "busy": "Needs attention",
    "good": "Complete",
    "dim": "No facts",
}
"""The headings, by the worst kind of the findings."""

BLANK_ZEROS: Final = (
    *("again", "copied", "doubles", "epoch_start", "late", "misshapen"),
    *("missing", "skipped", "skipping", "unreadable", "void"),
)
"""Columns in which a zero is not shown."""


def state(found: Sequence[Advice]) -> str:
    """Return the worst kind of the findings: a key of `STATES`."""
    kinds = {one.kind for one in found}
    return next((kind for kind in KINDS[:3] if kind in kinds), "dim")


def page(
    measured: Measurements,
    found: Sequence[Advice],
    tables: Mapping[str, Table],
    drawn: Mapping[str, Picture],
) -> str:
    """Render the page, which links all files of the report."""
    template = load_template("synrepl.pipeline.report", "report.html.j2", shown=shown, STATES=STATES)
    return template.render(
        measured=measured,
        found=found,
        tables=tables,
        drawn=drawn,
        kind=state(found),
        silent_writers=silent_writers(measured),
        sparks={stream: _spark(measured, stream) for stream in measured.names("stream")},
    )


def shown(key: str, value: Any) -> str:
    """Format a value for the page, by the unit in the key of its column. An unknown value is blank."""
    match value:
        case None | "":
            return ""
        case bool():
            return "replica" if value else "anonymous"
        case 0 if key in BLANK_ZEROS:
            return ""
        case int() | float() if key.endswith("_ms"):
            return at(value)
        case int() | float() if key.endswith("_seconds"):
            return span(value)
        case int() | float() if key.startswith("bytes") or key.endswith("bytes"):
            return size(value)
        case int() | float() if key in ("share_of_rows", "used"):
            return share(value, 1)
        case float() if key == "meant_per_row":
            return f"{value:.1f}"
        case int() | float():
            return number(value)
        case _ if key == "from":
            return str(value).replace("T", " ").replace(":00Z", " UTC")
        case _ if key == "key":
            return shortened(_arguments(value))
    return shortened(str(value), 80 if key == "name" else 60)


def _arguments(key: str) -> str:
    """For people: without the brackets of the JSON array, which the file has."""
    try:
        return ", ".join(map(str, json.loads(key))) or "(no arguments)"
    except (ValueError, TypeError, RecursionError):
        return key


def _spark(measured: Measurements, stream: str) -> tuple[int, str]:
    """Return the peak of a stream's rows in a bin, and a path of an SVG, 24 high, of its rows over time."""
    values = [0] * measured.bins.count
    for row in measured.over_time:
        if row["stream"] == stream:
            values[row["bin"]] += row["rows"]
    most = max(values) or 1
    steps = (f"M{index} 24V{24 - 23 * value / most:.1f}h1V24z" for index, value in enumerate(values) if value)
    return most, "".join(steps)
