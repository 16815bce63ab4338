"""``synrepl streams --stuck``: the writers and tables that hold streams back."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, Option, shown
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.streams import check_arguments
from synrepl.errors import ReplicationError

if TYPE_CHECKING:
    from synrepl.homeserver.doctor.stalls import Stall

OPTIONS: Final = (
    Option(
        ["--stuck"], is_flag=True, help="Show the writers that hold streams back: stuck, silent or behind."
    ),
    Option(
        ["--database"],
        metavar="URL",
        help="With --stuck: read the writers' database (sqlite:PATH or postgresql://...), not a daemon.",
    ),
)

HELP: Final = """

With --stuck: show the writers that hold back streams with several writers, the worst first. Exit code 1:
a writer is stuck and does not recover by itself, or a table cannot be read. In JSON: {"stuck": bool,
"holds": [...], "tables": [...]}.
"""


class TableProgress(msgspec.Struct, frozen=True):
    """A stream that the daemon reads from a table: read up to `upto`, complete up to `limit`.

    `trouble` is the current problem; at `right_at` (Unix seconds, None: unknown) there was none.
    """

    stream: str
    upto: int | None = None
    limit: int | None = None
    trouble: str | None = None
    right_at: float | None = None


class HeldStreams(msgspec.Struct, frozen=True, kw_only=True):
    """The writers and tables that hold streams back. `remark` explains why there may be none."""

    stalls: "Sequence[Stall]"
    tables: Sequence[TableProgress] = ()
    remark: str = ""

    @property
    def is_stuck(self) -> bool:
        """Whether a writer holds a stream back until an operator intervenes, or a table cannot be read."""
        return any(is_stuck for is_stuck, _ in self.lines())

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield for each writer or failing table whether it is stuck, and why, as text; stuck ones first."""
        yield from ((True, f"{one.stream}: {one.trouble}") for one in self.tables if one.trouble)
        for one in sorted(self.stalls, key=lambda stall: not stall.is_stuck):
            yield one.is_stuck, f"{one.stream}: {one.text}"


def extend(streams: click.Command) -> click.Command:
    """Return the command ``streams`` with --stuck and --database."""
    listed = streams.callback
    assert listed is not None

    def show(*, stuck: bool, database: str | None, **given: Any) -> None:
        if not stuck and database is None:
            listed(**given)
        else:
            _show_held(stuck=stuck, database=database, **given)

    show.__doc__ = f"{streams.help}{HELP}"
    return CliCommand(
        streams.name,
        callback=show,
        params=[*streams.params, *OPTIONS],
        help=show.__doc__,
        epilog=streams.epilog,
    )


@daemon_options()
@output_option("", is_table=True)
def _show_held(
    *,
    action: str,
    name: str | None,
    daemon: DaemonTarget,
    stuck: bool,
    database: str | None,
    output: Output,
    **of_create: Any,
) -> None:
    if action == "create":
        given = ["--stuck"] * stuck + ["--database"] * (database is not None)
        raise click.UsageError(
            f"create does not take {' and '.join(given)}: remove {'them' if len(given) > 1 else 'it'}"
        )
    check_arguments(action, name, **of_create)
    if not stuck:
        raise click.UsageError("--database needs --stuck: add it")
    found = _from_status(daemon.ask_status()) if database is None else _from_database(database)
    parts = msgspec.to_builtins({"holds": found.stalls, "tables": found.tables})
    output.show({"stuck": found.is_stuck, **parts}, _held_lines(found))
    sys.exit(1 if found.is_stuck else 0)


def _from_database(url: str) -> HeldStreams:
    # Imported on use, also below: these imports take longer than the rest of the command.
    from synrepl.homeserver.doctor.stalls import read_stalls
    from synrepl.storage.databases import Database

    try:
        database = Database(url, what="synrepl streams", statement_seconds=0.0)
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    return HeldStreams(stalls=read_stalls(database, time.time()))


def _from_status(status: dict[str, Any]) -> HeldStreams:
    from synrepl.homeserver.doctor.stalls import find_stalls
    from synrepl.storage.id_tables.writers import WriterState

    if not status.get("tables") and not status.get("writers"):
        return HeldStreams(
            stalls=[], remark="this daemon reads no streams from tables; use --database to read a database"
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
    return HeldStreams(stalls=find_stalls(states, positions, time.time()), tables=tables)


def _held_lines(found: HeldStreams) -> Iterator[str]:
    for is_stuck, text in found.lines():
        said = shown(text)
        yield click.style(f"stuck: {said}", "red", bold=True) if is_stuck else f"held: {said}"
    if found.remark:
        yield found.remark
    if not found.is_stuck:
        yield click.style("nothing is stuck", "green")
