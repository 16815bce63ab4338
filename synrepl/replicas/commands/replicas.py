"""``synrepl replicas`` and ``leases``: who copies the log of a daemon, and what it retains for them."""

import json
import sys
import time
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.replicas.commands.tables import leases_table, replicas_table
from synrepl.replicas.routes import ADD_LEASE, DROP_LEASE, LEASES

BAD: Final = frozenset({"lost", "behind", "ended"})


@click.command(cls=CliCommand)
@daemon_options()
@click.option("--check", is_flag=True, help="Exit with code 1 if a replica is lost, behind or ended.")
@output_option("Print the list of replicas in /v1/status as JSON.", is_table=True)
def replicas(daemon: DaemonTarget, check: bool, output: Output) -> None:
    """Show the replicas of a daemon: live, idle, behind, lost, moved, never seen or ended."""
    found = daemon.ask_status().get("replicas") or []
    lines = replicas_table(found, time.time(), is_wide=output.is_wide) if found else ["no replicas"]
    output.show(found, lines)
    if check and any(one["state"] in BAD for one in found):
        sys.exit(1)


@click.command(cls=CliCommand)
@click.argument("action", type=click.Choice(["list", "add", "drop"]), default="list")
@click.argument("name", required=False)
@daemon_options()
@output_option("Print the response of the daemon as JSON.", is_table=True)
def leases(action: str, name: str | None, daemon: DaemonTarget, output: Output) -> None:
    """List, add and drop the leases by which a daemon retains its log for replicas and changelog readers.

    `list` shows every lease, those that retain most first. `add NAME` retains facts from now on for a future
    replica of that name, or readmits a dropped one. `drop NAME` (or its uuid) ends a lease: its facts
    may be trimmed. A replica is then refused; a changelog reader gets a new lease with its next request.
    """
    if (name is None) is not (action == "list"):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'the name of a replica'}")
    response: Any
    match action:
        case "list":
            response = daemon.ask(LEASES.request())["leases"]
            lines = list(leases_table(response, time.time(), is_wide=output.is_wide)) or ["no leases"]
        case "add":
            response = daemon.ask(ADD_LEASE.request(), json.dumps({"name": name}).encode())
            lines = [f"facts after serial {response['serial']} are retained for {response['name']}"]
        case _:
            response = daemon.ask(DROP_LEASE.request(name or ""))
            lines = [
                f"{response['name']} is dropped: no facts are retained for it, and it is no longer served"
            ]
    output.show(response, lines)
