"""What the jobs have in common on the command line: which Spark, how far it is, what went wrong."""

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

__all__ = ["archive_option", "maybe_url_option", "running", "say", "spark_options", "telling"]

Command = TypeVar("Command", bound=Callable[..., Any])

ARCHIVE: Final = "A folder, or an URI that Spark and pyarrow reach (s3://, gs://, hdfs://)."


def archive_option(command: Command) -> Command:
    """``--archive``"""
    return click.option("--archive", "position", required=True, metavar="DIR", help=ARCHIVE)(command)


maybe_url_option = click.option("--url", metavar="URL", help="The HTTP address of a daemon to be asked too.")


def spark_options(command: Command) -> Command:
    """What every job takes: which Spark it runs on."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The result as JSON."),
        click.option("--ui", is_flag=True, help="Serve Spark's own pages while the job runs, on loopback."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
        click.option("--memory", default="1g", show_default=True, help="Of the driver, and each executor."),
        click.option("--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002."),
        click.option("--master", metavar="URL", help="A cluster, such as spark://host:7077 [default: local]"),
    ):
        command = option(command)
    return command


@contextmanager
def running(
    job: str, *, master: str | None, remote: str | None, ui: bool, memory: str, conf: tuple[str, ...]
) -> Iterator["SparkSession"]:
    """A session for this job. Whatever Spark says of a failure becomes one line."""
    from synrepl.pipeline.failures import words
    from synrepl.pipeline.session import session

    said = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf is KEY=VALUE, not {one!r}")
        said[name] = value
    # An end like any other: what is under way is whole, or counts for nothing.
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield session(app=f"synrepl {job}", master=master, remote=remote, ui=ui, memory=memory, conf=said)
    except (ConfigError, click.ClickException):
        raise
    except ReplicationError as error:
        raise CliError(str(error)) from error
    except ConnectError as error:
        raise CliError(f"the daemon does not answer: {error}") from error
    except HttpError as error:
        raise CliError(f"the daemon refuses: {error.code}: {error.message}") from error
    except OSError as error:
        # Of the folder, the disk, or whatever is where an archive is kept.
        raise CliError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except KeyboardInterrupt:
        raise CliError("interrupted") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "grpc"):
            raise
        raise CliError(words(error)) from error
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def telling() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that a job does, on a terminal."""
    bars = _Bars()
    try:
        yield bars.tell
    finally:
        bars.close()


class _Bars:
    """One bar after the other."""

    def __init__(self) -> None:
        self._bar: Advance | None = None
        self._what = ""
        self._done = 0

    def tell(self, what: str, done: int, total: int) -> None:
        """How far it is."""
        if self._bar is None or what != self._what:
            self.close()
            self._bar, self._what, self._done = Advance(what, total or None), what, 0
            self._bar.__enter__()
        elif total:
            self._bar.expect(total)
        self._bar.step(done - self._done, done - self._done)
        self._done = done

    def close(self) -> None:
        """Nothing more is done."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def say(result: Any, *, as_json: bool, lines: Callable[[Any], Iterator[str]]) -> None:
    """The result of a job: as JSON, or as a few lines for people."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result, enc_hook=str)))
    else:
        for line in lines(result):
            click.echo(line)
