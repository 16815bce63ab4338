"""The tables of the log in SQLite, and how older ones become today's."""

import sqlite3
from pathlib import Path

from synrepl.errors import StorageError

__all__ = ["MIGRATIONS", "migrate"]

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE facts (
            serial INTEGER PRIMARY KEY,
            epoch INTEGER NOT NULL,
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            prev_token INTEGER NOT NULL,
            token INTEGER NOT NULL,
            rows BLOB NOT NULL CHECK (typeof(rows) = 'blob'),
            committed_at_ms INTEGER NOT NULL,
            digest TEXT NOT NULL
        )""",
        # SQLite ends each entry with the serial: this is also the order (token, serial).
        "CREATE INDEX facts_by_token ON facts (stream, token)",
        """CREATE TABLE positions (
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            token INTEGER NOT NULL,
            PRIMARY KEY (stream, writer)
        ) WITHOUT ROWID""",
        """CREATE TABLE receipts (
            key TEXT PRIMARY KEY,
            request TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            first_serial INTEGER,
            tokens TEXT NOT NULL,
            at_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX receipts_by_time ON receipts (at_ms)",
        "INSERT INTO meta (key, value) VALUES ('epoch', 1), ('boots', 0)",
    ),
)
"""What leads from each version of the schema to the next, from 0 on. Only ever add to the end."""


def migrate(database: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the newest version, in one transaction.

    `StorageError` when they are newer than this program: it would not know what it destroys.
    """
    database.execute("BEGIN IMMEDIATE")
    try:
        database.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        found = database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
        version = found[0] if found else 0
        if version > len(MIGRATIONS):
            raise StorageError(
                op="open",
                why=f"{path} has schema version {version}, this release knows {len(MIGRATIONS)}",
                hint="a newer release wrote it; run that one",
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                database.execute(statement)
        if version < len(MIGRATIONS):
            database.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (len(MIGRATIONS),))
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
