"""The log in an SQLite file: the embedded default.

WAL, so that reading and writing do not wait for each other. ``synchronous=FULL``, because in WAL mode
``NORMAL`` syncs only at checkpoints: a power cut could then take back commits that were acknowledged, and
acknowledged means durable here. Group commit makes one sync serve many appends.

Two connections: one for the thread that writes, one, read-only, for the thread that reads.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from synrepl.errors import StorageError
from synrepl.storage.engine import DAMAGED, Row, SQLEngine
from synrepl.storage.lock import FileLock
from synrepl.storage.schema import MIGRATIONS, migrate

__all__ = ["SQLiteEngine"]

HINTS = {
    "SQLITE_BUSY": "another program holds the database; end it",
    "SQLITE_CANTOPEN": "check that the file and its directory can be written by this user",
    "SQLITE_CORRUPT": DAMAGED.format(database="file"),
    "SQLITE_FULL": "the disk is full; free some space",
    "SQLITE_IOERR": "the disk failed; look at the system's log",
    "SQLITE_NOTADB": "this file is something else; name another one",
    "SQLITE_READONLY": "check that the file and its directory can be written by this user",
}
"""What a person can do, by the name of SQLite's error."""

RETRYABLE = {"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR"}


class SQLiteEngine(SQLEngine):
    """An `IEngine` over the file at `path`, made when it is missing, its directory not.

    One process at a time: `<path>.lock` is held while it is open.
    """

    KIND = "file"
    UNINDEXED_STREAM = "+stream"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.fspath(path))
        self._path = Path(path)
        self._lock = FileLock(Path(f"{os.fspath(path)}.lock"))
        self._writes: sqlite3.Connection | None = None
        self._reads: sqlite3.Connection | None = None

    def _take(self) -> None:
        if not self._path.parent.is_dir():
            raise StorageError(
                op="open",
                why=f"there is no directory {self._path.parent}",
                hint="make it, or name another place for the database",
            )
        self._lock.acquire()

    def _let_go(self) -> None:
        # The writer goes last: the last connection to leave takes the WAL back into the file.
        for database in (self._reads, self._writes):
            if database is not None:
                database.close()
        self._reads = self._writes = None
        self._lock.release()

    def _migrate(self, database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        migrate(database.execute, [migration.sqlite for migration in MIGRATIONS], self.name)

    def _writing(self, op: str) -> sqlite3.Connection:
        if self._writes is None:
            self._writes = _connect(self._path)
        return self._writes

    def _reading(self, op: str) -> sqlite3.Connection:
        if self._reads is None:
            self._reads = sqlite3.connect(
                f"file:{quote(os.fspath(self._path.absolute()))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        return self._reads

    @contextmanager
    def _telling(self, op: str, stream: str = "") -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            base = "_".join(name.split("_")[:2])
            raise StorageError(
                op=op,
                why=f"{self.name}: {error}",
                hint=HINTS.get(base, ""),
                stream=stream,
                retryable=base in RETRYABLE,
            ) from error

    @contextmanager
    def _transaction(self, database: sqlite3.Connection) -> Iterator[None]:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _execute(
        self, database: sqlite3.Connection, statement: str, values: Sequence[object] = ()
    ) -> sqlite3.Cursor:
        return database.execute(statement, values)

    def _insert(self, database: sqlite3.Connection, table: str, columns: str, rows: Iterable[Row]) -> None:
        places = ", ".join("?" * (columns.count(",") + 1))
        database.executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)

    def _execute_many(self, database: sqlite3.Connection, statement: str, rows: Iterable[Row]) -> None:
        database.executemany(statement, rows)

    @contextmanager
    def _streamed(
        self, database: sqlite3.Connection, statement: str, values: Sequence[object]
    ) -> Iterator[Iterable[Row]]:
        # Closed early, or the rest of the rows would hold a snapshot, and the WAL could not shrink.
        with closing(self._execute(database, statement, values)) as found:
            yield found


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    # Without a limit the WAL keeps on disk the size it once had.
    database.execute("PRAGMA journal_size_limit = 67108864")
    return database
