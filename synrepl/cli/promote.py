"""``synrepl promote``: make a replica the primary."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli.errors import EXIT_CODES, CliError, confirm, connect, secret_option, url_option
from synrepl.cli.progress import post_and_watch
from synrepl.http_api.routes import PROMOTE, STATUS
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["WHAT_TO_DO", "promote"]

TIMEOUT_SECONDS: Final = 180.0

WHAT_TO_DO: Final = {
    "fenced": "run synrepl resync if the other daemon is primary; otherwise run synrepl promote --force",
    "handover_refused": "see the message of the primary; run synrepl status --url for the primary",
    "not_a_replica": "use the --url of a replica; synrepl status shows the role of a daemon",
    "promoting": "wait for the promotion in progress",
    "filtered": "promote a replica of all streams and writers",
    "not_whole": "wait until the replica has joined (synrepl status --watch), or promote another replica",
    "upstream_away": "start the primary again; or, if it is lost, use --force: facts that only it has"
    " are then left behind, and reported when it comes back",
    "behind": "try again under less load, or find out why this replica lags",
    "files_missing": "wait until the files are fetched, or use --force to leave them behind",
}
"""The advice for each error code."""


@click.command(epilog=EXIT_CODES)
@url_option(required=True)
@secret_option
@click.option(
    "--force", is_flag=True, help="Do not contact the primary; leave missing facts and files behind."
)
@click.option("--yes", is_flag=True, help="Promote a fenced daemon by --force without confirmation.")
@click.option(
    "--json", "as_json", is_flag=True, help='{"role", "epoch", "serial"}, or {"error", "message", ...}'
)
def promote(url: str, secret_file: Path | None, force: bool, yes: bool, as_json: bool) -> None:
    """Make the replica at URL the primary.

    First the primary stops accepting facts. The replica must catch up within 30 seconds, files included, and
    then begins a new epoch. The old primary is fenced: it accepts no more facts. Exit code 1: the promotion
    was refused, nothing has changed, and the old primary continues.

    With --force a fenced daemon becomes primary again, for the case that the other daemon is not primary
    after all. The command asks for confirmation on a terminal, and requires --yes without one.
    """
    client = connect(url, secret_file, timeout=TIMEOUT_SECONDS)
    if force:
        _confirm_if_fenced(connect(url, secret_file, timeout=5.0), url, yes=yes)
    try:
        response = post_and_watch(
            client,
            connect(url, secret_file, timeout=5.0),
            PROMOTE.request(),
            json.dumps({"force": force}).encode(),
            _format_progress,
        )
    except HttpError as error:
        _show_refusal(error, as_json=as_json)
        raise CliError(f"{url}: {error.code}: {error.message}") from error
    except ConnectError as error:
        why = f"{url}: {error}; the replica may have been promoted: check with synrepl status --url {url}"
        raise CliError(why) from error
    if as_json:
        click.echo(json.dumps(response))
    else:
        click.echo(f"primary in epoch {response['epoch']}, from serial {response['serial']} on")


def _confirm_if_fenced(client: BlockingClient, url: str, *, yes: bool) -> None:
    """Explain the promotion of a fenced daemon, and ask for confirmation."""
    try:
        status = client.json(STATUS.request())
    except (ConnectError, HttpError) as error:
        raise CliError(f"{url}: {error}; no promotion was requested") from error
    if status.get("role") != "fenced":
        return
    click.echo(
        f"fenced: {status.get('why')}\n"
        f"This daemon is at serial {status['serial']} of epoch {status['epoch']}. It becomes primary"
        " again, in a new epoch. If the other daemon is primary after all, it is fenced as soon as it is"
        " notified; facts that only it has are written to a file when it joins again. Check the other daemon"
        " first: synrepl status.",
        err=True,
    )
    confirm(yes=yes)


def _format_progress(status: Mapping[str, Any]) -> str:
    """Return the progress of the promotion, as a line."""
    upstream = status.get("upstream")
    if upstream is None:
        return f"{status.get('role')}, serial {status.get('serial')}"
    files = (status.get("files") or {}).get("missing", 0)
    missing = f", {files} files missing" if files else ""
    return f"{upstream['state']}: serial {status['serial']} of {upstream['serial']}{missing}"


def _show_refusal(error: HttpError, *, as_json: bool) -> None:
    advice = WHAT_TO_DO.get(error.code, "")
    if as_json:
        click.echo(json.dumps({**error.body, "what_to_do": advice}))
        sys.exit(1)
    for name, sha256 in error.body.get("missing", []):
        click.echo(f"missing: {name} ({sha256})", err=True)
    if advice:
        click.echo(f"what to do: {advice}", err=True)
