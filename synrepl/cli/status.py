"""``synrepl status``: how a daemon is."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from synrepl.cli.asking import Asking, Refused, Unreachable
from synrepl.cli.trouble import EXIT_CODES, Trouble, read_secret, secret_option, url_option

__all__ = ["ask_status", "status"]


@click.command(epilog=EXIT_CODES)
@url_option(required=False)
@secret_option
@click.option("--json", "as_json", is_flag=True, help="As the daemon says it, in JSON.")
def status(url: str, secret_file: Path | None, as_json: bool) -> None:
    """How a daemon is: what is wrong first, then where it stands and who follows it."""
    found = ask_status(url, secret_file)
    if as_json:
        click.echo(json.dumps(found))
        return
    console = Console()
    for error in found.get("errors", []):
        console.print(
            f"error: {error['what'] if isinstance(error, dict) else error}", style="bold red", markup=False
        )
    about = Table(show_header=False, box=None)
    for key in (
        "state",
        "role",
        "server_name",
        "instance",
        "epoch",
        "serial",
        "digest",
        "lag_rows",
        "lag_seconds",
    ):
        about.add_row(key, _shown(found.get(key)))
    console.print(about)
    for source in _sources(found):
        console.print(source)
    followers = found.get("followers") or []
    if not followers:
        console.print("no followers")
        return
    table = Table("follower", "dialect", "", "lag in rows", "lag in seconds")
    for one in followers:
        state = "behind" if one["behind"] else "live"
        table.add_row(
            one["name"] or "(no name)",
            one["dialect"] or "unknown",
            state,
            str(one["lag_rows"]),
            str(one["lag_seconds"]),
        )
    console.print(table)


def _sources(found: dict[str, Any]) -> list[Table]:
    """What is heard from where, and whom that misses."""
    tables = []
    sources = [found["redis"]] if found.get("redis") else []
    if sources or found.get("following"):
        table = Table("heard from", "", "lag in rows", "lag in seconds", "gaps", "lost", "writes")
        table.columns[0].no_wrap = True
        for one in [*sources, *found.get("following", [])]:
            is_up = one.get("hearing", one.get("connected"))
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
    """What the daemon at this address says about itself."""
    try:
        found = Asking(url, secret=read_secret(secret_file), timeout=10.0).get_json("/v1/status")
    except (Unreachable, Refused) as error:
        raise Trouble(f"{url}: {error}") from error
    if not isinstance(found, dict):
        raise Trouble(f"{url} does not answer as a synrepl daemon does")
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
