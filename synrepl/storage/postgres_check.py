"""Checks whether a PostgreSQL database can hold a log. Changes nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from synrepl.storage.postgres_connection import HINTS, LIMITS
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.storage.postgres_connection import Connection

_SERVER: Final = """
    SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_user::text,
        current_database()::text, current_setting('server_encoding'),
        has_database_privilege(current_database(), 'CREATE'), to_regnamespace(%(schema)s) IS NOT NULL,
        has_schema_privilege(to_regnamespace(%(schema)s)::oid, 'USAGE')
            AND (has_schema_privilege(to_regnamespace(%(schema)s)::oid, 'CREATE')
                OR to_regclass(%(schema)s || '.log_header') IS NOT NULL)
"""
_TABLES: Final = """
    SELECT relname::text FROM pg_class
    WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
        AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
            AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
    ORDER BY relname
"""
_LIMITS: Final = """
    SELECT name || ' = ' || setting || coalesce(unit, '') FROM pg_settings
    WHERE name = ANY(%s) AND setting <> '0' ORDER BY name
"""

FOREIGN_LIMITS: Final = [*(name for name in LIMITS if name != "lock_timeout"), "statement_timeout"]
"""The limits that a session has none of. How long it waits for a lock is its own."""
KEEP_ALL_NAMES: Final = ("UTF8", "SQL_ASCII")
"""The encodings of databases that keep every name as it is."""


def hindrances(database: "Connection", schema: str) -> Iterator[str]:
    """Yield a sentence, with its cure, for each thing that keeps a daemon from having its log in this schema.

    The connection is one that `PostgresAddress` made: its session has the settings of the daemon's.
    """
    found = database.execute(_SERVER, {"schema": schema}).fetchone()
    assert found is not None  # it is a SELECT of one row
    is_standby, is_read_only, user, name, encoding, may_make, is_there, may_use = found
    user, name = printable(user), printable(name)
    if is_standby:
        yield HINTS["25006"]
    elif is_read_only:
        yield (
            "transactions are read only, as default_transaction_read_only of the server, the database or the"
            f" user says: ALTER ROLE {user} IN DATABASE {name} SET default_transaction_read_only = off"
        )
    if is_there and not may_use:
        yield (
            f"the user {user} may not use the schema {schema}, which is there:"
            f" GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"
        )
    elif not is_there and not may_make:
        yield (
            f"the user {user} may not make the schema {schema}: GRANT CREATE ON DATABASE {name} TO {user}, or"
            f" CREATE SCHEMA {schema} AUTHORIZATION {user}"
        )
    if is_there and (tables := database.execute(_TABLES, (schema,)).fetchall()):
        yield (
            f"the user {user} may not read and write {', '.join(table for (table,) in tables)} in the schema"
            f" {schema}: ALTER TABLE {schema}.{tables[0][0]} OWNER TO {user}, and so on"
        )
    if encoding not in KEEP_ALL_NAMES:
        yield (
            f"the database has the encoding {encoding}, which does not have all names: make one with"
            " ENCODING 'UTF8' TEMPLATE template0"
        )
    if limits := database.execute(_LIMITS, (FOREIGN_LIMITS,)).fetchall():
        yield f"time-outs that the session could not switch off: {', '.join(limit for (limit,) in limits)}"
