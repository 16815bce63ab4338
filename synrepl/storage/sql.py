"""One text for two databases: statements are written as SQLite takes them, and adapted where need be."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

__all__ = ["Flavor", "execute", "for_postgres"]

Flavor = Literal["sqlite", "postgresql"]


@cache
def for_postgres(statement: str) -> str:
    """The statement with psycopg's placeholders in place of question marks.

    No statement of ours has a question mark or a per cent sign in a text.
    """
    return statement.replace("%", "%%").replace("?", "%s")


def execute(cursor: Any, flavor: Flavor, statement: str, values: Sequence[object] = ()) -> None:
    """Execute a statement of ours with the cursor of a database of this flavor."""
    cursor.execute(for_postgres(statement) if flavor == "postgresql" else statement, values)
