"""A log that an older release wrote is taken up as it is."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from synrepl.ports.history import BEGINNING, EMPTY, Appended, AppendKey, AppendReceipt, EpochStart
from synrepl.storage.engine import SQLEngine
from synrepl.storage.schema import COLUMNS, migrate, migrations
from synrepl.streams.facts import Fact
from tests.storage.builders import NOW, LogCase, facts_after
from tests.storage.engines import OverPostgres, OverSQLite

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object

FIRST = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 6)))
SECOND = facts_after(FIRST[-1], *(("events", "w1", n - 1, n) for n in range(4, 7)), epoch=2)
VOIDS = [("events", 2, 3), ("events", 3, 5)]

Receipts = Sequence[tuple[str, str, int, int, str, int]]
"""Rows of receipts: key, request, epoch, first serial, tokens, time."""


class Contract(Case):
    """What both databases keep to."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def old(
        self,
        facts: list[Fact],
        voids: list[tuple[str, int, int]],
        *,
        epoch: int,
        token: int,
        receipts: Receipts = (),
    ) -> None:
        """Leave what the last release would have left."""
        raise NotImplementedError

    def test_a_log_of_the_last_release_is_opened_and_known(self) -> None:
        """It is one with a history from now on, and nothing of it is lost."""
        self.old(FIRST, [], epoch=1, token=5)
        engine = self.again()

        head = engine.open()

        self.assertEqual((1, 5, FIRST[-1].digest, 8), (head.epoch, head.serial, head.digest, head.boots))
        self.assertEqual((BEGINNING, ()), (head.trimmed_upto, tuple(head.epoch_starts)))
        self.assertEqual({"uuid", "history"}, set(engine.notes()))
        self.assertEqual((FIRST, 5), engine.read(after=0, upto=9, limit=99))
        self.assertEqual([EMPTY, FIRST[0].digest], [engine.digest_at(serial) for serial in (0, 1)])
        engine.commit(facts_after(FIRST[-1], ("events", "w1", 5, 6)), [])
        self.assertEqual(FIRST[2].digest, engine.trim(3, lambda stream, rows: None, 9).digest)
        known = engine.notes()
        engine.close()
        engine = self.again()
        self.assertEqual((6, 3), (engine.open().serial, engine.head().trimmed_upto.serial))
        self.assertEqual(known, engine.notes())

    def test_history_that_was_lost_before_is_known_as_turns(self) -> None:
        """What is void stays so, in this log and in every copy of it."""
        self.old(FIRST + SECOND, VOIDS, epoch=3, token=5)
        engine = self.again()

        head = engine.open()

        epoch_starts = [
            EpochStart(2, 5, FIRST[-1].digest, NOW * 1000, "lost", "events", 3),
            EpochStart(3, 8, SECOND[-1].digest, NOW * 1000, "lost", "events", 5),
        ]
        self.assertEqual((3, epoch_starts), (head.epoch, list(head.epoch_starts)))
        self.assertEqual(epoch_starts, list(engine.snapshot().epoch_starts))
        found, _ = engine.read_tokens(stream="events", writer=None, after=0, upto=9, serial=9, limit=99)
        self.assertEqual([*FIRST[:3], *SECOND[:2]], found)

    def test_a_receipt_belongs_to_the_stream_of_its_facts(self) -> None:
        """Before, it named none. One whose facts are gone is gone, too."""
        receipts = [("k", "r", 1, 2, "[2]", 5), ("gone", "r", 1, 99, "[9]", 5)]
        self.old(FIRST, [], epoch=1, token=5, receipts=receipts)
        engine = self.again()
        engine.open()

        kept = AppendReceipt(AppendKey("events", "k"), "r", Appended(1, 2, [2]), 5)
        self.assertEqual([kept], list(engine.snapshot().receipts))

    def test_history_that_was_lost_before_there_was_any(self) -> None:
        """The epoch began with nothing before it."""
        self.old([], [("events", 2, 0)], epoch=2, token=0)

        epoch_starts = list(self.again().open().epoch_starts)

        self.assertEqual([EpochStart(2, 0, EMPTY, 0, "lost", "events", 0)], epoch_starts)


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    def old(
        self,
        facts: list[Fact],
        voids: list[tuple[str, int, int]],
        *,
        epoch: int,
        token: int,
        receipts: Receipts = (),
    ) -> None:
        """As it was in the second version."""
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
            migrate(database.execute, migrations("sqlite")[:2], "")
            fill(database, "?", facts, voids, epoch=epoch, token=token, receipts=receipts)


class PostgresTests(OverPostgres, Contract):
    """For who has one already."""

    def old(
        self,
        facts: list[Fact],
        voids: list[tuple[str, int, int]],
        *,
        epoch: int,
        token: int,
        receipts: Receipts = (),
    ) -> None:
        """As it was in the second version."""
        with psycopg.connect(self.url) as database:
            database.execute("CREATE SCHEMA synrepl")
            database.execute("SET search_path = synrepl")
            database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL)")

            def execute(statement: str) -> Any:
                return database.execute(statement.encode())

            migrate(execute, migrations("postgresql")[:2], "")
            fill(database, "%s", facts, voids, epoch=epoch, token=token, receipts=receipts)


def fill(
    database: Any,
    mark: str,
    facts: list[Fact],
    voids: list[tuple[str, int, int]],
    *,
    epoch: int,
    token: int,
    receipts: Receipts,
) -> None:
    """Put these into the tables of the second version."""
    rows = [
        *(("facts", COLUMNS, msgspec.structs.astuple(fact)) for fact in facts),
        *(("voids", "stream, epoch, token", void) for void in voids),
        *(("receipts", "key, request, epoch, first_serial, tokens, at_ms", one) for one in receipts),
    ]
    if facts:
        rows.append(("positions", "stream, writer, token", ("events", "w1", token)))
    for table, columns, row in rows:
        marks = ", ".join([mark] * len(row))
        database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", row)
    database.execute(f"UPDATE meta SET value = {epoch} WHERE key = 'epoch'")
    database.execute("UPDATE meta SET value = 7 WHERE key = 'boots'")
