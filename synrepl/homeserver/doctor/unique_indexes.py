"""Unique indexes that the homeserver's statements need: a restore leaves one out if rows are there twice.

The homeserver starts without it. Each `INSERT ... ON CONFLICT` of that table then fails, as at a login.
"""

from collections.abc import Iterable
from typing import Any, Final

from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.synapse import Catalog
from synrepl.homeserver.unique_indexes import (
    UniqueIndex,
    follows,
    is_of_locks,
    known_unique_indexes,
    of_restores,
)

KIND: Final = "unique_index_missing"

SCHEMAS: Final = range(72, 95)
"""The schemas of Synapse 1.66 to 1.163. What is listed is in databases of 1.66, 1.157.1 and 1.163.2 alike."""

_UNIQUE: Final = """
    SELECT relation.relname, array_agg(field.attname::text),
        max(coalesce(pg_get_expr(an_index.indpred, an_index.indrelid), ''))
    FROM pg_index AS an_index JOIN pg_class AS relation ON relation.oid = an_index.indrelid
        JOIN pg_namespace AS space ON space.oid = relation.relnamespace
        JOIN pg_attribute AS field ON field.attrelid = relation.oid AND field.attnum = ANY (an_index.indkey)
    WHERE an_index.indisunique AND an_index.indisvalid
        AND an_index.indexprs IS NULL AND space.nspname = ANY (current_schemas(false))
    GROUP BY an_index.indexrelid, relation.relname
"""


def tables_with_unique_indexes(cursor: Any, catalog: Catalog) -> list[str]:
    """Return the tables of which it is known what must be unique; none in a schema that is not known."""
    cursor.execute("SELECT max(version) FROM schema_version")
    return (
        [name for name in known_unique_indexes() if name in catalog.tables]
        if cursor.fetchone()[0] in SCHEMAS
        else []
    )


def check_unique_indexes(cursor: Any, catalog: Catalog, tables: Iterable[str]) -> list[Complaint]:
    """Compare the unique indexes of these tables with those that the homeserver makes."""
    cursor.execute(_UNIQUE)
    found = {
        (table, UniqueIndex(frozenset(columns), condition)) for table, columns, condition in cursor.fetchall()
    }
    return [
        _missing(table, index)
        for table in tables
        for index in known_unique_indexes()[table]
        if (table, index) not in found and catalog.tables[table] >= index.columns
    ]


def _missing(table: str, index: UniqueIndex) -> Complaint:
    listed = ", ".join(sorted(index.columns))
    where = f" WHERE {index.condition}" if index.condition else ""
    remedy = (
        f"stop the homeserver with all its workers, delete what is in the table (DELETE FROM {table}: locks"
        " of processes that do not run are no data), and run the statement"
        if is_of_locks(table)
        else "stop the homeserver, find what is there twice (SELECT"
        f" {listed}, count(*) FROM {table} GROUP BY {listed} HAVING count(*) > 1), delete all but one row of"
        " each, and run the statement; or restore again, from a dump without them"
    )
    return Complaint(
        severity="error",
        kind=KIND,
        stream="",
        text=f"the table {table} has no unique index on {listed}{where}: {of_restores(table)}."
        f" {follows(table)}",
        remedy=remedy,
        statement=f"CREATE UNIQUE INDEX ON {table} {index.told()}",
    )
