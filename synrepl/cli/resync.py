"""``synrepl resync``: make a stopped replica or a fenced daemon a replica of the primary again."""

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import (
    DaemonTarget,
    Output,
    confirm,
    daemon_options,
    duration_option,
    output_option,
)
from synrepl.cli.progress import Advance
from synrepl.cli.tables import address
from synrepl.http_api.routes import RESYNC

__all__ = ["resync"]

LOOK_SECONDS: Final = 0.3


@click.command(cls=CliCommand)
@daemon_options(required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@duration_option(
    "--wait",
    default="60s",
    help="How long to wait until the daemon is live; it continues by itself in any case.",
)
@output_option('{"only_here": [path], "state": str, "serial": int}')
def resync(daemon: DaemonTarget, yes: bool, wait: float, output: Output) -> None:
    """Discard the facts that only the daemon at URL has, and make it a copy of its primary again.

    For a replica that has stopped because its log forked from its upstream's, and for a former primary
    (fenced). The discarded facts are first written to a file next to the daemon's database, and the command
    prints the file's path. It asks for confirmation on a terminal, and requires --yes without one.
    """
    _explain(daemon.ask_status())
    confirm(yes=yes)
    daemon.ask(RESYNC.request(), b"{}", timeout=30.0)
    after = _wait_until_live(daemon, wait)
    upstream = after.get("upstream") or {}
    result = {
        "only_here": upstream.get("only_here", []),
        "state": upstream.get("state", after.get("state")),
        "serial": after["serial"],
    }
    lines = [f"facts that only this daemon had are in {path}, on its machine" for path in result["only_here"]]
    lines.append(f"{result['state']}, at serial {result['serial']} of epoch {after['epoch']}")
    output.show(result, lines)
    if result["state"] != "live":
        why = upstream.get("why") or f"the state is {result['state']}"
        raise CliError(
            f"the daemon is not live yet: {why}; watch it with synrepl status --watch --url {daemon.url}"
        )


def _explain(status: Mapping[str, Any]) -> None:
    """Explain which facts are discarded, and to which file they are written."""
    upstream = status.get("upstream") or {}
    refusal = upstream.get("refusal") or {}
    is_stopped = upstream.get("state") == "stopped"
    if not is_stopped and status["role"] != "fenced":
        raise CliError(f"nothing to resync: this daemon is {status['role']}, {status['state']}")
    why = f"{refusal.get('code')}: {refusal.get('message')}" if is_stopped else status.get("why", "")
    primary = address(str(status.get("primary", "")))
    click.echo(f"{status['state']}: {why}", err=True)
    click.echo(
        f"This daemon is at serial {status['serial']} of epoch {status['epoch']}. The facts that"
        f" {primary or 'its upstream'} does not have are written to a file next to the database of this"
        " daemon (DATABASE.only-here-EPOCH-FIRST-LAST.ndjson). Then a copy of the other log replaces"
        " this log.",
        err=True,
    )


def _wait_until_live(daemon: DaemonTarget, wait: float) -> Mapping[str, Any]:
    """Wait until the daemon is live, with a progress bar on a terminal. Return the last status."""
    until = time.monotonic() + wait
    with Advance("joining", None) as advance:
        while True:
            status: Mapping[str, Any] = daemon.ask_status()
            upstream = status.get("upstream") or {}
            if join := upstream.get("join"):
                advance.reach(join["done"], join["total"])
            if upstream.get("state") == "live" or time.monotonic() >= until:
                return status
            time.sleep(LOOK_SECONDS)
