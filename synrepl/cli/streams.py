"""``synrepl streams``: a daemon's streams, the writers that hold streams back, and declared streams."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, shown
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table
from synrepl.errors import ReplicationError
from synrepl.http_api.routes import DECLARE

if TYPE_CHECKING:
    from synrepl.homeserver.doctor.holds import Hold


class TableProgress(msgspec.Struct, frozen=True):
    """A stream that the daemon reads from a table: read up to `upto`, complete up to `limit`.

    `trouble` is the current problem; at `right_at` (Unix seconds, None: unknown) there was none.
    """

    stream: str
    upto: int | None = None
    limit: int | None = None
    trouble: str | None = None
    right_at: float | None = None


class StuckStream(msgspec.Struct, frozen=True, kw_only=True):
    """The writers and tables that hold streams back. `remark` explains why there may be none."""

    holds: "Sequence[Hold]"
    tables: Sequence[TableProgress] = ()
    remark: str = ""

    @property
    def is_stuck(self) -> bool:
        """Whether a writer holds a stream back until an operator intervenes, or a table cannot be read."""
        return any(is_stuck for is_stuck, _ in self.lines())

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield for each writer or failing table whether it is stuck, and why, as text; stuck ones first."""
        yield from ((True, f"{one.stream}: {one.trouble}") for one in self.tables if one.trouble)
        for one in sorted(self.holds, key=lambda hold: not hold.is_stuck):
            yield one.is_stuck, f"{one.stream}: {one.text}"


def _from_database(url: str) -> StuckStream:
    # Imported on use, also below: these imports take longer than the rest of the command.
    from synrepl.homeserver.doctor.holds import read_holds
    from synrepl.storage.databases import Database

    try:
        database = Database(url, what="synrepl streams", statement_seconds=0.0)
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    return StuckStream(holds=read_holds(database, time.time()))


def _from_status(status: dict[str, Any]) -> StuckStream:
    from synrepl.homeserver.doctor.holds import holds
    from synrepl.ids.writers import WriterState

    if not status.get("tables") and not status.get("writers"):
        return StuckStream(
            holds=[], remark="this daemon reads no streams from tables; use --database to read a database"
        )
    try:
        states = msgspec.convert(status.get("writers") or [], list[WriterState])
        tables = msgspec.convert(status.get("tables") or [], list[TableProgress])
    except msgspec.ValidationError as error:
        raise CliError(
            f"cannot parse the status of tables: {error}; is the daemon of another release?"
        ) from error
    positions: dict[str, dict[str, int]] = {}
    for state in states:
        positions.setdefault(state.stream, {})[state.writer] = state.position
    return StuckStream(holds=holds(states, positions, time.time()), tables=tables)


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
@click.option(
    "--stuck", is_flag=True, help="Show the writers that hold streams back: stuck, silent or behind."
)
@click.option(
    "--database",
    metavar="URL",
    help="With --stuck: read the writers' database (sqlite:PATH or postgresql://...), not a daemon.",
)
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
    stuck: bool,
    database: str | None,
    output: Output,
) -> None:
    """Show the streams of a daemon, or declare one.

    `list` shows whether each is kept or ephemeral, and the position of each writer. `create NAME` declares a
    new stream, which all replicas get. It is not published to Redis. Repeating the same declaration changes
    nothing.

    With --stuck: show the writers that hold back streams with several writers, the worst first. Exit code 1:
    a writer is stuck and does not recover by itself, or a table cannot be read. In JSON: {"stuck": bool,
    "holds": [...], "tables": [...]}.
    """
    if (name is None) is not (action == "list"):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'the name of a stream'}")
    if action == "create":
        if stuck or database is not None:
            raise click.UsageError("create does not take --stuck and --database: remove them")
        if (columns is None) is not untyped:
            raise click.UsageError("create needs --columns or --untyped, and not both")
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
    if untyped or any(given is not None for given in (key, kind, columns, writers)):
        raise click.UsageError("only create takes --key, --kind, --columns, --untyped and --writers")
    if database is not None and not stuck:
        raise click.UsageError("--database needs --stuck: add it")
    if stuck:
        found = _from_status(daemon.ask_status()) if database is None else _from_database(database)
        parts = msgspec.to_builtins({"holds": found.holds, "tables": found.tables})
        output.show({"stuck": found.is_stuck, **parts}, _stuck_lines(found))
        sys.exit(1 if found.is_stuck else 0)
    known = daemon.ask_status().get("streams", {})
    rows = [
        (name, "kept" if stream["kept"] else "ephemeral", writer, token)
        for name, stream in known.items()
        for writer, token in sorted((stream["writers"] or {"": ""}).items())
    ]
    output.show(known, table(("stream", "kind", "writer", "position"), rows, limit=len(rows)))


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


def _stuck_lines(found: StuckStream) -> Iterator[str]:
    for is_stuck, text in found.lines():
        said = shown(text)
        yield click.style(f"stuck: {said}", "red", bold=True) if is_stuck else f"held: {said}"
    if found.remark:
        yield found.remark
    if not found.is_stuck:
        yield click.style("nothing is stuck", "green")
