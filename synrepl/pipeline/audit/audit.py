"""The job `audit`: cheap checks of every file first, expensive ones of suspicious files only."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.reading import map_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.comparison import compare
from synrepl.pipeline.audit.daemon_digests import compare_with_daemon
from synrepl.pipeline.audit.explanation import Explanation
from synrepl.pipeline.audit.file_scan import SEEN, rank_files, scan_files
from synrepl.pipeline.audit.findings import AuditFindings, AuditResult
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.store import Store

__all__ = ["audit"]

RETENTION_HOURS: Final = 168


@retry_late_workers
def audit(
    spark: SparkSession,
    archive: Store,
    *,
    url: str | None = None,
    secret: str | None = None,
    deep: bool = False,
    as_of: str | None = None,
    progress: Progress = ignore_progress,
) -> AuditResult:
    """Check that an archive is complete and intact; with `url`, that the daemon has the same facts.

    Checksums of all files are compared, rows are counted, and the tokens of each writer must be consecutive.
    Where a check fails, and with `deep` everywhere, every digest is computed again. `as_of` is a version of
    the archive, or a time. A problem of the archive is a finding, not an error. Raises `BadArchive` if there
    is no archive, and `ConnectError` or `HttpError` of the daemon.
    """
    seconds: dict[str, float] = {}
    found = AuditFindings()
    with _phase("table", seconds):
        table = ArchiveTable(archive, as_of)
        files = table.files
        if as_of is None:
            _report_unnamed(table, found)
    with _phase("files", seconds):
        progress("files", 0, len(files))
        scans = map_files(spark, rank_files(files), partial(scan_files, archive), SEEN)
        compared = compare(table, files, scans, found, deep=deep)
        progress("files", len(files), len(files))
    with _phase("rows", seconds):
        Explanation(spark, compared, found).explain(progress)
    if url is not None:
        with _phase("daemon", seconds):
            with closing(BlockingClient(url, secret=secret)) as client:
                compare_with_daemon(spark, compared, client, found)
    return AuditResult(
        findings=found.listed(),
        omitted=found.omitted,
        version=table.version,
        files=len(files),
        bytes=compared.bytes,
        facts=compared.facts,
        rows=compared.rows,
        first_serial=1,
        last_serial=table.end.last_serial,
        seconds=seconds,
    )


def _report_unnamed(table: ArchiveTable, found: AuditFindings) -> None:
    """Report the files that `vacuum` would remove, left by aborted runs and by merges."""
    for path in sorted(table.vacuum(retention_hours=RETENTION_HOURS, dry_run=True)):
        found.add("unnamed-file", f"no version of the last week has {path}; vacuum removes it", file=path)


@contextmanager
def _phase(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Measure the seconds of a phase."""
    began = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - began, 3)
