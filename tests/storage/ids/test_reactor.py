"""The generators as a homeserver has them: a pool of threads, a real reactor, a server that can go away."""

from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import psycopg
from twisted.enterprise.adbapi import ConnectionLost, ConnectionPool
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.storage.ids import IdStream, IdTable, MultiWriterIdGenerator, transact
from synrepl.storage.ids.database import IdDatabase
from synrepl.testing.postgres import PostgresServer
from tests.postgres import shared_server
from tests.storage.reactors import eventually, in_reactor

STREAM = IdStream(name="things", sequence="things_sequence", tables=(IdTable(name="things"),), writers=("A",))
INSERT = "INSERT INTO things VALUES (%s, 'A')"


class Story:
    """One generator over a pool of two connections. `finished` is how often ids were finished."""

    def __init__(self, reactor: Any, url: str) -> None:
        self.reactor = reactor
        self.url = url
        self.pool = ConnectionPool("psycopg", url, cp_reactor=reactor, cp_min=1, cp_max=2, cp_reconnect=True)
        self.ids = MultiWriterIdGenerator(self.pool, STREAM, instance="A", flavor="postgresql", clock=reactor)
        self.ids._logger = Logger(observer=lambda event: None)  # type: ignore[arg-type]
        self.finished: list[list[int]] = []

    async def start(self) -> None:
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

    def rows(self) -> list[int]:
        """The ids that have committed rows."""
        return [row[0] for row in self.ask("SELECT stream_id FROM things ORDER BY 1")]

    def ask(self, statement: str) -> list[Any]:
        with closing(psycopg.connect(self.url)) as database:
            return list(database.execute(statement.encode()).fetchall())

    def is_waiting(self) -> bool:
        """Whether a backend waits for a lock."""
        return bool(self.ask("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0])

    async def write(self) -> int:
        async with self.ids.next() as token:
            await transact(self.pool, lambda cursor: cursor.execute(INSERT, (token,)))
        return token


class ReactorTests(SynchronousTestCase):
    """Over a PostgreSQL."""

    def tell(
        self, story: Callable[[Story], Coroutine[Any, Any, None]], server: PostgresServer | None = None
    ) -> None:
        """Run a story in a reactor, and leave nothing of it."""
        url = (server or shared_server()).new_database()

        async def whole(reactor: Any) -> None:
            told = Story(reactor, url)
            await told.start()
            try:
                await story(told)
            finally:
                told.pool.close()

        in_reactor(whole)

    def test_called_off_while_the_database_reserves(self) -> None:
        """Nobody hears of the ids, so nobody could complete them: they are finished, once."""

        async def story(told: Story) -> None:
            with closing(psycopg.connect(told.url)) as other:
                # Nobody else gets at the sequence until this ends.
                other.execute("ALTER SEQUENCE things_sequence INCREMENT BY 1")
                writing = Deferred.fromCoroutine(told.write())
                ends: list[Any] = []
                writing.addErrback(ends.append)
                await eventually(told.reactor, told.is_waiting, "it waits for the sequence")
                writing.cancel()
                other.rollback()
            await eventually(told.reactor, lambda: ends, "it is told")
            ends[0].trap(CancelledError)
            await eventually(told.reactor, lambda: told.finished, "the ids are finished")
            self.assertEqual(([[2]], []), (told.finished, told.ids.unfinished()))
            self.assertEqual(3, await told.write())
            self.assertEqual((3, [3]), (told.ids.persisted_upto, told.rows()))

        self.tell(story)

    def test_called_off_while_the_database_writes(self) -> None:
        """The thread goes on, and commits: the id is unfinished until it has."""

        async def story(told: Story) -> None:
            with closing(psycopg.connect(told.url)) as other:
                other.execute("LOCK TABLE things IN EXCLUSIVE MODE")
                writing = Deferred.fromCoroutine(told.write())
                ends: list[Any] = []
                writing.addErrback(ends.append)
                await eventually(told.reactor, told.is_waiting, "it waits for the table")

                writing.cancel()

                self.assertEqual([(2,)], [one.tokens for one in told.ids.unfinished()])
                self.assertEqual(1, told.ids.persisted_upto)
                other.rollback()
            await eventually(told.reactor, lambda: ends, "it is told")
            ends[0].trap(CancelledError)
            await eventually(told.reactor, lambda: told.finished, "the id is finished")
            self.assertEqual(([[2]], 2, [2]), (told.finished, told.ids.persisted_upto, told.rows()))

        self.tell(story)

    def test_a_commit_of_doubtful_outcome_is_waited_for(self) -> None:
        """The connection failed, but what went over it before may still be carried out by the server."""

        async def story(told: Story) -> None:
            with closing(psycopg.connect(told.url)) as backend:

                async def write() -> None:
                    async with told.ids.next() as token:
                        backend.execute(INSERT, (token,))
                        raise psycopg.OperationalError("server closed the connection unexpectedly")

                writing = Deferred.fromCoroutine(write())
                ends: list[Any] = []
                writing.addErrback(ends.append)
                await eventually(told.reactor, lambda: ends, "it failed")
                self.assertEqual(3, await told.write())

                self.assertEqual([(2,)], [one.tokens for one in told.ids.unfinished()])
                self.assertEqual(1, told.ids.minimal_token)
                backend.commit()
            await eventually(told.reactor, lambda: told.ids.persisted_upto == 3, "it moves on")
            self.assertEqual(([[3], [2]], [2, 3]), (told.finished, told.rows()))

        self.tell(story)

    def test_an_old_transaction_of_somebody_else_holds_up_nobody(self) -> None:
        """What began before the ids were reserved cannot hold anything of them."""

        async def story(told: Story) -> None:
            with closing(psycopg.connect(told.url)) as other:
                other.execute("SELECT txid_current()")
                with self.assertRaises(ValueError):
                    async with told.ids.next():
                        raise ValueError
                await eventually(told.reactor, lambda: told.finished, "the id is finished")
                other.rollback()

        self.tell(story)

    def test_a_server_that_goes_away_between_reserving_and_finishing(self) -> None:
        """What is reserved stays so until it is known what came of it; each id is finished once."""
        server = PostgresServer()
        self.addCleanup(server.remove)
        server.start()

        async def story(told: Story) -> None:
            failed: list[str] = []

            async def fail(kind: str) -> None:
                try:
                    if kind == "next":
                        async with told.ids.next_many(40) as tokens:
                            server.kill()
                            await transact(told.pool, lambda cursor: cursor.execute(INSERT, (tokens[0],)))
                    else:
                        await transact(told.pool, self.killed_within(told, server))
                except Exception as error:
                    failed.append(type(error).__name__)

            for kind in ("next", "within"):
                await fail(kind)
                unfinished = [token for one in told.ids.unfinished() for token in one.tokens]
                self.assertEqual(40, len(unfinished))
                position = told.ids.minimal_token
                self.assertLess(position, unfinished[0])
                server.start()
                await eventually(told.reactor, lambda: not told.ids.unfinished(), "the ids are finished")
                token = await eventually_writes(told)
                self.assertGreater(token, unfinished[-1])
                self.assertEqual(token, told.ids.persisted_upto)
            self.assertEqual(2, len(failed))
            ids = [token for one in told.finished for token in one]
            self.assertEqual(len(ids), len(set(ids)))
            self.assertEqual(2, len(told.rows()))

        self.tell(story, server)
        # adbapi tells of each rollback on a connection that is gone.
        self.flushLoggedErrors(psycopg.OperationalError, ConnectionLost)

    def killed_within(self, told: Story, server: PostgresServer) -> Callable[[Any], None]:
        """Work under which the server dies."""

        def work(transaction: Any) -> None:
            with told.ids.within(transaction, 40) as tokens:
                server.kill()
                transaction.execute(INSERT, (tokens[0],))

        return work


async def eventually_writes(told: Story) -> int:
    """Each connection of the pool fails once after the server was away."""
    while True:
        try:
            return await told.write()
        except psycopg.OperationalError:
            continue
