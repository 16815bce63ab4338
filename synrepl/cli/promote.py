"""``synrepl promote``: make a replica the primary."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import DaemonTarget, Output, confirm, daemon_options, output_option
from synrepl.cli.progress import post_and_watch
from synrepl.http_api.routes import PROMOTE
from synrepl.http_client import ConnectError, HttpError

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


@click.command(cls=CliCommand)
@daemon_options(required=True)
@click.option(
    "--force", is_flag=True, help="Do not contact the primary; leave missing facts and files behind."
)
@click.option("--yes", is_flag=True, help="Promote a fenced daemon by --force without confirmation.")
@output_option('{"role", "epoch", "serial"}, or {"error", "message", ...}')
def promote(daemon: DaemonTarget, force: bool, yes: bool, output: Output) -> None:
    """Make the replica at URL the primary.

    First the primary stops accepting facts. The replica must catch up within 30 seconds, files included, and
    then begins a new epoch. The old primary is fenced: it accepts no more facts. Exit code 1: the promotion
    was refused, nothing has changed, and the old primary continues.

    With --force a fenced daemon becomes primary again, for the case that the other daemon is not primary
    after all. The command asks for confirmation on a terminal, and requires --yes without one.
    """
    url = daemon.url
    if force:
        _confirm_if_fenced(daemon, yes=yes)
    try:
        response = post_and_watch(
            daemon.connect(TIMEOUT_SECONDS),
            daemon.connect(5.0),
            PROMOTE.request(),
            json.dumps({"force": force}).encode(),
            _format_progress,
        )
    except HttpError as error:
        raise _refusal(url, error, is_json=output.is_json) from error
    except ConnectError as error:
        if error.is_unsent:
            raise CliError(f"{url}: {error}; no promotion was requested") from error
        why = f"{url}: {error}; the replica may have been promoted: check with synrepl status --url {url}"
        raise CliError(why) from error
    output.show(response, [f"primary in epoch {response['epoch']}, from serial {response['serial']} on"])


def _confirm_if_fenced(daemon: DaemonTarget, *, yes: bool) -> None:
    """Explain the promotion of a fenced daemon, and ask for confirmation."""
    try:
        status = daemon.ask_status()
    except CliError as error:
        raise CliError(f"{error.message}; no promotion was requested") from error
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


def _refusal(url: str, error: HttpError, *, is_json: bool) -> CliError:
    """Return the error of a refused promotion, with the advice for its code; print it if it is JSON."""
    advice = WHAT_TO_DO.get(error.code, "")
    if is_json:
        click.echo(json.dumps({**error.body, "what_to_do": advice}))
        sys.exit(1)
    for name, sha256 in error.body.get("missing", []):
        click.echo(f"missing: {name} ({sha256})", err=True)
    return CliError(f"{url}: {error.code}: {error.message}" + (f"; what to do: {advice}" if advice else ""))
