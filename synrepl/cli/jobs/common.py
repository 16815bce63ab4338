"""Options, Spark session, progress and output that the job commands share."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from synrepl.cli.errors import CliError
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError, ReplicationError
from synrepl.http_client import ConnectError, HttpError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "archive_option",
    "maybe_url_option",
    "print_result",
    "show_progress",
    "spark_options",
    "spark_session",
]

Command = TypeVar("Command", bound=Callable[..., Any])

ARCHIVE: Final = "A directory, or a URI that Spark and pyarrow can open (s3://, gs://, hdfs://)."


def archive_option(command: Command) -> Command:
    """Add the ``--archive`` option."""
    return click.option("--archive", "location", required=True, metavar="DIR", help=ARCHIVE)(command)


maybe_url_option = click.option("--url", metavar="URL", help="The HTTP address of a daemon to read too.")


def spark_options(command: Command) -> Command:
    """Add the options of every job: output and Spark."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--ui", is_flag=True, help="Serve the Spark UI on loopback while the job runs."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting. May be repeated."),
        click.option(
            "--memory", default="1g", show_default=True, help="The memory of the driver and of each executor."
        ),
        click.option("--remote", metavar="URL", help="The Spark Connect server, such as sc://host:15002."),
        click.option(
            "--master", metavar="URL", help="The Spark master, such as spark://host:7077 [default: local]"
        ),
    ):
        command = option(command)
    return command


@contextmanager
def spark_session(
    job: str, *, master: str | None, remote: str | None, ui: bool, memory: str, conf: tuple[str, ...]
) -> Iterator["SparkSession"]:
    """Provide a Spark session for a job. A failure of Spark becomes a one-line `CliError`."""
    from synrepl.pipeline.jobs import explain_failure
    from synrepl.pipeline.session import session

    settings = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf must be KEY=VALUE, not {one!r}")
        settings[name] = value
    # SIGTERM ends the job as SIGINT does: work in progress is committed in whole or not at all.
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield session(app=f"synrepl {job}", master=master, remote=remote, ui=ui, memory=memory, conf=settings)
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


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a callback that shows the progress of a job in bars, on a terminal."""
    bars = _Bars()
    try:
        yield bars.show
    finally:
        bars.close()


class _Bars:
    """The progress bars of a job, one at a time."""

    def __init__(self) -> None:
        self._bar: Advance | None = None
        self._what = ""
        self._done = 0

    def show(self, what: str, done: int, total: int) -> None:
        """Show the progress of one step of the job."""
        if self._bar is None or what != self._what:
            self.close()
            self._bar, self._what, self._done = Advance(what, total or None), what, 0
            self._bar.__enter__()
        elif total:
            self._bar.expect(total)
        self._bar.step(done - self._done, done - self._done)
        self._done = done

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def print_result(result: Any, *, as_json: bool, lines: Callable[[Any], Iterator[str]]) -> None:
    """Print the result of a job as JSON or as text lines."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result, enc_hook=str)))
    else:
        for line in lines(result):
            click.echo(line)
