"""``synrepl promote`` and ``synrepl resync``: change the role of a daemon."""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import DaemonTarget, Output, confirm, daemon_options, duration_option, output_option
from synrepl.cli.progress import Advance, post_and_watch
from synrepl.cli.tables import address
from synrepl.http_api.request_errors import HttpError
from synrepl.http_client import ConnectError
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.routes import PROMOTE, RESYNC
from synrepl.wire.text import printable

TIMEOUT_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.3

WHAT_TO_DO: Final = {
    "fenced": "run synrepl resync if the other daemon is primary; otherwise run synrepl promote --force",
    "handover_refused": "see the message of the primary; run synrepl status --url for the primary",
    "not_a_replica": "use the --url of a replica; synrepl status shows the role of a daemon",
    "promoting": "wait until a promotion in progress has ended; synrepl status shows the role",
    "filtered": "promote a replica of all streams and writers",
    "not_whole": "wait until the replica has joined (synrepl status --watch), or promote another replica",
    "upstream_away": "start the primary again; or, if it is lost, use --force: facts that only it has"
    " are then left behind, and reported when it comes back",
    "behind": "try again under less load, or find out why this replica lags",
    "others_ahead": "promote the replica with the highest serial; or, if it cannot be promoted, use --force"
    " --lose-acknowledged: facts that only the others have are then left behind",
    "replicas_silent": "start these replicas again; or, if they are lost, use --force --lose-acknowledged",
    "promises_unproven": "use --believe WRITER with the name that the primary had, or --believe '' to ignore"
    " all of these promises",
    "files_missing": "wait until the files are fetched, or use --force to leave them behind",
}
"""The advice for error codes of a refused promotion."""


@click.command(cls=CliCommand)
@daemon_options(required=True)
@click.option(
    "--force", is_flag=True, help="Do not contact the primary; leave missing facts and files behind."
)
@click.option(
    "--lose-acknowledged",
    is_flag=True,
    help="With --force: do not ask replicas whether they have acknowledged facts that this one lacks.",
)
@click.option(
    "--believe",
    "believed",
    metavar="WRITER",
    multiple=True,
    help="If the log has promises of several writers: that of the primary. Those of others are ignored; of"
    " all, with an empty name. Repeatable.",
)
@click.option("--yes", is_flag=True, help="Promote a fenced daemon by --force without confirmation.")
@output_option('{"role", "epoch", "serial"}, or {"error", "message", ...}')
def promote(
    daemon: DaemonTarget,
    force: bool,
    lose_acknowledged: bool,
    believed: tuple[str, ...],
    yes: bool,
    output: Output,
) -> None:
    """Make the replica at URL the primary.

    Without --force, the primary first stops accepting facts. The replica must catch up within 30 seconds,
    files included, and then begins a new epoch. The old primary is fenced: it accepts no more facts. If the
    promotion is refused (exit code 1), nothing has changed, and the old primary continues.

    With --force facts and files that only the primary has are left behind, but not those that replicas
    acknowledged to an append with acks: replicas that could have them are asked, and the promotion is refused
    if one has facts that this one lacks, or if too few answer. --lose-acknowledged asks nobody.

    With --force a fenced daemon becomes primary again, for the case that the other daemon is not primary
    after all. The command asks for confirmation on a terminal, and requires --yes without one.
    """
    daemon.check_single()
    if lose_acknowledged and not force:
        raise click.UsageError("--lose-acknowledged needs --force")
    url = daemon.url
    body: dict[str, Any] = {"force": force, "lose_acknowledged": lose_acknowledged}
    if believed:
        # Only then: a daemon of an earlier release does not know the field.
        body["believe"] = [writer for writer in believed if writer]
    if force:
        _confirm_if_fenced(daemon, yes=yes)
    try:
        response = post_and_watch(
            daemon.connect(TIMEOUT_SECONDS),
            daemon.connect(5.0),
            PROMOTE.request(),
            json.dumps(body).encode(),
            _format_progress,
        )
    except HttpError as error:
        raise _refusal(url, error, is_json=output.is_json) from error
    except ConnectError as error:
        if error.is_unsent:
            raise CliError(f"{url}: {error}; no promotion was requested") from error
        why = f"{url}: {error}; the replica may have been promoted: check with synrepl status --url {url}"
        raise CliError(why) from error
    epoch, serial = response["epoch"], response["serial"]
    output.show(response, [f"primary in epoch {epoch}, which begins after serial {serial}"])


def _confirm_if_fenced(daemon: DaemonTarget, *, yes: bool) -> None:
    try:
        status = daemon.ask_status()
    except CliError as error:
        raise CliError(f"{error.message}; no promotion was requested") from error
    if status.get("role") != Role.FENCED:
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
    upstream = status.get("upstream")
    if upstream is None:
        return f"{status.get('role')}, serial {status.get('serial')}"
    files = (status.get("files") or {}).get("missing", 0)
    missing = f", {files} files missing" if files else ""
    return f"{upstream['state']}: serial {status['serial']} of {upstream['serial']}{missing}"


def _tell(line: str) -> None:
    click.echo(printable(line), err=True)


def _refusal(url: str, error: HttpError, *, is_json: bool) -> CliError:
    """Return the error of a refused promotion, with advice. For JSON, print it and end the command."""
    advice = WHAT_TO_DO.get(error.code, "")
    if is_json:
        click.echo(json.dumps({**error.body, "what_to_do": advice}))
        sys.exit(1)
    for name, sha256 in error.body.get("missing", []):
        click.echo(f"missing: {name} ({sha256})", err=True)
    for one in error.body.get("ahead", []):
        where = f"{one['name']} ({one['address']})"
        _tell(f"ahead: {where}: serial {one['serial']} of epoch {one['epoch']}")
        for fact in one["facts"]:
            _tell("  serial {serial}: {stream} {writer} {token}".format(**fact))
    for one in error.body.get("promises", []):
        acks = ", ".join(one["acks"])
        _tell(f"promise: serial {one['serial']} of epoch {one['epoch']} by {one['writer']}, acks {acks}")
    for one in error.body.get("silent", []):
        _tell(f"silent: {one['name']} ({one['address'] or 'no address'})")
    return CliError(f"{url}: {error.code}: {error.message}" + (f"; what to do: {advice}" if advice else ""))


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

    For a replica that has stopped because its history is not its upstream's, and for a former primary
    (fenced). The discarded facts are first written to a file next to the daemon's database, and the command
    prints the file's path. It asks for confirmation on a terminal, and requires --yes without one.
    """
    daemon.check_single()
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
    upstream = status.get("upstream") or {}
    refusal = upstream.get("refusal") or {}
    is_stopped = upstream.get("state") == "stopped"
    if not is_stopped and status["role"] != Role.FENCED:
        raise CliError(
            f"nothing to resync: the daemon is {status['role']} and {status['state']}, not stopped or fenced"
        )
    why = f"{refusal.get('code')}: {refusal.get('message')}" if is_stopped else status.get("why", "")
    primary = address(str(status.get("primary", "")))
    click.echo(f"{status['state']}: {why}", err=True)
    click.echo(
        f"This daemon is at serial {status['serial']} of epoch {status['epoch']}. The facts that"
        f" {primary or 'its upstream'} does not have are written to a file next to the database of this"
        " daemon (DATABASE.only-here-EPOCH-FIRST-LAST.ndjson). Unless this log is a part of the other"
        " one, a copy of the other one then replaces this log.",
        err=True,
    )


def _wait_until_live(daemon: DaemonTarget, wait: float) -> Mapping[str, Any]:
    """Wait until the daemon is live, at most `wait` seconds, with a progress bar. Return the last status."""
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
