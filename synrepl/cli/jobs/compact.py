"""``pipeline compact``: the last row of each key."""

from collections.abc import Iterator
from typing import Any

import click

from synrepl.cli.errors import EXIT_CODES
from synrepl.cli.jobs.common import archive_option, running, say, spark_options, telling

__all__ = ["compact_command"]


@click.command("compact", epilog=EXIT_CODES)
@archive_option
@click.option(
    "--snapshot", "into", required=True, metavar="DIR", help="A folder, or an URI, for the snapshot."
)
@click.option("--full", is_flag=True, help="Read all of the archive, not only what came since.")
@spark_options
def compact_command(position: str, into: str, full: bool, as_json: bool, **spark: Any) -> None:
    """Fold the archive DIR to the last row of each key: the snapshot from which a daemon can begin.

    Run again, it reads the former snapshot and what was archived since. Start a daemon with --snapshot DIR.
    """
    with running("compact", **spark) as session, telling() as tell:
        from synrepl.pipeline.snapshot.compact import compact
        from synrepl.pipeline.store import Store

        done = compact(session, Store(position), Store(into), full=full, tell=tell)
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
