"""``synrepl replicas`` and ``synrepl leases``: the replicas of a daemon, and their leases on its log."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli import tables
from synrepl.cli.errors import EXIT_CODES, ask, connect, secret_option, url_option
from synrepl.cli.status import ask_status
from synrepl.http_api.routes import ADD_LEASE, DROP_LEASE, LEASES

__all__ = ["leases", "replicas"]

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
        tables.print_parts(tables.replicas(found, time.time()), otherwise="no replicas")
    if check and any(one["state"] in BAD for one in found):
        sys.exit(1)


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
    client = connect(url, secret_file)
    response: Any
    match action:
        case "list":
            response = ask(client, LEASES.request())["leases"]
        case "add":
            response = ask(client, ADD_LEASE.request(), json.dumps({"name": name}).encode())
        case _:
            response = ask(client, DROP_LEASE.request(name or ""))
    if as_json:
        click.echo(json.dumps(response))
    elif action == "add":
        click.echo(f"facts after serial {response['serial']} are retained for {response['name']}")
    elif action == "drop":
        click.echo(f"{response['name']} is dropped: no facts are retained for it, and it is no longer served")
    else:
        tables.print_parts(tables.leases(response, time.time()), otherwise="no leases")
