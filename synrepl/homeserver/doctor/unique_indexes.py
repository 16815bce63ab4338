"""Unique indexes that the homeserver's statements need: a restore leaves one out if rows are there twice.

The homeserver starts without it. Each `INSERT ... ON CONFLICT` of that table then fails, as at a login.
"""

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.synapse import Catalog

KIND: Final = "unique_index_missing"

SCHEMAS: Final = range(72, 95)
"""The schemas of Synapse 1.66 to 1.163. What is listed is in databases of 1.66, 1.157.1 and 1.163.2 alike."""

_UNIQUE: Final = """
    SELECT relation.relname, array_agg(field.attname::text)
    FROM pg_index AS an_index JOIN pg_class AS relation ON relation.oid = an_index.indrelid
        JOIN pg_namespace AS space ON space.oid = relation.relnamespace
        JOIN pg_attribute AS field ON field.attrelid = relation.oid AND field.attnum = ANY (an_index.indkey)
    WHERE an_index.indisunique AND an_index.indisvalid AND an_index.indpred IS NULL
        AND an_index.indexprs IS NULL AND space.nspname = ANY (current_schemas(false))
    GROUP BY an_index.indexrelid, relation.relname
"""


@cache
def _known() -> dict[str, list[tuple[str, ...]]]:
    """The columns of each unique index, by the table."""
    data = resources.files(__package__).joinpath("unique_indexes.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, list[tuple[str, ...]]])


def tables_with_unique_indexes(cursor: Any, catalog: Catalog) -> list[str]:
    """Return the tables of which it is known what must be unique; none in a schema that is not known."""
    cursor.execute("SELECT max(version) FROM schema_version")
    return [name for name in _known() if name in catalog.tables] if cursor.fetchone()[0] in SCHEMAS else []


def check_unique_indexes(cursor: Any, catalog: Catalog, tables: Iterable[str]) -> list[Complaint]:
    """Compare the unique indexes of these tables with those that the homeserver makes."""
    cursor.execute(_UNIQUE)
    found = {(table, frozenset(columns)) for table, columns in cursor.fetchall()}
    return [
        _missing(table, columns)
        for table in tables
        for columns in _known()[table]
        if (table, frozenset(columns)) not in found and catalog.tables[table] >= {*columns}
    ]


def _missing(table: str, columns: tuple[str, ...]) -> Complaint:
    listed = ", ".join(columns)
    return Complaint(
        severity="error",
        kind=KIND,
        stream="",
        text=f"the table {table} has no unique index on {listed}: a restore leaves it out if rows are there"
        " twice. The homeserver starts, and fails whenever it writes there",
        remedy="stop the homeserver, find what is there twice (SELECT"
        f" {listed}, count(*) FROM {table} GROUP BY {listed} HAVING count(*) > 1), delete all but one row of"
        " each, and run the statement; or restore again, from a dump without them",
        statement=f"CREATE UNIQUE INDEX ON {table} ({listed})",
    )
