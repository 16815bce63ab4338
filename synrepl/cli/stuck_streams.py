"""Writers that hold streams back, from a daemon's status or from the writers' database."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from synrepl.cli.command import CliError
from synrepl.errors import ReplicationError
from synrepl.storage.databases import Database
from synrepl.storage.doctor.holds import Hold, holds, read_holds
from synrepl.storage.ids.writers import WriterState

__all__ = ["StuckStream", "of_database", "of_status"]


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

    holds: Sequence[Hold]
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


def of_database(url: str) -> StuckStream:
    """Return the holds in the writers' database."""
    try:
        database = Database(url, what="synrepl streams")
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    return StuckStream(holds=read_holds(database, time.time()))


def of_status(status: dict[str, Any]) -> StuckStream:
    """Return the holds in the status of a daemon that reads streams from tables."""
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
