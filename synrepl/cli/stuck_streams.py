"""What holds streams, from a daemon's status or from the writers' database."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from synrepl.cli.errors import CliError
from synrepl.errors import ConfigError, ReplicationError
from synrepl.storage.databases import Database
from synrepl.storage.doctor import Hold, holds, read_holds
from synrepl.storage.ids.writers import WriterState

__all__ = ["StuckStream", "of_database", "of_status"]


class ReadTable(msgspec.Struct, frozen=True):
    """A stream that the daemon reads from tables: read up to `upto`, complete up to `limit`, all right at
    `right_at`, in seconds since 1970.
    """

    stream: str
    upto: int | None = None
    limit: int | None = None
    trouble: str | None = None
    right_at: float | None = None


class StuckStream(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what. `remark`: why there may be nothing to tell."""

    holds: Sequence[Hold]
    tables: Sequence[ReadTable] = ()
    remark: str = ""

    @property
    def is_stuck(self) -> bool:
        """Whether something will not pass by itself."""
        return any(is_stuck for is_stuck, _ in self.lines())

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Each hold in words, and whether it is stuck; those that are come first."""
        yield from ((True, f"{one.stream}: {one.trouble}") for one in self.tables if one.trouble)
        for one in sorted(self.holds, key=lambda hold: not hold.is_stuck):
            yield one.is_stuck, f"{one.stream}: {one.text}"

    def as_json(self) -> Any:
        """For programs."""
        return {
            "stuck": self.is_stuck,
            "holds": msgspec.to_builtins(self.holds),
            "tables": msgspec.to_builtins(self.tables),
        }


def of_database(url: str) -> StuckStream:
    """As the tables of the writers tell."""
    try:
        database = Database(url, what="synrepl streams")
    except (ConfigError, ReplicationError) as error:
        raise click.UsageError(str(error)) from error
    try:
        return StuckStream(holds=read_holds(database, time.time()))
    except ReplicationError as error:
        raise CliError(str(error)) from error


def of_status(status: dict[str, Any]) -> StuckStream:
    """As a daemon tells that reads streams from tables."""
    if not status.get("tables") and not status.get("writers"):
        return StuckStream(
            holds=[], remark="this daemon reads no streams from tables; --database asks a database"
        )
    try:
        states = msgspec.convert(status.get("writers") or [], list[WriterState])
        tables = msgspec.convert(status.get("tables") or [], list[ReadTable])
    except msgspec.ValidationError as error:
        raise CliError(f"the daemon does not tell of its tables as this release knows it: {error}") from error
    positions: dict[str, dict[str, int]] = {}
    for state in states:
        positions.setdefault(state.stream, {})[state.writer] = state.position
    return StuckStream(holds=holds(states, positions, time.time()), tables=tables)
