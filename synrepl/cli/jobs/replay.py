"""``pipeline replay``: append the facts of an archive to a daemon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import archive_option, print_result, show_progress, spark_options, spark_session

__all__ = ["replay_command"]


@click.command("replay", epilog=EXIT_CODES)
@archive_option
@url_option(required=True)
@click.option(
    "--stream", "streams", multiple=True, metavar="STREAM", help="Replay this stream only. May be repeated."
)
@click.option(
    "--after", type=click.IntRange(0), default=0, show_default=True, help="Replay facts after this serial."
)
@click.option("--upto", type=click.IntRange(1), help="Replay facts up to this serial [default: the end]")
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="The speed as a multiple of the original speed; 0 is as fast as possible.",
)
@click.option(
    "--name", help="The name of the replay: a repeat under the same name within a day stores no fact twice."
)
@secret_option
@spark_options
def replay_command(
    location: str,
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
    """Append the facts of the archive to a daemon, as new facts.

    For tests, for a migration to another daemon, and to reproduce a day. Streams, writers, rows and their
    order stay the same; serials, tokens and times are new.
    """
    with spark_session("replay", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.replay import replay
        from synrepl.pipeline.store import Store

        done = replay(
            session,
            Store(location),
            url,
            streams=streams or None,
            after=after,
            upto=upto,
            speed=speed,
            name=name,
            secret_file=None if secret_file is None else str(secret_file.absolute()),
            progress=progress,
        )
    print_result(done, as_json=as_json, lines=_result_lines)


def _result_lines(done: Any) -> Iterator[str]:
    for stream, rows in done.streams.items():
        yield f"{stream}: {rows:,} rows"
    yield f"replayed {done.facts:,} facts ({done.rows:,} rows) in {done.seconds:.1f} s"
