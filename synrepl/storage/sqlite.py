"""The log in an SQLite file: the embedded default.

WAL mode, so that reads and writes do not block each other. ``synchronous=FULL``, because in WAL mode
``NORMAL`` syncs only at checkpoints: a power cut could undo acknowledged commits, and acknowledged means
durable. Group commit makes one sync serve many appends.

There are two connections: one for the writing thread, and a read-only one for the reading thread.

Trimming returns free space to the disk gradually if the file was created with ``auto_vacuum``, which cannot
be turned on for a file that has tables. Older files reuse the space, and shrink only by ``VACUUM``.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.history import AppendReceipt, LogPosition
from synrepl.ports.interfaces import Head
from synrepl.storage import file_swap
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.engine import DAMAGED, Row, SQLEngine
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.schema import MIGRATIONS, migrate
from synrepl.storage.sql_base import load_bounds
from synrepl.storage.state_file import StateFile, Summary
from synrepl.streams.facts import Fact

__all__ = ["SQLiteEngine"]

_log = Logger(namespace="synrepl.storage")

HINTS = {
    "SQLITE_BUSY": "another program holds the database; stop it",
    "SQLITE_CANTOPEN": "check that the file and its directory can be written by this user",
    "SQLITE_CORRUPT": DAMAGED.format(database="file"),
    "SQLITE_FULL": "the disk is full; free some space",
    "SQLITE_IOERR": "the disk failed; check the system's log",
    "SQLITE_NOTADB": "this file is no SQLite database; choose another one",
    "SQLITE_READONLY": "check that the file and its directory can be written by this user",
}
"""What the operator can do, by the name of SQLite's error."""

RETRYABLE = {"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR"}

STATE: Final = ".state"
"""The suffix of the state file, which records how far the log has come."""

STAGED: Final = ".joining"
"""The suffix of the file in which a copy is staged."""

RELEASED_PAGES: Final = 2048
"""The number of free pages returned to the disk after a slice of trimming, at most."""


class SQLiteEngine(SQLEngine):
    """An `IEngine` over the file at `path`, which is created if it is missing; its directory must exist.

    One process at a time holds the open file (`DatabaseFile`). A `staged` file is synced only now and then;
    for others `<path>.state` records how far the log has come.
    """

    KIND = "file"
    UNINDEXED_STREAM = "+stream"

    def __init__(self, path: str | os.PathLike[str], *, staged: bool = False) -> None:
        super().__init__(os.fspath(path))
        self._path = Path(path)
        self._is_staging = staged
        self._file = DatabaseFile(path, note=not staged)
        self._state: StateFile | None = None
        self._summary: Summary | None = None
        self._recorded_version: int | None = None
        self._writes: sqlite3.Connection | None = None
        self._reads: sqlite3.Connection | None = None

    def _acquire(self) -> None:
        self._lost = None
        self._path = self._file.path
        if not self._path.parent.is_dir():
            raise StorageError(
                op="open",
                why=f"there is no directory {self._path.parent}",
                hint="create it, or choose another path for the database",
            )
        is_new = not self._path.exists()
        if not self._is_staging:
            self._state = StateFile(self._path.with_name(self._path.name + STATE))
            if is_new:
                # Before an empty log takes the place of a lost one.
                self._check_summary(Summary())
        elif is_new:
            # Remove what a deleted file left behind.
            file_swap.remove(self._path)
        self._file.acquire()

    def _release(self) -> None:
        self._disconnect()
        # After SQLite: closing any descriptor of the file drops SQLite's locks.
        self._file.release()

    def _disconnect(self) -> None:
        # The write connection last: the last one to close checkpoints the WAL into the file.
        for database in (self._reads, self._writes):
            if database is not None:
                database.close()
        self._reads = self._writes = None
        self._recorded_version = None
        self._file.forget_wal()

    def close(self) -> None:
        """Close the database. Idempotent."""
        if self._is_open and self._boots is not None and self._lost is None:
            # The record may be stale; a log that can no longer be read must still close.
            with suppress(StorageError), self._map_errors("close"):
                self._check_file("close")
                self._record(self._write_connection("close"))
        super().close()

    # Deleted, replaced and older files

    def _check_file(self, op: str) -> None:
        """Refuse all further writes once the file is no longer at its path."""
        missing = self._file.missing()
        if missing:
            raise self._set_lost(
                op,
                f"{missing} was deleted or replaced while the log was open: facts acknowledged since then"
                " may be lost",
                "stop the daemon, then restore the log from a copy, or join again as a replica",
            )

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Store all of these or none, in one synced transaction of a file that is still at its path."""
        super().commit(facts, receipts, upto=upto)
        self._check_file("commit")

    def _check_storage(self, database: sqlite3.Connection) -> None:
        self._check_file("check")
        version = self._execute(database, "PRAGMA data_version").fetchone()[0]
        # The version is unchanged if nothing was committed.
        if version != self._recorded_version:
            try:
                self._record(database)
                self._recorded_version = version
            except StorageError as error:
                _log.warn("{error}", error=str(error))

    def _summarize(self, database: sqlite3.Connection) -> Summary:
        notes = dict(self._execute(database, "SELECT name, value FROM notes").fetchall())
        meta = dict(self._execute(database, "SELECT key, value FROM meta").fetchall())
        bounds = load_bounds(self._execute(database, "SELECT name, epoch, serial, digest FROM places"))
        serial, digest, epoch = self._last(database, bounds)
        return Summary(
            history=notes.get("history", ""),
            uuid=notes.get("uuid", ""),
            server_name=notes.get("server_name", ""),
            boots=meta["boots"],
            epoch=max(meta["epoch"], epoch),
            serial=serial,
            digest=digest,
        )

    def _record(self, database: sqlite3.Connection) -> None:
        """Record how far the log has come."""
        self._summary = self._summarize(database)
        if self._state is not None:
            self._state.write(self._summary)

    def _on_opened(self, database: sqlite3.Connection) -> None:
        self._check_file("open")
        self._record(database)

    def _check_recorded(self, database: sqlite3.Connection) -> None:
        found = self._summarize(database)
        self._check_summary(found, partial(self._digest_at, database))

    def _check_summary(self, found: Summary, digest_at: Callable[[int], str | None] = lambda _: None) -> None:
        """Refuse a log that is not the one recorded, or has lost part of it."""
        recorded = [] if self._state is None else self._state.read()
        for one in recorded:
            if found.follows(one) and digest_at(one.serial) in (None, one.digest):
                return
        if recorded:
            assert self._state is not None
            raise self._state.refusal(found, recorded[0], self.name)

    def _migrate(self, database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        migrate(database.execute, [migration.sqlite for migration in MIGRATIONS], self.name)

    def _write_connection(self, op: str) -> sqlite3.Connection:
        if self._writes is None:
            self._writes = _connect(self._path, "NORMAL" if self._is_staging else "FULL")
        return self._writes

    def _read_connection(self, op: str) -> sqlite3.Connection:
        if self._reads is None:
            # SQLite would open any other file that is at the path by now.
            self._check_file(op)
            self._reads = sqlite3.connect(
                f"file:{quote(os.fspath(self._path.absolute()))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        return self._reads

    @contextmanager
    def _map_errors(self, op: str, stream: str = "") -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            # Python's integers are unbounded, and peers may send any.
            raise InvalidValue(op=op, why="a number has more than 64 bits", stream=stream) from error
        except UnicodeEncodeError as error:
            raise InvalidValue(op=op, why="a text is not Unicode", stream=stream) from error
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
        values = ", ".join("?" * (columns.count(",") + 1))
        database.executemany(f"INSERT INTO {table} ({columns}) VALUES ({values})", rows)

    def _execute_many(self, database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
        database.executemany(statement, rows)

    @contextmanager
    def _stream_rows(
        self, database: sqlite3.Connection, statement: str, values: Sequence[object]
    ) -> Iterator[Iterable[Row]]:
        # Closed early: unread rows would hold a snapshot and keep the WAL from shrinking.
        with closing(self._execute(database, statement, values)) as found:
            yield found

    def _return_space(self, database: sqlite3.Connection) -> None:
        # A full disk must not undo the finished slice; the next slice retries.
        with suppress(sqlite3.OperationalError):
            # As a script: `execute` would stop after one step, which is one page.
            database.executescript(f"PRAGMA incremental_vacuum({RELEASED_PAGES})")

    # Staging a copy

    @property
    def _staged_path(self) -> Path:
        return self._path.with_name(self._path.name + STAGED)

    def staging(self) -> "SQLiteEngine":
        """The log in the file `<path>.joining`, not opened yet."""
        return SQLiteEngine(self._staged_path, staged=True)

    def _is_staged(self) -> bool:
        return self._staged_path.exists()

    def drop_staged(self) -> None:
        """Delete the file and SQLite's files next to it."""
        self._check_open("drop_staged")
        with file_swap.map_errors("drop_staged", self._staged_path):
            file_swap.remove(self._staged_path)

    def _replace(self, staged: SQLEngine, boots: int) -> Head:
        """Put the staged file in the place of this one.

        Both files are sealed first, so that neither needs files next to it: a WAL of the old log would be
        applied to the new one. If that fails, for example because another program reads this file, this log
        stays in use.
        """
        assert isinstance(staged, SQLiteEngine)
        assert self._state is not None
        with file_swap.map_errors("adopt_staged", self._path):
            fresh = DatabaseFile(self._staged_path, note=False)
            fresh.acquire()
            try:
                file_swap.seal(self._staged_path)
                # Written first: after a kill a start accepts whichever of the two logs it finds.
                self._state.write(
                    self._summarize(self._write_connection("adopt_staged")), adopting=staged._summary
                )
                self._disconnect()
                file_swap.seal(self._path)
                file_swap.replace(self._staged_path, self._path)
            except BaseException:
                fresh.release()
                raise
        # The new file was locked before it got its name, so that no other process can take it.
        self._file.take_over(fresh)
        self._boots, self._committed = None, (0, "")
        try:
            with file_swap.map_errors("adopt_staged", self._path):
                file_swap.sync_directory(self._path)
            head = self.head()
            self._check_file("adopt_staged")
        except BaseException:
            # The path has the new log now: close, rather than continue the old one.
            self.close()
            raise
        try:
            self._record(self._write_connection("adopt_staged"))
        except StorageError as error:
            # The previous record fits this log as well.
            _log.warn("{error}", error=str(error))
        return head


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    # First: SQLite ignores it once the file has a table or a journal mode.
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    if synchronous == "NORMAL":
        # The staged file is synced only by checkpoints, so rare ones are enough.
        database.execute("PRAGMA wal_autocheckpoint = 8000")
    # Without a limit the WAL never shrinks on disk.
    database.execute("PRAGMA journal_size_limit = 67108864")
    return database
