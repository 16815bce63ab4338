"""A log in memory, with the contract of the real engines, and a simulated thread."""

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import starmap
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail

from synrepl.errors import StorageError
from synrepl.ports.history import AppendReceipt, LogPosition
from synrepl.ports.interfaces import Head, IClock
from synrepl.ports.time import Timer
from synrepl.storage.engine import UPSERT_NOTE, SQLEngine
from synrepl.storage.schema import (
    COLUMNS,
    RECEIPT_COLUMNS,
    LogBounds,
    migrate,
    migrations,
    read_bounds,
    receipt_of,
)
from synrepl.storage.sql import LogDatabase
from synrepl.storage.sqlite import SQLiteConnection, SQLiteDatabase, map_sqlite_errors
from synrepl.storage.threads import ImmediateThread, stopped_error
from synrepl.streams.facts import Fact

T = TypeVar("T")

SELECT_NOTE: Final = "SELECT value FROM notes WHERE name = ?"


@cache
def _empty_log() -> bytes:
    """The bytes of a log without facts: to create its tables anew for each test takes a millisecond."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    migrate(connection.execute, migrations("sqlite"), "the log in memory")
    return connection.serialize()


class MemoryDatabase(LogDatabase):
    """An SQLite database in memory, which `release` keeps. One connection serves both threads."""

    dialect = SQLiteDatabase.dialect

    def __init__(self) -> None:
        super().__init__("the log in memory")
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=SQLiteConnection
        )
        self.staged: MemoryDatabase | None = None
        self.connection.deserialize(_empty_log())

    def acquire(self) -> None:
        """Do nothing: no other process can have the log."""

    def release(self) -> None:
        """Do nothing: the log stays."""

    def writer(self, op: str) -> SQLiteConnection:
        return self.connection

    def reader(self, op: str) -> SQLiteConnection:
        return self.connection

    def map_errors(self, op: str, stream: str = "") -> AbstractContextManager[None]:
        return map_sqlite_errors(op, self.name, stream)

    def create_meta(self, connection: SQLiteConnection) -> None:
        """Do nothing: the table `meta` is there from the start."""

    def staging(self) -> "MemoryDatabase":
        if self.staged is None:
            self.staged = MemoryDatabase()
        return self.staged

    def is_staged(self) -> bool:
        return self.staged is not None

    def drop_staged(self) -> None:
        self.staged = None

    def replace(self, staged: "MemoryDatabase", boots: int) -> None:
        self.connection, self.staged = staged.connection, None
        self.ownership.boots, self.ownership.committed = boots, (0, "")


class MemoryEngine(SQLEngine):
    """An engine whose disk is this object: commits survive `crash` and `close`.

    For tests, `commits` counts the successful commits.
    """

    database: MemoryDatabase

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        super().__init__(MemoryDatabase() if database is None else database)
        self.commits = 0
        self.staged: MemoryEngine | None = None
        self._failure: tuple[StorageError, bool, int] | None = None
        self._head_failures: list[StorageError] = []
        self._facts: list[Fact] = []
        self._facts_at: tuple[SQLiteConnection, int] | None = None

    @property
    def facts(self) -> list[Fact]:
        """All facts, in order of serial."""
        connection = self.database.connection
        if self._facts_at != (connection, connection.total_changes):
            self._facts = list(
                starmap(Fact, connection.execute(f"SELECT {COLUMNS} FROM facts ORDER BY serial"))
            )
            self._facts_at = connection, connection.total_changes
        return self._facts

    @property
    def receipts(self) -> dict[str, AppendReceipt]:
        """All receipts, by key."""
        rows = self.database.connection.execute(f"SELECT {RECEIPT_COLUMNS} FROM receipts")
        return {receipt.key: receipt for receipt in map(receipt_of, rows)}

    @property
    def bounds(self) -> LogBounds:
        """The bounds of the log, open or not."""
        return read_bounds(self.database.connection)

    def read_note(self, name: str) -> str:
        """A note of the log, open or not."""
        return str(self.database.connection.execute(SELECT_NOTE, (name,)).fetchone()[0])

    def write_notes(self, **notes: str) -> None:
        """Store these notes, even in a log that was never open."""
        self.database.connection.executemany(UPSERT_NOTE, list(notes.items()))

    def copy(self) -> "MemoryEngine":
        """A copy of what is on the disk, not opened."""
        made = MemoryEngine()
        self.database.connection.backup(made.database.connection)
        return made

    def fail_next(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        """Make the next commit raise `error`: before it stores anything, or, with `kept`, after it.

        Then `silent` calls of `head` fail as well, as for an unreachable database: with 1 (the default if
        `kept`) the outcome of the commit stays unknown; with 0 it can be read at once.
        """
        self._failure = (error, kept, int(kept) if silent is None else silent)

    def crash(self) -> None:
        """Close without cleanup, as a killed process does. The next `open` finds the commits.

        The old log's threads must have stopped: they would use the engine of the new log.
        """
        self._is_open = False
        self._failure = None
        self._head_failures.clear()
        if self.staged is not None:
            self.staged.crash()

    def head(self) -> Head:
        self._check_open("head")
        if self._head_failures:
            raise self._head_failures.pop()
        return super().head()

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        self._check_open("commit")
        failure, self._failure = self._failure, None
        if failure is not None:
            self._head_failures = [failure[0]] * failure[2]
            if not failure[1]:
                raise failure[0]
        super().commit(facts, receipts, upto=upto)
        self.commits += 1
        if failure is not None:
            raise failure[0]

    def staging(self) -> "MemoryEngine":
        if self.staged is None:
            self.staged = MemoryEngine(self.database.staging())
        return self.staged

    def adopt_staged(self) -> Head:
        head = super().adopt_staged()
        self.staged = None
        return head

    def drop_staged(self) -> None:
        super().drop_staged()
        self.staged = None


class DelayedThread(ImmediateThread):
    """A simulated thread on a fake clock: runs work in order, each piece `delay()` seconds after the last.

    For simulations of a kill: work that has not run at `stop` never runs, and its Deferred never fires.
    """

    def __init__(self, clock: IClock, delay: Callable[[], float]) -> None:
        super().__init__()
        self._delay = delay
        self._waiting: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self._timer = Timer(clock, self._step)

    def run(self, work: Callable[[], T]) -> "Deferred[T]":
        """Run `work` after all earlier work and a further delay."""
        if self._is_stopped:
            return fail(stopped_error())
        done: Deferred[T] = Deferred()
        self._waiting.append((work, done))
        if not self._timer.is_active:
            self._timer.start(self._delay())
        return done

    async def stop(self) -> None:
        await super().stop()
        self._waiting.clear()
        self._timer.stop()

    def _step(self) -> None:
        work, done = self._waiting.popleft()
        ran = super().run(work)
        if self._waiting:
            self._timer.start(self._delay())
        ran.chainDeferred(done)
