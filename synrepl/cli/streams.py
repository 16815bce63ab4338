"""``synrepl streams``: the streams of a daemon, their positions, and writers that hold streams back."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table
from synrepl.errors import ReplicationError

if TYPE_CHECKING:
    from synrepl.storage.doctor.holds import Hold

__all__ = ["streams"]


class ReadTable(msgspec.Struct, frozen=True):
    """A stream that the daemon reads from a table: read up to `upto`, complete up to `limit`.

    `right_at` is the time of the last success, in seconds since 1970.
    """

    stream: str
    upto: int | None = None
    limit: int | None = None
    trouble: str | None = None
    right_at: float | None = None


class StuckStream(msgspec.Struct, frozen=True, kw_only=True):
    """The holds of streams. `remark` explains why there may be none."""

    holds: "Sequence[Hold]"
    tables: Sequence[ReadTable] = ()
    remark: str = ""

    @property
    def is_stuck(self) -> bool:
        """Whether a hold lasts until an operator intervenes."""
        return any(is_stuck for is_stuck, _ in self.lines())

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield whether a hold is stuck, and its text; stuck holds first."""
        yield from ((True, f"{one.stream}: {one.trouble}") for one in self.tables if one.trouble)
        for one in sorted(self.holds, key=lambda hold: not hold.is_stuck):
            yield one.is_stuck, f"{one.stream}: {one.text}"

    def as_json(self) -> Any:
        """Return the result as JSON objects."""
        return {
            "stuck": self.is_stuck,
            "holds": msgspec.to_builtins(self.holds),
            "tables": msgspec.to_builtins(self.tables),
        }


def _from_database(url: str) -> StuckStream:
    """Return the holds in the writers' database."""
    # Imported on use, as below: they take longer than the rest of the command.
    from synrepl.storage.databases import Database
    from synrepl.storage.doctor.holds import read_holds

    try:
        database = Database(url, what="synrepl streams")
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    return StuckStream(holds=read_holds(database, time.time()))


def _from_status(status: dict[str, Any]) -> StuckStream:
    """Return the holds in the status of a daemon that reads streams from tables."""
    from synrepl.storage.doctor.holds import holds
    from synrepl.storage.ids.writers import WriterState

    if not status.get("tables") and not status.get("writers"):
        return StuckStream(
            holds=[], remark="this daemon reads no streams from tables; use --database to read a database"
        )
    try:
        states = msgspec.convert(status.get("writers") or [], list[WriterState])
        tables = msgspec.convert(status.get("tables") or [], list[ReadTable])
    except msgspec.ValidationError as error:
        raise CliError(
            f"cannot parse the status of tables: {error}; is the daemon of another release?"
        ) from error
    positions: dict[str, dict[str, int]] = {}
    for state in states:
        positions.setdefault(state.stream, {})[state.writer] = state.position
    return StuckStream(holds=holds(states, positions, time.time()), tables=tables)


@click.command(cls=CliCommand)
@daemon_options()
@click.option(
    "--stuck", is_flag=True, help="Show the writers that hold streams back: unfinished ids, silent or behind."
)
@click.option(
    "--database",
    metavar="URL",
    help="With --stuck: read the writers' database (sqlite:PATH or postgresql://...), not a daemon.",
)
@output_option('{stream: {"kept": bool, "writers": {writer: token}}}', is_table=True)
def streams(daemon: DaemonTarget, stuck: bool, database: str | None, output: Output) -> None:
    """Show the streams of a daemon: kept or ephemeral, and the position of each writer.

    With --stuck: show the writers that hold back streams with several writers, the worst first. Exit code 1:
    a writer is stuck and does not recover by itself. In JSON: {"stuck": bool, "holds": [...], "tables":
    [...]}.
    """
    if database is not None and not stuck:
        raise click.UsageError("--database needs --stuck")
    if stuck:
        found = _from_status(daemon.ask_status()) if database is None else _from_database(database)
        output.show(found.as_json(), _stuck_lines(found))
        sys.exit(1 if found.is_stuck else 0)
    known = daemon.ask_status().get("streams", {})
    rows = [
        (name, "kept" if stream["kept"] else "ephemeral", writer, token)
        for name, stream in known.items()
        for writer, token in sorted((stream["writers"] or {"": ""}).items())
    ]
    output.show(known, table(("stream", "kind", "writer", "position"), rows, limit=len(rows)))


def _stuck_lines(found: StuckStream) -> Iterator[str]:
    for is_stuck, text in found.lines():
        yield click.style(f"stuck: {text}", "red", bold=True) if is_stuck else f"held: {text}"
    if found.remark:
        yield found.remark
    if not found.is_stuck:
        yield click.style("nothing is stuck", "green")
