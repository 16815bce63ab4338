"""``synrepl streams``: a daemon's streams, and declared streams."""

import json

import click

from synrepl.cli.command import CliCommand
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table
from synrepl.http_api.routes import DECLARE


@click.command(cls=CliCommand)
@click.argument("action", type=click.Choice(["list", "create"]), default="list")
@click.argument("name", required=False)
@daemon_options()
@click.option(
    "--key",
    metavar="COLUMNS",
    help="create: comma-separated columns; a row replaces earlier ones of the same key.",
)
@click.option(
    "--kind",
    type=click.Choice(["kept", "ephemeral"]),
    help="create: whether facts are kept in the log, or in memory [default: kept]",
)
@click.option(
    "--columns",
    metavar="NAME:TYPE,...",
    help="create: the items of a row: str, int, float, bool, json or file, with ? if the value may be null.",
)
@click.option("--untyped", is_flag=True, help="create: a row has one item, any JSON, in place of --columns.")
@click.option("--writers", metavar="NAMES", help="create: comma-separated writers [default: any]")
@output_option('{stream: {"kept": bool, "writers": {writer: token}}}', is_table=True)
def streams(
    action: str,
    name: str | None,
    daemon: DaemonTarget,
    key: str | None,
    kind: str | None,
    columns: str | None,
    untyped: bool,
    writers: str | None,
    output: Output,
) -> None:
    """Show the streams of a daemon, or declare one.

    `list` shows whether each is kept or ephemeral, and the position of each writer. `create NAME` declares a
    new stream, which all replicas get. It is not published to Redis. Repeating the same declaration changes
    nothing.
    """
    check_arguments(action, name, key=key, kind=kind, columns=columns, untyped=untyped, writers=writers)
    if action == "create":
        answer = daemon.ask(
            DECLARE.request(),
            json.dumps(
                {
                    "name": name,
                    "key": _words(key),
                    "kind": kind or "kept",
                    "columns": None if columns is None else _columns(columns),
                    "writers": _words(writers),
                }
            ).encode(),
        )
        output.show(answer, [f"{name} {'is created' if answer['created'] else 'was there already'}"])
        return
    known = daemon.ask_status().get("streams", {})
    rows = [
        (name, "kept" if stream["kept"] else "ephemeral", writer, token)
        for name, stream in known.items()
        for writer, token in sorted((stream["writers"] or {"": ""}).items())
    ]
    output.show(known, table(("stream", "kind", "writer", "position"), rows, limit=len(rows)))


def check_arguments(
    action: str, name: str | None, *, untyped: bool, columns: str | None, **of_create: str | None
) -> None:
    """Raise `click.UsageError` if arguments and options do not go together."""
    if (name is None) is not (action == "list"):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'the name of a stream'}")
    if action == "create" and (columns is None) is not untyped:
        raise click.UsageError("create needs --columns or --untyped, and not both")
    if action == "list" and (untyped or any(one is not None for one in (columns, *of_create.values()))):
        raise click.UsageError("only create takes --key, --kind, --columns, --untyped and --writers")


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _columns(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in _words(text):
        column, colon, kind = word.partition(":")
        if not colon or column in found:
            raise click.UsageError(f"--columns: {word} must be NAME:TYPE, with a name that occurs once")
        found[column] = kind
    return found
