"""One text for two databases: statements are written as SQLite takes them, and adapted where need be."""

from functools import cache

__all__ = ["for_postgres"]


@cache
def for_postgres(statement: str) -> str:
    """The statement with psycopg's placeholders in place of question marks.

    No statement of ours has a question mark or a per cent sign in a text.
    """
    return statement.replace("%", "%%").replace("?", "%s")
