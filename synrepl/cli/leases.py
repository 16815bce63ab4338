"""``synrepl leases``: what is kept of the log for whom."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console

from synrepl.cli import tables
from synrepl.cli.errors import EXIT_CODES, CliError, connect, secret_option, url_option
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["leases"]


@click.command(epilog=EXIT_CODES)
@click.argument("action", type=click.Choice(["list", "add", "drop"]), default="list")
@click.argument("name", required=False)
@url_option(required=False)
@secret_option
@click.option("--json", "as_json", is_flag=True, help="What the daemon answers.")
def leases(action: str, name: str | None, url: str, secret_file: Path | None, as_json: bool) -> None:
    """What a daemon keeps of its log, and for whom.

    `list` shows every lease, those that hold most back first. `add NAME` keeps what comes from now on for a
    replica of that name which is yet to come, and lets one in again that was dropped. `drop NAME` (or its
    uuid) ends a lease: the log is no longer kept for that replica, and it is not served any more.
    """
    if (name is None) is not (action == "list"):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'the name of a replica'}")
    answer = _ask(connect(url, secret_file), action, name or "")
    if as_json:
        click.echo(json.dumps(answer["leases"] if action == "list" else answer))
        return
    if action == "add":
        click.echo(f"what comes after serial {answer['serial']} is kept for {answer['name']}")
    elif action == "drop":
        click.echo(f"{answer['name']} is dropped: nothing is kept for it, and it is not served any more")
    else:
        console = Console(highlight=False)
        for part in tables.leases(answer["leases"], time.time()) or ["no leases"]:
            console.print(part)


def _ask(asking: BlockingClient, action: str, name: str) -> Any:
    try:
        if action == "list":
            return asking.get_json("/v1/leases")
        if action == "add":
            return asking.post_json("/v1/leases", json.dumps({"name": name}).encode())
        return asking.delete_json(f"/v1/leases/{quote(name, safe='')}")
    except (ConnectError, HttpError) as error:
        raise CliError(f"{asking.url}: {error}") from error
