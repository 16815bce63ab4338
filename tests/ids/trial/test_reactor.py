"""The generators as a homeserver has them: a pool of threads, the real reactor, a server that can go away."""

from contextlib import closing
from typing import Any

import psycopg
from twisted.enterprise.adbapi import ConnectionLost, ConnectionPool
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.trial.unittest import TestCase

from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from tests.postgres import shared_server
from tests.servers.postgres import PostgresServer
from tests.trial.waiting import eventually

STREAM = IdStream(name="things", sequence="things_sequence", tables=(IdTable(name="things"),), writers=("A",))
INSERT = "INSERT INTO things VALUES (%s, 'A')"


class GeneratorCase(TestCase):
    """One generator over a pool of two connections. `finished` has the ids each time they are finished."""

    timeout = 60.0

    async def setUp(self) -> None:  # type: ignore[override]
        clock: Any = reactor
        self.url = self.server().new_database()
        self.pool = ConnectionPool(
            "psycopg", self.url, cp_reactor=reactor, cp_min=1, cp_max=2, cp_reconnect=True
        )
        self.addCleanup(self.pool.close)
        self.ids = MultiWriterIdGenerator(self.pool, STREAM, instance="A", flavor="postgresql", clock=clock)
        self.ids._logger = Logger(observer=lambda event: None)  # type: ignore[arg-type]
        self.finished: list[list[int]] = []
        with closing(psycopg.connect(self.url)) as database, database:
            cursor = database.cursor()
            IdDatabase(STREAM, "postgresql").create(cursor)
            cursor.execute("CREATE TABLE things (stream_id BIGINT NOT NULL, instance_name TEXT)")
        await self.ids.start()
        tracker = self.ids._tracker
        really = tracker.finish

        def finish(ids: Any) -> None:
            self.finished.append(list(ids))
            really(ids)

        tracker.finish = finish  # type: ignore[method-assign]

    def server(self) -> PostgresServer:
        """The server, running."""
        return shared_server()

    def rows(self) -> list[int]:
        """The ids that have committed rows."""
        return [row[0] for row in self.ask("SELECT stream_id FROM things ORDER BY 1")]

    def ask(self, statement: str) -> list[Any]:
        """The rows of an answer, on a connection of its own."""
        with closing(psycopg.connect(self.url)) as database:
            return list(database.execute(statement.encode()).fetchall())

    def is_waiting(self) -> bool:
        """Whether a backend waits for a lock."""
        return bool(self.ask("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0])

    async def write(self) -> int:
        """A row; its id."""
        async with self.ids.next() as token:
            await transact(self.pool, lambda cursor: cursor.execute(INSERT, (token,)))
        return token


class ReactorTests(GeneratorCase):
    """Work that ends otherwise than it was meant to."""

    async def test_called_off_while_the_database_reserves(self) -> None:
        """Nobody hears of the ids, so nobody could complete them: they are finished, once."""
        with closing(psycopg.connect(self.url)) as other:
            # Nobody else gets at the sequence until this ends.
            other.execute("ALTER SEQUENCE things_sequence INCREMENT BY 1")
            writing = Deferred.fromCoroutine(self.write())
            await eventually(self.is_waiting, "it waits for the sequence")
            writing.cancel()
            other.rollback()
        with self.assertRaises(CancelledError):
            await writing
        await eventually(lambda: self.finished, "the ids are finished")

        self.assertEqual(([[2]], []), (self.finished, self.ids.unfinished()))
        self.assertEqual(3, await self.write())
        self.assertEqual((3, [3]), (self.ids.persisted_upto, self.rows()))

    async def test_called_off_while_the_database_writes(self) -> None:
        """The thread goes on, and commits: the id is unfinished until it has."""
        with closing(psycopg.connect(self.url)) as other:
            other.execute("LOCK TABLE things IN EXCLUSIVE MODE")
            writing = Deferred.fromCoroutine(self.write())
            await eventually(self.is_waiting, "it waits for the table")

            writing.cancel()

            # What comes next may rely on the end of what was written, so it is not told before that.
            self.assertNoResult(writing)
            self.assertEqual([(2,)], [one.tokens for one in self.ids.unfinished()])
            self.assertEqual(1, self.ids.persisted_upto)
            other.rollback()
        with self.assertRaises(CancelledError):
            await writing
        await eventually(lambda: self.finished, "the id is finished")
        self.assertEqual(([[2]], 2, [2]), (self.finished, self.ids.persisted_upto, self.rows()))

    async def test_called_off_while_a_bare_interaction_writes(self) -> None:
        """adbapi calls back at once, and its thread goes on: the id is unfinished until that has ended."""

        async def write() -> None:
            async with self.ids.next() as token:
                await self.pool.runInteraction(lambda cursor: cursor.execute(INSERT, (token,)))

        with closing(psycopg.connect(self.url)) as other:
            other.execute("LOCK TABLE things IN EXCLUSIVE MODE")
            writing = Deferred.fromCoroutine(write())
            await eventually(self.is_waiting, "it waits for the table")

            writing.cancel()

            with self.assertRaises(CancelledError):
                await writing
            async with self.ids.next() as token:
                self.assertEqual(3, token)
            self.assertEqual([(2,)], [one.tokens for one in self.ids.unfinished()])
            self.assertEqual((1, [[3]]), (self.ids.persisted_upto, self.finished))
            other.rollback()
        await eventually(lambda: len(self.finished) == 2, "the id is finished")
        self.assertEqual((3, [2]), (self.ids.persisted_upto, self.rows()))

    async def test_a_commit_of_doubtful_outcome_is_waited_for(self) -> None:
        """The connection failed, but what went over it before may still be carried out by the server."""
        with closing(psycopg.connect(self.url)) as backend:
            with self.assertRaises(psycopg.OperationalError):
                async with self.ids.next() as token:
                    backend.execute(INSERT, (token,))
                    raise psycopg.OperationalError("server closed the connection unexpectedly")
            self.assertEqual(3, await self.write())

            self.assertEqual([(2,)], [one.tokens for one in self.ids.unfinished()])
            self.assertEqual(1, self.ids.minimal_token)
            backend.commit()
        await eventually(lambda: self.ids.persisted_upto == 3, "it moves on")
        self.assertEqual(([[3], [2]], [2, 3]), (self.finished, self.rows()))

    async def test_an_old_transaction_of_somebody_else_holds_up_nobody(self) -> None:
        """What began before the ids were reserved cannot hold anything of them."""
        with closing(psycopg.connect(self.url)) as other:
            other.execute("SELECT txid_current()")

            with self.assertRaises(ValueError):
                async with self.ids.next():
                    raise ValueError

            await eventually(lambda: self.finished, "the id is finished")
            other.rollback()


class OutageTests(GeneratorCase):
    """A server of this test's own, which dies."""

    def server(self) -> PostgresServer:
        """The server, running, and removed at the end of the test."""
        self.own = PostgresServer()
        self.addCleanup(self.own.remove)
        self.own.start()
        return self.own

    async def test_a_server_that_goes_away_between_reserving_and_finishing(self) -> None:
        """What is reserved stays so until it is known what came of it; each id is finished once."""
        failed: list[str] = []
        for kind in (self.killed_between, self.killed_within):
            try:
                await kind()
            except Exception as error:
                failed.append(type(error).__name__)
            unfinished = [token for one in self.ids.unfinished() for token in one.tokens]
            self.assertEqual(40, len(unfinished))
            self.assertLess(self.ids.minimal_token, unfinished[0])
            self.own.start()
            await eventually(lambda: not self.ids.unfinished(), "the ids are finished")
            token = await self.write_at_last()
            self.assertGreater(token, unfinished[-1])
            self.assertEqual(token, self.ids.persisted_upto)

        self.assertEqual(2, len(failed))
        ids = [token for one in self.finished for token in one]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(2, len(self.rows()))
        # adbapi tells of each rollback on a connection that is gone.
        self.flushLoggedErrors(psycopg.OperationalError, ConnectionLost)

    async def killed_between(self) -> None:
        """The server dies after the reservation, before the rows are written."""
        async with self.ids.next_many(40) as tokens:
            self.own.kill()
            await transact(self.pool, lambda cursor: cursor.execute(INSERT, (tokens[0],)))

    async def killed_within(self) -> None:
        """The server dies in the transaction that reserves and writes."""

        def work(transaction: Any) -> None:
            with self.ids.within(transaction, 40) as tokens:
                self.own.kill()
                transaction.execute(INSERT, (tokens[0],))

        await transact(self.pool, work)

    async def write_at_last(self) -> int:
        """Each connection of the pool fails once after the server was away."""
        while True:
            try:
                return await self.write()
            except psycopg.OperationalError:
                continue
