"""The log in an SQLite file: the embedded default.

WAL, so that reading and writing do not wait for each other. ``synchronous=FULL``, because in WAL mode
``NORMAL`` syncs only at checkpoints: a power cut could then take back commits that were acknowledged, and
acknowledged means durable here. Group commit makes one sync serve many appends.

Two connections: one for the thread that writes, one, read-only, for the thread that reads.

What trimming frees goes back to the disk bit by bit, in files made since it exists (``auto_vacuum`` cannot be
turned on for a file that has tables); older files use the room again, and shrink only by ``VACUUM``.
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
from synrepl.storage.state_file import StateFile, Summary
from synrepl.storage.writer_positions import load_places
from synrepl.streams.facts import Fact

__all__ = ["SQLiteEngine"]

_log = Logger(namespace="synrepl.storage")

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

STATE: Final = ".state"
"""What follows the name of a log's file in that of the one that says how far the log has come."""

STAGED: Final = ".joining"
"""What follows the name of a log's file in that of the one in which a copy is made."""

RELEASED_PAGES: Final = 2048
"""At most so many free pages go back to the disk after a slice of trimming."""


class SQLiteEngine(SQLEngine):
    """An `IEngine` over the file at `path`, made when it is missing, its directory not.

    One process at a time holds the file while it is open (`DatabaseFile`). A `staged` one syncs only now and
    then. Beside the others `<path>.state` says how far the log has come.
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
                hint="make it, or name another place for the database",
            )
        is_new = not self._path.exists()
        if not self._is_staging:
            self._state = StateFile(self._path.with_name(self._path.name + STATE))
            if is_new:
                # Before an empty one is made in its place.
                self._check_summary(Summary())
        elif is_new:
            # Of a file that is gone.
            file_swap.remove(self._path)
        self._file.acquire()

    def _release(self) -> None:
        self._disconnect()
        # After SQLite: closing any descriptor of the file takes SQLite's locks away.
        self._file.release()

    def _disconnect(self) -> None:
        # The writer goes last: the last connection to leave takes the WAL back into the file.
        for database in (self._reads, self._writes):
            if database is not None:
                database.close()
        self._reads = self._writes = None
        self._recorded_version = None
        self._file.forget_wal()

    def close(self) -> None:
        """Let go of the database. Harmless when repeated."""
        if self._is_open and self._boots is not None and self._lost is None:
            # What is noted may lag behind; a log that cannot be read any more is closed all the same.
            with suppress(StorageError), self._map_errors("close"):
                self._check_file("close")
                self._record(self._writing("close"))
        super().close()

    # What a restart would find

    def _check_file(self, op: str) -> None:
        """Refuse, for good, to go on once the file is not at its path any more."""
        missing = self._file.missing()
        if missing:
            raise self._lose(
                op,
                f"{missing} was deleted or replaced while the log was open: what was acknowledged since then"
                " may be gone",
                "stop the daemon, then restore the log from a copy, or join again as a replica",
            )

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Keep all of these or none, in one synced transaction of a file that the next start will find."""
        super().commit(facts, receipts, upto=upto)
        self._check_file("commit")

    def _look(self, database: sqlite3.Connection) -> None:
        self._check_file("check")
        version = self._execute(database, "PRAGMA data_version").fetchone()[0]
        # While nothing was committed nothing is written.
        if version != self._recorded_version:
            try:
                self._record(database)
                self._recorded_version = version
            except StorageError as error:
                _log.warn("{error}", error=str(error))

    def _summarize(self, database: sqlite3.Connection) -> Summary:
        notes = dict(self._execute(database, "SELECT name, value FROM notes").fetchall())
        meta = dict(self._execute(database, "SELECT key, value FROM meta").fetchall())
        places = load_places(self._execute(database, "SELECT name, epoch, serial, digest FROM places"))
        serial, digest, epoch = self._last(database, places)
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
        """Note how far the log has come, if it has come further."""
        self._summary = self._summarize(database)
        if self._state is not None:
            self._state.write(self._summary)

    def _opened(self, database: sqlite3.Connection) -> None:
        self._check_file("open")
        self._record(database)

    def _check_recorded(self, database: sqlite3.Connection) -> None:
        found = self._summarize(database)
        self._check_summary(found, partial(self._digest_at, database))

    def _check_summary(self, found: Summary, digest_at: Callable[[int], str | None] = lambda _: None) -> None:
        """Refuse a log that is not the one last seen here, or has lost a part of it."""
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

    def _writing(self, op: str) -> sqlite3.Connection:
        if self._writes is None:
            self._writes = _connect(self._path, "NORMAL" if self._is_staging else "FULL")
        return self._writes

    def _reading(self, op: str) -> sqlite3.Connection:
        if self._reads is None:
            # SQLite would open whatever is at the path by now.
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
            # Python's integers have no bound; peers may send any.
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
        places = ", ".join("?" * (columns.count(",") + 1))
        database.executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)

    def _execute_many(self, database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
        database.executemany(statement, rows)

    @contextmanager
    def _streamed(
        self, database: sqlite3.Connection, statement: str, values: Sequence[object]
    ) -> Iterator[Iterable[Row]]:
        # Closed early, or the rest of the rows would hold a snapshot, and the WAL could not shrink.
        with closing(self._execute(database, statement, values)) as found:
            yield found

    def _return_space(self, database: sqlite3.Connection) -> None:
        # A full disk must not undo what is done already; the next slice tries again.
        with suppress(sqlite3.OperationalError):
            # As a script: `execute` takes one step, which is one page.
            database.executescript(f"PRAGMA incremental_vacuum({RELEASED_PAGES})")

    # Becoming a copy

    @property
    def _staged_path(self) -> Path:
        return self._path.with_name(self._path.name + STAGED)

    def staging(self) -> "SQLiteEngine":
        """The log in the file `<path>.joining`, not open yet."""
        return SQLiteEngine(self._staged_path, staged=True)

    def _is_staged(self) -> bool:
        return self._staged_path.exists()

    def drop_staged(self) -> None:
        """Remove the file, and what SQLite has beside it."""
        self._check_open("drop_staged")
        with file_swap.telling("drop_staged", self._staged_path):
            file_swap.remove(self._staged_path)

    def _replace(self, staged: SQLEngine, boots: int) -> Head:
        """Put the staged file in the place of this one.

        Both become plain files first, whole without anything beside them: a WAL left beside a file of another
        log would be taken for its own. While that cannot be done, as when another program reads this file,
        this log goes on as it was.
        """
        assert isinstance(staged, SQLiteEngine)
        assert self._state is not None
        with file_swap.telling("adopt_staged", self._path):
            fresh = DatabaseFile(self._staged_path, note=False)
            fresh.acquire()
            try:
                file_swap.seal(self._staged_path)
                # Whichever of the two logs a start finds after a kill, it is the right one.
                self._state.write(self._summarize(self._writing("adopt_staged")), adopting=staged._summary)
                self._disconnect()
                file_swap.seal(self._path)
                file_swap.replace(self._staged_path, self._path)
            except BaseException:
                fresh.release()
                raise
        # The lock on the new file was taken before it came here, so that nobody can get in between.
        self._file.become(fresh)
        self._boots, self._kept = None, (0, "")
        try:
            with file_swap.telling("adopt_staged", self._path):
                file_swap.sync_directory(self._path)
            head = self.head()
            self._check_file("adopt_staged")
        except BaseException:
            # It is the other log now: nobody may go on as if it was not.
            self.close()
            raise
        try:
            self._record(self._writing("adopt_staged"))
        except StorageError as error:
            # What is noted fits this log as well.
            _log.warn("{error}", error=str(error))
        return head


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    # Before anything else: a file that has a table, or a journal mode, stays as it is.
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    if synchronous == "NORMAL":
        # A copy in the making is synced where it is taken back into the file alone: seldom is enough.
        database.execute("PRAGMA wal_autocheckpoint = 8000")
    # Without a limit the WAL keeps on disk the size it once had.
    database.execute("PRAGMA journal_size_limit = 67108864")
    return database
