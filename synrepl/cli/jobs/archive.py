"""``pipeline archive``: the log as Parquet files."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.jobs.common import archive_option, print_result, show_progress, spark_options, spark_session
from synrepl.html.humanize import counted

__all__ = ["archive_command"]


@click.command("archive", epilog=EXIT_CODES)
@url_option(required=True)
@archive_option
@click.option("--follow", is_flag=True, help="Archive new facts until interrupted.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="With --follow: seconds between two batches.",
)
@click.option(
    "--batch-facts",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="The maximum number of facts in a batch.",
)
@secret_option
@spark_options
def archive_command(
    url: str,
    location: str,
    follow: bool,
    every: float,
    batch_facts: int,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Archive the log of a daemon up to its current position.

    The archive contains each fact exactly once, even if a process is killed at any time; run the command
    again to continue. Readers of the archive use the files named in DIR/_manifests.
    """
    stop: list[bool] = []
    with spark_session("archive", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.archive.archive import archive
        from synrepl.pipeline.store import Store

        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.append(True))
        done = archive(
            session,
            url,
            Store(location),
            secret_file=None if secret_file is None else str(secret_file.absolute()),
            follow=follow,
            every_seconds=every,
            batch_facts=batch_facts,
            progress=progress,
            stopped=lambda: bool(stop),
        )
    print_result(done, as_json=as_json, lines=_result_lines)


def _result_lines(done: Any) -> Iterator[str]:
    if done.batches:
        yield (
            f"archived {done.facts:,} facts ({done.rows:,} rows, {done.bytes / 1e6:,.1f} MB)"
            f" in {counted(done.batches, 'batch', 'batches')}, {done.seconds:.1f} s"
        )
    else:
        yield "no new facts"
    if done.merged:
        yield f"merged {done.merged} small batches"
    yield f"the archive ends at serial {done.serial} of epoch {done.epoch}, digest {done.digest[:16]}"
