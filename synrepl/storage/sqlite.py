"""The log in an SQLite file: the embedded default.

WAL mode, so that reads and writes do not block each other. ``synchronous=FULL``: in WAL mode ``NORMAL``
(which a staged copy uses) syncs only at checkpoints, so that a power cut could undo acknowledged commits.
Group commit makes one sync serve many appends.

There are two connections: one for the writing thread, and a read-only one for the reading thread.

Trimming returns free space to the disk gradually if the file was created with ``auto_vacuum``, which cannot
be turned on for a file that has tables. Older files reuse the space, and shrink only by ``VACUUM``.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import quote

from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.storage import file_swap
from synrepl.storage.checked_rows import FACT_COLUMNS, LogDamage
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.private_files import map_path_errors, refuse_link
from synrepl.storage.schema import NOTES, current_header, digest_of, end_of_log, read_bounds
from synrepl.storage.sql import LogDatabase, Row, SQLSyntax
from synrepl.storage.sqlite_errors import map_sqlite_errors
from synrepl.storage.state_file import StateFile, Summary
from synrepl.storage.wal_check import find_damage
from synrepl.storage.wal_locks import readers

_logger = Logger(namespace="synrepl.storage")

STATE: Final = ".state"
"""The suffix of the state file, which records how far the log has come."""

OPENED: Final = "opened"
"""The note that is there while the log is open: the inode of its file, the number of the boot, and `SEALED`
as long as it needs no ``-wal``."""

SEALED: Final = "sealed"
OF_NO_FILE: Final = "0"

STAGED: Final = ".joining"
"""The suffix of the file in which a copy is staged."""

INSERTED_AT_ONCE: Final = 50
"""The number of rows that one statement inserts: a fifth faster than one each, and the other threads are
disturbed once instead of 50 times. All columns of the rows together are fewer than the 999 parameters that
every SQLite allows."""

BUSY_SECONDS: Final = 5

CHECKS_TABLES: Final = (3, 33, 0)
"""The first release of SQLite that can look at one table."""

LONG_WAL: Final = 16 * 1024 * 1024
"""A longer ``-wal`` is shortened. SQLite begins a checkpoint at 4 MB by itself."""

LOG_PRAGMAS: Final = ("auto_vacuum = INCREMENTAL", "synchronous = FULL")
STAGED_PRAGMAS: Final = ("auto_vacuum = INCREMENTAL", "synchronous = NORMAL", "wal_autocheckpoint = 8000")
"""A staged file is synced only by checkpoints, so rare ones are enough."""

RELEASED_PAGES: Final = 2048
"""The number of free pages returned to the disk after a slice of trimming, at most."""


class SQLiteConnection(sqlite3.Connection):
    """An `SQLConnection` in autocommit mode, usable in any thread, one at a time."""

    def insert(self, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Insert these rows, all of them new."""
        values = f"({', '.join('?' * (columns.count(',') + 1))})"
        insert = f"INSERT INTO {table} ({columns}) VALUES "
        rows = list(rows)
        whole = len(rows) - len(rows) % INSERTED_AT_ONCE
        groups = (rows[at : at + INSERTED_AT_ONCE] for at in range(0, whole, INSERTED_AT_ONCE))
        many = insert + ", ".join([values] * INSERTED_AT_ONCE)
        self.executemany(many, (tuple(chain.from_iterable(group)) for group in groups))
        self.executemany(insert + values, rows[whole:])

    @contextmanager
    def stream(self, statement: str, values: Sequence[object]) -> Iterator[Iterable[Row]]:
        """Stream the rows of a long result."""
        # Closed early: unread rows would hold a snapshot and keep the WAL from shrinking.
        with closing(self.execute(statement, values)) as found:
            yield found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction around the block."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.in_transaction:
                self.execute("ROLLBACK")
            raise


class SQLiteDatabase(LogDatabase):
    """The log in the file at `path`, which is created if it is missing; its directory must exist.

    One process at a time holds the open file (`DatabaseFile`). A `staged` file is synced only now and then;
    for any other file `<path>.state` records how far the log has come.
    """

    syntax = SQLSyntax(
        flavor="sqlite",
        kind="file",
        unindexed_stream="+stream",
        rows_bytes="length(rows)",
        fact_bytes=120,
        lines={
            "json": 'printf(\'{"serial":%d,"epoch":%d,"stream":%s,"writer":%s,"prev_token":%d,"token":%d,'
            '"rows":%s,"committed_at_ms":%d,"digest":"%s"}\n\', serial, epoch, json_quote(stream),'
            " json_quote(writer), prev_token, token, rows, committed_at_ms, digest)",
            "fields": f"printf('%d\x1f%d\x1f%s\x1f%s\x1f%d\x1f%d\x1f%s\x1f%d\x1f%s\n', {FACT_COLUMNS})",
        },
        text_bytes="length(rows)",
        joined="CAST(group_concat(line, '') AS BLOB)",
    )

    def __init__(self, path: str | os.PathLike[str], *, staged: bool = False) -> None:
        super().__init__(os.fspath(path))
        self._path = Path(path)
        self._is_staging = staged
        self._file = DatabaseFile(path, note=not staged)
        self._state: StateFile | None = None
        self._summary: Summary | None = None
        self._recorded_version: int | None = None
        self._has_wal = False
        """Whether the file had a ``-wal`` before it was opened."""
        self._writes: SQLiteConnection | None = None
        self._reads: SQLiteConnection | None = None

    # Connections

    def acquire(self) -> None:
        """Lock the file; it is opened by the first use. Raises `StorageError` if it cannot be used."""
        if self._is_staging:
            refuse_link(self._path)
        self._path = self._file.path
        if not self._path.parent.is_dir():
            raise StorageError(
                op="open",
                why=f"there is no directory {self._path.parent}",
                hint="create it, or choose another path for the database",
            )
        is_new = not self._path.exists()
        self._has_wal = self._path.with_name(f"{self._path.name}-wal").exists()
        if not self._is_staging:
            self._state = StateFile(self._path.with_name(self._path.name + STATE))
            if is_new:
                # Before an empty log takes the place of a lost one.
                self._check_summary(Summary())
        elif is_new:
            # Remove what a deleted file left behind.
            file_swap.remove(self._path)
        self._file.acquire()
        if not self._is_staging:
            self._check_wal()

    def _check_wal(self) -> None:
        """Refuse a log whose ``-wal`` is damaged, and leave both files as they are."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        try:
            with map_path_errors("open", wal):
                damage = find_damage(wal)
            if damage:
                raise StorageError(
                    op="open",
                    why=f"{wal}: {damage}",
                    hint="restore the log, or join again as a replica; other programs that open it delete"
                    " what is left of these commits",
                    tried=False,
                )
        except BaseException:
            self._file.release()
            raise

    def release(self) -> None:
        self._disconnect()
        # After SQLite: closing any descriptor of the file drops SQLite's locks.
        self._file.release()

    def _disconnect(self) -> None:
        # The write connection last: the last one to close checkpoints the WAL into the file.
        for connection in (self._reads, self._writes):
            if connection is not None:
                connection.close()
        self._reads = self._writes = None
        self._recorded_version = None
        self._file.forget_wal()

    def writer(self, op: str) -> SQLiteConnection:
        if self._writes is None:
            self._writes = connect(self._path, *(STAGED_PRAGMAS if self._is_staging else LOG_PRAGMAS))
        return self._writes

    def reader(self, op: str) -> SQLiteConnection:
        if self._reads is None:
            # SQLite would open any other file that is at the path by now.
            self.check_in_place(op)
            self._reads = sqlite3.connect(
                f"file:{quote(os.fspath(self._path.absolute()))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                factory=SQLiteConnection,
            )
        return self._reads

    def map_own_errors(self, op: str, stream: str) -> AbstractContextManager[None]:
        return map_sqlite_errors(op, self.name, stream, self._path)

    def tables(self, connection: SQLiteConnection) -> set[str]:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def check_tables(self, connection: SQLiteConnection, tables: Collection[str]) -> None:
        if sqlite3.sqlite_version_info < CHECKS_TABLES:
            # It would look at the whole file each time.
            return
        for table in tables:
            (found,), *_ = connection.execute(f"PRAGMA integrity_check({table})").fetchall()
            if found != "ok":
                raise LogDamage(f"{table} is damaged: {' '.join(found.split())}")

    def return_space(self, connection: SQLiteConnection) -> None:
        # A full disk must not undo the finished slice; the next slice retries.
        with suppress(sqlite3.OperationalError):
            # As a script: `execute` would stop after one step, which is one page.
            connection.executescript(f"PRAGMA incremental_vacuum({RELEASED_PAGES})")

    # Deleted, replaced and older files

    def check_in_place(self, op: str) -> None:
        """Refuse all further writes once the file is no longer at its path."""
        missing = self._file.missing()
        if missing:
            raise self.ownership.disown(
                op,
                f"{missing} was deleted or replaced while the log was open: facts acknowledged since then"
                " may be lost",
                "stop the daemon, then restore the log from a copy, or join again as a replica",
            )

    def check_recorded(self, connection: SQLiteConnection) -> None:
        """Refuse a log that is not the one recorded, or has lost part of it."""
        if self.is_put_back:
            return
        self._check_summary(_summarize(connection), partial(digest_of, connection))

    def _check_summary(self, found: Summary, digest_at: Callable[[int], str | None] = lambda _: None) -> None:
        recorded = [] if self._state is None else self._state.read()
        for one in recorded:
            if found.follows(one) and digest_at(one.serial) in (None, one.digest):
                return
        if recorded:
            assert self._state is not None
            raise self._state.refusal(found, recorded[0], self.name)

    def check_original(self, connection: SQLiteConnection) -> None:
        """Refuse a copy of a log that was open: facts of its ``-wal`` may be missing.

        A file keeps its inode when it is renamed, and in the image of a disk. While it is open it has a
        ``-wal``, which a kill leaves behind.
        """
        (found, *_) = (*NOTES.rows(connection.execute, "WHERE name = ?", (OPENED,)), None)
        if found is None or self._is_staging or self.is_put_back:
            return
        inode, boots, *sealed = found[1].split(" ")
        if boots != str(current_header(connection).boots):
            # A release that knows no marks has opened it since.
            return
        if inode != self._file.inode:
            why = f"{self.name} is a copy of a log, made while that was open: facts may be missing"
            hint = "start the daemon on the original"
        elif not (self._has_wal or sealed):
            why = f"{self.name} was open when it was last written, and {self.name}-wal is missing, with facts"
            hint = "put that back beside it"
        else:
            return
        command = f"synrepl restore --in-place --database sqlite:{self.name}"
        hint = f"{hint}; or, if this shall be the log from now on, run {command}, so that readers are told"
        raise StorageError(op="open", why=why, hint=f"{hint} (manual: howto/backup)", tried=False)

    def mark_open(self, connection: SQLiteConnection, *, is_adopted: bool = False) -> None:
        if self._is_staging and not is_adopted:
            return
        # A log that was put back is a copy until that is complete.
        inode = OF_NO_FILE if self.is_put_back else self._file.inode
        mark = f"{inode} {current_header(connection).boots}"
        NOTES.put(connection, [(OPENED, f"{mark} {SEALED}" if is_adopted else mark)])

    def mark_closed(self) -> None:
        if self._is_staging or self.is_put_back:
            return
        if self._writes is not None and self._file.is_in_place:
            self._writes.execute("DELETE FROM notes WHERE name = ?", (OPENED,))

    def record(self, op: str) -> None:
        """Record how far the log has come."""
        if op == "open" and not self._is_staging:
            # A copy without the ``-wal`` must have the mark of `mark_open`, too.
            self.writer(op).execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._record(self.writer(op))

    def record_changes(self, connection: SQLiteConnection) -> None:
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        # The version is unchanged if nothing was committed.
        if version != self._recorded_version:
            try:
                self._record(connection)
                self._recorded_version = version
            except StorageError as error:
                _logger.warn("{error}", error=str(error))

    def _record(self, connection: SQLiteConnection) -> None:
        self._summary = _summarize(connection)
        if self._state is not None:
            self._state.write(self._summary)

    def shorten_wal(self) -> frozenset[str] | None:
        if self._wal_bytes() <= LONG_WAL:
            return None
        connection = self.writer("checkpoint")
        # Appends wait for this: it must not wait for readers.
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        return readers(self._path.with_name(f"{self._path.name}-shm")) if is_busy else None

    def _wal_bytes(self) -> int:
        wal = self._path.with_name(f"{self._path.name}-wal")
        return wal.stat().st_size if wal.exists() else 0

    def disk_usage(self) -> dict[str, int] | None:
        try:
            wal = self._wal_bytes()
            file = self._path.stat().st_size if self._path.exists() else 0
            disk = shutil.disk_usage(self._path.parent)
        except OSError:
            return None
        return {"log_bytes": file + wal, "wal_bytes": wal, "free_bytes": disk.free, "disk_bytes": disk.total}

    # Staging a copy

    @property
    def _staged_path(self) -> Path:
        return self._path.with_name(self._path.name + STAGED)

    def staging(self) -> "SQLiteDatabase":
        """The file `<path>.joining`."""
        return SQLiteDatabase(self._staged_path, staged=True)

    def is_staged(self) -> bool:
        """Whether the file `<path>.joining` exists."""
        return self._staged_path.exists()

    def drop_staged(self) -> None:
        """Delete the staged file and SQLite's files next to it."""
        with map_path_errors("drop_staged", self._staged_path):
            file_swap.remove(self._staged_path)

    def replace(self, staged: "SQLiteDatabase", boots: int) -> None:
        """Put the staged file in the place of this one.

        Both files are sealed first, so that neither needs files next to it: a WAL of the old log would be
        applied to the new one. If that fails, for example because another program reads this file, this log
        stays in use.
        """
        assert self._state is not None
        with map_path_errors("adopt_staged", self._path):
            fresh = DatabaseFile(self._staged_path, note=False)
            fresh.acquire()
            try:
                file_swap.seal(self._staged_path)
                # Written first: after a kill a start accepts whichever of the two logs it finds.
                self._state.write(_summarize(self.writer("adopt_staged")), adopting=staged._summary)
                self.mark_open(self.writer("adopt_staged"), is_adopted=True)
                self._disconnect()
                file_swap.seal(self._path)
                file_swap.replace(self._staged_path, self._path)
            except BaseException:
                fresh.release()
                raise
        # The new file was locked before it got its name, so that no other process can take it.
        self._file.take_over(fresh)
        self.ownership.boots, self.ownership.committed = None, (0, "")

    def finish_replacing(self) -> None:
        """Make the file's new name durable."""
        with map_path_errors("adopt_staged", self._path):
            file_swap.sync_directory(self._path.parent)
        self.mark_open(self.writer("adopt_staged"))


def connect(path: Path, *pragmas: str) -> SQLiteConnection:
    """Connect to the file of a database, which is created if it is missing, for writing in WAL mode.

    The `pragmas` come first: SQLite ignores some of them once the file has a table or a journal mode.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=SQLiteConnection
    )
    try:
        # Without a limit the WAL never shrinks on disk.
        for pragma in (*pragmas, "journal_mode = WAL", "journal_size_limit = 67108864"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _summarize(connection: SQLiteConnection) -> Summary:
    notes: dict[str, str] = dict(NOTES.rows(connection.execute))
    header, end = current_header(connection), end_of_log(connection, read_bounds(connection))
    return Summary(
        history=notes.get("history", ""),
        uuid=notes.get("uuid", ""),
        server_name=notes.get("server_name", ""),
        boots=header.boots,
        epoch=max(header.epoch, end.epoch),
        serial=end.serial,
        digest=end.digest,
    )
