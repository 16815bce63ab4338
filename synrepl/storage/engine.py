"""The log in an SQL database: what is the same in all of them.

Its parts are in modules of their own; here is what adds to it and what reads it. What a database does in a
way of its own (connections, transactions, batches, its errors) is the part of the subclass.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import AppendReceipt, LogPosition
from synrepl.ports.interfaces import Head
from synrepl.storage.consistency import CHECKED_AT_OPEN, what_is_wrong
from synrepl.storage.continuity import advance, check_ascend, check_follow
from synrepl.storage.paging import take_tokens
from synrepl.storage.sql_base import COLUMNS, DAMAGED, Row, facts_of, row_of
from synrepl.storage.sql_history import SQLHistory
from synrepl.storage.sql_notes import SQLNotes
from synrepl.storage.sql_reading import SQLReading
from synrepl.storage.sql_trimming import SQLTrimming
from synrepl.storage.writer_positions import WriterPositions
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["COLUMNS", "DAMAGED", "Row", "SQLEngine"]


class SQLEngine(SQLHistory, SQLNotes, SQLReading, SQLTrimming):
    """An `IEngine` over two connections: one for the thread that writes, one for the thread that reads."""

    # Its life

    def open(self) -> Head:
        """Make or migrate the tables, check the head, count this boot, and say where the log stands."""
        if self._is_open:
            raise StorageError(op="open", why=f"{self.name} is open already")
        self._kept, self._tried = (0, ""), None
        with self._map_errors("open"):
            self._acquire()
        self._is_open = True
        try:
            with self._map_errors("open"):
                database = self._writing("open")
                with self._transaction(database):
                    self._migrate(database)
                    self._recall(database)
                    self._check_head(database)
                    self._check_recorded(database)
                    self._identify(database)
                    self._execute(database, "UPDATE meta SET value = value + 1 WHERE key = 'boots'")
                head = self.head()
                self._opened(database)
            self._boots = head.boots
            return head
        except BaseException:
            self.close()
            raise

    def _check_recorded(self, database: Any) -> None:
        """Refuse a log that is an older copy of itself, where that can be told; within a transaction."""

    def _opened(self, database: Any) -> None:
        """The log is open, and this start is counted."""

    def check(self) -> None:
        """Raise `StorageError` unless a restart would find this log, as this process knows it."""
        with self._map_errors("check"):
            if self._lost is not None:
                raise self._lost
            database = self._reader("check")
            boots = self._execute(database, "SELECT value FROM meta WHERE key = 'boots'").fetchone()
            if self._boots is not None and boots != (self._boots,):
                raise self._lose(
                    "check",
                    "another process has opened this log",
                    "find out which other program uses the database and stop it, then restart this daemon",
                )
            self._look(database)

    def _look(self, database: Any) -> None:
        """What else there is to be checked."""

    def close(self) -> None:
        """Let go of the database. Harmless when repeated."""
        self._is_open = False
        self._boots = None
        self._release()

    def _check_head(self, database: Any) -> None:
        """Refuse a log whose end contradicts itself."""
        floor = self._known_places(database).floor
        with self._streamed(
            database,
            f"SELECT {COLUMNS} FROM facts WHERE serial > ? ORDER BY serial DESC LIMIT ?",
            (floor.serial, CHECKED_AT_OPEN + 1),
        ) as rows:
            tail = list(facts_of(rows))[::-1]
        why = what_is_wrong(tail, floor, self._positions(database), self._voids)
        if why:
            raise StorageError(op="open", why=why, hint=DAMAGED.format(database=self.KIND))

    # Adding to it

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Keep all of these or none, in one synced transaction."""
        with self._map_errors("commit"):
            database = self._writer("commit")
            places: WriterPositions | None = None
            with self._transaction(database):
                serial, digest, _ = self._last(database)
                self._check_alone("commit", serial, digest)
                if upto is None:
                    check_follow(facts, serial, digest)
                else:
                    places = self._filled(database, facts, upto, serial, digest)
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
                    self._tried = (upto.serial, upto.digest)
                elif facts:
                    self._tried = (facts[-1].serial, facts[-1].digest)
        if places is not None:
            self._places = places
        if self._tried is not None:
            self._kept, self._tried = self._tried, None

    def _filled(
        self, database: Any, facts: Sequence[Fact], upto: LogPosition, serial: int, digest: str
    ) -> WriterPositions | None:
        """Keep where the log stands after these facts, where they do not tell it themselves."""
        check_ascend(facts, serial, upto.serial)
        if upto.serial < serial:
            raise StorageError(op="commit", why=f"serial {upto.serial} cannot follow {serial}")
        last = (facts[-1].serial, facts[-1].digest, facts[-1].epoch) if facts else ()
        is_whole = len(facts) == upto.serial - serial and last == (upto.serial, upto.digest, upto.epoch)
        if is_whole and verify(facts, digest) is None:
            return None
        places = msgspec.structs.replace(self._known_places(database), filled=upto)
        self._store_places(database, places)
        return places

    # Reading it

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream in order of token, and whether there are more."""
        unless_void, values = self._voids.condition(stream)
        with (
            self._map_errors("read", stream),
            self._streamed(
                self._reader("read"),
                f"SELECT {COLUMNS} FROM facts WHERE stream = ? AND token > ? AND token <= ? AND serial <= ?"
                + unless_void
                + ("" if writer is None else " AND writer = ?")
                + " ORDER BY token, serial",
                (stream, after, upto, serial, *values, *(() if writer is None else (writer,))),
            ) as found,
        ):
            return take_tokens(facts_of(found), limit)

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and the rows of every fact of this stream under this token."""
        unless_void, values = self._voids.condition(stream)
        with self._map_errors("rows_at_token", stream):
            return [
                (writer, rows)
                for writer, rows in self._execute(
                    self._writer("rows_at_token"),
                    f"SELECT writer, rows FROM facts WHERE stream = ? AND token = ?{unless_void}"
                    " ORDER BY serial",
                    (stream, token, *values),
                )
            ]

    # Becoming a copy

    @abstractmethod
    def staging(self) -> "SQLEngine":
        """A second log of the same kind beside this one, to make a copy in; not open yet."""

    @abstractmethod
    def drop_staged(self) -> None:
        """Remove what was staged, if there is anything. It is closed."""

    @abstractmethod
    def _is_staged(self) -> bool:
        """Whether there is a log where `staging` has it."""

    @abstractmethod
    def _replace(self, staged: "SQLEngine", boots: int) -> Head:
        """Take the staged log, which is whole and closed, in place of this one. Its head then has `boots`."""

    def adopt_staged(self) -> Head:
        """Replace all of this log by the staged one, in one step that survives a power cut."""
        self._writer("adopt_staged")
        with self._map_errors("adopt_staged"):
            if not self._is_staged():
                raise StorageError(op="adopt_staged", why="nothing is staged")
            boots = max(self._boots or 0, 1)
            staged = self.staging()
            try:
                # Whole, and as this release knows it: or this log would be gone, and that one of no use.
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
