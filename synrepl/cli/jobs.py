"""``synrepl pipeline``: the Spark jobs, their options, session, progress and output.

The jobs are imported by the commands that run them: Spark takes seconds to import.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, LazyGroup, Option
from synrepl.cli.options import (
    DaemonTarget,
    Output,
    daemon_options,
    duration_option,
    output_option,
    read_secret,
    speed_option,
    stream_option,
)
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError, ReplicationError
from synrepl.html.humanize import counted
from synrepl.http_client import ConnectError, HttpError
from synrepl.pipeline.jobs import explain_failure
from synrepl.pipeline.session import session as start_session

# The jobs are imported by their commands, once `spark_session` has found the optional libraries.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pipeline"]


JOBS: Final = "synrepl.cli.jobs"


@click.group(
    cls=LazyGroup,
    places={
        "archive": (f"{JOBS}:archive_command", "Archive the log of a daemon."),
        "optimize": (f"{JOBS}:optimize_command", "Merge small files of the archive."),
        "vacuum": (f"{JOBS}:vacuum_command", "Remove files that the archive no longer uses."),
        "compact": (f"{JOBS}:compact_command", "Compact the archive to a snapshot."),
        "audit": (f"{JOBS}:audit_command", "Check the archive, and compare it with a daemon."),
        "report": (f"{JOBS}:report_command", "Write a page: throughput, lag, hot caches, gaps."),
        "replay": (f"{JOBS}:replay_command", "Append the facts of the archive to a daemon."),
        "watch": (f"{JOBS}:watch_command", "Write events as JSON lines until interrupted."),
    },
)
def pipeline() -> None:
    """Archive, compact, audit, report on, replay and watch the streams, on Spark."""


Command = TypeVar("Command", bound=Callable[..., Any])

SPARK: Final[dict[str, Any]] = {"cls": Option, "group": "Spark"}

ARCHIVE: Final = "A directory, or a URI that Spark and pyarrow can open (s3://, gs://, hdfs://)."


def archive_option(command: Command) -> Command:
    """Add the ``--archive`` option."""
    return click.option("--archive", "location", required=True, metavar="DIR", help=ARCHIVE)(command)


as_of_option = click.option(
    "--as-of",
    metavar="VERSION",
    help="Read the archive as it was: a version of the table, or a time such as 2026-01-31T00:00:00Z.",
)


def spark_options(command: Command) -> Command:
    """Add the options of every job: output and Spark."""
    for option in (
        click.option(
            "--ui", is_flag=True, help="Serve the Spark UI on loopback while the job runs.", **SPARK
        ),
        click.option(
            "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting. May be repeated.", **SPARK
        ),
        click.option(
            "--memory",
            default="1g",
            show_default=True,
            help="The memory of the driver and of each executor.",
            **SPARK,
        ),
        click.option(
            "--remote", metavar="URL", help="The Spark Connect server, such as sc://host:15002.", **SPARK
        ),
        click.option(
            "--master",
            metavar="URL",
            help="The Spark master, such as spark://host:7077 [default: local]",
            **SPARK,
        ),
    ):
        command = option(command)
    return output_option("Print the result as JSON.")(command)


@contextmanager
def spark_session(
    job: str,
    daemon: DaemonTarget | None = None,
    *,
    master: str | None,
    remote: str | None,
    ui: bool,
    memory: str,
    conf: tuple[str, ...],
) -> Iterator["SparkSession"]:
    """Provide a Spark session for a job. A failure of Spark becomes a one-line `CliError`.

    A daemon that does not respond is reported before Spark starts.
    """
    settings = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf must be KEY=VALUE, not {one!r}")
        settings[name] = value
    if daemon is not None:
        daemon.ask_status()
    # SIGTERM ends the job as SIGINT does: work in progress is committed in whole or not at all.
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield start_session(
            app=f"synrepl {job}", master=master, remote=remote, ui=ui, memory=memory, conf=settings
        )
    except (ConfigError, click.ClickException):
        raise
    except ReplicationError as error:
        raise CliError(str(error)) from error
    except ConnectError as error:
        raise CliError(f"the daemon does not respond: {error}") from error
    except HttpError as error:
        raise CliError(f"the daemon refuses the request: {error.code}: {error.message}") from error
    except OSError as error:
        # An error of the file system of the archive.
        raise CliError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except KeyboardInterrupt:
        raise CliError("interrupted") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "grpc"):
            raise
        raise CliError(explain_failure(error)) from error
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _url_and_secret(daemon: DaemonTarget | None) -> dict[str, str | None]:
    """Return the arguments `url` and `secret` of a job that may read a daemon too."""
    if daemon is None:
        return {"url": None, "secret": None}
    return {"url": daemon.url, "secret": read_secret(daemon.secret_file)}


def _path(secret_file: Path | None) -> str | None:
    """Return the path for tasks, which may have another working directory."""
    return None if secret_file is None else str(secret_file.absolute())


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a callback that shows the progress of a job: step, done, total. Each step has its own bar."""
    advance = Advance("", None)

    def show(what: str, done: int, total: int) -> None:
        nonlocal advance
        if what != advance.what:
            advance = Advance(what, None)
        advance.expect(total)
        advance.step(done - advance.done, done - advance.done)

    try:
        yield show
    finally:
        advance.close()


def print_result(
    result: Any, output: Output, lines: Callable[[Any], Iterator[str]], **fields: object
) -> None:
    """Print the result of a job as JSON, with these further fields, or as text lines."""
    output.show(msgspec.to_builtins(result, enc_hook=str) | fields, lines(result))


@click.command("archive", cls=CliCommand)
@daemon_options(required=True)
@archive_option
@click.option("--follow", is_flag=True, help="Archive new facts until interrupted.")
@duration_option("--every", default="5s", help="With --follow: the time between two batches.")
@click.option(
    "--batch-facts",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="The maximum number of facts in a batch.",
)
@spark_options
def archive_command(
    daemon: DaemonTarget,
    location: str,
    follow: bool,
    every: float,
    batch_facts: int,
    output: Output,
    **spark: Any,
) -> None:
    """Archive the log of a daemon up to its current position.

    The archive contains each fact exactly once, even if a process is killed at any time; run the command
    again to continue. The archive is a Delta table, which DuckDB, Polars, Spark and others read.
    """
    stop: list[bool] = []
    with spark_session("archive", daemon, **spark) as session, show_progress() as progress:
        from synrepl.pipeline.archive.archive import archive
        from synrepl.pipeline.store import Store

        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.append(True))
        done = archive(
            session,
            daemon.url,
            Store(location),
            secret_file=_path(daemon.secret_file),
            follow=follow,
            every_seconds=every,
            batch_facts=batch_facts,
            progress=progress,
            stopped=lambda: bool(stop),
        )
    print_result(done, output, _archive_lines)


def _archive_lines(done: Any) -> Iterator[str]:
    if done.batches:
        yield (
            f"archived {done.facts:,} facts ({done.rows:,} rows, {done.bytes / 1e6:,.1f} MB)"
            f" in {counted(done.batches, 'batch', 'batches')}, {done.seconds:.1f} s"
        )
    else:
        yield "no new facts"
    if done.merged:
        yield f"merged {done.merged} small files"
    yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"


@click.command("optimize", cls=CliCommand)
@archive_option
@click.option(
    "--target-mb",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="The size of a merged file in MiB.",
)
@spark_options
def optimize_command(location: str, target_mb: int, output: Output, **spark: Any) -> None:
    """Merge small files of the archive into files of about the target size.

    Many small files make an archive slow to read. The replaced files stay for older versions and their
    readers, until synrepl pipeline vacuum removes them.
    """
    with spark_session("optimize", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.archive.optimize import optimize
        from synrepl.pipeline.store import Store

        done = optimize(session, Store(location), target_bytes=target_mb << 20, progress=progress)
    print_result(done, output, _optimize_lines)


def _optimize_lines(done: Any) -> Iterator[str]:
    if done.merged:
        yield f"merged {done.merged:,} files into {done.made:,}, {done.bytes / 1e6:,.1f} MB"
    else:
        yield "no small files"


@click.command("vacuum", cls=CliCommand)
@archive_option
@click.option(
    "--retain-hours",
    type=click.IntRange(0),
    default=168,
    show_default=True,
    help="Keep the files that a version of the last hours has, for readers and for jobs that still write.",
)
@click.option("--dry-run", is_flag=True, help="List the files only.")
@output_option("Print the result as JSON.")
def vacuum_command(location: str, retain_hours: int, dry_run: bool, output: Output) -> None:
    """Remove the files that merges have replaced, and those that aborted runs have left.

    Versions of the archive before that cannot be read any more.
    """
    from synrepl.pipeline.archive.table import ArchiveTable
    from synrepl.pipeline.store import Store

    paths = ArchiveTable(Store(location)).vacuum(retention_hours=retain_hours, dry_run=dry_run)
    outcome = f"{'would remove' if dry_run else 'removed'} {counted(len(paths), 'file')}"
    output.show({"files": paths, "removed": not dry_run}, [*paths, outcome])


@click.command("compact", cls=CliCommand)
@archive_option
@as_of_option
@click.option(
    "--snapshot", "into", required=True, metavar="DIR", help="The directory or URI of the snapshot."
)
@click.option(
    "--full", is_flag=True, help="Read the whole archive, not only the facts since the last snapshot."
)
@spark_options
def compact_command(
    location: str, as_of: str | None, into: str, full: bool, output: Output, **spark: Any
) -> None:
    """Compact the archive to a snapshot with the last row of each key, which a daemon can start from.

    A later run reads the previous snapshot and the facts archived since. Start a daemon with --snapshot DIR.
    """
    with spark_session("compact", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.snapshot.compact import compact
        from synrepl.pipeline.store import Store

        done = compact(session, Store(location), Store(into), full=full, as_of=as_of, progress=progress)
    print_result(done, output, _compact_lines)


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


@click.command("audit", cls=CliCommand)
@archive_option
@as_of_option
@daemon_options(optional=True)
@click.option("--deep", is_flag=True, help="Compute every digest again, also of files without a finding.")
@spark_options
def audit_command(
    location: str,
    as_of: str | None,
    daemon: DaemonTarget | None,
    deep: bool,
    output: Output,
    **spark: Any,
) -> None:
    """Check that the archive is complete and, with --url, that the daemon has the same facts.

    Reports missing, duplicate and changed rows by stream, writer, tokens and file. Exit code 1: there are
    findings.
    """
    with spark_session("audit", daemon, **spark) as session, show_progress() as progress:
        from synrepl.pipeline.audit.audit import audit
        from synrepl.pipeline.store import Store

        done = audit(
            session,
            Store(location),
            **_url_and_secret(daemon),
            deep=deep,
            as_of=as_of,
            progress=progress,
        )
    print_result(done, output, _audit_lines, is_clean=done.is_clean)
    if not done.is_clean:
        sys.exit(1)


def _audit_lines(done: Any) -> Iterator[str]:
    for finding in done.findings:
        of = " ".join(filter(None, (finding.stream, finding.writer)))
        tokens = (
            "" if finding.first_token is None else f" tokens {finding.first_token} to {finding.last_token}"
        )
        yield f"{finding.what}: {of}{tokens}{': ' if of or tokens else ''}{finding.sentence}"
    if done.omitted:
        yield f"and {done.omitted} more"
    looked = (
        f"{done.facts:,} facts, {done.rows:,} rows, {done.bytes / 1e6:,.1f} MB in"
        f" {counted(done.files, 'file')} of version {done.version},"
        f" serials {done.first_serial} to {done.last_serial}"
    )
    yield f"{'clean' if done.is_clean else 'NOT CLEAN'}: {looked}; {sum(done.seconds.values()):.1f} s"


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
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="The length of rankings.")
@spark_options
def report_command(
    location: str,
    as_of: str | None,
    out: Path,
    daemon: DaemonTarget | None,
    top: int,
    output: Output,
    **spark: Any,
) -> None:
    """Write a page on the archive to OUT: throughput, lag, hot caches and gaps.

    With --url the page includes the leases of the daemon.
    """
    with spark_session("report", daemon, **spark) as session, show_progress() as progress:
        from synrepl.pipeline.report.report import report
        from synrepl.pipeline.store import Store

        done = report(
            session,
            Store(location),
            out,
            **_url_and_secret(daemon),
            top=top,
            as_of=as_of,
            progress=progress,
        )
    print_result(done, output, _report_lines)


def _report_lines(done: Any) -> Iterator[str]:
    for finding in done.found:
        yield finding.text
    yield f"{done.page}: {done.facts:,} facts of {done.streams} streams by {done.writers} writers"


@click.command("replay", cls=CliCommand)
@archive_option
@as_of_option
@daemon_options(required=True)
@stream_option("Replay")
@click.option(
    "--after", type=click.IntRange(0), default=0, show_default=True, help="Replay facts after this serial."
)
@click.option("--upto", type=click.IntRange(1), help="Replay facts up to this serial [default: the end]")
@speed_option("original")
@click.option(
    "--name", help="The name of the replay: a repeat under the same name within a day stores no fact twice."
)
@spark_options
def replay_command(
    location: str,
    as_of: str | None,
    daemon: DaemonTarget,
    streams: tuple[str, ...],
    after: int,
    upto: int | None,
    speed: float,
    name: str | None,
    output: Output,
    **spark: Any,
) -> None:
    """Append the facts of the archive to a daemon, as new facts.

    For tests, for a migration to another daemon, and to reproduce a day. Streams, writers, rows and their
    order stay the same; serials, tokens and times are new.
    """
    with spark_session("replay", daemon, **spark) as session, show_progress() as progress:
        from synrepl.pipeline.replay import replay
        from synrepl.pipeline.store import Store

        done = replay(
            session,
            Store(location),
            daemon.url,
            streams=streams or None,
            after=after,
            upto=upto,
            speed=speed,
            name=name,
            secret_file=_path(daemon.secret_file),
            as_of=as_of,
            progress=progress,
        )
    print_result(done, output, _replay_lines)


def _replay_lines(done: Any) -> Iterator[str]:
    for stream, rows in done.streams.items():
        yield f"{stream}: {rows:,} rows"
    yield f"replayed {done.facts:,} facts ({done.rows:,} rows) in {done.seconds:.1f} s"


@click.command("watch", cls=CliCommand)
@daemon_options(required=True)
@stream_option("Watch")
@duration_option(
    "--stall-seconds",
    default="60s",
    help="A writer has stalled if it is silent for this long and for ten times its usual interval.",
)
@duration_option("--every", default="5s", help="The time between two batches.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="The length of rankings.")
@click.option(
    "--from",
    "since",
    default="latest",
    show_default=True,
    help="The start position: latest, earliest, or a serial.",
)
@click.option(
    "--checkpoint", metavar="DIR", help="The checkpoint directory, from which the next run continues."
)
@spark_options
def watch_command(
    daemon: DaemonTarget,
    streams: tuple[str, ...],
    stall_seconds: float,
    every: float,
    top: int,
    since: str,
    checkpoint: str | None,
    output: Output,
    **spark: Any,
) -> None:
    """Write events as JSON lines until interrupted: gaps, stalled writers, hot caches of each minute.

    Types of lines: epoch, restart, gap, repaired, again, active, stall, hot. With --json the last line is the
    summary.
    """
    stop: list[bool] = []
    with spark_session("watch", daemon, **spark) as session:
        from synrepl.pipeline.watch.watch import watch

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.append(True))
        done = watch(
            session,
            daemon.url,
            secret_file=_path(daemon.secret_file),
            streams=streams or None,
            stall_seconds=stall_seconds,
            every_seconds=every,
            top=top,
            since=since,
            checkpoint=checkpoint,
            write=lambda line: click.echo(line, nl=False),
            stopped=lambda: bool(stop),
        )
    print_result(done, output, lambda done: iter(()))
