"""The job `report`: measures an archive and writes a page with its plots and tables."""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from synrepl.errors import ConfigError
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.report.charts import CHARTS, pictures
from synrepl.pipeline.report.daemon_status import ask
from synrepl.pipeline.report.measurement import STEPS, Measurements, measure
from synrepl.pipeline.report.page import page, state
from synrepl.pipeline.report.tables import as_csv, tables
from synrepl.pipeline.report.verdict import Advice, findings
from synrepl.pipeline.store import Store

__all__ = ["ReportResult", "report", "write"]

PAGE: Final = "index.html"


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
    spark: SparkSession,
    archive: Store,
    out: Path,
    *,
    url: str | None = None,
    secret: str | None = None,
    top: int = 20,
    as_of: str | None = None,
    progress: Progress = ignore_progress,
) -> ReportResult:
    """Write a report on an archive to the folder `out`, replacing a previous one.

    With `url` the report includes the status of that daemon; if the daemon does not respond, the page says
    so. `top` is the length of rankings; `as_of` is a version of the archive, or a time. Raises
    `BadArchive`, `NotADaemon`, and `ConfigError` if matplotlib is missing or the folder cannot be written.
    """
    try:
        import matplotlib as mpl  # noqa: F401  # checked before a long measurement
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib ({error}): run pip install matplotlib") from error
    daemon = None if url is None else ask(url, secret)
    measured = measure(spark, archive, top=top, daemon=daemon, as_of=as_of, progress=progress)
    progress("drawing", STEPS - 1, STEPS)
    made = write(measured, out)
    progress("done", STEPS, STEPS)
    return made


def write(measured: Measurements, out: Path) -> ReportResult:
    """Write the report. The page is written last, so that all files that it names exist."""
    found = findings(measured)
    shown, drawn = tables(measured), pictures(measured)
    files = {picture.file: picture.png for picture in drawn.values()}
    files |= {table.file: as_csv(table) for table in shown.values()}
    text = page(measured, found, shown, drawn)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in CHARTS:
            if name not in drawn:
                # A plot of a previous report would look like a part of this one.
                (out / f"{name}.png").unlink(missing_ok=True)
        for name, data in files.items():
            _write(out / name, data)
        _write(out / PAGE, text.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error.strerror or error}") from error
    invalidations = measured.invalidations
    covers = measured.covers
    return ReportResult(
        page=out / PAGE,
        files=tuple(out / name for name in files),
        state=state(found),
        found=tuple(found),
        facts=measured.total("facts"),
        rows=measured.total("rows"),
        bytes=measured.total("bytes"),
        streams=len(measured.names("stream")),
        writers=0 if covers is None else len(covers.all_writers),
        missing=sum(one.kind == "missing" for one in measured.broken),
        invalidations=invalidations.total("meant") if invalidations is not None else 0,
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
