"""The log in an SQL database: the part that is the same for all databases.

This module appends and reads by token; the base classes do the rest. Subclasses provide what differs between
databases: connections, transactions, batches and the mapping of errors.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import AppendReceipt, LogPosition
from synrepl.ports.interfaces import Head
from synrepl.storage.continuity import (
    CHECKED_AT_OPEN,
    advance,
    check_ascend,
    check_follow,
    find_inconsistency,
)
from synrepl.storage.paging import take_tokens
from synrepl.storage.sql_base import COLUMNS, DAMAGED, LogBounds, Row, facts_of, row_of
from synrepl.storage.sql_history import SQLHistory
from synrepl.storage.sql_notes import SQLNotes
from synrepl.storage.sql_reading import SQLReading
from synrepl.storage.sql_trimming import SQLTrimming
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["COLUMNS", "DAMAGED", "Row", "SQLEngine"]


class SQLEngine(SQLHistory, SQLNotes, SQLReading, SQLTrimming):
    """An `IEngine` over two connections: one for the writing thread, one for the reading thread."""

    # Life cycle

    def open(self) -> Head:
        """Create or migrate the tables, check the end of the log, count this boot, and give the head."""
        if self._is_open:
            raise StorageError(op="open", why=f"{self.name} is open already")
        self._committed, self._attempted = (0, ""), None
        with self._map_errors("open"):
            self._acquire()
        self._is_open = True
        try:
            with self._map_errors("open"):
                database = self._write_connection("open")
                with self._transaction(database):
                    self._migrate(database)
                    self._reload(database)
                    self._check_head(database)
                    self._check_recorded(database)
                    self._identify(database)
                    self._execute(database, "UPDATE meta SET value = value + 1 WHERE key = 'boots'")
                head = self.head()
                self._on_opened(database)
            self._boots = head.boots
            return head
        except BaseException:
            self.close()
            raise

    def _check_recorded(self, database: Any) -> None:
        """Refuse a log that is an older copy of itself, if the database can tell; within a transaction."""

    def _on_opened(self, database: Any) -> None:
        """Called once the log is open and this boot is counted."""

    def check(self) -> None:
        """Raise `StorageError` unless a restart would find this log as this process knows it."""
        with self._map_errors("check"):
            if self._lost is not None:
                raise self._lost
            database = self._reader("check")
            boots = self._execute(database, "SELECT value FROM meta WHERE key = 'boots'").fetchone()
            if self._boots is not None and boots != (self._boots,):
                raise self._set_lost(
                    "check",
                    "another process has opened this log",
                    "find out which other program uses the database and stop it, then restart this daemon",
                )
            self._check_storage(database)

    def _check_storage(self, database: Any) -> None:
        """Run the checks that only this kind of database needs."""

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._is_open = False
        self._boots = None
        self._release()

    def _check_head(self, database: Any) -> None:
        """Refuse a log whose last facts are inconsistent."""
        floor = self._current_bounds(database).floor
        with self._stream_rows(
            database,
            f"SELECT {COLUMNS} FROM facts WHERE serial > ? ORDER BY serial DESC LIMIT ?",
            (floor.serial, CHECKED_AT_OPEN + 1),
        ) as rows:
            tail = list(facts_of(rows))[::-1]
        why = find_inconsistency(tail, floor, self._positions(database), self._discarded)
        if why:
            raise StorageError(op="open", why=why, hint=DAMAGED.format(database=self.KIND))

    # Appending

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Store all of these or none, in one synced transaction."""
        with self._map_errors("commit"):
            database = self._writer("commit")
            bounds: LogBounds | None = None
            with self._transaction(database):
                serial, digest, _ = self._last(database)
                self._check_sole_writer("commit", serial, digest)
                if upto is None:
                    check_follow(facts, serial, digest)
                else:
                    bounds = self._update_floor(database, facts, upto, serial, digest)
                self._insert(database, "facts", COLUMNS, map(row_of, facts))
                positions: dict[tuple[str, str], int] = {}
                advance(positions, facts)
                self._execute_many(
                    database,
                    "INSERT INTO positions (stream, writer, token) VALUES (?, ?, ?)"
                    " ON CONFLICT (stream, writer) DO UPDATE SET token = excluded.token"
                    " WHERE positions.token < excluded.token",
                    [(*pair, token) for pair, token in positions.items()],
                )
                if receipts:
                    self._add_receipts(database, receipts)
                if upto is not None:
                    self._attempted = (upto.serial, upto.digest)
                elif facts:
                    self._attempted = (facts[-1].serial, facts[-1].digest)
        if bounds is not None:
            self._bounds = bounds
        if self._attempted is not None:
            self._committed, self._attempted = self._attempted, None

    def _update_floor(
        self, database: Any, facts: Sequence[Fact], upto: LogPosition, serial: int, digest: str
    ) -> LogBounds | None:
        """Store `upto` as the end of the log, if the facts themselves do not imply it."""
        check_ascend(facts, serial, upto.serial)
        if upto.serial < serial:
            raise StorageError(op="commit", why=f"serial {upto.serial} cannot follow {serial}")
        last = (facts[-1].serial, facts[-1].digest, facts[-1].epoch) if facts else ()
        is_whole = len(facts) == upto.serial - serial and last == (upto.serial, upto.digest, upto.epoch)
        if is_whole and verify(facts, digest) is None:
            return None
        bounds = msgspec.structs.replace(self._current_bounds(database), filled=upto)
        self._store_bounds(database, bounds)
        return bounds

    # Reading

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream in order of token, and whether there are more."""
        not_discarded, values = self._discarded.condition(stream)
        with (
            self._map_errors("read", stream),
            self._stream_rows(
                self._reader("read"),
                f"SELECT {COLUMNS} FROM facts WHERE stream = ? AND token > ? AND token <= ? AND serial <= ?"
                + not_discarded
                + ("" if writer is None else " AND writer = ?")
                + " ORDER BY token, serial",
                (stream, after, upto, serial, *values, *(() if writer is None else (writer,))),
            ) as found,
        ):
            return take_tokens(facts_of(found), limit)

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and rows of every fact of this stream under this token."""
        not_discarded, values = self._discarded.condition(stream)
        with self._map_errors("rows_at_token", stream):
            return [
                (writer, rows)
                for writer, rows in self._execute(
                    self._writer("rows_at_token"),
                    f"SELECT writer, rows FROM facts WHERE stream = ? AND token = ?{not_discarded}"
                    " ORDER BY serial",
                    (stream, token, *values),
                )
            ]

    # Staging a copy

    @abstractmethod
    def staging(self) -> "SQLEngine":
        """A second log of the same kind, stored next to this one, for building a copy; not opened yet."""

    @abstractmethod
    def drop_staged(self) -> None:
        """Delete the closed staged log, if there is one."""

    @abstractmethod
    def _is_staged(self) -> bool:
        """Whether a staged log exists."""

    @abstractmethod
    def _replace(self, staged: "SQLEngine", boots: int) -> Head:
        """Put the complete, closed staged log in the place of this one, and set its `boots`."""

    def adopt_staged(self) -> Head:
        """Replace all of this log by the staged one, in one step that survives a power cut."""
        self._writer("adopt_staged")
        with self._map_errors("adopt_staged"):
            if not self._is_staged():
                raise StorageError(op="adopt_staged", why="nothing is staged")
            boots = max(self._boots or 0, 1)
            staged = self.staging()
            try:
                # Opening migrates and checks the staged log, before this one is gone.
                boots = max(boots, staged.open().boots) + 1
                staged._set_boots(boots)
            finally:
                staged.close()
            head = self._replace(staged, boots)
        self._boots = head.boots
        return head

    def _set_boots(self, boots: int) -> None:
        database = self._writer("adopt_staged")
        with self._map_errors("adopt_staged"), self._transaction(database):
            self._execute(database, "UPDATE meta SET value = ? WHERE key = 'boots'", (boots,))
