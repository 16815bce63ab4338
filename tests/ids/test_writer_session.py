"""One process of a name at a time, seen to be alive; and what becomes of the ids of one that is not."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.defer import ensureDeferred
from twisted.logger import LogEvent, Logger

from synrepl.base.metrics import Metrics
from synrepl.errors import ConfigError, StorageError
from synrepl.ids.generator import MultiWriterIdGenerator, NotAWriter
from synrepl.ids.transactions import transact
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream
from synrepl.storage.id_tables.writers import WriterState, create_writers, read_writers
from synrepl.storage.threads import ImmediateThread
from tests.ids.databases import IdCase


class _Connection:
    """A connection that can be cut, as by a server that goes away."""

    def __init__(self, real: Any, wait_until_gone: Callable[[], None]) -> None:
        self.real = real
        self.is_cut = False
        self._wait_until_gone = wait_until_gone

    def cursor(self) -> Any:
        if self.is_cut:
            raise OSError("server closed the connection unexpectedly")
        return self.real.cursor()

    def commit(self) -> None:
        self.real.commit()

    def close(self) -> None:
        self.real.close()
        self._wait_until_gone()


class Sessions(IdCase):
    """Written once, run on each database."""

    def setUp(self) -> None:
        super().setUp()
        self.told: list[LogEvent] = []
        self.connections: dict[str, _Connection] = {}
        self.is_away = False

    def session(self, instance: str, generator: MultiWriterIdGenerator | None = None) -> WriterSession:
        def connect() -> _Connection:
            if self.is_away:
                raise OSError("connection refused")
            real = self.connect()
            self.connections[instance] = _Connection(real, partial(self.wait_until_gone, self.backend(real)))
            return self.connections[instance]

        session = WriterSession(
            connect,
            [generator or self.generator(instance, ["A", "B"])],
            instance=instance,
            flavor=self.flavor,
            clock=self.clock,
            thread=ImmediateThread(),
        )
        session._logger = Logger(observer=self.told.append)  # type: ignore[arg-type]
        self.addCleanup(self.end, session)
        return session

    def end(self, session: WriterSession) -> None:
        """As a kill does: no word, and the database or the system takes back the name."""
        session._is_stopped = True
        session._timer.stop()
        session._close()

    def backend(self, connection: Any) -> int:
        """Who serves this connection, if somebody does."""
        return 0

    def wait_until_gone(self, backend: int) -> None:
        """Until the database knows of the end of a connection as well."""

    def begun(self, instance: str) -> tuple[WriterSession, MultiWriterIdGenerator]:
        generator = self.generator(instance, ["A", "B"])
        session = self.session(instance, generator)
        self.wait(session.start())
        return session, generator

    def pass_time(self, seconds: float) -> None:
        self.clock.pump([0.25] * int(seconds * 4))

    def states(self) -> dict[str, WriterState]:
        return {state.writer: state for state in self.interact(read_writers)}

    def warnings(self) -> list[str]:
        return [event["log_format"].format(**event) for event in self.told]

    def test_an_idle_writer_moves_on(self) -> None:
        """It has nothing to say, and still holds nobody back for more than a few seconds (S#8499)."""
        _, a = self.begun("A")
        _, b = self.begun("B")

        self.write_facts(a, 5)
        self.pass_time(5)

        self.assertEqual((6, 6), (a.persisted_upto, b.persisted_upto))
        self.assertEqual({"A": 6, "B": 6}, self.get_positions())

    def test_a_block_has_the_name(self) -> None:
        """Also if it fails: another process can have the name at once."""
        refusal = ValueError("not now")

        async def use(error: Exception | None) -> None:
            async with self.session("A") as session:
                self.assertTrue(session.is_held)
                if error is not None:
                    raise error

        for error in (refusal, None):
            results: list[Any] = []
            ensureDeferred(use(error)).addBoth(results.append)
            self.assertEqual([error], [getattr(result, "value", result) for result in results])
        self.assertEqual({"A": ""}, {state.writer: state.process for state in self.states().values()})

    def test_a_block_whose_name_is_taken_is_not_entered(self) -> None:
        """The thread and the connection of the session are closed."""
        self.begun("A")
        second = self.session("A")
        second._acquire_seconds = 0

        async def use() -> None:
            async with second:
                self.fail("there are two of one name")

        self.assertRaises(StorageError, self.wait, use())
        self.assertTrue(second._thread._is_stopped)  # type: ignore[attr-defined]

    def test_mistakes_are_refused_before_anything_starts(self) -> None:
        """No thread runs, no connection is open, no name is taken."""
        of_c = self.generator("C", ["A", "B"])
        reader = self.generator("A", ["A", "B"])
        object.__setattr__(reader, "stream", IdStream(name="read", sequence="", tables=()))
        a = self.generator("A", ["A", "B"])
        cases: list[tuple[str, list[MultiWriterIdGenerator], type[Exception], str]] = [
            ("C", [of_c], NotAWriter, "C is not among the writers of"),
            ("A", [], ConfigError, "at least one id generator"),
            ("B", [a], ConfigError, f"is for A on {self.flavor}, but the writer session for B on"),
            ("A", [reader], ConfigError, "stream read names no sequence"),
            ("A", [a, self.generator("A", ["A", "B"])], ConfigError, "two id generators for stream things"),
        ]
        for instance, generators, kind, words in cases:
            with self.assertRaisesRegex(kind, words):
                WriterSession(
                    self.connect, generators, instance=instance, flavor=self.flavor, clock=self.clock
                )

    def test_a_stream_without_writers_has_one_process(self) -> None:
        """Nobody knows who else may have ids unfinished, so a second process could call them complete."""
        first = self.session("A", self.generator("A", []))
        self.wait(first.start())

        second = self.session("B", self.generator("B", []))
        second._acquire_seconds = 0
        refused = self.assertRaises(StorageError, self.wait, second.start())

        self.assertIn("another process generates the ids of things, which names no writers", str(refused))
        self.assertIn("name the stream's writers", str(refused))
        self.end(first)
        self.wait(self.session("C", self.generator("C", [])).start())

    def test_a_rollback_is_reported(self) -> None:
        """Nothing was stored for it, but readers of the database are not left waiting for the id."""
        _, a = self.begun("A")
        context = a.next()
        self.wait(context.__aenter__())

        self.wait(context.__aexit__(ValueError, ValueError(), None))
        self.pass_time(1)

        self.assertEqual(2, self.get_positions()["A"])

    def test_unfinished_ids_are_stored_with_their_owner(self) -> None:
        """Which id holds the stream, whose it is, since when, and where it was reserved (N3)."""
        _, a = self.begun("A")
        self.wait(a.next_many(2, owner="persist_events").__aenter__())

        self.pass_time(31)

        state = self.states()["A"]
        self.assertEqual((2, 2, "persist_events"), (state.unfinished, state.oldest_id, state.owner))
        self.assertEqual(31, round(self.clock.seconds() - (state.oldest_since or 0)))
        self.assertEqual(
            ["things is stuck: A has ids 2 to 3 unfinished for 30 s, reserved by persist_events"],
            [text for text in self.warnings() if "is stuck" in text],
        )

    def test_positions_are_told_as_they_go_up(self) -> None:
        """Also where ids go down: or whoever asks who is behind would take the first for the last."""
        generator = self.generator("A", ["A", "B"], negative=True)
        self.wait(self.session("A", generator).start())

        self.assertEqual([-2], self.write_facts(generator))
        self.pass_time(1)

        self.assertEqual(2, self.states()["A"].position)
        self.assertEqual({"A": -2}, self.get_positions())

    def test_the_age_of_what_is_unfinished_is_a_metric(self) -> None:
        """What an operator is paged for."""
        metrics = Metrics(CollectorRegistry())
        generator = self.generator("A", ["A", "B"])
        session = self.session("A", generator)
        session._metrics = metrics
        self.wait(session.start())
        self.wait(generator.next().__aenter__())

        self.pass_time(7)

        age = metrics.oldest_unfinished_id_age.labels("things", "A").value
        self.assertEqual(7, round(age))

    def test_the_place_in_the_program_is_the_owner(self) -> None:
        """Nobody has to think of naming it."""
        _, a = self.begun("A")

        self.wait(a.next().__aenter__())

        self.assertIn(
            "test_the_place_in_the_program_is_the_owner (test_writer_session.py:", a.unfinished()[0].owner
        )

    def test_the_ids_of_a_dead_writer_are_released(self) -> None:
        """Within 15 seconds of its end, whoever lives moves on past what it will never write (N3)."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        self.wait(a.next().__aenter__())
        self.write_facts(b, 2)
        self.pass_time(3)
        self.assertEqual(1, b.persisted_upto)

        self.end(session)
        self.pass_time(10)

        self.assertEqual(4, b.persisted_upto)
        self.assertEqual({"A": 4, "B": 4}, self.get_positions())
        self.assertEqual("", self.states()["A"].process)
        self.assertEqual(1, len([text for text in self.warnings() if "is gone" in text]))
        self.write_facts(b, 2)
        self.pass_time(2)
        self.assertEqual(6, b.persisted_upto)

    def test_a_writer_that_is_gone_for_a_moment_keeps_its_ids(self) -> None:
        """A switch may be restarted within seconds: what it has under way may yet be written."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        self.wait(a.next().__aenter__())
        self.write_facts(b, 2)

        self.end(session)
        self.pass_time(4)

        self.assertEqual((1, "A"), (b.persisted_upto, a.unfinished()[0].writer))
        self.assertEqual(1, self.get_positions().get("A", 1))
        self.assertTrue(self.states()["A"].process)

    def test_a_writer_that_never_told_of_itself_is_left_alone(self) -> None:
        """It is some other program, which may have ids under way of which nobody here knows."""
        other = self.started("B", ["A", "B"])
        self.write_facts(other)
        self.wait(other.next().__aenter__())
        _, a = self.begun("A")
        before = self.get_positions()["B"]

        self.write_facts(a, 3)
        self.pass_time(20)

        self.assertEqual(before, self.get_positions()["B"])
        self.assertNotIn("B", self.states())

    def test_a_dead_writer_comes_back(self) -> None:
        """It begins above everything that was released in its name."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        self.wait(a.next().__aenter__())
        self.end(session)
        self.write_facts(b, 2)
        self.pass_time(10)

        _, again = self.begun("A")
        self.pass_time(2)

        self.assertEqual([5], self.write_facts(again))
        self.pass_time(4)
        self.assertEqual((5, 5), (again.persisted_upto, b.persisted_upto))

    def test_a_successor_waits_for_the_end_of_its_predecessor(self) -> None:
        """A process that was killed may have its session for a moment yet: the next one is patient."""
        first, _ = self.begun("A")
        second = self.session("A")
        results: list[Any] = []

        ensureDeferred(second.start()).addBoth(results.append)
        self.pass_time(2)
        self.assertEqual([], results)
        self.end(first)
        self.pass_time(1)

        self.assertEqual([None], results)
        self.assertTrue(second.is_held)

    def test_a_lost_connection_is_made_again(self) -> None:
        """The server went away for a moment: no ids meanwhile, then as before, unfinished ones included."""
        session, a = self.begun("A")
        context = a.next()
        self.wait(context.__aenter__())
        self.connections["A"].is_cut = self.is_away = True
        self.pass_time(1)

        with self.assertRaises(StorageError) as caught:
            self.wait(a.next().__aenter__())

        self.assertTrue(caught.exception.retryable)
        self.is_away = False
        self.pass_time(1)
        self.assertTrue(session.is_held)
        self.wait(context.__aexit__(None, None, None))
        self.assertEqual([3], self.write_facts(a))

    def test_one_who_was_taken_for_dead_writes_no_more(self) -> None:
        """Its unfinished ids were passed by others: only a new start is sure that nothing comes of them."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        self.wait(a.next().__aenter__())
        self.connections["A"].is_cut = self.is_away = True
        self.pass_time(2)
        self.is_away = False
        self.connections["A"].is_cut = True
        session._timer.stop()
        self.pass_time(10)
        self.write_facts(b)

        session._schedule_heartbeat()
        self.pass_time(2)

        self.assertFalse(session.is_held)
        with self.assertRaises(StorageError) as caught:
            self.wait(a.next().__aenter__())
        self.assertFalse(caught.exception.retryable)
        self.assertIn("restart this process", str(caught.exception))


class SQLiteSessionTests(Sessions):
    """On SQLite."""


class PostgreSQLSessionTests(Sessions):
    """On PostgreSQL."""

    flavor = "postgresql"

    def backend(self, connection: Any) -> int:
        return int(connection.info.backend_pid)

    def wait_until_gone(self, backend: int) -> None:
        """It has the name for a moment longer, in which our clock may pass minutes."""
        until = time.monotonic() + 60
        while self.do("SELECT 1 FROM pg_stat_activity WHERE pid = ?", backend):
            self.assertLess(time.monotonic(), until)

    def test_what_a_dead_writer_still_has_under_way_is_waited_for(self) -> None:
        """Its backend may yet commit what it was told before the process died."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        other = self.new_pool().connection
        with other.cursor() as cursor:
            cursor.execute("SELECT nextval(%s)", (self.sequence,))
            self.insert(cursor, [cursor.fetchone()[0]], "A")
            self.end(session)
            self.write_facts(b)
            self.pass_time(20)
            self.assertEqual(1, b.persisted_upto)
            other.commit()
        self.pass_time(10)

        self.assertEqual(3, b.persisted_upto)
        del a

    def test_what_began_last_is_waited_for_as_well(self) -> None:
        """No transaction that began later has ended when others first miss the dead writer."""
        session, a = self.begun("A")
        _, b = self.begun("B")
        other = self.new_pool().connection
        with other.cursor() as cursor:
            cursor.execute("SELECT nextval(%s)", (self.sequence,))
            self.insert(cursor, [cursor.fetchone()[0]], "A")
            self.end(session)

            self.pass_time(20)

            self.assertEqual((1, {"A": 1, "B": 1}), (b.persisted_upto, self.get_positions()))
            other.commit()
        self.pass_time(10)
        self.assertEqual((2, {"A": 2, "B": 2}), (b.persisted_upto, self.get_positions()))
        del a

    def test_a_successor_waits_for_what_its_predecessor_has_under_way(self) -> None:
        """A commit that the dead process had asked for may come after the start of the next one, which would
        have told everybody by then that there is nothing below its own ids.
        """
        session, _ = self.begun("A")
        other = self.new_pool().connection
        results: list[Any] = []
        with other.cursor() as cursor:
            cursor.execute("SELECT nextval(%s)", (self.sequence,))
            self.insert(cursor, [cursor.fetchone()[0]], "A")
            self.end(session)

            ensureDeferred(self.session("A").start()).addBoth(results.append)
            self.pass_time(5)

            self.assertEqual(([], {"A": 1}), (results, self.get_positions()))
            other.commit()
        self.pass_time(2)
        self.assertEqual(([None], {"A": 2}), (results, self.get_positions()))

    def test_a_start_behind_an_endless_transaction_fails(self) -> None:
        """The start fails then, with words that help; whoever starts processes will try again."""
        session, _ = self.begun("A")
        other = self.new_pool().connection
        self.end(session)
        with other.cursor() as cursor:
            cursor.execute("SELECT txid_current()")
            results: list[Any] = []

            ensureDeferred(self.session("A").start()).addErrback(results.append)
            self.pass_time(20)
            other.rollback()

        self.assertIn("are still running", str(results[0].value))
        self.assertTrue(results[0].value.retryable)

    def test_who_ended_well_leaves_nothing_to_wait_for(self) -> None:
        """A long transaction of somebody else does not hold up a restart."""
        session, _ = self.begun("A")
        self.wait(session.stop())
        other = self.new_pool().connection
        with other.cursor() as cursor:
            cursor.execute("SELECT txid_current()")

            _, again = self.begun("A")
            other.rollback()

        self.assertEqual([2], self.write_facts(again))

    def test_writers_can_start_at_the_same_moment(self) -> None:
        """Nothing is there yet, and all see to it at the same moment: IF NOT EXISTS alone fails then."""
        for name in ("synrepl_writers", "stream_positions"):
            self.do(f"DROP TABLE IF EXISTS {name}")
        database = IdDatabase(self.stream(["A"]), self.flavor)
        errors: list[Exception] = []

        def create(connection: Any) -> None:
            with connection.cursor() as cursor:
                database.create(cursor)
                create_writers(cursor, self.flavor)

        def create_as_well() -> None:
            try:
                with closing(self.connect()) as connection:
                    create(connection)
            except Exception as error:
                errors.append(error)

        first = self.new_pool().connection
        create(first)
        second = threading.Thread(target=create_as_well)
        second.start()
        until = time.monotonic() + 60
        while not self.do("SELECT 1 FROM pg_locks WHERE NOT granted"):
            self.assertTrue(second.is_alive() and time.monotonic() < until)
        first.commit()
        second.join()

        self.assertEqual([], errors)

    def test_a_crash_of_the_server_gives_no_id_twice(self) -> None:
        """It takes back numbers of its sequence that no committed transaction had: ours, rolled back, were
        told to be passed.
        """
        _, a = self.begun("A")
        context = a.next_many(40)
        self.wait(context.__aenter__())
        self.wait(context.__aexit__(ValueError, ValueError(), None))
        self.set_sequence(9)

        self.assertEqual([42, 43], self.write_facts(a, 2))

    def test_a_crash_of_the_server_ends_what_was_under_way(self) -> None:
        """It may not remember that there was such a transaction, and give its number to the next."""
        _, a = self.begun("A")

        def work(transaction: Any) -> None:
            with a.within(transaction):
                self.reserved = next(iter(a._reservations))
                self.reserved.mark += 1000
                raise ValueError

        self.failureResultOf(transact(self.pool, work), ValueError)
        self.pass_time(1)

        self.assertEqual([], a.unfinished())


del Sessions
