"""The SQL statements that an operator runs to repair something."""

from synrepl.storage.id_tables.layout import IdStream
from synrepl.storage.sql import Flavor


def raise_sequence_sql(stream: IdStream, goal: int, flavor: Flavor) -> str:
    """SQL that raises a sequence, and never lowers it if nothing else uses the sequence meanwhile."""
    if flavor == "postgresql":
        return (
            f"SELECT setval({quoted(stream.sequence)},"
            f" greatest({goal}, (SELECT last_value FROM {stream.sequence})))"
        )
    return f"UPDATE synrepl_sequences SET value = max(value, {goal}) WHERE name = {quoted(stream.sequence)}"


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
