"""``pipeline replay``: an archive, played back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import archive_option, running, say, spark_options, telling

__all__ = ["replay_command"]


@click.command("replay", epilog=EXIT_CODES)
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
    position: str,
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
            Store(position),
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
