"""``synrepl pipeline``: its commands, with their options and results as text.

The jobs are imported by the commands that run them: Spark takes seconds to import.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, LazyGroup
from synrepl.cli.options import (
    DaemonTarget,
    Output,
    daemon_options,
    duration_option,
    read_secret,
    speed_option,
    stream_option,
)
from synrepl.cli.tables import table
from synrepl.html.humanize import counted, size
from synrepl.pipeline.commands.output_folder import output_folder
from synrepl.pipeline.commands.pipeline_job import json_option, pipeline_job, stop_on_signal
from synrepl.pipeline.tables.declarations import TABLES
from synrepl.wire.text import printable

# The jobs are imported by their commands, once it is known that the optional libraries are there.
if TYPE_CHECKING:
    from synrepl.pipeline.archive.table_commits import TableHistory
    from synrepl.pipeline.runner import Runner
    from synrepl.pipeline.store import Store


JOBS: Final = "synrepl.pipeline.commands.jobs"


@click.group(
    cls=LazyGroup,
    places={
        "archive": (f"{JOBS}:archive_command", "Archive the log of a daemon."),
        "optimize": (f"{JOBS}:optimize_command", "Merge small files of the archive."),
        "vacuum": (f"{JOBS}:vacuum_command", "Remove files that the archive no longer uses."),
        "history": (f"{JOBS}:history_command", "List the versions of the archive."),
        "compact": (f"{JOBS}:compact_command", "Compact the archive to a snapshot."),
        "tables": (f"{JOBS}:tables_command", "Update tables of devices, receipts, rooms, hot caches."),
        "audit": (f"{JOBS}:audit_command", "Check the archive, and compare it with a daemon."),
        "report": (f"{JOBS}:report_command", "Write a page: throughput, lag, hot caches, gaps."),
        "replay": (f"{JOBS}:replay_command", "Append the facts of the archive to a daemon."),
    },
    gone={"watch": "watch is gone: use the alert rules in contrib/prometheus, which howto/pipeline explains"},
)
def pipeline() -> None:
    """Archive, compact, audit, report on and replay the streams, on Spark.

    On one machine or, with --master, on a cluster. Where PySpark is not installed, and with --engine local,
    the jobs run in this process.
    """


ARCHIVE: Final = "A directory, or a URI that pyarrow can open (s3://, gs://, hdfs://)."

archive_option = click.option("--archive", required=True, metavar="DIR", help=ARCHIVE)

as_of_option = click.option(
    "--as-of",
    metavar="VERSION",
    help="Read the archive as it was: a version of the table, or a time such as 2026-01-31T00:00:00Z.",
)


def _with_secret(daemon: DaemonTarget | None) -> dict[str, Any]:
    if daemon is None:
        return {"url": None}
    found = {"secret": read_secret(daemon.secret_file), "ca_file": daemon.ca_file}
    return {"url": daemon.url, **found, "insecure": daemon.insecure}


def _with_files(daemon: DaemonTarget) -> dict[str, Any]:
    """Return the arguments that tell the tasks of a job which daemon they read or write, and how.

    The paths are absolute: tasks may have another working directory.
    """
    files = {"secret_file": daemon.secret_file, "ca_file": daemon.ca_file}
    return {"url": daemon.url, "insecure": daemon.insecure} | {
        name: None if path is None else str(path.absolute()) for name, path in files.items()
    }


def _archive_lines(done: Any) -> Iterator[str]:
    if done.batches:
        yield (
            f"archived {counted(done.facts, 'fact')} ({counted(done.rows, 'row')}, {size(done.bytes)})"
            f" in {counted(done.batches, 'batch', 'batches')}, {done.seconds:.1f} s"
        )
    else:
        yield "no new facts"
    if done.merged:
        yield f"merged {done.merged} small files"
    if done.serial:
        yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"
    else:
        yield "nothing was archived: there is no table yet"


@click.command("archive", cls=CliCommand)
@daemon_options(required=True)
@archive_option
@click.option("--follow", is_flag=True, help="Archive new facts until interrupted.")
@duration_option(
    "--every", "every_seconds", default="5s", help="With --follow: the time between two batches."
)
@click.option(
    "--batch-facts", type=click.IntRange(1), default=500_000, help="The maximum number of facts in a batch."
)
@pipeline_job(_archive_lines, writes="archive")
def archive_command(
    runner: "Runner", daemon: DaemonTarget, archive: "Store", follow: bool, **options: Any
) -> Any:
    """Archive the log of a daemon up to its current position, or with --follow until interrupted.

    The archive contains each fact exactly once, even if a process is killed at any time; run the command
    again to continue. The archive is a Delta table, which DuckDB, Polars, Spark and others read.
    """
    from synrepl.pipeline.archive.archive import archive as run

    if follow:
        options["stopped"] = stop_on_signal()
    return run(runner, store=archive, follow=follow, **_with_files(daemon), **options)


def _optimize_lines(done: Any) -> Iterator[str]:
    if done.merged:
        yield f"merged {done.merged:,} files into {done.made:,}, {size(done.bytes)}"
    else:
        yield "no small files to merge"


@click.command("optimize", cls=CliCommand)
@archive_option
@click.option("--target-mb", type=click.IntRange(1), default=128, help="The size of a merged file in MiB.")
@pipeline_job(_optimize_lines, writes="archive")
def optimize_command(runner: "Runner", archive: "Store", target_mb: int, **options: Any) -> Any:
    """Merge small files of the archive into files of about the target size.

    Many small files make an archive slow to read. The replaced files stay for older versions and their
    readers, until synrepl pipeline vacuum removes them.
    """
    from synrepl.pipeline.archive.optimize import optimize

    return optimize(runner, archive, target_bytes=target_mb << 20, **options)


@click.command("vacuum", cls=CliCommand)
@archive_option
@click.option(
    "--retain-hours",
    type=click.IntRange(0),
    default=168,
    help="Keep the files of all versions of this many hours, for readers and for jobs that still write.",
)
@click.option("--dry-run", is_flag=True, help="List the files only.")
@json_option
def vacuum_command(archive: str, retain_hours: int, dry_run: bool, output: Output) -> None:
    """Remove the files that merges have replaced, and those that aborted runs have left.

    Versions of the archive that are older than --retain-hours may then be unreadable.
    """
    from synrepl.pipeline.archive.table import ArchiveTable
    from synrepl.pipeline.store import Store

    with output_folder(archive):
        paths = ArchiveTable(Store(archive)).vacuum(retention_hours=retain_hours, dry_run=dry_run)
    outcome = f"{'would remove' if dry_run else 'removed'} {counted(len(paths), 'file')}"
    output.show({"files": paths, "removed": not dry_run}, [*paths, outcome])


@click.command("history", cls=CliCommand)
@archive_option
@click.option("--limit", type=click.IntRange(1), default=50, help="List so many versions, at most.")
@json_option
def history_command(archive: str, limit: int, output: Output) -> None:
    """List the versions of the archive for --as-of: when each was committed, and what it added.

    The newest is the first. Tables that pipeline tables has made, and other Delta tables, have versions too.
    """
    from synrepl.pipeline.archive.table_commits import read_history
    from synrepl.pipeline.store import Store

    found = read_history(Store(archive), limit)
    output.show(msgspec.to_builtins(found), _history_lines(found))


def _history_lines(found: "TableHistory") -> Iterator[str]:
    head = (
        "version",
        "committed",
        "operation",
        "serials",
        "facts",
        "rows",
        "files added",
        "removed",
        "files",
    )
    rows = [
        (
            one.version,
            _instant(one.committed_at_ms),
            one.operation,
            "" if one.first_serial is None else f"{one.first_serial} to {one.last_serial}",
            "" if one.facts is None else one.facts,
            "unknown" if one.rows is None else one.rows,
            one.files_added,
            one.files_removed,
            one.files,
        )
        for one in found.versions
    ]
    yield from table(head, rows, limit=len(rows))
    if found.is_cut:
        yield "earlier commits were removed: their versions cannot be read"


def _instant(at_ms: int | None) -> str:
    """Return a time as --as-of takes it."""
    if at_ms is None:
        return "unknown"
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _compact_lines(done: Any) -> Iterator[str]:
    made = done.snapshot
    if not done.is_new:
        yield f"no new facts since serial {made.serial}"
        return
    yield (
        f"{made.keys:,} keys in {made.rows:,} rows of {made.facts:,} facts, from {done.read_rows:,} rows,"
        f" {done.seconds:.1f} s"
    )
    yield f"the snapshot is at serial {made.serial} of epoch {made.epoch}, digest {made.digest[:16]}"
    if done.unknown:
        names = ", ".join(map(printable, done.unknown))
        yield (
            f"left out: the rows of {names}, which this release of synrepl does not know and the archive does"
            " not declare; run it again with --full and a release that does"
        )


@click.command("compact", cls=CliCommand)
@archive_option
@as_of_option
@click.option("--snapshot", required=True, metavar="DIR", help="The directory or URI of the snapshot.")
@click.option(
    "--full", is_flag=True, help="Read the whole archive, not only the facts since the last snapshot."
)
@pipeline_job(_compact_lines, writes="snapshot")
def compact_command(runner: "Runner", archive: "Store", snapshot: str, **options: Any) -> Any:
    """Compact the archive to a snapshot with the last row of each key, which a daemon can start from.

    Without --full, a later run reads the previous snapshot and the facts archived since. Start a daemon with
    --snapshot DIR.
    """
    from synrepl.pipeline.snapshot.compact import compact
    from synrepl.pipeline.store import Store

    return compact(runner, archive, Store(snapshot), **options)


def _tables_lines(done: Any) -> Iterator[str]:
    for one in done.tables:
        news = f"version {one.version}, at serial {one.serial}" if one.is_new else "no new facts"
        yield f"{one.name}: {counted(one.rows, 'row')}; {news}"


@click.command("tables", cls=CliCommand)
@archive_option
@click.option("--out", required=True, metavar="DIR", help="The directory or URI of the tables.")
@click.option(
    "--only", multiple=True, type=click.Choice([*TABLES]), help="Update only this table. May be repeated."
)
@pipeline_job(_tables_lines, writes="out")
def tables_command(runner: "Runner", archive: "Store", **options: Any) -> Any:
    """Update tables of an archive: who changed devices, who read what, which rooms are busy, hot caches.

    Each is a Delta table in the directory of --out. A run adds the facts archived since the last run, each
    exactly once, even if a process is killed at any time. If they are very many, it computes a table anew.
    """
    from synrepl.pipeline.tables.tables import update_tables

    return update_tables(runner, archive, **options)


def _audit_lines(done: Any) -> Iterator[str]:
    for finding in done.findings:
        of = " ".join(filter(None, (finding.stream, finding.writer)))
        tokens = (
            "" if finding.first_token is None else f" tokens {finding.first_token} to {finding.last_token}"
        )
        yield f"{finding.what}: {of}{tokens}{': ' if of or tokens else ''}{finding.sentence}"
    if done.omitted:
        yield f"and {done.omitted} more findings"
    looked = (
        f"{counted(done.facts, 'fact')}, {counted(done.rows, 'row')}, {size(done.bytes)} in"
        f" {counted(done.files, 'file')} of version {done.version},"
        f" serials {done.first_serial} to {done.last_serial}"
    )
    yield f"{'clean' if done.is_clean else 'NOT CLEAN'}: {looked}; {sum(done.seconds.values()):.1f} s"


@click.command("audit", cls=CliCommand)
@archive_option
@as_of_option
@daemon_options(optional=True)
@click.option("--deep", is_flag=True, help="Compute every digest again, also of files without a finding.")
@pipeline_job(_audit_lines)
def audit_command(runner: "Runner", archive: "Store", daemon: DaemonTarget | None, **options: Any) -> Any:
    """Check that the archive is complete and, with --url, that the daemon has the same facts.

    Reports missing, duplicate and changed rows by stream, writer, tokens and file. Exit code 1: there are
    findings.
    """
    from synrepl.pipeline.audit.audit import audit

    return audit(runner, archive, **_with_secret(daemon), **options)


def _report_lines(done: Any) -> Iterator[str]:
    for finding in done.found:
        yield finding.text
    streams, writers = counted(done.streams, "stream"), counted(done.writers, "writer")
    yield f"{done.page}: {counted(done.facts, 'fact')} of {streams} by {writers}"


@click.command("report", cls=CliCommand)
@archive_option
@as_of_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for the page, its plots and its tables.",
)
@daemon_options(optional=True)
@click.option("--top", type=click.IntRange(1), default=20, help="Rows per ranking, at most.")
@pipeline_job(_report_lines, writes="out")
def report_command(
    runner: "Runner", archive: "Store", out: Path, daemon: DaemonTarget | None, **options: Any
) -> Any:
    """Write a page on the archive to the directory of --out: throughput, lag, hot caches and gaps.

    With --url the page includes the leases of the daemon.
    """
    from synrepl.pipeline.report.report import report

    return report(runner, archive, out, **_with_secret(daemon), **options)


def _replay_lines(done: Any) -> Iterator[str]:
    if done.declared:
        yield f"declared {', '.join(done.declared)}"
    for stream, facts in done.skipped.items():
        yield f"skipped {counted(facts, 'fact')} of {stream}: each daemon writes its own"
    for stream, rows in done.streams.items():
        yield f"{stream}: {rows:,} rows"
    yield f"replayed {done.facts:,} facts ({done.rows:,} rows) in {done.seconds:.1f} s"


@click.command("replay", cls=CliCommand)
@archive_option
@as_of_option
@daemon_options(required=True)
@stream_option("Replay")
@click.option("--after", type=click.IntRange(0), default=0, help="Replay facts after this serial.")
@click.option("--upto", type=click.IntRange(1), help="Replay facts up to this serial [default: the end]")
@speed_option("original")
@click.option(
    "--name",
    help="The name of the replay: a repeat under the same name within a day stores no fact twice"
    " [default: made from the archive and the options]",
)
@pipeline_job(_replay_lines)
def replay_command(runner: "Runner", archive: "Store", daemon: DaemonTarget, **options: Any) -> Any:
    """Append the facts of the archive to a daemon, as new facts.

    For tests, for a migration to another daemon, and to reproduce a day. Streams, writers, rows and their
    order stay the same; serials, tokens and times are new. Streams that the archive declares are declared
    first; the other facts of a daemon's own state (promises, atomic_appends) are skipped and counted.
    """
    from synrepl.pipeline.replay import replay

    streams = options.pop("streams") or None
    return replay(runner, archive, streams=streams, **_with_files(daemon), **options)
