"""``synrepl leases``: list, add and drop leases on the log."""

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from synrepl.cli import tables
from synrepl.cli.errors import EXIT_CODES, CliError, connect, secret_option, url_option
from synrepl.http_api.routes import ADD_LEASE, DROP_LEASE, LEASES
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["leases"]


@click.command(epilog=EXIT_CODES)
@click.argument("action", type=click.Choice(["list", "add", "drop"]), default="list")
@click.argument("name", required=False)
@url_option(required=False)
@secret_option
@click.option("--json", "as_json", is_flag=True, help="Print the response of the daemon as JSON.")
def leases(action: str, name: str | None, url: str, secret_file: Path | None, as_json: bool) -> None:
    """List, add and drop the leases by which a daemon retains its log for replicas.

    `list` shows every lease, those that retain most first. `add NAME` retains facts from now on for a future
    replica of that name, or readmits a dropped one. `drop NAME` (or its uuid) ends a lease: the log is no
    longer retained for that replica, and the replica is no longer served.
    """
    if (name is None) is not (action == "list"):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'the name of a replica'}")
    response = _request(connect(url, secret_file), action, name or "")
    if as_json:
        click.echo(json.dumps(response["leases"] if action == "list" else response))
        return
    if action == "add":
        click.echo(f"facts after serial {response['serial']} are retained for {response['name']}")
    elif action == "drop":
        click.echo(f"{response['name']} is dropped: no facts are retained for it, and it is no longer served")
    else:
        console = Console(highlight=False)
        for part in tables.leases(response["leases"], time.time()) or ["no leases"]:
            console.print(part)


def _request(client: BlockingClient, action: str, name: str) -> Any:
    try:
        if action == "list":
            return client.json(LEASES.request())
        if action == "add":
            return client.json(ADD_LEASE.request(), json.dumps({"name": name}).encode())
        return client.json(DROP_LEASE.request(name))
    except (ConnectError, HttpError) as error:
        raise CliError(f"{client.url}: {error}") from error
