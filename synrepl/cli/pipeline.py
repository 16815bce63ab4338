"""``synrepl pipeline``: the jobs that run on Spark."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from synrepl.asking import Refused, Unreachable
from synrepl.cli.progress import Advance
from synrepl.cli.trouble import EXIT_CODES, Trouble, read_secret, secret_option, url_option
from synrepl.errors import ConfigError, ReplicationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pipeline"]

Command = TypeVar("Command", bound=Callable[..., Any])

ARCHIVE: Final = "A folder, or an URI that Spark and pyarrow reach (s3://, gs://, hdfs://)."


@click.group(epilog=EXIT_CODES)
def pipeline() -> None:
    """Archive, compact, audit, report on and play back the streams, on Spark."""


def archive_option(command: Command) -> Command:
    """``--archive``"""
    return click.option("--archive", "place", required=True, metavar="DIR", help=ARCHIVE)(command)


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
        raise Trouble(str(error)) from error
    except Unreachable as error:
        raise Trouble(f"the daemon does not answer: {error}") from error
    except Refused as error:
        raise Trouble(f"the daemon refuses: {error.code}: {error.message}") from error
    except KeyboardInterrupt:
        raise Trouble("interrupted") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "grpc"):
            raise
        raise Trouble(words(error)) from error
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


@pipeline.command("archive", epilog=EXIT_CODES)
@url_option(required=True)
@archive_option
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="With --follow: seconds from one batch to the next.",
)
@click.option(
    "--batch-facts",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="In a batch, at most.",
)
@secret_option
@spark_options
def archive_command(
    url: str,
    place: str,
    follow: bool,
    every: float,
    batch_facts: int,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Bring the archive DIR up to what the daemon has.

    Each fact is in it once, whatever is killed at whatever time; run it again to go on. Who reads it takes
    the files that DIR/_manifests names.
    """
    stop: list[bool] = []
    with running("archive", **spark) as session, telling() as tell:
        from synrepl.pipeline.archive.archive import archive
        from synrepl.pipeline.store import Store

        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.append(True))
        done = archive(
            session,
            url,
            Store(place),
            secret_file=None if secret_file is None else str(secret_file.absolute()),
            follow=follow,
            every_seconds=every,
            batch_facts=batch_facts,
            tell=tell,
            stopped=lambda: bool(stop),
        )
    say(done, as_json=as_json, lines=_archived)


def _archived(done: Any) -> Iterator[str]:
    if done.batches:
        yield (
            f"archived {done.facts:,} facts ({done.rows:,} rows, {done.bytes / 1e6:,.1f} MB)"
            f" in {done.batches} batches, {done.seconds:.1f} s"
        )
    else:
        yield "nothing new"
    if done.merged:
        yield f"merged {done.merged} small batches"
    yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"


@pipeline.command("compact", epilog=EXIT_CODES)
@archive_option
@click.option(
    "--snapshot", "into", required=True, metavar="DIR", help="A folder, or an URI, for the snapshot."
)
@click.option("--full", is_flag=True, help="Read all of the archive, not only what came since.")
@spark_options
def compact_command(place: str, into: str, full: bool, as_json: bool, **spark: Any) -> None:
    """Fold the archive DIR to the last row of each key: the snapshot from which a daemon can begin.

    Run again, it reads the former snapshot and what was archived since. Start a daemon with --snapshot DIR.
    """
    with running("compact", **spark) as session, telling() as tell:
        from synrepl.pipeline.snapshot.compact import compact
        from synrepl.pipeline.store import Store

        done = compact(session, Store(place), Store(into), full=full, tell=tell)
    say(done, as_json=as_json, lines=_compacted)


def _compacted(done: Any) -> Iterator[str]:
    made = done.snapshot
    if not done.is_new:
        yield f"nothing new since serial {made.serial}"
        return
    yield (
        f"{made.keys:,} keys in {made.rows:,} rows of {made.facts:,} facts, from {done.read_rows:,} rows,"
        f" {done.seconds:.1f} s"
    )
    yield f"the snapshot stands for serial {made.serial} of epoch {made.epoch}, digest {made.digest[:16]}"


@pipeline.command("audit", epilog=EXIT_CODES)
@archive_option
@maybe_url_option
@click.option("--deep", is_flag=True, help="Compute every digest anew, also where nothing looks wrong.")
@secret_option
@spark_options
def audit_command(
    place: str,
    url: str | None,
    deep: bool,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Find out whether the archive DIR is whole, and with --url whether the daemon has the same.

    Tells missing, doubled and changed rows by stream, writer and tokens, and which file. The exit code is 1
    if anything is wrong.
    """
    with running("audit", **spark) as session, telling() as tell:
        from synrepl.pipeline.audit.audit import audit
        from synrepl.pipeline.store import Store

        done = audit(
            session,
            Store(place),
            url=url,
            secret=read_secret(secret_file),
            deep=deep,
            tell=tell,
        )
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done) | {"is_clean": done.is_clean}))
    else:
        for line in _audited(done):
            click.echo(line)
    if not done.is_clean:
        sys.exit(1)


def _audited(done: Any) -> Iterator[str]:
    for finding in done.findings:
        of = " ".join(filter(None, (finding.stream, finding.writer)))
        tokens = (
            "" if finding.first_token is None else f" tokens {finding.first_token} to {finding.last_token}"
        )
        yield f"{finding.what}: {of}{tokens}{': ' if of or tokens else ''}{finding.sentence}"
    if done.untold:
        yield f"and {done.untold} more"
    looked = (
        f"{done.facts:,} facts, {done.rows:,} rows, {done.bytes / 1e6:,.1f} MB in {done.files} files of"
        f" {done.batches} batches, serials {done.first_serial} to {done.last_serial}"
    )
    yield f"{'clean' if done.is_clean else 'NOT CLEAN'}: {looked}; {sum(done.seconds.values()):.1f} s"


@pipeline.command("report", epilog=EXIT_CODES)
@archive_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the page, its pictures and its tables go.",
)
@maybe_url_option
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="How many are named.")
@secret_option
@spark_options
def report_command(
    place: str,
    out: Path,
    url: str | None,
    top: int,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Draw what the archive DIR tells: throughput, lag, hot caches, gaps, on one page in OUT.

    With --url the daemon is asked for its leases too.
    """
    with running("report", **spark) as session, telling() as tell:
        from synrepl.pipeline.report.making import report
        from synrepl.pipeline.store import Store

        done = report(
            session,
            Store(place),
            out,
            url=url,
            secret=read_secret(secret_file),
            top=top,
            tell=tell,
        )
    say(done, as_json=as_json, lines=_reported)


def _reported(done: Any) -> Iterator[str]:
    for finding in done.found:
        yield finding.text
    yield f"{done.page}: {done.facts:,} facts of {done.streams} streams by {done.writers} writers"


@pipeline.command("replay", epilog=EXIT_CODES)
@archive_option
@url_option(required=True)
@click.option("--stream", "streams", multiple=True, metavar="STREAM", help="Only this one; repeatable.")
@click.option(
    "--after", type=click.IntRange(0), default=0, show_default=True, help="From behind this serial."
)
@click.option("--upto", type=click.IntRange(1), help="Up to this serial [default: the end]")
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How many times as fast as once they came; 0 is as fast as possible.",
)
@click.option("--name", help="Done again under this name within a day, nothing is stored twice.")
@secret_option
@spark_options
def replay_command(
    place: str,
    url: str,
    streams: tuple[str, ...],
    after: int,
    upto: int | None,
    speed: float,
    name: str | None,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Append what the archive DIR holds to a daemon, as new facts.

    For tests, for moving to another daemon, and to see a day once more. Streams, writers, rows and their
    order stay; serials, tokens and times are new.
    """
    with running("replay", **spark) as session, telling() as tell:
        from synrepl.pipeline.replay import replay
        from synrepl.pipeline.store import Store

        done = replay(
            session,
            Store(place),
            url,
            streams=streams or None,
            after=after,
            upto=upto,
            speed=speed,
            name=name,
            secret_file=None if secret_file is None else str(secret_file.absolute()),
            tell=tell,
        )
    say(done, as_json=as_json, lines=_replayed)


def _replayed(done: Any) -> Iterator[str]:
    for stream, rows in done.streams.items():
        yield f"{stream}: {rows:,} rows"
    yield f"replayed {done.facts:,} facts ({done.rows:,} rows) in {done.seconds:.1f} s"


@pipeline.command("watch", epilog=EXIT_CODES)
@url_option(required=True)
@click.option("--stream", "streams", multiple=True, metavar="STREAM", help="Only this one; repeatable.")
@click.option(
    "--stall-seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="A writer that is silent for so long, and for ten times as long as usual, has stalled.",
)
@click.option(
    "--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds to a look."
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="How many are named.")
@click.option("--from", "since", default="latest", show_default=True, help="latest, earliest, or a serial.")
@click.option("--checkpoint", metavar="DIR", help="What is known is kept there, for the next run.")
@secret_option
@spark_options
def watch_command(
    url: str,
    streams: tuple[str, ...],
    stall_seconds: float,
    every: float,
    top: int,
    since: str,
    checkpoint: str | None,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Write lines of JSON as things happen: gaps, writers that fall silent, hot caches of each minute.

    Until interrupted. Types of lines: turn, restart, gap, repaired, again, active, stall, hot. With --json
    the last line is what was told in all.
    """
    stop: list[bool] = []
    with running("watch", **spark) as session:
        from synrepl.pipeline.watch.watch import watch

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.append(True))
        done = watch(
            session,
            url,
            secret_file=None if secret_file is None else str(secret_file.absolute()),
            streams=streams or None,
            stall_seconds=stall_seconds,
            every_seconds=every,
            top=top,
            since=since,
            checkpoint=checkpoint,
            write=lambda line: click.echo(line, nl=False),
            stopped=lambda: bool(stop),
        )
    if as_json:
        say(done, as_json=True, lines=lambda done: iter(()))
