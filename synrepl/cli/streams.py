"""``synrepl streams``: which streams a daemon has, and where they stand."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from synrepl.cli.status import ask_status
from synrepl.cli.trouble import EXIT_CODES, secret_option, url_option

__all__ = ["streams"]


@click.command(epilog=EXIT_CODES)
@url_option(required=False)
@secret_option
@click.option("--json", "as_json", is_flag=True, help='{stream: {"kept": bool, "writers": {writer: token}}}')
def streams(url: str, secret_file: Path | None, as_json: bool) -> None:
    """The streams of a daemon: kept or ephemeral, and the position of each writer."""
    found = ask_status(url, secret_file).get("streams", {})
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table("stream", "", "writer", "position")
    table.columns[3].justify = "right"
    for name, stream in found.items():
        kept = "kept" if stream["kept"] else "ephemeral"
        writers = stream["writers"] or {"": ""}
        for place, (writer, token) in enumerate(sorted(writers.items())):
            table.add_row("" if place else name, "" if place else kept, writer, str(token))
    Console().print(table)
