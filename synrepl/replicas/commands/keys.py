"""``synrepl keys``: keys that a daemon makes, and all its replicas accept."""

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from synrepl.cli.command import CliCommand, CliError, CliGroup
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table
from synrepl.html.humanize import span
from synrepl.replicas.routes import ADD_KEY, KEYS, REVOKE_KEY
from synrepl.wire.text import printable


@click.group(cls=CliGroup)
def keys() -> None:
    """List, add and revoke keys that the primary makes, and all its replicas accept."""


@keys.command("list", cls=CliCommand)
@daemon_options()
@output_option('[{"name", "rights", "streams", "instances", "made", "revoked"}]', is_table=True)
def list_keys(daemon: DaemonTarget, output: Output) -> None:
    """List the issued keys, revoked ones too. Keys of the file of a daemon are not among them."""
    found = daemon.ask(KEYS.request())
    now = time.time()
    rows = [
        (
            printable(one["name"]),
            ",".join(one["rights"]),
            _names(one["streams"], "all"),
            _names(one["instances"], "any"),
            f"{span(now - one['made'])} ago",
            "-" if one["revoked"] is None else f"{span(now - one['revoked'])} ago",
        )
        for one in found["keys"]
    ]
    header = ("name", "rights", "streams", "instances", "made", "revoked")
    lines = table(header, rows, limit=len(rows)) if rows else ["no issued keys"]
    lost = ", ".join(map(printable, found["lost"]))
    more = [f"revoked here, and valid at the upstream: {lost}; revoke them at the primary"] if lost else []
    output.show(found["keys"], [*lines, *more])


@keys.command(cls=CliCommand)
@click.argument("name")
@daemon_options()
@click.option(
    "--rights",
    metavar="RIGHTS",
    help="Comma-separated rights out of read, write, replicate, administer. [default: read,write,replicate]",
)
@click.option("--streams", metavar="NAMES", help="The streams that it may read and write. [default: all]")
@click.option(
    "--instances",
    metavar="NAMES",
    help="Comma-separated names of instances: it may publish rows as these at the RESP port. [default: any]",
)
@click.option(
    "--to",
    "-t",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the secret to this new file, which only you can read. [default: print it]",
)
@output_option('{"key", "secret"}')
def add(
    name: str,
    daemon: DaemonTarget,
    rights: str | None,
    streams: str | None,
    instances: str | None,
    target: Path | None,
    output: Output,
) -> None:
    """Make the key NAME, and show its secret, this once: the daemon keeps none.

    The secret is for the secret_file of a replica, or of a command. The key is valid at the primary and, a
    moment later, at all its replicas.
    """
    body: dict[str, Any] = {"name": name}
    if rights is not None:
        body["rights"] = rights.split(",")
    if streams is not None:
        body["streams"] = streams.split(",")
    if instances is not None:
        body["instances"] = instances.split(",")
    # Before the key is made: a secret that cannot be written down would be lost.
    file = None if target is None else _create(target)
    try:
        answer = daemon.ask(ADD_KEY.request(), json.dumps(body).encode())
    except BaseException:
        if target is not None:
            target.unlink(missing_ok=True)
        raise
    if file is not None:
        with os.fdopen(file, "w") as opened:
            opened.write(f"{answer['secret']}\n")
        output.show({"key": answer["key"], "path": str(target)}, [f"wrote the secret to {target}"])
        return
    output.show(answer, [answer["secret"]])


@keys.command(cls=CliCommand)
@click.argument("name")
@daemon_options()
@output_option('{"name", "rights", "streams", "instances", "made", "revoked"}')
def revoke(name: str, daemon: DaemonTarget, output: Output) -> None:
    """Revoke the key NAME for good, at the primary and all its replicas; its peers are disconnected."""
    answer = daemon.ask(REVOKE_KEY.request(name))
    output.show(answer, [f"{printable(answer['name'])} is revoked"])


def _names(names: list[str] | None, unlimited: str) -> str:
    return unlimited if names is None else ",".join(map(printable, names)) or "none"


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}; nothing was done") from error
