"""The unique indexes that a homeserver's statements need: ``unique_indexes.json``.

An index has its columns in any order; ``WHERE`` and a column before them is of the rows that have it alone.
What is listed is in databases of 1.66, 1.157.1 and 1.163.2 alike, if they have the table.
"""

from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

import msgspec

RELEASES: Final = "1.66 to 1.163"
"""The releases whose tables are known."""

_WHERE: Final = "WHERE "


class UniqueIndex(NamedTuple):
    """A unique index: its columns, and the condition of the rows that it is of, if not of all."""

    columns: frozenset[str]
    condition: str = ""

    def told(self) -> str:
        """The index as a statement names it."""
        where = f" {_WHERE}{self.condition}" if self.condition else ""
        return f"({', '.join(sorted(self.columns))}){where}"


@cache
def known_unique_indexes() -> dict[str, tuple[UniqueIndex, ...]]:
    """Return the unique indexes that must be there, by the table."""
    data = resources.files(__package__).joinpath("unique_indexes.json").read_bytes()
    rows = msgspec.json.decode(data, type=dict[str, list[list[str]]])
    return {table: tuple(_index(columns) for columns in listed) for table, listed in rows.items()}


def _index(columns: Collection[str]) -> UniqueIndex:
    condition = next((one.removeprefix(_WHERE) for one in columns if one.startswith(_WHERE)), "")
    return UniqueIndex(frozenset(one for one in columns if not one.startswith(_WHERE)), condition)


def is_of_locks(table: str) -> bool:
    """Whether the rows of a table are locks of the moment, and no data."""
    return table.startswith(("worker_locks", "worker_read_write_locks"))


def follows(table: str) -> str:
    """What it means that a table lacks one."""
    if is_of_locks(table):
        return (
            "The homeserver starts; by it a lock is given to one alone: without it a lock may be given twice,"
            " or never, and what waits for it stands still"
        )
    return "The homeserver starts, and fails whenever it writes there"


def of_restores(table: str) -> str:
    """How it comes that a table lacks one."""
    others = "" if not is_of_locks(table) else ", and a database that was converted may lack it"
    return f"a restore leaves it out if rows are there twice{others}"
