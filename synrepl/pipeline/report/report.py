"""The job `report`: measures an archive and writes a page with its plots and tables."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.extras import install
from synrepl.html.humanize import at, number, share, shortened, size, span
from synrepl.html.templates import load_template
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.report.charts import CHARTS, pictures
from synrepl.pipeline.report.listings import as_csv, listings, silent_writers
from synrepl.pipeline.report.measurement import STEPS, Measurements, ask, measure
from synrepl.pipeline.report.verdict import Advice, findings
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.store import Store

PAGE: Final = "index.html"

STATES: Mapping[str, str] = {
    "bad": "Facts are missing or wrong",
    "busy": "Needs attention",
    "good": "Complete",
    "dim": "No facts",
}
"""The headings, by the worst kind of the findings."""

BLANK_ZEROS: Final = (
    *("again", "copied", "doubles", "epoch_start", "late", "lost", "misshapen"),
    *("missing", "skipped", "skipping", "unreadable", "void"),
)
"""Columns in which a zero is not shown."""

UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "*_ms": at,
    "*_seconds": span,
    "bytes*": size,
    "*bytes": size,
    "share_of_rows": lambda value: share(value, 1),
    "used": lambda value: share(value, 1),
    "meant_per_row": "{:.1f}".format,
    "*": number,
}
"""The formats of numbers, by the key of their column."""


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The written files and the main numbers.

    `state` is bad (facts are missing or wrong), busy (needs attention), good, or dim (no facts). `found` are
    the reasons, the worst first.
    """

    page: Path
    files: tuple[Path, ...]
    state: str
    found: tuple[Advice, ...]
    facts: int
    rows: int
    bytes: int
    streams: int
    writers: int
    missing: int
    invalidations: int


@retry_late_workers
def report(
    runner: Runner,
    archive: Store,
    out: Path,
    *,
    url: str | None = None,
    secret: str | None = None,
    ca_file: Path | None = None,
    insecure: bool = False,
    top: int = 20,
    as_of: str | None = None,
    progress: Progress = ignore_progress,
) -> ReportResult:
    """Write a report on an archive to the folder `out`, replacing a previous one.

    With `url` the report includes the status of that daemon; if the daemon does not respond, the page says
    so. `top` is the length of rankings; `as_of` is a version of the archive, or a time. Raises
    `BadArchive`, `NotADaemon`, and `ConfigError` if matplotlib is missing or the folder cannot be written.
    """
    # An extra, and an error after a long measurement would come late.
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"the charts need matplotlib: run {install('archive')}")
    daemon = None if url is None else ask(url, secret, ca_file, insecure)
    measured = measure(driver_of(runner), archive, top=top, daemon=daemon, as_of=as_of, progress=progress)
    progress("drawing", STEPS - 1, STEPS)
    made = write(measured, out)
    progress("done", STEPS, STEPS)
    return made


def write(measured: Measurements, out: Path) -> ReportResult:
    """Write the report. The page is written last, so that all files that it names exist."""
    found, shown_tables, drawn = findings(measured), listings(measured), pictures(measured)
    # The worst finding is the first.
    state = found[0].kind if found else "dim"
    files = {f"{name}.png": picture.png for name, picture in drawn.items()}
    files |= {f"{name}.csv": as_csv(table) for name, table in shown_tables.items()}
    text = load_template("synrepl.pipeline.report", "report.html.j2", shown=shown, STATES=STATES).render(
        measured=measured,
        found=found,
        tables=shown_tables,
        drawn=drawn,
        files=list(files),
        kind=state,
        silent_writers=silent_writers(measured),
        sparks={stream: _spark(measured, stream) for stream in measured.names("stream")},
    )
    folder = Store(str(out))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in CHARTS.keys() - drawn.keys():
            # A plot of a previous report would look like a part of this one.
            (out / f"{name}.png").unlink(missing_ok=True)
        for name, data in {**files, PAGE: text.encode("utf-8", "replace")}.items():
            folder.write(name, data)
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error.strerror or error}") from error
    covers, invalidations = measured.covers, measured.invalidations
    return ReportResult(
        page=out / PAGE,
        files=tuple(out / name for name in files),
        state=state,
        found=tuple(found),
        facts=measured.total("facts"),
        rows=measured.total("rows"),
        bytes=measured.total("bytes"),
        streams=len(measured.names("stream")),
        writers=0 if covers is None else len(covers.all_writers),
        missing=sum(one.kind == "missing" for one in measured.broken),
        invalidations=invalidations.total("meant") if invalidations is not None else 0,
    )


def shown(key: str, value: Any) -> str:
    """Format a value for the page, by its column. Unknown values, and zeros of `BLANK_ZEROS`, are blank."""
    if value is None or value == "" or (value == 0 and key in BLANK_ZEROS):
        return ""
    if isinstance(value, bool):
        return "replica" if value else "anonymous"
    if isinstance(value, int | float):
        return next(to_text for pattern, to_text in UNITS.items() if fnmatchcase(key, pattern))(value)
    if key == "from":
        return str(value).replace("T", " ").replace(":00Z", " UTC")
    if key == "key":
        return shortened(_arguments(value))
    return shortened(str(value), 80 if key == "name" else 60)


def _arguments(key: str) -> str:
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
