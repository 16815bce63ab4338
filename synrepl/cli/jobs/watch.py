"""``pipeline watch``: live events of the streams."""

import signal
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import print_result, spark_options, spark_session

__all__ = ["watch_command"]


@click.command("watch", epilog=EXIT_CODES)
@url_option(required=True)
@click.option(
    "--stream", "streams", multiple=True, metavar="STREAM", help="Watch this stream only. May be repeated."
)
@click.option(
    "--stall-seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="A writer has stalled if it is silent for this long and for ten times its usual interval.",
)
@click.option(
    "--every", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds between two batches."
)
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
    """Write events as JSON lines until interrupted: gaps, stalled writers, hot caches of each minute.

    Types of lines: epoch, restart, gap, repaired, again, active, stall, hot. With --json the last line is the
    summary.
    """
    stop: list[bool] = []
    with spark_session("watch", **spark) as session:
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
        print_result(done, as_json=True, lines=lambda done: iter(()))
