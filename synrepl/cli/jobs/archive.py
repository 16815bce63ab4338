"""``pipeline archive``: the log as Parquet."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import archive_option, running, say, spark_options, telling
from synrepl.html.humanize import counted

__all__ = ["archive_command"]


@click.command("archive", epilog=EXIT_CODES)
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
    position: str,
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
            Store(position),
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
            f" in {counted(done.batches, 'batch', 'batches')}, {done.seconds:.1f} s"
        )
    else:
        yield "nothing new"
    if done.merged:
        yield f"merged {done.merged} small batches"
    yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"
