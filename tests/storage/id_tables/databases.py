"""Databases with the ids of a stream: each class of tests once on SQLite, once on PostgreSQL."""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

import psycopg
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.sql import Flavor
from synrepl.testing.heap_clock import HeapClock
from tests.postgres import new_database

T = TypeVar("T")

TABLE = "facts_of_things"
SEQUENCE = "things_sequence"


class DirectPool:
    """A pool of one connection and no thread: a transaction is over when `runInteraction` returns."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.before_commit: Callable[[], None] = lambda: None

    def runInteraction(self, work: Callable[..., T], /, *args: Any) -> "Deferred[T]":
        try:
            with closing(self.connection.cursor()) as cursor:
                result = work(cursor, *args)
            self.before_commit()
            self.connection.commit()
        except Exception as error:
            self.connection.rollback()
            return fail(error)
        return succeed(result)


class IdTablesCase(SynchronousTestCase):
    """A test over a new database with one table of facts."""

    flavor: Flavor = "sqlite"

    def setUp(self) -> None:
        self.clock = HeapClock()
        self.clock.advance(1000)
        self.sequence = SEQUENCE
        if self.flavor == "sqlite":
            directory = tempfile.mkdtemp(prefix="synrepl-ids-")
            self.addCleanup(rmtree, directory, ignore_errors=True)
            path = Path(directory) / "ids.db"
            self.connect: Callable[[], Any] = lambda: sqlite3.connect(path, timeout=5)
        else:
            url = new_database()
            self.connect = lambda: psycopg.connect(url)
        self.pool = self.new_pool()
        self.do(f"CREATE TABLE {TABLE} (stream_id BIGINT NOT NULL, instance_name TEXT, body TEXT)")
        self.interact(IdDatabase(self.stream([]), self.flavor).create)

    def new_pool(self) -> DirectPool:
        connection = self.connect()
        self.addCleanup(connection.close)
        return DirectPool(connection)

    def stream(self, writers: list[str], *, negative: bool = False) -> IdStream:
        return IdStream(
            name="things",
            sequence=self.sequence,
            tables=(IdTable(name=TABLE),),
            writers=tuple(writers),
            negative=negative,
        )

    # -- the database --------------------------------------------------------------------------------------

    def interact(self, work: Callable[..., T]) -> T:
        """In one transaction."""
        result: T = self.successResultOf(self.pool.runInteraction(work))
        return result

    def do(self, statement: str, *parameters: Any) -> list[Any]:
        """One statement, committed; its rows if it has any."""
        if self.flavor == "postgresql":
            statement = statement.replace("?", "%s")

        def work(cursor: Any) -> list[Any]:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description else []

        return self.interact(work)

    def insert(self, cursor: Any, tokens: Any, writer: str) -> None:
        """Rows of facts, in a transaction."""
        mark = "%s" if self.flavor == "postgresql" else "?"
        for token in tokens:
            cursor.execute(
                f"INSERT INTO {TABLE} (stream_id, instance_name) VALUES ({mark}, {mark})", (token, writer)
            )

    def row(self, writer: str, token: int) -> None:
        self.interact(lambda cursor: self.insert(cursor, [token], writer))

    def set_sequence(self, value: int, *, is_called: bool = True) -> None:
        """As an operator, a dump or a lost crash would."""
        if self.flavor == "postgresql":
            self.do("SELECT setval(?, ?, ?)", self.sequence, value, is_called)
        else:
            self.do(
                "UPDATE synrepl_sequences SET value = ? WHERE name = ?",
                value if is_called else value - 1,
                self.sequence,
            )

    def get_sequence(self) -> int:
        return self.interact(IdDatabase(self.stream([]), self.flavor).allocated)

    def set_position(self, writer: str, token: int) -> None:
        self.do("DELETE FROM stream_positions WHERE stream_name = 'things' AND instance_name = ?", writer)
        self.do("INSERT INTO stream_positions VALUES ('things', ?, ?)", writer, token)

    def get_positions(self) -> dict[str, int]:
        return dict(
            self.do("SELECT instance_name, stream_id FROM stream_positions WHERE stream_name = 'things'")
        )

    def wait(self, awaitable: Any) -> Any:
        """What came of it, at once; its error is raised as it is."""
        results: list[Any] = []
        ensureDeferred(_await(awaitable)).addBoth(results.append)
        self.assertEqual(1, len(results), "nothing came of it")
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]


async def _await(awaitable: Any) -> Any:
    return await awaitable
