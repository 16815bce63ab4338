"""SQL for two databases: statements are written in SQLite's dialect and adapted to PostgreSQL."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

__all__ = ["Flavor", "execute", "for_postgres"]

Flavor = Literal["sqlite", "postgresql"]


@cache
def for_postgres(statement: str) -> str:
    """Replace the question marks of a statement by psycopg's placeholders.

    No statement in synrepl has a question mark or a per cent sign inside a literal.
    """
    return statement.replace("%", "%%").replace("?", "%s")


def execute(cursor: Any, flavor: Flavor, statement: str, values: Sequence[object] = ()) -> None:
    """Execute a statement with the cursor of a database of this flavor."""
    cursor.execute(for_postgres(statement) if flavor == "postgresql" else statement, values)
