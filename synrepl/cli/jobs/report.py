"""``pipeline report``: what an archive tells, on a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, read_secret, secret_option
from synrepl.cli.jobs.common import archive_option, maybe_url_option, running, say, spark_options, telling

__all__ = ["report_command"]


@click.command("report", epilog=EXIT_CODES)
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
    position: str,
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
        from synrepl.pipeline.report.report import report
        from synrepl.pipeline.store import Store

        done = report(
            session,
            Store(position),
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
