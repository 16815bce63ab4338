"""``synrepl streams``: the streams of a daemon, their positions, and stuck writers."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.status import ask_status
from synrepl.cli.stuck_streams import StuckStream, of_database, of_status

__all__ = ["streams"]


@click.command(epilog=EXIT_CODES)
@url_option(required=False)
@secret_option
@click.option(
    "--stuck", is_flag=True, help="Show the writers that hold streams back: unfinished ids, silent or behind."
)
@click.option(
    "--database",
    metavar="URL",
    help="With --stuck: read the writers' database (sqlite:PATH or postgresql://...), not a daemon.",
)
@click.option("--json", "as_json", is_flag=True, help='{stream: {"kept": bool, "writers": {writer: token}}}')
def streams(url: str, secret_file: Path | None, stuck: bool, database: str | None, as_json: bool) -> None:
    """Show the streams of a daemon: kept or ephemeral, and the position of each writer.

    With --stuck: show the writers that hold back streams with several writers, the worst first. Exit code 1:
    a writer is stuck and does not recover by itself. In JSON: {"stuck": bool, "holds": [...], "tables":
    [...]}.
    """
    if database is not None and not stuck:
        raise click.UsageError("--database needs --stuck")
    if stuck:
        _show_stuck(
            of_status(ask_status(url, secret_file)) if database is None else of_database(database),
            as_json=as_json,
        )
        return
    found = ask_status(url, secret_file).get("streams", {})
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table("stream", "", "writer", "position")
    table.columns[3].justify = "right"
    for name, stream in found.items():
        kept = "kept" if stream["kept"] else "ephemeral"
        writers = stream["writers"] or {"": ""}
        for position, (writer, token) in enumerate(sorted(writers.items())):
            table.add_row("" if position else name, "" if position else kept, writer, str(token))
    Console().print(table)


def _show_stuck(found: StuckStream, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        console = Console(highlight=False)
        for is_stuck, text in found.lines():
            word, style = ("stuck", "bold red") if is_stuck else ("held", "dim")
            console.print(f"{word}: {text}", style=style, markup=False, soft_wrap=True)
        if found.remark:
            console.print(found.remark, markup=False, soft_wrap=True)
        if not found.is_stuck:
            console.print("nothing is stuck", style="green")
    if found.is_stuck:
        sys.exit(1)
