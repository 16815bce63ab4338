"""The job `audit`: cheap checks of every file first, then expensive ones of suspicious files (or of all)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.http_api.routes import DIGESTS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.files import map_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.comparison import Comparison, compare
from synrepl.pipeline.audit.explanation import explain
from synrepl.pipeline.audit.file_scan import SEEN, rank_files, scan_files
from synrepl.pipeline.audit.findings import AuditFindings, AuditResult
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.store import Store

RETENTION_HOURS: Final = 168

AT_ONCE: Final = 500
"""Serials per request. The daemon accepts 1,000, but the URL must not get too long."""


@retry_late_workers
def audit(
    spark: SparkSession,
    archive: Store,
    *,
    url: str | None = None,
    secret: str | None = None,
    ca_file: Path | None = None,
    deep: bool = False,
    as_of: str | None = None,
    progress: Progress = ignore_progress,
) -> AuditResult:
    """Check that an archive is complete and intact; with `url`, that the daemon has the same facts.

    Checksums of all files are compared, rows are counted, and each fact must continue the previous one of its
    writer. Where a check fails, and with `deep` everywhere, the digest of each fact is computed again, if the
    previous fact exists. `as_of` is a version of the archive, or a time. A problem of a file is a finding,
    not an error. Raises `BadArchive` if the table does not exist or cannot be read, and `NotADaemon`,
    `ConnectError` or `HttpError` for the daemon.
    """
    seconds: dict[str, float] = {}
    found = AuditFindings()
    with _phase("table", seconds):
        table = ArchiveTable(archive, as_of)
        files = table.files
        if as_of is None:
            # Files that `vacuum` would remove, left by aborted runs and by merges.
            for path in sorted(table.vacuum(retention_hours=RETENTION_HOURS, dry_run=True)):
                why = f"no version of the table in the last week has {path}; vacuum removes it"
                found.add("unnamed-file", why, file=path)
    with _phase("files", seconds):
        progress("files", 0, len(files))
        scans = map_files(spark, rank_files(files), partial(scan_files, archive), SEEN)
        compared = compare(table, files, scans, found, deep=deep)
        progress("files", len(files), len(files))
    with _phase("rows", seconds):
        explain(spark, compared, progress)
    if url is not None:
        with _phase("daemon", seconds):
            with closing(BlockingClient(url, secret=secret, ca_file=ca_file)) as client:
                _compare_with_daemon(spark, compared, client)
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


@contextmanager
def _phase(name: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - began, 3)


def _compare_with_daemon(spark: SparkSession, compared: Comparison, client: BlockingClient) -> None:
    """Compare digests at the ends of files and of the archive; if one differs, find the first difference.

    A digest covers all facts before it, so all digests after a difference differ. Only the readable files of
    `compared` are read. Raises `ConnectError` and `HttpError`.
    """
    end, found = compared.table.end, compared.found
    response = client.json(DIGESTS.request(serials=[end.last_serial]))
    if end.history and response["history"] != end.history:
        why = f"the daemon's log is another one: its history is {response['history']}, not {end.history}"
        found.add("other-history", why)
        return
    head = int(response["serial"])
    if head < end.last_serial:
        _report_beyond(spark, head, compared)
    known = {serial: digest for serial, digest in compared.anchors.items() if serial <= head}
    if end.last_serial <= head:
        known.setdefault(end.last_serial, end.digest)
    elif (digest := _digests(spark, compared, head, head).get(head)) is not None:
        known[head] = digest
    theirs = _get_digests(client, sorted(known))
    unknown = [serial for serial, digest in theirs.items() if digest is None]
    if unknown:
        why = f"digests up to serial {max(unknown)} are not compared: the daemon has trimmed them"
        found.add("daemon-trimmed", why, serials=(1, max(unknown)))
    differing = [serial for serial in known if theirs[serial] not in (None, known[serial])]
    if not differing:
        return
    upto = min(differing)
    after = max((serial for serial in known if serial < upto and theirs[serial] is not None), default=None)
    first, is_exact = _first(client, _digests(spark, compared, (after or 0) + 1, upto), after, upto)
    where = f"at serial {first}" if is_exact else f"at serial {first} or before"
    why = f"the daemon's facts begin to differ from the archived ones {where}"
    fact = _rows(spark, compared, first, first).first()
    stream, writer, token = (fact["stream"], fact["writer"], fact["token"]) if fact else ("", "", None)
    tokens, serials = () if token is None else (token,), (first, min(head, end.last_serial))
    compared.report("differs-from-daemon", why, stream, writer, tokens, serials)


def _get_digests(client: BlockingClient, serials: Sequence[int]) -> dict[int, str | None]:
    theirs: dict[int, str | None] = {}
    for first in range(0, len(serials), AT_ONCE):
        request = DIGESTS.request(serials=serials[first : first + AT_ONCE])
        digests = client.json(request)["digests"]
        theirs.update((int(serial), digest) for serial, digest in digests.items())
    return theirs


def _first(client: BlockingClient, ours: Mapping[int, str], after: int | None, upto: int) -> tuple[int, bool]:
    """Return the first differing serial in ``(after, upto]``, and whether it is certain.

    A search in steps of 500 parts, with a tenth of the requests of a binary search.
    """
    left = sorted(serial for serial in ours if (after is None or after < serial) and serial < upto)
    last_equal = after
    while left:
        step = max(1, -(-len(left) // AT_ONCE))
        probes = left[step - 1 :: step]
        theirs = _get_digests(client, probes)
        last_equal = max((one for one in probes if theirs[one] == ours[one]), default=last_equal)
        upto = min((one for one in probes if theirs[one] not in (None, ours[one])), default=upto)
        floor = max((one for one in probes if theirs[one] in (None, ours[one])), default=0)
        left = [serial for serial in left if floor < serial < upto]
    return upto, last_equal is not None and (last_equal == upto - 1 or upto - 1 not in ours)


def _report_beyond(spark: SparkSession, head: int, compared: Comparison) -> None:
    end = compared.table.end.last_serial
    facts = _rows(spark, compared, head + 1, end).groupBy("stream", "writer")
    sums = (F.count("*"), F.min("token"), F.max("token"), F.min("serial"), F.max("serial"))
    lacking = sorted(facts.agg(*sums).collect())
    for stream, writer, count, low, high, first, last in lacking:
        why = f"the daemon lacks {count} facts of {writer}: its log ends at serial {head}"
        compared.found.add("missing-in-daemon", why, stream, writer, (low, high), (first, last))
    if not lacking:
        why = f"the daemon lacks serials {head + 1} to {end}: its log ends at serial {head}"
        compared.found.add("missing-in-daemon", why, serials=(head + 1, end))


def _digests(spark: SparkSession, compared: Comparison, first: int, last: int) -> Mapping[int, str]:
    rows = _rows(spark, compared, first, last).select("serial", "digest").toLocalIterator()
    return {row["serial"]: row["digest"] for row in rows}


def _rows(spark: SparkSession, compared: Comparison, first: int, last: int) -> DataFrame:
    """Return the first rows of the facts with these serials, from readable files."""
    rows = compared.read(spark, compared.readable(first, last))
    return rows.where(F.col("serial").between(first, last) & (F.col("seq") == 0))
