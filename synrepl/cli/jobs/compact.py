"""``pipeline compact``: a snapshot with the last row of each key."""

from collections.abc import Iterator
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES
from synrepl.cli.jobs.common import archive_option, print_result, show_progress, spark_options, spark_session

__all__ = ["compact_command"]


@click.command("compact", epilog=EXIT_CODES)
@archive_option
@click.option(
    "--snapshot", "into", required=True, metavar="DIR", help="The directory or URI of the snapshot."
)
@click.option(
    "--full", is_flag=True, help="Read the whole archive, not only the facts since the last snapshot."
)
@spark_options
def compact_command(location: str, into: str, full: bool, as_json: bool, **spark: Any) -> None:
    """Compact the archive to a snapshot with the last row of each key, which a daemon can start from.

    A later run reads the previous snapshot and the facts archived since. Start a daemon with --snapshot DIR.
    """
    with spark_session("compact", **spark) as session, show_progress() as progress:
        from synrepl.pipeline.snapshot.compact import compact
        from synrepl.pipeline.store import Store

        done = compact(session, Store(location), Store(into), full=full, progress=progress)
    print_result(done, as_json=as_json, lines=_result_lines)


def _result_lines(done: Any) -> Iterator[str]:
    made = done.snapshot
    if not done.is_new:
        yield f"no new facts since serial {made.serial}"
        return
    yield (
        f"{made.keys:,} keys in {made.rows:,} rows of {made.facts:,} facts, from {done.read_rows:,} rows,"
        f" {done.seconds:.1f} s"
    )
    yield f"the snapshot is at serial {made.serial} of epoch {made.epoch}, digest {made.digest[:16]}"
