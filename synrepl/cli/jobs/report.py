"""``pipeline report``: an HTML report on an archive."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES, read_secret, secret_option
from synrepl.cli.jobs.common import (
    archive_option,
    maybe_url_option,
    print_result,
    show_progress,
    spark_options,
    spark_session,
)

__all__ = ["report_command"]


@click.command("report", epilog=EXIT_CODES)
@archive_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for the page, its plots and its tables.",
)
@maybe_url_option
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="The length of rankings.")
@secret_option
@spark_options
def report_command(
    location: str,
    out: Path,
    url: str | None,
    top: int,
    secret_file: Path | None,
    as_json: bool,
    **spark: Any,
) -> None:
    """Write a page on the archive to OUT: throughput, lag, hot caches and gaps.

    With --url the page includes the leases of the daemon.
    """
    with spark_session("report", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.report.report import report
        from synrepl.pipeline.store import Store

        done = report(
            session,
            Store(location),
            out,
            url=url,
            secret=read_secret(secret_file),
            top=top,
            progress=progress,
        )
    print_result(done, as_json=as_json, lines=_result_lines)


def _result_lines(done: Any) -> Iterator[str]:
    for finding in done.found:
        yield finding.text
    yield f"{done.page}: {done.facts:,} facts of {done.streams} streams by {done.writers} writers"
