"""The tables and sequences of a database, as far as the doctor needs them."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from synrepl.storage.ids.database import Flavor

__all__ = ["Catalog", "read_catalog"]

LOG: Final = {"facts", "meta", "positions"}
"""The tables of a log."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of every table, the sequences, and whether there is a log."""

    tables: Mapping[str, AbstractSet[str]]
    sequences: AbstractSet[str]
    has_log: bool


def read_catalog(cursor: Any, flavor: Flavor) -> Catalog:
    """Read the catalog, including objects that this user may not read, so that they can be reported."""
    if flavor == "postgresql":
        cursor.execute(
            "SELECT space.nspname, relation.relname, relation.relkind::text, field.attname"
            " FROM pg_class AS relation"
            " JOIN pg_namespace AS space ON space.oid = relation.relnamespace"
            " JOIN pg_attribute AS field ON field.attrelid = relation.oid"
            " WHERE relation.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"
            " AND field.attnum > 0 AND NOT field.attisdropped"
            " AND (space.nspname = ANY (current_schemas(false)) OR space.nspname = 'synrepl')"
        )
    else:
        cursor.execute(
            "SELECT '', tables.name, 'r', columns.name FROM sqlite_master AS tables,"
            " pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'"
        )
    tables: dict[str, set[str]] = {}
    sequences: set[str] = set()
    of_log: set[str] = set()
    for schema, name, kind, column in cursor.fetchall():
        if kind == "S":
            sequences.add(name)
        elif schema == "synrepl":
            # The log's tables are in their own schema, since their names are common.
            of_log.add(name)
        else:
            tables.setdefault(name, set()).add(column)
    if flavor == "sqlite" and "digest" in tables.get("facts", ()):
        of_log = set(tables)
    return Catalog(tables=tables, sequences=sequences, has_log=of_log >= LOG)
