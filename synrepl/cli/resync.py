"""``synrepl resync``: make a stopped replica or a fenced daemon a replica of the primary again."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli.errors import EXIT_CODES, CliError, ask, confirm, connect, secret_option, url_option
from synrepl.cli.progress import Advance
from synrepl.http_api.routes import RESYNC, STATUS
from synrepl.http_client import BlockingClient

__all__ = ["resync"]

LOOK_SECONDS: Final = 0.3


@click.command(epilog=EXIT_CODES)
@url_option(required=True)
@secret_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the daemon is live; it continues by itself in any case.",
)
@click.option("--json", "as_json", is_flag=True, help='{"only_here": [path], "state": str, "serial": int}')
def resync(url: str, secret_file: Path | None, yes: bool, wait: float, as_json: bool) -> None:
    """Discard the facts that only the daemon at URL has, and make it a copy of its primary again.

    For a replica that has stopped because its log forked from its upstream's, and for a former primary
    (fenced). The discarded facts are first written to a file next to the daemon's database, and the command
    prints the file's path. It asks for confirmation on a terminal, and requires --yes without one.
    """
    client = connect(url, secret_file, timeout=30.0)
    _explain(ask(client, STATUS.request()))
    confirm(yes=yes)
    ask(client, RESYNC.request(), b"{}")
    after = _wait_until_live(client, wait)
    upstream = after.get("upstream") or {}
    result = {
        "only_here": upstream.get("only_here", []),
        "state": upstream.get("state", after.get("state")),
        "serial": after["serial"],
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        for path in result["only_here"]:
            click.echo(f"facts that only this daemon had are in {path}, on its machine")
        click.echo(f"{result['state']}, at serial {result['serial']} of epoch {after['epoch']}")
    if result["state"] != "live":
        why = upstream.get("why") or f"the state is {result['state']}"
        raise CliError(f"the daemon is not live yet: {why}; watch it with synrepl status --watch --url {url}")


def _explain(status: Mapping[str, Any]) -> None:
    """Explain which facts are discarded, and to which file they are written."""
    upstream = status.get("upstream") or {}
    refusal = upstream.get("refusal") or {}
    is_stopped = upstream.get("state") == "stopped"
    if not is_stopped and status["role"] != "fenced":
        raise CliError(f"nothing to resync: this daemon is {status['role']}, {status['state']}")
    why = f"{refusal.get('code')}: {refusal.get('message')}" if is_stopped else status.get("why", "")
    primary = ", ".join(part for part in str(status.get("primary", "")).split() if part != "-")
    click.echo(f"{status['state']}: {why}", err=True)
    click.echo(
        f"This daemon is at serial {status['serial']} of epoch {status['epoch']}. The facts that"
        f" {primary or 'its upstream'} does not have are written to a file next to the database of this"
        " daemon (DATABASE.only-here-EPOCH-FIRST-LAST.ndjson). Then a copy of the other log replaces"
        " this log.",
        err=True,
    )


def _wait_until_live(client: BlockingClient, wait: float) -> Mapping[str, Any]:
    """Wait until the daemon is live, with a progress bar on a terminal. Return the last status."""
    until = time.monotonic() + wait
    with Advance("joining", None) as advance:
        done = 0
        while True:
            status: Mapping[str, Any] = ask(client, STATUS.request())
            upstream = status.get("upstream") or {}
            if join := upstream.get("join"):
                advance.expect(join["total"])
                advance.step(max(0, join["done"] - done), max(0, join["done"] - done))
                done = max(done, join["done"])
            if upstream.get("state") == "live" or time.monotonic() >= until:
                return status
            time.sleep(LOOK_SECONDS)
