"""The job `audit`: cheap checks of every file first, then expensive ones of suspicious files (or of all)."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.http_api.routes import DIGESTS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.row_files import map_files, read_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.archive_comparison import Comparison, compare
from synrepl.pipeline.audit.audit_findings import AuditFindings, AuditResult
from synrepl.pipeline.audit.explanation import explain
from synrepl.pipeline.audit.file_scan import SEEN, rank_files, scan_files
from synrepl.pipeline.driver import Driver, Work
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import Store
from synrepl.storage.provenance import NAMED, newest_by_writer, unproven
from synrepl.streams.facts import NO_ROWS, Fact

RETENTION_HOURS: Final = 168

AT_ONCE: Final = 500
"""Serials per request. The daemon accepts 1,000, but the URL must not get too long."""

HOW: Final = {"facts": "sum", "low": "min", "high": "max", "first": "min", "last": "max"}
COUNTED: Final = pa.schema(
    [("stream", pa.string()), ("writer", pa.string()), *((name, pa.int64()) for name in HOW)]
)
"""The facts of a writer: their number, and their lowest and highest tokens and serials."""

OWN: Final = pa.schema([ROWS.field(name) for name in ("serial", "epoch", "stream", "writer", "token", "row")])

DIGESTED: Final = pa.schema([ROWS.field("serial"), ROWS.field("digest")])


@retry_late_workers
def audit(
    runner: Runner,
    archive: Store,
    *,
    url: str | None = None,
    secret: str | None = None,
    ca_file: Path | None = None,
    insecure: bool = False,
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
    found, driver = AuditFindings(), driver_of(runner)
    with _phase("table", seconds):
        table = ArchiveTable(archive, as_of)
        files = table.files
        if names := table.unverified():
            why = (
                f"nothing has the checksums of {len(names)} files of the log of the table ({names[0]} first):"
                " a release up to 26.11.1 or another program wrote them, or a run was killed; the next commit"
                " has them"
            )
            found.add("unverified-log", why)
        if as_of is None:
            # Files that `vacuum` would remove, left by aborted runs and by merges.
            for path in sorted(table.vacuum(retention_hours=RETENTION_HOURS, dry_run=True)):
                why = f"no version of the table in the last week has {path}; vacuum removes it"
                found.add("unnamed-file", why, file=path)
    with _phase("files", seconds):
        progress("files", 0, len(files))
        scans = map_files(driver, rank_files(files), partial(scan_files, archive), SEEN)
        compared = compare(table, files, scans, found, deep=deep)
        progress("files", len(files), len(files))
    with _phase("rows", seconds):
        explain(driver, compared, progress)
        compared.count_facts()
        _name_unproven(compared)
    if url is not None:
        with _phase("daemon", seconds):
            with closing(BlockingClient(url, secret=secret, ca_file=ca_file, insecure=insecure)) as client:
                _compare_with_daemon(driver, compared, client)
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


def _compare_with_daemon(driver: Driver, compared: Comparison, client: BlockingClient) -> None:
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
        _report_beyond(driver, head, compared)
    known = {serial: digest for serial, digest in compared.anchors.items() if serial <= head}
    if end.last_serial <= head:
        known.setdefault(end.last_serial, end.digest)
    elif (digest := _digests(driver, compared, head, head).get(head)) is not None:
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
    # The daemon has none of those before.
    floor = max((serial for serial in unknown if serial < upto), default=0)
    ours = _digests(driver, compared, max(after or 0, floor) + 1, upto)
    first, is_exact = _first(client, ours, after, upto)
    where = f"at serial {first}" if is_exact else f"at serial {first} or before"
    why = f"the daemon's facts begin to differ from the archived ones {where}"
    facts = _facts(driver, compared, first, first, _as_they_are, ROWS).slice(0, 1).to_pylist()
    stream, writer, token = (
        (facts[0][name] for name in ("stream", "writer", "token")) if facts else ("", "", None)
    )
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


def _name_unproven(compared: Comparison) -> None:
    """Name the newest facts of each writer that no primary may have written (`storage/provenance.py`)."""
    table = compared.table
    files = compared.readable(1, table.end.last_serial)
    paths = files.filter(pc.is_in(files["stream"], pa.array(NAMED)))["path"].to_pylist()
    starts = table.end.epoch_starts
    newest: list[Fact] = []
    for batch in read_files(table.store, paths, OWN, is_examined=True):
        facts = [
            Fact(serial, epoch, stream, writer, 0, token, NO_ROWS if row is None else b"[0]", 0, "")
            for serial, epoch, stream, writer, token, row in zip(
                *(batch[name].to_pylist() for name in OWN.names), strict=True
            )
        ]
        newest = newest_by_writer([*newest, *facts], starts)
    for one in unproven(newest, starts):
        why = (
            f"{one.stream} is the daemon's own: one of several writers under one primary, or without rows,"
            " this fact may be forged; a release up to 26.11.0 stored what anybody published"
        )
        tokens, serials = (one.token,), (one.serial,)
        compared.report("unproven-fact", why, one.stream, one.writer, tokens, serials)


def _report_beyond(driver: Driver, head: int, compared: Comparison) -> None:
    end = compared.table.end.last_serial
    counts = _facts(driver, compared, head + 1, end, _count, COUNTED).group_by(["stream", "writer"])
    lacking = counts.aggregate([(name, how) for name, how in HOW.items()]).to_pylist()
    for one in sorted(lacking, key=lambda one: (one["stream"], one["writer"])):
        count, low, high, first, last = (one[f"{name}_{how}"] for name, how in HOW.items())
        why = f"the daemon lacks {count} facts of {one['writer']}: its log ends at serial {head}"
        compared.found.add("missing-in-daemon", why, one["stream"], one["writer"], (low, high), (first, last))
    if not lacking:
        why = f"the daemon lacks serials {head + 1} to {end}: its log ends at serial {head}"
        compared.found.add("missing-in-daemon", why, serials=(head + 1, end))


def _count(batches: Iterable[Any]) -> Iterator[Any]:
    """Count the facts of each batch, by stream and writer (`COUNTED`)."""
    for batch in batches:
        columns = {"stream": batch["stream"], "writer": batch["writer"], "facts": batch["seq"]}
        columns |= dict.fromkeys(("low", "high"), batch["token"])
        columns |= dict.fromkeys(("first", "last"), batch["serial"])
        how = [("facts", "count"), *((name, how) for name, how in HOW.items() if name != "facts")]
        found = pa.table(columns).group_by(["stream", "writer"]).aggregate(how)
        yield from found.rename_columns(COUNTED.names).cast(COUNTED).to_batches()


def _digests(driver: Driver, compared: Comparison, first: int, last: int) -> Mapping[int, str]:
    facts = _facts(driver, compared, first, last, _select_digests, DIGESTED)
    return dict(zip(*(facts[name].to_pylist() for name in DIGESTED.names), strict=True))


def _select_digests(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.select(DIGESTED.names)


def _as_they_are(batches: Iterable[Any]) -> Iterator[Any]:
    return iter(batches)


def _facts(driver: Driver, compared: Comparison, first: int, last: int, work: Work, schema: Any) -> Any:
    """Return the results of `work` for the first rows of the facts with these serials, of readable files."""
    files = compared.readable(first, last)
    return compared.map(driver, files, partial(_filter, first, last, work), schema).collect()


def _filter(first: int, last: int, work: Work, batches: Iterable[Any]) -> Iterator[Any]:
    def is_its(batch: Any) -> Any:
        is_within = pc.and_(pc.greater_equal(batch["serial"], first), pc.less_equal(batch["serial"], last))
        return pc.and_(is_within, pc.equal(batch["seq"], 0))

    return work(batch.filter(is_its(batch)) for batch in batches)
