"""The database file of the queue.

Apart from times, requests and failures, its contents can be rebuilt from the log and the disk. So a power cut
may lose the last commits (``synchronous = NORMAL``); a damaged file, or one of an earlier version, is renamed
to ``.bad``, and replaced.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from synrepl.errors import StorageError
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.private_files import DiskFull, make_directory, map_errors
from synrepl.storage.sqlite import SQLiteConnection
from synrepl.storage.sqlite_errors import map_sqlite_errors

TABLES: Final = (
    # The file of each name; deleted names are not kept.
    """CREATE TABLE names (
        name TEXT PRIMARY KEY,
        sha256 TEXT NOT NULL,
        size INTEGER NOT NULL,
        serial INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX names_by_sha256 ON names (sha256)",
    # Missing files that have a name; `is_queued` if they are to be fetched, `is_wrong` if the last download
    # had other bytes than the name states.
    """CREATE TABLE wanted (
        sha256 TEXT PRIMARY KEY,
        size INTEGER NOT NULL,
        name TEXT NOT NULL,
        serial INTEGER NOT NULL,
        is_queued INTEGER NOT NULL,
        is_demanded INTEGER NOT NULL DEFAULT 0,
        tries INTEGER NOT NULL DEFAULT 0,
        next_at_ms INTEGER NOT NULL DEFAULT 0,
        why TEXT NOT NULL DEFAULT '',
        is_wrong INTEGER NOT NULL DEFAULT 0,
        since_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX wanted_in_turn ON wanted (is_queued, is_demanded DESC, serial)",
    "CREATE INDEX wanted_by_time ON wanted (is_queued, next_at_ms)",
    # Stored files without a name.
    "CREATE TABLE unnamed (sha256 TEXT PRIMARY KEY, since_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
VERSION: Final = 2


class QueueDatabase:
    """The database file at `path`, created with its directory at the first write.

    While it is open, no other daemon can open it (`DatabaseFile`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = DatabaseFile(path)
        self._database: SQLiteConnection | None = None

    def exists(self) -> bool:
        """Open the database if its file exists. Returns whether it does."""
        with self._map_errors("open the queue"):
            if self._database is None and self._path.exists():
                self._database = self._open()
        return self._database is not None

    def read(self, op: str, query: str, *values: object) -> list[Any]:
        """The rows that this query finds; none if there is no database."""
        if not self.exists():
            return []
        with self._map_errors(op):
            assert self._database is not None
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def writing(self, op: str) -> Iterator[sqlite3.Connection]:
        """The database in a transaction, committed at the end of the block, or rolled back on an error."""
        with self._map_errors(op):
            if self._database is None:
                make_directory(self._path.parent)
                self._database = self._open()
            with self._database.transaction():
                yield self._database

    def close(self) -> None:
        """Close the database. Idempotent."""
        database, self._database = self._database, None
        if database is not None:
            database.close()
            self._file.release()

    def _open(self) -> SQLiteConnection:
        self._file.acquire()
        try:
            try:
                return self._connect()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                for ending in ("-wal", "-shm"):
                    self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
                self._path.replace(self._path.with_name(self._path.name + ".bad"))
                # The lock belongs to the renamed file.
                self._file.release()
                self._file.acquire()
                return self._connect()
        except BaseException:
            self._file.release()
            raise

    def _connect(self) -> SQLiteConnection:
        database = sqlite3.connect(
            self._path, timeout=5, isolation_level=None, check_same_thread=False, factory=SQLiteConnection
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_size_limit = 67108864")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StorageError(
                    op="opening the queue",
                    why=f"{self._path} has version {version}; this release supports {VERSION}",
                    hint="a newer release wrote it; run that release",
                )
            if 0 < version < VERSION:
                raise sqlite3.DatabaseError(f"version {version} is rebuilt as version {VERSION}")
            if version < VERSION:
                with database.transaction():
                    for statement in (*TABLES, f"PRAGMA user_version = {VERSION}"):
                        database.execute(statement)
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _map_errors(self, op: str) -> Iterator[None]:
        with map_errors(op), map_sqlite_errors(op, str(self._path), path=self._path, full=DiskFull):
            yield
