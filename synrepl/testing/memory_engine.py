"""A log in memory, with the contract of the real engines, and a simulated thread."""

import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.storage.engine import SQLEngine
from synrepl.storage.schema import TABLES, migrate, migrations
from synrepl.storage.sql import LogDatabase
from synrepl.storage.sqlite import SQLiteConnection, SQLiteDatabase
from synrepl.storage.sqlite_errors import map_sqlite_errors
from synrepl.storage.threads import ImmediateThread, stopped_error

T = TypeVar("T")


@cache
def _empty_log() -> bytes:
    # Cached: to create the tables anew for each test takes a millisecond.
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection.execute, (), migrations("sqlite"), "the log in memory")
    return connection.serialize()


class MemoryDatabase(LogDatabase):
    """An SQLite database in memory, which `release` keeps. One connection serves both threads."""

    syntax = SQLiteDatabase.syntax

    def __init__(self, name: str = "the log in memory") -> None:
        super().__init__(name)
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

    def map_own_errors(self, op: str, stream: str) -> AbstractContextManager[None]:
        return map_sqlite_errors(op, self.name, stream)

    def tables(self, connection: SQLiteConnection) -> set[str]:
        """All tables of a log, which are there from the start."""
        return set(TABLES)

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
    """An engine whose disk is this object: commits survive `crash` and `close`."""

    database: MemoryDatabase

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        super().__init__(MemoryDatabase() if database is None else database)

    def crash(self) -> None:
        """Close without cleanup, as a killed process does. The next `open` finds the commits.

        The old log's threads must have stopped: they would use the engine of the new log.
        """
        self.database.is_open = False


class DelayedThread(ImmediateThread):
    """A simulated thread on a fake clock: runs work in order, each piece after a delay of `delay()` seconds.

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
