"""``synrepl promote``: a replica becomes primary."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli.errors import EXIT_CODES, CliError, confirm, connect, secret_option, url_option
from synrepl.cli.long_request import post_and_watch
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["WHAT_TO_DO", "promote"]

TIMEOUT_SECONDS: Final = 180.0

WHAT_TO_DO: Final = {
    "fenced": "synrepl resync, if the other daemon is primary; synrepl promote --force, if it is not",
    "handover_refused": "read what the primary says; synrepl status --url of the primary tells more",
    "not_a_replica": "ask the replica that is to take over; synrepl status says which daemon is what",
    "promoting": "wait for the one that is under way",
    "filtered": "promote a replica that has everything",
    "not_whole": "wait until it has joined (synrepl status --watch), or promote another one",
    "upstream_away": "start the primary again; or, if it is gone, say --force: what only it has is then left"
    " behind, and named when it comes back",
    "behind": "try again when less is written, or look why this replica does not keep up",
    "files_missing": "wait until they are here, or say --force to leave them behind",
}
"""By the code of the refusal."""


@click.command(epilog=EXIT_CODES)
@url_option(required=True)
@secret_option
@click.option("--force", is_flag=True, help="Without asking the primary; what is not here is left behind.")
@click.option("--yes", is_flag=True, help="Do not ask, where a fenced daemon is promoted by force.")
@click.option(
    "--json", "as_json", is_flag=True, help='{"role", "epoch", "serial"}, or {"error", "message", ...}'
)
def promote(url: str, secret_file: Path | None, force: bool, yes: bool, as_json: bool) -> None:
    """Make the replica at URL the primary.

    In order: the primary takes no more facts, all it has must be here within 30 seconds, files included, and
    then a new epoch begins. The old primary is told, and takes no facts from then on. Exit code 1: it was
    refused; nothing has changed, and the old primary goes on.

    A fenced daemon becomes primary again with --force, for when the daemon that it was fenced for is not
    primary. Asks before it does so, on a terminal; elsewhere --yes is wanted.
    """
    asking = connect(url, secret_file, timeout=TIMEOUT_SECONDS)
    if force:
        _confirm_if_fenced(connect(url, secret_file, timeout=5.0), url, yes=yes)
    try:
        answer = post_and_watch(
            asking,
            connect(url, secret_file, timeout=5.0),
            "/v1/promote",
            json.dumps({"force": force}).encode(),
            _shown,
        )
    except HttpError as error:
        _refused(error, as_json=as_json)
        raise CliError(f"{url}: {error.code}: {error.message}") from error
    except ConnectError as error:
        why = f"{url}: {error}; whether it was promoted is not known: ask synrepl status --url {url}"
        raise CliError(why) from error
    if as_json:
        click.echo(json.dumps(answer))
    else:
        click.echo(f"primary in epoch {answer['epoch']}, from serial {answer['serial']} on")


def _confirm_if_fenced(asking: BlockingClient, url: str, *, yes: bool) -> None:
    """Explain what the promotion of a fenced daemon means, and ask whether to go on."""
    try:
        status = asking.get_json("/v1/status")
    except (ConnectError, HttpError) as error:
        raise CliError(f"{url}: {error}; nothing was asked of it") from error
    if status.get("role") != "fenced":
        return
    click.echo(
        f"fenced: {status.get('why')}\n"
        f"This daemon stands at serial {status['serial']} of epoch {status['epoch']}. It becomes primary"
        " again, in a new epoch. If the other daemon is primary after all, it is fenced as soon as it hears"
        " of this; what only it has is written to a file when it joins again. Look at the other daemon first:"
        " synrepl status.",
        err=True,
    )
    confirm(yes=yes)


def _shown(status: Mapping[str, Any]) -> str:
    """How far it is."""
    upstream = status.get("upstream")
    if upstream is None:
        return f"{status.get('role')}, serial {status.get('serial')}"
    files = (status.get("files") or {}).get("missing", 0)
    missing = f", {files} files missing" if files else ""
    return f"{upstream['state']}: serial {status['serial']} of {upstream['serial']}{missing}"


def _refused(error: HttpError, *, as_json: bool) -> None:
    todo = WHAT_TO_DO.get(error.code, "")
    if as_json:
        click.echo(json.dumps({**error.body, "what_to_do": todo}))
        sys.exit(1)
    for name, sha256 in error.body.get("missing", []):
        click.echo(f"missing: {name} ({sha256})", err=True)
    if todo:
        click.echo(f"what to do: {todo}", err=True)
