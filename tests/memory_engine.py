"""An engine in memory whose content tests read and change, and whose commits they let fail."""

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from synrepl.base.history import AppendReceipt, EpochStart
from synrepl.base.interfaces import Head
from synrepl.errors import StorageError
from synrepl.storage.checked_rows import CHECKED_FACT, LogDamage, Row, fact_of, facts_of
from synrepl.storage.schema import NOTES, RECEIPTS, LogBounds, read_bounds, receipt_of
from synrepl.storage.sql import SQLConnection
from synrepl.storage.sqlite import SQLiteConnection
from synrepl.streams.facts import Fact
from synrepl.testing.memory_engine import MemoryDatabase, MemoryEngine
from synrepl.wire.position import LogPosition

UNREADABLE: Final = (LogDamage, sqlite3.OperationalError)
"""What reading a damaged row raises: a text that is not UTF-8 the second."""

STATES: Final = 6
"""How many states of an unsynced disk are remembered."""


class UnsyncedDatabase(MemoryDatabase):
    """A `MemoryDatabase` whose last commits a power cut may take back, as those of a staged copy."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.states: deque[bytes] = deque([self.connection.serialize()], maxlen=STATES)
        """What was on the disk after each of the last commits, the oldest first."""

    @contextmanager
    def transaction(self, op: str, stream: str = "") -> Iterator[SQLConnection]:
        with super().transaction(op, stream) as connection:
            yield connection
        self.states.append(self.connection.serialize())

    def go_back(self, commits: int) -> None:
        """Take back so many of the last commits; the log is closed."""
        for _ in range(commits):
            self.states.pop()
        self.connection.deserialize(self.states[-1])


class DiskDatabase(MemoryDatabase):
    """A `MemoryDatabase` whose staged copies are not synced."""

    def staging(self) -> MemoryDatabase:
        if self.staged is None:
            self.staged = UnsyncedDatabase(f"{self.name}.joining")
        return self.staged


class FaultyEngine(MemoryEngine):
    """A `MemoryEngine` that fails on request. `commits` counts the successful commits."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        super().__init__(database)
        self.commits = 0
        self.staged: FaultyEngine | None = None
        self._failure: tuple[StorageError, bool, int] | None = None
        self._head_failures: list[StorageError] = []
        self._facts: list[Fact] = []
        self._checked: dict[Row, Fact] = {}
        self._facts_at: tuple[SQLiteConnection, int] | None = None

    @property
    def facts(self) -> list[Fact]:
        """All facts, in order of serial."""
        connection = self.database.connection
        if self._facts_at != (connection, connection.total_changes):
            rows = connection.execute(f"SELECT {CHECKED_FACT} FROM facts ORDER BY serial").fetchall()
            # The simulations look after each commit: a row that has not changed was checked before.
            self._checked = {row: self._checked.get(row) or fact_of(row) for row in rows}
            self._facts = list(self._checked.values())
            self._facts_at = connection, connection.total_changes
        return self._facts

    @property
    def readable_facts(self) -> list[Fact]:
        """The facts that are not damaged, in order of serial."""
        with suppress(*UNREADABLE):
            return self.facts
        connection, found = self.database.connection, list[Fact]()
        for (serial,) in connection.execute("SELECT serial FROM facts ORDER BY serial").fetchall():
            with suppress(*UNREADABLE):
                found += facts_of(
                    connection.execute(f"SELECT {CHECKED_FACT} FROM facts WHERE serial = ?", (serial,))
                )
        return found

    @property
    def receipts_by_key(self) -> dict[str, AppendReceipt]:
        """All receipts, by the text of their keys."""
        rows = RECEIPTS.rows(self.database.connection.execute)
        return {receipt.key.text: receipt for receipt in map(receipt_of, rows)}

    @property
    def bounds(self) -> LogBounds:
        """The bounds of the log, open or not."""
        return read_bounds(self.database.connection)

    def read_note(self, name: str) -> str:
        """A note of the log, open or not."""
        notes: dict[str, str] = dict(NOTES.rows(self.database.connection.execute))
        return notes[name]

    def write_notes(self, **notes: str) -> None:
        """Store these notes, even in a log that was never open."""
        NOTES.put(self.database.connection, notes.items())

    def copy(self) -> "FaultyEngine":
        """A copy of what is on the disk, not opened."""
        made = FaultyEngine(type(self.database)(self.database.name))
        self.database.connection.backup(made.database.connection)
        return made

    def fail_next(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        """Make the next commit or epoch raise `error`: before it stores anything, or, with `kept`, after it.

        Then `silent` calls of `head` fail as well, as for an unreachable database: with 1 (the default if
        `kept`) the outcome of the commit stays unknown; with 0 it can be read at once.
        """
        self._failure = (error, kept, int(kept) if silent is None else silent)

    def crash(self) -> None:
        """Close without cleanup, and forget failures that were requested."""
        super().crash()
        self._failure = None
        self._head_failures.clear()
        if self.staged is not None:
            self.staged.crash()

    def head(self) -> Head:
        self.database.check_open("head")
        if self._head_failures:
            raise self._head_failures.pop()
        return super().head()

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        self.database.check_open("commit")
        with self._failing():
            super().commit(facts, receipts, upto=upto)
            self.commits += 1

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        with self._failing():
            return super().begin_epoch(epoch_start)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Fail as `fail_next` said, before or after the block."""
        failure, self._failure = self._failure, None
        if failure is None:
            yield
            return
        error, kept, silent = failure
        if kept:
            yield
        self._head_failures = [error] * silent
        raise error

    def staging(self) -> "FaultyEngine":
        if self.staged is None:
            self.staged = FaultyEngine(self.database.staging())
        return self.staged

    def adopt_staged(self) -> Head:
        head = super().adopt_staged()
        self.staged = None
        return head

    def drop_staged(self) -> None:
        super().drop_staged()
        self.staged = None
