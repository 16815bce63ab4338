"""The job `audit`: cheap checks of every file first, expensive ones of suspicious files only."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.manifest import BadArchive, Manifest
from synrepl.pipeline.audit import daemon_digests
from synrepl.pipeline.audit.comparison import Comparison
from synrepl.pipeline.audit.explanation import Explanation
from synrepl.pipeline.audit.file_scan import SEEN, FileScan, scan_files
from synrepl.pipeline.audit.findings import AuditFindings, AuditResult
from synrepl.pipeline.audit.manifests import read_manifests, report_unnamed
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.store import Store

__all__ = ["audit"]

TASKS_AT_LEAST: Final = 2


@retry_late_workers
def audit(
    spark: SparkSession,
    archive: Store,
    *,
    url: str | None = None,
    secret: str | None = None,
    deep: bool = False,
    progress: Progress = ignore_progress,
) -> AuditResult:
    """Check that an archive is complete and intact; with `url`, that the daemon has the same facts.

    Checksums of all files are compared, rows are counted, and the tokens of each writer must be consecutive.
    Where a check fails, and with `deep` everywhere, every digest is computed again. A problem of the archive
    is a finding, not an error. Raises `BadArchive` if there is no archive, and `ConnectError` or `HttpError`
    of the daemon.
    """
    clock = _Clock()
    found = AuditFindings()
    with clock.phase("manifests"):
        manifests = read_manifests(archive, found)
        if not manifests and not found.listed():
            raise BadArchive(f"{archive}: nothing is archived there yet; run synrepl pipeline archive first")
        report_unnamed(archive, manifests, found)
    with clock.phase("files"):
        seen = _scan(spark, archive, manifests, progress)
    with clock.phase("rows"):
        compared = Comparison(manifests, seen, found)
        compared.compare()
        Explanation(spark, archive, compared, found).explain(deep=deep, progress=progress)
    if url is not None and manifests:
        with clock.phase("daemon"):
            client = BlockingClient(url, secret=secret)
            try:
                daemon_digests.compare_with_daemon(
                    spark, archive, manifests, client, found, compared=compared
                )
            finally:
                client.close()
    return AuditResult(
        findings=found.listed(),
        omitted=found.omitted,
        batches=len(manifests),
        files=len(seen),
        bytes=sum(one.bytes for one in seen.values()),
        facts=sum(one.facts for one in seen.values()),
        rows=sum(one.rows for one in seen.values()),
        first_serial=manifests[0].first_serial if manifests else 0,
        last_serial=manifests[-1].last_serial if manifests else 0,
        seconds=clock.seconds,
    )


def _scan(
    spark: SparkSession, archive: Store, manifests: Sequence[Manifest], progress: Progress
) -> dict[str, FileScan]:
    """Scan every file that the manifests name."""
    seen: dict[str, FileScan] = {}
    files = {file.path: file for manifest in manifests for file in manifest.files}
    progress("files", 0, len(files))
    if files:
        shares = int(spark.conf.get("spark.sql.shuffle.partitions") or TASKS_AT_LEAST)
        tasks = min(len(files), max(TASKS_AT_LEAST, shares))
        # Largest first, round robin, so that the large files are spread over the tasks.
        ranked = sorted(files.values(), key=lambda file: -file.bytes)
        requests = [
            (file.path, file.stream, file.sha256, position % tasks) for position, file in enumerate(ranked)
        ]
        rows = (
            spark.createDataFrame(requests, "`path` string, `stream` string, `sha256` string, `task` int")
            .repartitionById(tasks, "task")
            .mapInArrow(partial(scan_files, archive), SEEN)
            .collect()
        )
        for row in rows:
            one = msgspec.json.decode(row["seen"], type=FileScan)
            seen[one.path] = one
    progress("files", len(files), len(files))
    return seen


class _Clock:
    """A stopwatch of the phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 3)
