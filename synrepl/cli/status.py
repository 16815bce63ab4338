"""``synrepl status``: the status of a daemon."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from synrepl.cli import tables
from synrepl.cli.errors import EXIT_CODES, CliError, ask, connect, secret_option, url_option
from synrepl.http_api.routes import STATUS
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["ask_status", "status"]

TIMEOUT_SECONDS: Final = 10.0


@click.command(epilog=EXIT_CODES)
@url_option(required=False)
@secret_option
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; with --json print a line each time.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between refreshes, with --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the response of the daemon as JSON.")
def status(url: str, secret_file: Path | None, watch: bool, interval: float, as_json: bool) -> None:
    """Show the status of a daemon: problems first, then role, position and followers.

    A replica that joins or catches up shows its progress and the remaining time.
    """
    if watch:
        _watch(url, secret_file, interval, as_json=as_json)
        return
    found = ask_status(url, secret_file)
    if as_json:
        click.echo(json.dumps(found))
    else:
        tables.print_parts(_parts(found, time.time()))


def _watch(url: str, secret_file: Path | None, interval: float, *, as_json: bool) -> None:
    """Show the status again and again; a daemon that does not respond is shown and retried."""
    client = connect(url, secret_file, timeout=TIMEOUT_SECONDS)
    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal and not as_json) as live:
            while True:
                try:
                    found = _checked(client, client.json(STATUS.request()))
                    parts = _parts(found, time.time())
                except (ConnectError, HttpError) as error:
                    found = {"error": str(error)}
                    parts = [Text(f"{url}: {error}", style="bold red")]
                if as_json:
                    click.echo(json.dumps(found))
                else:
                    live.update(Group(*parts), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        sys.exit(0)
    except BrokenPipeError:
        sys.exit(0)


def _parts(found: dict[str, Any], now: float) -> list[RenderableType]:
    """Render the status."""
    parts = [
        *tables.errors(found, now),
        tables.about(found),
        *tables.upstream(found),
        *tables.replicas(found.get("replicas") or [], now),
        *tables.leases(found.get("leases") or [], now),
        *tables.files(found, now),
        *_sources(found),
    ]
    followers = found.get("followers") or []
    if not followers:
        return [*parts, Text("no followers")]
    table = Table("follower", "dialect", "", "lag in rows", "lag in seconds")
    for one in followers[: tables.SHOWN]:
        table.add_row(
            one["name"] or "(no name)",
            one["dialect"] or "unknown",
            "behind" if one["behind"] else "live",
            str(one["lag_rows"]),
            str(one["lag_seconds"]),
        )
    return [*parts, table]


def _sources(found: dict[str, Any]) -> list[RenderableType]:
    """Render the sources of facts and the stuck writers."""
    tables: list[RenderableType] = []
    sources = [found["redis"]] if found.get("redis") else []
    if sources or found.get("following"):
        table = Table("source", "", "lag in rows", "lag in seconds", "gaps", "lost", "writes")
        table.columns[0].no_wrap = True
        for one in [*sources, *found.get("following", [])]:
            is_up = one.get("subscribed", one.get("connected"))
            writes = ", ".join(dict.fromkeys(pair["stream"] for pair in one.get("writes", []))) or "nothing"
            table.add_row(
                one.get("address", one.get("endpoint", "")),
                "live" if is_up else f"down: {one['why']}",
                str(one["lag_rows"]),
                str(one["lag_seconds"]),
                str(len(one["gaps"])),
                str(len(one["lost"])),
                writes,
            )
        tables.append(table)
    if found.get("stuck"):
        table = Table("stuck writer", "stream", "at", "behind", "seconds")
        for one in found["stuck"]:
            table.add_row(
                one["writer"], one["stream"], str(one["token"]), str(one["behind"]), str(one["seconds"])
            )
        tables.append(table)
    return tables


def ask_status(url: str, secret_file: Path | None) -> dict[str, Any]:
    """Return the status of the daemon at `url`. Raises `CliError`."""
    client = connect(url, secret_file, timeout=TIMEOUT_SECONDS)
    return _checked(client, ask(client, STATUS.request()))


def _checked(client: BlockingClient, found: Any) -> dict[str, Any]:
    """Return the response of the daemon, which must be an object."""
    if not isinstance(found, dict):
        raise CliError(f"{client.url} does not respond as a synrepl daemon; check --url")
    return found
