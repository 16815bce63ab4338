"""``pipeline watch``: what happens, as it happens."""

import signal
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import running, say, spark_options

__all__ = ["watch_command"]


@click.command("watch", epilog=EXIT_CODES)
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
    "--every", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds to a look."
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
