"""``synrepl replicas``: the replicas of a daemon and their state."""

import json
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from synrepl.cli import tables
from synrepl.cli.errors import EXIT_CODES, secret_option, url_option
from synrepl.cli.status import ask_status

__all__ = ["replicas"]

BAD: Final = frozenset({"lost", "behind", "ended"})


@click.command(epilog=EXIT_CODES)
@url_option(required=False)
@secret_option
@click.option("--check", is_flag=True, help="Exit with code 1 if a replica is lost, behind or ended.")
@click.option("--json", "as_json", is_flag=True, help="Print the list of replicas in /v1/status as JSON.")
def replicas(url: str, secret_file: Path | None, check: bool, as_json: bool) -> None:
    """Show the replicas of a daemon: live, idle, behind, lost, never seen or ended; the worst first."""
    found = ask_status(url, secret_file).get("replicas") or []
    if as_json:
        click.echo(json.dumps(found))
    else:
        console = Console(highlight=False)
        for part in tables.replicas(found, time.time()) or ["no replicas"]:
            console.print(part)
    if check and any(one["state"] in BAD for one in found):
        sys.exit(1)
