"""Measurement of an archive: its audit, the counts of a report, and the status of a daemon."""

import http.client
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.compute as pc

from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import METRICS, STATUS
from synrepl.http_client import BlockingClient, ConnectError, NotADaemon
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.archive_comparison import compare
from synrepl.pipeline.audit.audit_findings import AuditFinding, AuditFindings, ChainBreak
from synrepl.pipeline.audit.explanation import explain
from synrepl.pipeline.driver import Driver
from synrepl.pipeline.jobs import Progress
from synrepl.pipeline.report import counts
from synrepl.pipeline.report.fact_scan import counted_once, facts_of, scan_facts, scans_of
from synrepl.pipeline.report.invalidations import CACHES, Invalidations, invalidations
from synrepl.pipeline.store import Store

LEASES: Final = HttpRequest("GET", "/v1/leases", {"leases": [{...: object}]})
"""What a daemon retains for whom; only one that serves replicas answers it."""

NOT_FOUND: Final = 404

_COUNTER: Final = re.compile(
    r"(?m)^(synrepl_gaps_(?:detected|repaired|lost)_total) (\d+(?:\.\d+)?(?:e\+?\d\d?)?)(?!\S)"
)


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a daemon. `trouble` is the reason if the status is unavailable."""

    url: str
    trouble: str = ""
    status: dict[str, Any] = {}
    leases: list[dict[str, Any]] = []
    gaps: dict[str, int] = {}


def ask(
    url: str, secret: str | None = None, ca_file: Path | None = None, insecure: bool = False
) -> DaemonStatus:
    """Request the status. Raises `NotADaemon` for an invalid address; other failures go into `trouble`."""
    client = BlockingClient(url, secret=secret, ca_file=ca_file, insecure=insecure)
    shown = client.url
    try:
        status = client.json(STATUS.request())
        leases = _leases(client)
        response = client.stream(METRICS.request(), accept="text/plain")
        gaps = counters(response.read().decode("utf-8", "replace"))
    except ConnectError as error:
        return DaemonStatus(url=shown, trouble=f"cannot connect: {error}")
    except HttpError as error:
        return DaemonStatus(url=shown, trouble=f"the daemon refuses the request: {error}")
    except (OSError, http.client.HTTPException):
        return DaemonStatus(url=shown, trouble="the response broke off")
    except NotADaemon:
        return DaemonStatus(url=shown, trouble="it does not respond as a synrepl daemon")
    finally:
        client.close()
    return DaemonStatus(url=shown, status=status, leases=leases, gaps=gaps)


def _leases(client: BlockingClient) -> list[dict[str, Any]]:
    """Request the leases; a daemon that serves no replicas has none."""
    try:
        found: list[dict[str, Any]] = client.json(LEASES)["leases"]
    except HttpError as error:
        if error.status == NOT_FOUND:
            return []
        raise
    return found


def counters(metrics: str) -> dict[str, int]:
    """Return the gap counters in metrics in the text format of Prometheus."""
    return {name: int(float(value)) for name, value in _COUNTER.findall(metrics)}


class Coverage:
    """What an archive with facts covers, from its files (rows of `ArchiveTable.files`) and batches.

    `last` is the last batch, which has the state of the archive. `lines` counts the lines of the Parquet
    files: one for each row, and one for each fact without rows.
    """

    def __init__(self, files: Any, batches: Sequence[Batch]) -> None:
        nonempty = [batch for batch in batches if batch.facts]
        self.last = last = batches[-1]
        self.first_serial = batches[0].first_serial
        self.first_ms = min(batch.first_at_ms for batch in nonempty)
        self.last_ms = max(batch.last_at_ms for batch in nonempty)
        self.seconds = (self.last_ms - self.first_ms) / 1000
        self.archived_ms = max(batch.archived_at_ms for batch in nonempty)
        self.facts = sum(batch.facts for batch in nonempty)
        self.lines = sum(batch.rows for batch in nonempty)
        self.batches = len(batches)
        self.files = len(files)
        self.file_bytes = pc.sum(files["bytes"]).as_py() or 0
        self.writers = {stream: sorted(writers) for stream, writers in sorted(last.end.items())}
        self.all_writers = sorted({writer for writers in last.end.values() for writer in writers})
        before_epochs = [epoch_start.epoch - 1 for epoch_start in last.epoch_starts]
        self.epochs = min([last.epoch, *before_epochs]), last.epoch


def lag_seconds(batch: Batch) -> float:
    """Return the archive lag of the last fact of a batch, in seconds; negative only if clocks differ."""
    return (batch.archived_at_ms - batch.last_at_ms) / 1000


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all measurements of one report.

    Without `covers` the archive has no facts. `daemon` is None unless a daemon was requested. `batches` are
    those with facts and a known archive lag. `broken` and `problems` are from the audit.
    """

    position: str
    top: int
    covers: Coverage | None = None
    daemon: DaemonStatus | None = None
    bins: counts.Bins = counts.Bins(0, 1, 1)
    totals: list[counts.Row] = []
    peaks: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    over_time: list[counts.Row] = []
    hours: list[counts.Row] = []
    hours_width: int = 3600
    sizes: list[counts.Row] = []
    spread: list[counts.Row] = []
    largest: list[counts.Row] = []
    batches: list[Batch] = []
    lags: list[counts.WriterLag] = []
    broken: list[ChainBreak] = []
    problems: list[AuditFinding] = []
    doubles: dict[str, int] = {}
    voided: dict[int, int] = {}
    invalidations: Invalidations | None = None
    minutes: counts.Bins = counts.Bins(0, 60, 1)

    def total(self, column: str) -> int:
        """Return the sum of a column of `totals`, over all writers of all streams."""
        return sum(row[column] for row in self.totals)

    def names(self, kind: str) -> list[str]:
        """Return the names of streams or writers (`kind`) with facts, the one with most rows first."""
        rows = Counter[str]()
        for row in self.totals:
            rows[row[kind]] += row["rows"]
        return sorted(rows, key=lambda name: (-rows[name], name))


STEPS: Final = 4
DAY_SECONDS: Final = 86_400


def measure(
    driver: Driver,
    archive: Store,
    *,
    top: int,
    daemon: DaemonStatus | None,
    as_of: str | None = None,
    progress: Progress,
) -> Measurements:
    """Audit and measure an archive. Raises `BadArchive` if its table cannot be read."""
    progress("reading the table", 0, STEPS)
    table = ArchiveTable.if_any(archive, as_of)
    batches = [] if table is None else table.batches()
    if table is None or not any(batch.facts for batch in batches):
        return Measurements(position=str(archive), top=top, daemon=daemon)
    files = table.files
    covers = Coverage(files, batches)
    bins = counts.bins_for(covers.first_ms, covers.last_ms)
    minutes = counts.bins_for(covers.first_ms, covers.last_ms, 60)
    width = 3600 if covers.seconds >= DAY_SECONDS else 60
    with ExitStack() as stack:
        lines = stack.enter_context(scan_facts(driver, archive, files, batches).kept())
        progress("checking files", 1, STEPS)
        found = AuditFindings()
        compared = compare(table, files, scans_of(lines), found)
        broken = explain(driver, compared)
        progress("counting facts", 2, STEPS)
        facts = facts_of(lines)
        if compared.facts != covers.facts or any(span.is_uneven for span in compared.spans):
            # Duplicates affect only the counts of facts. To merge them costs as much again.
            facts = stack.enter_context(counted_once(facts, compared.facts).kept())
        counted = counts.count_facts(
            driver, facts, bins=bins, width=width, top=top, epoch_starts=covers.last.epoch_starts
        )
        cached = compared.readable(covers.first_serial, covers.last.last_serial)
        cached = cached.filter(pc.equal(cached["stream"], CACHES))
        if len(cached):
            counted["invalidations"] = invalidations(driver, archive, cached, minutes, top)
    return Measurements(
        position=str(archive),
        top=top,
        covers=covers,
        daemon=daemon,
        bins=bins,
        hours_width=width,
        batches=[batch for batch in batches if batch.facts and batch.archived_at_ms],
        lags=counts.writer_lags(counted.get("over_time", ()), bins, last_ms=covers.last_ms),
        broken=broken,
        problems=[one for one in found.listed() if one.severity == "error"],
        minutes=minutes,
        **counted,
    )
