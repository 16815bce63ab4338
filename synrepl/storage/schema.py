"""The tables of the log in SQLite and PostgreSQL, and their migrations."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.streams.digest import EMPTY

__all__ = ["MIGRATIONS", "TABLES", "Migration", "migrate"]


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """The statements from one schema version to the next, for both databases."""

    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


TABLES: Final = (
    "meta",
    "facts",
    "positions",
    "receipts",
    "voids",
    "notes",
    "turns",
    "leases",
    "places",
    "keyed",
)
"""All tables of a log."""

VOIDS_TO_TURNS: Final = f"""
    INSERT INTO turns (epoch, serial, digest, at_ms, why, stream, token)
    SELECT void.epoch, coalesce(fact.serial, 0), coalesce(fact.digest, '{EMPTY}'),
        coalesce(fact.committed_at_ms, 0), 'lost', void.stream, void.token
    FROM voids AS void LEFT JOIN facts AS fact
        ON fact.serial = (SELECT max(serial) FROM facts WHERE facts.epoch < void.epoch)
    WHERE true
    ON CONFLICT (epoch) DO NOTHING
"""
"""Before this version an epoch began only when facts were lost: after the last fact of the earlier epochs.
The time was not recorded; it is that fact's time or later.
"""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        sqlite=(
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
            # SQLite ends each index entry with the serial, so this is also the order (token, serial).
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
        postgres=(
            """CREATE TABLE facts (
                serial BIGINT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                stream TEXT NOT NULL,
                writer TEXT NOT NULL,
                prev_token BIGINT NOT NULL,
                token BIGINT NOT NULL,
                rows BYTEA NOT NULL,
                committed_at_ms BIGINT NOT NULL,
                digest TEXT NOT NULL
            )""",
            "CREATE INDEX facts_by_token ON facts (stream, token, serial)",
            """CREATE TABLE positions (
                stream TEXT NOT NULL,
                writer TEXT NOT NULL,
                token BIGINT NOT NULL,
                PRIMARY KEY (stream, writer)
            )""",
            """CREATE TABLE receipts (
                key TEXT PRIMARY KEY,
                request TEXT NOT NULL,
                epoch BIGINT NOT NULL,
                first_serial BIGINT,
                tokens TEXT NOT NULL,
                at_ms BIGINT NOT NULL
            )""",
            "CREATE INDEX receipts_by_time ON receipts (at_ms)",
            "INSERT INTO meta (key, value) VALUES ('epoch', 1), ('boots', 0)",
        ),
    ),
    Migration(
        sqlite=(
            """CREATE TABLE voids (
                stream TEXT NOT NULL,
                epoch INTEGER NOT NULL,
                token INTEGER NOT NULL,
                PRIMARY KEY (stream, epoch)
            ) WITHOUT ROWID""",
        ),
        postgres=(
            """CREATE TABLE voids (
                stream TEXT NOT NULL,
                epoch BIGINT NOT NULL,
                token BIGINT NOT NULL,
                PRIMARY KEY (stream, epoch)
            )""",
        ),
    ),
    Migration(
        sqlite=(
            "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            """CREATE TABLE turns (
                epoch INTEGER PRIMARY KEY,
                serial INTEGER NOT NULL,
                digest TEXT NOT NULL,
                at_ms INTEGER NOT NULL,
                why TEXT NOT NULL,
                stream TEXT NOT NULL,
                token INTEGER NOT NULL
            )""",
            """CREATE TABLE leases (
                uuid TEXT PRIMARY KEY,
                name TEXT NOT NULL,
                registered INTEGER NOT NULL,
                serial INTEGER NOT NULL,
                made_ms INTEGER NOT NULL,
                seen_ms INTEGER,
                address TEXT NOT NULL,
                ended_ms INTEGER,
                reason TEXT NOT NULL
            ) WITHOUT ROWID""",
            """CREATE TABLE places (
                name TEXT PRIMARY KEY,
                epoch INTEGER NOT NULL,
                serial INTEGER NOT NULL,
                digest TEXT NOT NULL
            ) WITHOUT ROWID""",
            "CREATE TABLE keyed (key BLOB PRIMARY KEY, serial INTEGER NOT NULL) WITHOUT ROWID",
            "CREATE INDEX keyed_by_serial ON keyed (serial)",
            "CREATE INDEX receipts_by_serial ON receipts (first_serial)",
            VOIDS_TO_TURNS,
        ),
        postgres=(
            "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
            """CREATE TABLE turns (
                epoch BIGINT PRIMARY KEY,
                serial BIGINT NOT NULL,
                digest TEXT NOT NULL,
                at_ms BIGINT NOT NULL,
                why TEXT NOT NULL,
                stream TEXT NOT NULL,
                token BIGINT NOT NULL
            )""",
            """CREATE TABLE leases (
                uuid TEXT PRIMARY KEY,
                name TEXT NOT NULL,
                registered INTEGER NOT NULL,
                serial BIGINT NOT NULL,
                made_ms BIGINT NOT NULL,
                seen_ms BIGINT,
                address TEXT NOT NULL,
                ended_ms BIGINT,
                reason TEXT NOT NULL
            )""",
            """CREATE TABLE places (
                name TEXT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                serial BIGINT NOT NULL,
                digest TEXT NOT NULL
            )""",
            "CREATE TABLE keyed (key BYTEA PRIMARY KEY, serial BIGINT NOT NULL)",
            "CREATE INDEX keyed_by_serial ON keyed (serial)",
            "CREATE INDEX receipts_by_serial ON receipts (first_serial)",
            VOIDS_TO_TURNS,
        ),
    ),
)
"""The migrations from each schema version to the next, from 0 on. Append-only."""


def migrate(execute: Callable[[str], Any], migrations: Sequence[Sequence[str]], where: str) -> None:
    """Migrate the tables to the newest version. `meta` exists, and the caller has a transaction open.

    Raises `StorageError` if the tables are newer than this release, which could damage them.
    """
    found = execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    version = found[0] if found else 0
    if version > len(migrations):
        raise StorageError(
            op="open",
            why=f"{where} has schema version {version}, this release knows {len(migrations)}",
            hint="a newer release wrote it; run that release",
        )
    for statements in migrations[version:]:
        for statement in statements:
            execute(statement)
    if version < len(migrations):
        execute(
            f"INSERT INTO meta (key, value) VALUES ('version', {len(migrations)})"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
