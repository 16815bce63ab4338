"""The body of each pipeline command: what its job runs on, how it is shown, and how it ends."""

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from synrepl.cli.command import CliError, Option
from synrepl.cli.options import Command, DaemonTarget, Output, output_option, with_options
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError
from synrepl.extras import install
from synrepl.http_api.request_errors import HttpError
from synrepl.http_client import ConnectError
from synrepl.pipeline.commands.output_folder import output_folder
from synrepl.pipeline.jobs import explain_failure
from synrepl.pipeline.session import session as start_session

# Optional libraries: which of them a job needs is known when it runs.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from synrepl.pipeline.local import LocalDriver

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
    help="Run on Spark, or without a JVM in this process (local)"
    " [default: spark; local where PySpark is not installed]",
)

memory_option = click.option(
    "--memory", default="1g", help="The memory of the job: on Spark, of the driver and of each executor."
)

json_option = output_option("Print the result as JSON.")


def pipeline_job(lines: Callable[[Any], Iterable[str]], *, writes: str = "") -> Callable[[Command], Command]:
    """Make a function the body of a command, with ``--engine``, the options of Spark and ``--json``.

    The function receives what the job runs on (a driver or a session), the other options, `archive` (if
    there is one) as a `Store`, and `progress`. `writes` is the option that names the folder to which it
    writes. Its result is printed as JSON, or as text `lines`. If the result has an `is_clean` that is False,
    the command ends with exit code 1.
    """

    def decorate(job: Command) -> Command:
        def run(output: Output, engine: str | None, memory: str, archive: str = "", **options: Any) -> None:
            spark = {name: options.pop(name) for name in SPARK}
            engine = _choose_engine(engine, spark)
            spark["conf"] = _read_settings(spark["conf"])
            began = time.monotonic()
            with job_errors(options.get("daemon")), ExitStack() as stack:
                if folder := {"archive": archive, **options}.get(writes):
                    stack.enter_context(output_folder(str(folder)))
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
            if engine == "spark" and started - began > START_SHARE * (ended - began):
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


def _choose_engine(engine: str | None, spark: Mapping[str, Any]) -> str:
    """Return the engine of a job. Raises `click.UsageError` if the options contradict each other."""
    given = [f"--{name}" for name, value in spark.items() if value]
    if engine == "local" and given:
        raise click.UsageError(f"{given[0]} is an option of --engine spark")
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
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        _end_tasks(driver)
        signal.set_wakeup_fd(before)
        has_ended.set()
        os.close(writer)
        thread.join()
        os.close(reader)


def _end_tasks(driver: "LocalDriver") -> None:
    """Wait for the tasks, however many signals arrive. `_ending_soon` ends the process if it takes long."""
    while True:
        with suppress(KeyboardInterrupt):
            driver.end_tasks()
            return


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
        from synrepl.pipeline.local import LocalDriver, memory_bytes, prepare_process
    except ImportError as error:
        raise ConfigError(f"the pipeline is not installed ({error}): run {install('archive')}") from error
    prepare_process()
    return LocalDriver(memory=memory_bytes(memory))


def stop_on_signal() -> Callable[[], bool]:
    """Keep SIGINT and SIGTERM from ending the job. The returned function tells whether one has arrived."""
    received: list[int] = []
    for number in ENDING:
        signal.signal(number, lambda number, _: received.append(number))
    return lambda: bool(received)


UNITS: Final = {
    "files": "files",
    "merging": "files",
    "reading": "rows",
    "rows": "rows",
    "updating tables": "tables",
    "writing": "keys",
    # Steps of a report.
    **dict.fromkeys(("reading the table", "checking files", "counting facts", "drawing", "done"), ""),
}
"""What a step of a job counts, if not facts."""


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a callback that shows the progress of a job: step, done, total. Each step has its own bar."""
    advance = Advance("", None)

    def show(what: str, done: int, total: int) -> None:
        nonlocal advance
        if what != advance.what:
            advance = Advance(what, None, unit=UNITS.get(what, "facts"))
        advance.reach(done, total)

    try:
        yield show
    finally:
        advance.close()
