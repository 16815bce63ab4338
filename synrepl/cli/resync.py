"""``synrepl resync``: a replica that has stopped, or a fenced daemon, gives up what only it has."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli.errors import EXIT_CODES, CliError, confirm, connect, secret_option, url_option
from synrepl.cli.progress import Advance
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["resync"]

LOOK_SECONDS: Final = 0.3


@click.command(epilog=EXIT_CODES)
@url_option(required=True)
@secret_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it follows again; it goes on by itself in any case.",
)
@click.option("--json", "as_json", is_flag=True, help='{"only_here": [path], "state": str, "serial": int}')
def resync(url: str, secret_file: Path | None, yes: bool, wait: float, as_json: bool) -> None:
    """Let the daemon at URL give up what only it has, and become a copy of its primary again.

    That is for a replica whose history has parted from its upstream's (stopped), and for a former primary
    (fenced). What only it has is written to a file beside its database first, and the file is named. Asks
    before it does so, on a terminal; elsewhere --yes is wanted.
    """
    asking = connect(url, secret_file, timeout=30.0)
    try:
        before = asking.get_json("/v1/status")
        _explain(before)
        confirm(yes=yes)
        asking.post_json("/v1/resync", b"{}")
        after = _follow(asking, wait)
    except (ConnectError, HttpError) as error:
        raise CliError(f"{url}: {error}") from error
    upstream = after.get("upstream") or {}
    told = {
        "only_here": upstream.get("only_here", []),
        "state": upstream.get("state", after.get("state")),
        "serial": after["serial"],
    }
    if as_json:
        click.echo(json.dumps(told))
    else:
        for path in told["only_here"]:
            click.echo(f"what only this copy had is in {path}, on its machine")
        click.echo(f"{told['state']}, at serial {told['serial']} of epoch {after['epoch']}")
    if told["state"] != "live":
        why = upstream.get("why") or f"it is {told['state']}"
        raise CliError(
            f"it does not follow yet: {why}; synrepl status --watch --url {url} shows how it goes on"
        )


def _explain(status: Mapping[str, Any]) -> None:
    """What will be given up, and where it will be kept."""
    upstream = status.get("upstream") or {}
    refusal = upstream.get("refusal") or {}
    is_stopped = upstream.get("state") == "stopped"
    if not is_stopped and status["role"] != "fenced":
        raise CliError(f"there is nothing to give up: this daemon is {status['role']}, {status['state']}")
    why = f"{refusal.get('code')}: {refusal.get('message')}" if is_stopped else status.get("why", "")
    primary = ", ".join(part for part in str(status.get("primary", "")).split() if part != "-")
    click.echo(f"{status['state']}: {why}", err=True)
    click.echo(
        f"This daemon stands at serial {status['serial']} of epoch {status['epoch']}. The facts that"
        f" {primary or 'its upstream'} does not have are written to a file beside the database of this daemon"
        " (DATABASE.only-here-EPOCH-FIRST-LAST.ndjson), and then a copy of the other log takes the place of"
        " this one.",
        err=True,
    )


def _follow(asking: BlockingClient, wait: float) -> Mapping[str, Any]:
    """Watch it join, with a bar on a terminal; gives the last status."""
    until = time.monotonic() + wait
    with Advance("joining", None) as advance:
        done = 0
        while True:
            status: Mapping[str, Any] = asking.get_json("/v1/status")
            upstream = status.get("upstream") or {}
            if join := upstream.get("join"):
                advance.expect(join["total"])
                advance.step(max(0, join["done"] - done), max(0, join["done"] - done))
                done = max(done, join["done"])
            if upstream.get("state") == "live" or time.monotonic() >= until:
                return status
            time.sleep(LOOK_SECONDS)
