"""``synrepl pipeline``: the jobs, their options, what they run on, progress and output.

The jobs are imported by the commands that run them: Spark takes seconds to import.
"""

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
    with_options,
)
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError
from synrepl.html.humanize import counted, size
from synrepl.http_client import ConnectError, HttpError
from synrepl.pipeline.jobs import explain_failure
from synrepl.pipeline.session import session as start_session
from synrepl.pipeline.tables.declarations import TABLES

# The jobs are imported by their commands, once it is known that the optional libraries are there.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from synrepl.pipeline.local import LocalDriver
    from synrepl.pipeline.runner import Runner
    from synrepl.pipeline.store import Store


JOBS: Final = "synrepl.cli.jobs"


@click.group(
    cls=LazyGroup,
    places={
        "archive": (f"{JOBS}:archive_command", "Archive the log of a daemon."),
        "optimize": (f"{JOBS}:optimize_command", "Merge small files of the archive."),
        "vacuum": (f"{JOBS}:vacuum_command", "Remove files that the archive no longer uses."),
        "compact": (f"{JOBS}:compact_command", "Compact the archive to a snapshot."),
        "tables": (f"{JOBS}:tables_command", "Update tables of devices, receipts, rooms, hot caches."),
        "audit": (f"{JOBS}:audit_command", "Check the archive, and compare it with a daemon."),
        "report": (f"{JOBS}:report_command", "Write a page: throughput, lag, hot caches, gaps."),
        "replay": (f"{JOBS}:replay_command", "Append the facts of the archive to a daemon."),
        "watch": (f"{JOBS}:watch_command", "Write events as JSON lines until interrupted."),
    },
)
def pipeline() -> None:
    """Archive, compact, audit, report on, replay and watch the streams, on Spark or without it."""


Command = TypeVar("Command", bound=Callable[..., Any])

SPARK: Final[dict[str, dict[str, Any]]] = {
    "master": {"metavar": "URL", "help": "The Spark master, such as spark://host:7077 [default: local]"},
    "remote": {"metavar": "URL", "help": "The Spark Connect server, such as sc://host:15002."},
    "conf": {"multiple": True, "metavar": "KEY=VALUE", "help": "A Spark setting. May be repeated."},
    "ui": {"is_flag": True, "help": "Serve the Spark UI on loopback while the job runs."},
}
"""The options of every job on Spark."""

ENGINES: Final = ("local", "spark")

START_SHARE: Final = 0.5
"""A job of whose time the start of Spark takes a greater part than this says how to do without it."""

ENDING: Final = (signal.SIGINT, signal.SIGTERM)

GRACE_SECONDS: Final = 2.0
"""The time that a local job has to end by itself after a signal."""

INTERRUPTED: Final = "interrupted before the job ended"

engine_option = click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="Run on Spark, or in this process alone (local) [default: spark, where it is installed]",
)

memory_option = click.option(
    "--memory", default="1g", help="The memory of the job: on Spark, of the driver and of each executor."
)

ARCHIVE: Final = "A directory, or a URI that pyarrow can open (s3://, gs://, hdfs://)."

archive_option = click.option("--archive", required=True, metavar="DIR", help=ARCHIVE)

as_of_option = click.option(
    "--as-of",
    metavar="VERSION",
    help="Read the archive as it was: a version of the table, or a time such as 2026-01-31T00:00:00Z.",
)

json_option = output_option("Print the result as JSON.")


def ranking_option(default: int) -> Callable[[Command], Command]:
    """Return the ``--top`` option."""
    return click.option("--top", type=click.IntRange(1), default=default, help="Rows per ranking, at most.")


def pipeline_job(
    lines: Callable[[Any], Iterable[str]], *, only_spark: bool = False
) -> Callable[[Command], Command]:
    """Make a function the body of a command, with ``--engine``, the options of Spark and ``--json``.

    The function receives what the job runs on (a driver or, for jobs of `only_spark`, a session), the other
    options, `archive` (if there is one) as a `Store`, and `progress`. Its result is printed as JSON, or as
    text `lines`. If the result has an `is_clean` that is False, the command ends with exit code 1.
    """

    def decorate(job: Command) -> Command:
        def run(output: Output, engine: str | None, memory: str, archive: str = "", **options: Any) -> None:
            spark = {name: options.pop(name) for name in SPARK}
            engine = _choose_engine(engine, spark, only_spark=only_spark)
            spark["conf"] = _read_settings(spark["conf"])
            began = time.monotonic()
            with job_errors(options.get("daemon")), ExitStack() as stack:
                if engine == "spark":
                    runner: Any = _start_spark(memory, spark)
                else:
                    runner = _local_driver(memory)
                    stack.enter_context(_ending_soon(runner))
                    stack.enter_context(runner)
                started = time.monotonic()
                from synrepl.pipeline.store import Store

                if archive:
                    options["archive"] = Store(archive)
                with show_progress() as progress:
                    done = job(runner, progress=progress, **options)
            ended = time.monotonic()
            verdict = {"is_clean": done.is_clean} if hasattr(done, "is_clean") else {}
            output.show(msgspec.to_builtins(done, enc_hook=str) | verdict, lines(done))
            if engine == "spark" and not only_spark and started - began > START_SHARE * (ended - began):
                click.echo(
                    f"{started - began:.0f} of {ended - began:.0f} s were the start of Spark:"
                    " --engine local does without it",
                    err=True,
                )
            if not verdict.get("is_clean", True):
                sys.exit(1)

        spark = (click.option(f"--{name}", cls=Option, group="Spark", **SPARK[name]) for name in SPARK)
        return with_options(run, job, [json_option, engine_option, memory_option, *spark])

    return decorate


def _choose_engine(engine: str | None, spark: Mapping[str, Any], *, only_spark: bool) -> str:
    """Return the engine of a job. Raises `click.UsageError` if the options contradict each other."""
    given = [f"--{name}" for name, value in spark.items() if value]
    if engine == "local" and given:
        raise click.UsageError(f"{given[0]} is an option of --engine spark")
    if only_spark:
        if engine == "local":
            raise click.UsageError("this job runs on Spark only: leave out --engine, or say --engine spark")
        return "spark"
    if engine is None:
        engine = "spark" if given or importlib.util.find_spec("pyspark") is not None else "local"
    return engine


@contextmanager
def job_errors(daemon: DaemonTarget | None) -> Iterator[None]:
    """Run a job. Expected failures become a `CliError`.

    A daemon that does not respond is reported before the job starts.
    """
    if daemon is not None:
        daemon.ask_status()
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    # SIGTERM ends the job as SIGINT does: work in progress is committed in whole or not at all.
    before = [(number, signal.signal(number, interrupt)) for number in ENDING]
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(INTERRUPTED) from None
    except Exception as error:
        # Libraries make other errors of it.
        why = INTERRUPTED if received else _expected_failure(error)
        if not why:
            raise
        raise CliError(why) from error
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _expected_failure(error: Exception) -> str:
    """Return the message of a failure that is no fault of the program; empty for others."""
    if isinstance(error, ConnectError):
        return f"the daemon does not respond: {error}"
    if isinstance(error, HttpError):
        return f"the daemon refuses the request: {error.code}: {error.message}"
    if isinstance(error, OSError):
        # An error of the file system of the archive.
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    is_of_spark = type(error).__module__.split(".")[0] in ("pyspark", "py4j", "grpc")
    return explain_failure(error) if is_of_spark else ""


@contextmanager
def _ending_soon(driver: "LocalDriver") -> Iterator[None]:
    """After a signal, end the process within `GRACE_SECONDS`, whatever its tasks and libraries still do.

    They cannot be interrupted: a task may retry for a minute, and a statement of SQL may take as long. For
    what is stored this is a kill, which is whole or nothing. A job that has its own handlers ends by itself.
    """
    handlers = {int(number): signal.getsignal(number) for number in ENDING}
    has_ended = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        # Python writes the numbers of signals, even while the main thread is within a library.
        while byte := os.read(reader, 1):
            is_ours = byte[0] in handlers and signal.getsignal(byte[0]) is handlers[byte[0]]
            if is_ours and not has_ended.wait(GRACE_SECONDS):
                driver.remove_files()
                click.echo(f"Error: {INTERRUPTED}", err=True)
                os._exit(CliError.exit_code)

    thread = threading.Thread(target=watch, name="synrepl-signals", daemon=True)
    before = signal.set_wakeup_fd(writer)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        has_ended.set()
        os.close(writer)
        thread.join()
        os.close(reader)


def _read_settings(given: Iterable[str]) -> dict[str, str]:
    """Return the settings of ``--conf``. Raises `click.UsageError`."""
    settings = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf must be KEY=VALUE, not {one!r}")
        settings[name] = value
    return settings


def _start_spark(memory: str, options: Mapping[str, Any]) -> "SparkSession":
    app = f"synrepl {click.get_current_context().info_name}"
    return start_session(app=app, memory=memory, **options)


def _local_driver(memory: str) -> "LocalDriver":
    try:  # an extra
        from synrepl.pipeline.local import LocalDriver, memory_bytes
    except ImportError as error:
        raise ConfigError(
            f"the pipeline is not installed ({error}): run pip install 'synrepl[archive]'"
        ) from error
    return LocalDriver(memory=memory_bytes(memory))


def _with_secret(daemon: DaemonTarget | None) -> dict[str, Any]:
    if daemon is None:
        return {"url": None}
    return {"url": daemon.url, "secret": read_secret(daemon.secret_file), "ca_file": daemon.ca_file}


def _with_files(daemon: DaemonTarget) -> dict[str, Any]:
    """Return the arguments `url`, `secret_file` and `ca_file` of a job whose tasks read or write a daemon.

    The paths are absolute: tasks may have another working directory.
    """
    files = {"secret_file": daemon.secret_file, "ca_file": daemon.ca_file}
    return {"url": daemon.url} | {
        name: None if path is None else str(path.absolute()) for name, path in files.items()
    }


def _stop_on_signal() -> Callable[[], bool]:
    """Keep SIGINT and SIGTERM from ending the job. The returned function tells whether one has arrived."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    return lambda: bool(received)


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a callback that shows the progress of a job: step, done, total. Each step has its own bar."""
    advance = Advance("", None)

    def show(what: str, done: int, total: int) -> None:
        nonlocal advance
        if what != advance.what:
            advance = Advance(what, None)
        advance.reach(done, total)

    try:
        yield show
    finally:
        advance.close()


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
    yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"


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
@pipeline_job(_archive_lines)
def archive_command(
    runner: "Runner", daemon: DaemonTarget, archive: "Store", follow: bool, **options: Any
) -> Any:
    """Archive the log of a daemon up to its current position, or with --follow until interrupted.

    The archive contains each fact exactly once, even if a process is killed at any time; run the command
    again to continue. The archive is a Delta table, which DuckDB, Polars, Spark and others read.
    """
    from synrepl.pipeline.archive.archive import archive as run

    if follow:
        options["stopped"] = _stop_on_signal()
    return run(runner, store=archive, follow=follow, **_with_files(daemon), **options)


def _optimize_lines(done: Any) -> Iterator[str]:
    if done.merged:
        yield f"merged {done.merged:,} files into {done.made:,}, {size(done.bytes)}"
    else:
        yield "no small files to merge"


@click.command("optimize", cls=CliCommand)
@archive_option
@click.option("--target-mb", type=click.IntRange(1), default=128, help="The size of a merged file in MiB.")
@pipeline_job(_optimize_lines)
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

    paths = ArchiveTable(Store(archive)).vacuum(retention_hours=retain_hours, dry_run=dry_run)
    outcome = f"{'would remove' if dry_run else 'removed'} {counted(len(paths), 'file')}"
    output.show({"files": paths, "removed": not dry_run}, [*paths, outcome])


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


@click.command("compact", cls=CliCommand)
@archive_option
@as_of_option
@click.option("--snapshot", required=True, metavar="DIR", help="The directory or URI of the snapshot.")
@click.option(
    "--full", is_flag=True, help="Read the whole archive, not only the facts since the last snapshot."
)
@pipeline_job(_compact_lines)
def compact_command(runner: "Runner", archive: "Store", snapshot: str, **options: Any) -> Any:
    """Compact the archive to a snapshot with the last row of each key, which a daemon can start from.

    Without --full, a later run reads the previous snapshot and the facts archived since. Start a daemon with
    --snapshot DIR.
    """
    from synrepl.pipeline.snapshot.compact import compact
    from synrepl.pipeline.store import Store

    return compact(runner, archive, Store(snapshot), **options)


def _tables_lines(done: Any) -> Iterator[str]:
    for table in done.tables:
        news = f"version {table.version}, at serial {table.serial}" if table.is_new else "no new facts"
        yield f"{table.name}: {counted(table.rows, 'row')}; {news}"


@click.command("tables", cls=CliCommand)
@archive_option
@click.option("--out", required=True, metavar="DIR", help="The directory or URI of the tables.")
@click.option(
    "--only", multiple=True, type=click.Choice([*TABLES]), help="Update only this table. May be repeated."
)
@pipeline_job(_tables_lines)
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
@ranking_option(20)
@pipeline_job(_report_lines)
def report_command(
    runner: "Runner", archive: "Store", out: Path, daemon: DaemonTarget | None, **options: Any
) -> Any:
    """Write a page on the archive to the directory of --out: throughput, lag, hot caches and gaps.

    With --url the page includes the leases of the daemon.
    """
    from synrepl.pipeline.report.report import report

    return report(runner, archive, out, **_with_secret(daemon), **options)


def _replay_lines(done: Any) -> Iterator[str]:
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
    "--name", help="The name of the replay: a repeat under the same name within a day stores no fact twice."
)
@pipeline_job(_replay_lines)
def replay_command(runner: "Runner", archive: "Store", daemon: DaemonTarget, **options: Any) -> Any:
    """Append the facts of the archive to a daemon, as new facts.

    For tests, for a migration to another daemon, and to reproduce a day. Streams, writers, rows and their
    order stay the same; serials, tokens and times are new.
    """
    from synrepl.pipeline.replay import replay

    streams = options.pop("streams") or None
    return replay(runner, archive, streams=streams, **_with_files(daemon), **options)


@click.command("watch", cls=CliCommand)
@daemon_options(required=True)
@stream_option("Watch")
@duration_option(
    "--stall-seconds",
    "stall_seconds",
    default="60s",
    help="A writer has stalled if it is silent for this long and for ten times its usual interval.",
)
@duration_option("--every", "every_seconds", default="5s", help="The time between two batches.")
@ranking_option(10)
@click.option("--from", "since", default="latest", help="The start position: latest, earliest, or a serial.")
@click.option(
    "--checkpoint", metavar="DIR", help="The checkpoint directory, from which the next run continues."
)
@pipeline_job(lambda done: (), only_spark=True)
def watch_command(session: "SparkSession", daemon: DaemonTarget, **options: Any) -> Any:
    """Write events as JSON lines until interrupted: gaps, stalled writers, hot caches of each minute.

    Types of lines: epoch, restart, gap, repaired, again, active, stall, hot. With --json the last line is the
    summary.
    """
    from synrepl.pipeline.watch.watch import watch

    del options["progress"]  # the events show it
    return watch(
        session,
        streams=options.pop("streams") or None,
        write=lambda line: click.echo(line, nl=False),
        stopped=_stop_on_signal(),
        **_with_files(daemon),
        **options,
    )
