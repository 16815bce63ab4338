"""``synrepl streams``: the streams of a daemon, their positions, and stuck writers."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from synrepl.cli.command import CliCommand
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table

if TYPE_CHECKING:
    from synrepl.cli.stuck_streams import StuckStream

__all__ = ["streams"]


@click.command(cls=CliCommand)
@daemon_options()
@click.option(
    "--stuck", is_flag=True, help="Show the writers that hold streams back: unfinished ids, silent or behind."
)
@click.option(
    "--database",
    metavar="URL",
    help="With --stuck: read the writers' database (sqlite:PATH or postgresql://...), not a daemon.",
)
@output_option('{stream: {"kept": bool, "writers": {writer: token}}}', is_table=True)
def streams(daemon: DaemonTarget, stuck: bool, database: str | None, output: Output) -> None:
    """Show the streams of a daemon: kept or ephemeral, and the position of each writer.

    With --stuck: show the writers that hold back streams with several writers, the worst first. Exit code 1:
    a writer is stuck and does not recover by itself. In JSON: {"stuck": bool, "holds": [...], "tables":
    [...]}.
    """
    if database is not None and not stuck:
        raise click.UsageError("--database needs --stuck")
    if stuck:
        # Imported on use: it takes longer than the rest of the command.
        from synrepl.cli.stuck_streams import of_database, of_status

        found = of_status(daemon.ask_status()) if database is None else of_database(database)
        output.show(found.as_json(), _stuck_lines(found))
        sys.exit(1 if found.is_stuck else 0)
    known = daemon.ask_status().get("streams", {})
    rows = [
        (name, "kept" if stream["kept"] else "ephemeral", writer, token)
        for name, stream in known.items()
        for writer, token in sorted((stream["writers"] or {"": ""}).items())
    ]
    output.show(known, table(("stream", "kind", "writer", "position"), rows, limit=len(rows)))


def _stuck_lines(found: "StuckStream") -> Iterator[str]:
    for is_stuck, text in found.lines():
        yield click.style(f"stuck: {text}", "red", bold=True) if is_stuck else f"held: {text}"
    if found.remark:
        yield found.remark
    if not found.is_stuck:
        yield click.style("nothing is stuck", "green")
