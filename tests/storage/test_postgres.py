"""What only PostgreSQL can do: have its own idea of who is there, and be away."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from synrepl.base.history import Appended
from synrepl.errors import ConfigError, StorageError
from synrepl.storage import postgres
from synrepl.storage.checked_rows import STORED_FACT, row_of_fact
from synrepl.storage.databases import engine_for
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.postgres import PostgresConnection, PostgresDatabase
from synrepl.storage.schema import VERSION
from synrepl.storage.sql import for_postgres
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from tests.postgres import kept_facts, new_database, shared_server
from tests.resealing import reseal
from tests.servers.postgres import PostgresServer
from tests.storage.builders import LogCase, facts_after, rows

ROOT = Path(__file__).parents[2]
A, B, C = (rows(text) for text in "abc")


HOSTILE_SETTINGS = (
    "standard_conforming_strings = off",
    "bytea_output = escape",
    "client_encoding = LATIN1",
    "backslash_quote = off",
    "escape_string_warning = off",
    "quote_all_identifiers = on",
    "search_path = nowhere",
    "transform_null_equals = on",
    "default_transaction_isolation = serializable",
    "default_transaction_deferrable = on",
    "timezone = 'Pacific/Kiritimati'",
    "datestyle = 'German'",
    "extra_float_digits = -15",
    "default_with_oids = off",
)
"""What operators keep for old applications, in the database or the role."""


def of_postgres(engine: SQLEngine) -> PostgresDatabase:
    """The engine's database."""
    assert isinstance(engine.database, PostgresDatabase)
    return engine.database


class PostgresCase(LogCase):
    """A database of one's own."""

    def setUp(self) -> None:
        super().setUp()
        self.url = new_database()
        self.patch(postgres, "FIRST_PATIENCE", 0.2)

    def again(self, **options: Any) -> SQLEngine:
        """The engine of the next process."""
        engine = SQLEngine(PostgresDatabase(self.url, **options))
        self.addCleanup(engine.close)
        return engine

    def opened(self, **options: Any) -> SQLEngine:
        engine = self.again(**options)
        engine.open()
        return engine

    def filled(self, count: int) -> list[Fact]:
        """Leave a log with this many facts, closed."""
        engine = self.opened()
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, count + 1)))
        engine.commit(facts, [])
        engine.close()
        return facts

    def execute(self, statement: str, *values: object) -> list[Any]:
        """Do something behind the engine's back."""
        with psycopg.connect(self.url, autocommit=True) as database:
            done = database.execute(statement.encode(), values or None)
            return done.fetchall() if done.description is not None else []

    def reseal(self) -> None:
        """Give what was changed the checksums that it would have had."""
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute("SET search_path = synrepl")
            reseal(lambda text, values=(): database.execute(for_postgres(text).encode(), values))

    def kept(self) -> list[Fact]:
        """All that is in the database, whoever has the log."""
        return kept_facts(self.url)

    def error(self, use: Callable[[], object]) -> StorageError:
        with self.assertRaises(StorageError) as caught:
            use()
        error: StorageError = caught.exception
        return error

    def terminate(self, engine: SQLEngine) -> None:
        """End the connection that writes, as an administrator would, and wait until it is gone."""
        pid = of_postgres(engine).writer("test").raw.info.backend_pid
        self.execute("SELECT pg_terminate_backend(%s, 10000)", pid)


class StartTests(PostgresCase):
    """What can be wrong at the start."""

    def test_the_second_process_is_told_who_has_the_log(self) -> None:
        """The operator needs the number of the process to end, and where it is."""
        self.opened()

        error = self.error(self.again().open)

        self.assertIn(
            f"process {os.getpid()} on {os.uname().nodename} uses the log in postgresql://", str(error)
        )
        self.assertIn("stop it, or choose another database", error.hint)
        self.assertFalse(error.retryable)

    def test_the_lock_of_a_killed_process_is_free(self) -> None:
        """Nobody should have to look for locks at night."""
        code = (
            "import sys; from synrepl.storage.databases import engine_for; engine = engine_for(sys.argv[1]);"
            "engine.open(); print('open', flush=True); input()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, self.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        with child:
            assert child.stdout is not None
            self.assertEqual(b"open\n", child.stdout.readline())
            self.assertIn(f"process {child.pid} on", str(self.error(self.again().open)))
            child.kill()

        self.assertEqual(2, self.again().open().boots)

    def test_of_starts_that_race_one_wins(self) -> None:
        """Two that make the tables at once must not break each other, or both believe in their luck."""
        engines = [self.again() for _ in range(6)]

        def start(engine: SQLEngine) -> str:
            try:
                return f"boot {engine.open().boots}"
            except StorageError as error:
                return "refused" if "uses the log" in str(error) else str(error)

        with ThreadPoolExecutor(6) as threads:
            told = sorted(threads.map(start, engines))

        self.assertEqual(["boot 1"] + ["refused"] * 5, told)

    def test_a_newer_schema_is_refused(self) -> None:
        """After a downgrade the old release would destroy what it does not know."""
        self.filled(1)
        self.execute("UPDATE synrepl.log_header SET schema_version = %s", VERSION + 1)
        self.reseal()
        engine = self.again()

        self.assertIn("a newer release wrote it", str(self.error(engine.open)))
        self.execute("UPDATE synrepl.log_header SET schema_version = %s", VERSION)
        self.reseal()

        self.assertEqual((1, 2), (engine.open().serial, engine.head().boots))

    def test_a_damaged_head_is_refused(self) -> None:
        """Going on from a log that contradicts itself would spread the damage to every replica."""
        self.filled(1200)
        self.execute("UPDATE synrepl.facts SET rows = '[]' WHERE serial = 1190")

        error = self.error(self.again().open)

        self.assertIn("serial 1190 is damaged", str(error))
        self.assertIn("the database is damaged", error.hint)
        self.reseal()
        self.assertIn("the digest of serial 1190", str(self.error(self.again().open)))

    def test_the_log_shares_a_database_without_touching_what_is_there(self) -> None:
        """It may be the homeserver's own."""
        self.execute("CREATE TABLE facts (mine TEXT)")
        self.execute("CREATE TABLE log_header (mine TEXT)")
        self.filled(2)

        for theirs in ("public.facts", "public.log_header"):
            self.assertEqual([], self.execute(f"SELECT * FROM {theirs}"))
        self.assertEqual(2, len(self.kept()))

    def test_a_user_who_may_make_no_schema_uses_one_that_is_there(self) -> None:
        """Many administrators grant no more."""
        self.execute("CREATE ROLE modest LOGIN")
        self.addCleanup(shared_server().execute, "DROP ROLE modest")
        self.addCleanup(self.execute, "DROP OWNED BY modest")
        self.url = self.url.replace("//postgres@", "//modest@")

        refused = self.error(self.again().open)
        self.url = self.url.replace("//modest@", "//postgres@")
        self.execute("CREATE SCHEMA synrepl AUTHORIZATION modest")
        self.url = self.url.replace("//postgres@", "//modest@")
        self.opened().close()
        self.url = self.url.replace("//modest@", "//postgres@")

        self.assertIn("CREATE SCHEMA synrepl AUTHORIZATION modest", refused.why)

    def test_what_others_have_set_does_not_weaken_a_commit(self) -> None:
        """A homeserver may choose speed for itself; acknowledged is durable all the same."""
        name = self.url.partition("?")[0].rpartition("/")[2]
        for setting in (
            "synchronous_commit = off",
            "statement_timeout = 9000",
            "idle_session_timeout = 9000",
        ):
            shared_server().execute(f"ALTER DATABASE {name} SET {setting}")
        engine = self.opened()

        found = [
            engine.database.writer("test").execute(f"SHOW {name}").fetchone()[0]
            for name in ("synchronous_commit", "statement_timeout", "idle_session_timeout", "lock_timeout")
        ]

        self.assertEqual(["on", "0", "0", "10s"], found)

    def test_a_table_that_somebody_keeps_locked_is_told(self) -> None:
        """An append waited for ever, without a word, and the daemon called itself ready."""
        engine = self.opened()
        database = of_postgres(engine)
        for connection in (database.writer("test"), database.reader("test")):
            connection.execute("SET lock_timeout = 50")
        with psycopg.connect(self.url) as other:
            other.execute("LOCK TABLE synrepl.facts IN ACCESS EXCLUSIVE MODE")
            refused = self.error(lambda: engine.commit(facts_after(None, ("events", "w", 0, 1)), []))
            other.rollback()
        engine.commit(facts_after(None, ("events", "w", 0, 1)), [])

        self.assertTrue(refused.retryable)
        self.assertIn("keeps a table of the log locked", refused.hint)
        self.assertIn("pg_terminate_backend", refused.hint)

    def test_what_others_have_set_does_not_change_what_is_stored(self) -> None:
        """Rows were acknowledged and stored as the text of an escape: they and the log were lost."""
        name = self.url.partition("?")[0].rpartition("/")[2]
        (fact,) = facts_after(None, ("events", "w'1\\", 0, 1))
        for setting in HOSTILE_SETTINGS:
            with self.subTest(setting):
                shared_server().execute(f"ALTER DATABASE {name} SET {setting}")
                self.addCleanup(shared_server().execute, f"ALTER DATABASE {name} RESET ALL")
                engine = self.opened()
                engine.commit([fact], [])
                engine.close()

                self.assertEqual([fact], self.kept())
                self.opened().close()
                self.execute("DROP SCHEMA synrepl CASCADE")
                shared_server().execute(f"ALTER DATABASE {name} RESET ALL")

    def test_a_server_that_stores_something_else_is_refused_at_the_start(self) -> None:
        """Whatever its reason: nothing is acknowledged that cannot be read."""

        class Garbling(PostgresConnection):
            def insert(self, table: str, columns: str, rows: Any) -> None:
                super().insert(table, columns, ((*row[:6], row[6] + b" ", *row[7:]) for row in rows))

        self.patch(postgres, "PostgresConnection", Garbling)

        error = self.error(self.again().open)

        self.assertIn("gives back another fact than was written (its rows differ)", error.why)
        self.assertEqual([], self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'synrepl'"))

    def test_a_server_that_is_not_there_is_reported(self) -> None:
        """The first thing to go wrong in every installation."""
        self.url = "postgresql://ada@/synapse?host=/no/such/place"

        error = self.error(self.again().open)

        self.assertIn("postgresql://ada@/synapse?host=/no/such/place: ", error.why)
        self.assertIn("check that the server runs", error.hint)
        self.assertTrue(error.retryable)
        self.assertNotIn("\n", str(error))

    def test_a_database_that_is_not_there_is_reported(self) -> None:
        """A hint says what to do, not only what is wrong."""
        self.url = self.url.replace("/test_", "/missing_")

        error = self.error(self.again().open)

        self.assertIn("does not exist", error.why)
        self.assertIn("create the database", error.hint)

    def test_a_password_is_shown_nowhere(self) -> None:
        """Log lines end up in tickets."""
        for url in (
            "postgresql://ada:hush@/synapse?host=/no/such/place",
            "postgresql:///synapse?host=/no/such/place&password=hush",
            "postgresql://ada:hush@/synapse?hush=hush",
            "postgresql://ada:hush@[:1/synapse",
        ):
            with self.subTest(url):
                try:
                    engine = SQLEngine(PostgresDatabase(url))
                    shown = f"{engine!r} {engine.database.name} {of_postgres(engine)._address!r}"
                    engine.open()
                except StorageError as error:
                    shown = f"{error!r} {error.why}"
                    told = "".join(traceback.format_exception(error)).replace(repr(url), "")
                    self.assertNotIn("hush", told)
                else:
                    self.fail("it connected")
                self.assertNotIn("hush", shown)

    def test_an_url_names_an_engine(self) -> None:
        """One setting chooses between all of them."""
        self.assertIsInstance(engine_for("sqlite:a.db").database, SQLiteDatabase)
        for kind in ("postgresql", "postgres"):
            self.assertIsInstance(engine_for(f"{kind}://h/d").database, PostgresDatabase)
        with self.assertRaises(ConfigError) as caught:
            engine_for("mysql://ada:hush@h/d")
        self.assertNotIn("hush", str(caught.exception))

    def test_without_psycopg_everything_else_works_and_the_extra_is_named(self) -> None:
        """It is an extra: who keeps the log in SQLite need not have it."""
        code = (
            "import sys; from synrepl.storage.databases import engine_for; engine_for('sqlite:a.db');"
            "print('psycopg' in sys.modules); sys.modules['psycopg'] = None;"
            "engine_for('postgresql://h/d')"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

        self.assertEqual("False\n", done.stdout)
        self.assertIn("run pip install 'synrepl[postgres]'", done.stderr.splitlines()[-1])


class PageTests(PostgresCase):
    """Reading."""

    def test_a_page_read_in_part_leaves_no_transaction_open(self) -> None:
        """It would keep the server from tidying up anything that came later."""
        self.filled(1000)
        engine = self.opened()

        for streams in (None, {"events"}):
            found, upto = engine.pages.facts(after=0, upto=1000, limit=3, filter=Filter.of(streams=streams))
            self.assertEqual((3, 3), (len(found), upto))
        engine.pages.tokens(stream="events", writer=None, after=0, upto=999, serial=999, limit=3)

        self.assertEqual(
            TransactionStatus.IDLE, of_postgres(engine).reader("test").raw.pgconn.transaction_status
        )

    def test_a_long_answer_comes_in_parts(self) -> None:
        """A reader far behind must not bring the whole log into memory for one page."""
        self.filled(1000)
        engine = self.opened()
        parts: list[int] = []
        fetch = psycopg.ServerCursor._fetch_gen

        def count(cursor: Any, size: int | None) -> Any:
            found = yield from fetch(cursor, size)
            parts.append(len(found))
            return found

        self.patch(psycopg.ServerCursor, "_fetch_gen", count)
        engine.pages.facts(after=0, upto=1000, limit=300)

        self.assertEqual([200, 200], parts)


class LostConnectionTests(PostgresCase):
    """A connection that ends, in every moment, for every reason."""

    def log_over(self, engine: SQLEngine) -> Log:
        log = self.started(engine)
        self.addCleanup(lambda: self.wait(log.stop()))
        return log

    @contextmanager
    def at_commit(self, engine: SQLEngine, *, before: Any = None, after: Any = None) -> Iterator[None]:
        """Do something right before, or right after, the next transaction commits."""
        real = PostgresConnection.transaction

        @contextmanager
        def once(connection: PostgresConnection) -> Iterator[None]:
            patched.restore()
            with real(connection):
                yield
                if before is not None:
                    before()
            if after is not None:
                after()

        patched = self.patch(PostgresConnection, "transaction", once)
        yield

    def test_one_that_ended_meanwhile_is_not_even_noticed(self) -> None:
        """A server that was restarted at night should not cost the first client of the day its append."""
        engine = self.opened()
        facts = facts_after(None, ("events", "w1", 0, 1), ("events", "w1", 1, 2))
        engine.commit(facts[:1], [])
        engine.pages.facts(after=0, upto=9, limit=9)

        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid != pg_backend_pid()"
        )

        engine.commit(facts[1:], [])
        self.assertEqual((facts, 2), engine.pages.facts(after=0, upto=9, limit=9))
        self.assertIn("uses the log", str(self.error(self.again().open)))

    def test_one_that_ends_in_a_commit_keeps_nothing_and_is_got_over(self) -> None:
        """The append fails, and says what is so: nothing was kept."""
        engine = self.again()
        log = self.log_over(engine)
        self.append(log, "events", "w1", A)

        with self.at_commit(engine, before=lambda: self.terminate(engine)):
            failed = log.append("events", "w1", [B])

        error = self.failureResultOf(failed, StorageError).value
        self.assertTrue(error.retryable)
        self.assertNotIn("may have been stored", str(error))
        self.assertEqual(Appended(1, 2, [2]), self.append(log, "events", "w1", C))
        self.assertEqual((True, ""), log.healthy)
        self.assertEqual([A, C], [fact.rows for fact in self.kept()])
        self.assertIsNone(verify(self.kept(), EMPTY))

    def test_a_server_that_becomes_read_only_is_left(self) -> None:
        """A primary that was replaced keeps its connections; its address leads to the new one."""
        engine = self.again()
        log = self.log_over(engine)
        self.append(log, "events", "w1", A)
        database = of_postgres(engine)
        for connection in (database.writer("test"), old := database.reader("test")):
            connection.raw.execute("SET default_transaction_read_only = on")

        refused = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value

        self.assertTrue(refused.retryable)
        self.assertIn("use the primary", str(refused))
        self.assertNotIn("may have been stored", str(refused))
        self.assertEqual(Appended(1, 2, [2]), self.append(log, "events", "w1", C))
        self.assertEqual((True, ""), log.healthy)
        self.assertIsNot(old, database.reader("test"))
        self.assertEqual([A, C], [fact.rows for fact in self.kept()])

    def test_one_that_ends_at_any_step_of_a_commit_keeps_all_or_nothing(self) -> None:
        """Whatever the append was answered is what is so."""
        engine = self.again()
        log = self.log_over(engine)

        for step, key in (("execute", None), ("insert", "a"), ("insert", None), ("executemany", "b")):
            real = getattr(PostgresConnection, step)

            def end_first(*args: Any, step: str = step, real: Any = real) -> Any:
                setattr(PostgresConnection, step, real)
                self.terminate(engine)
                return real(*args)

            setattr(PostgresConnection, step, end_first)
            failed = log.append("events", "w1", [A], key=key)

            self.assertTrue(self.failureResultOf(failed, StorageError).value.retryable)
            serial = log.head.serial
            answer = self.append(log, "events", "w1", B, key=key and f"{key}2")
            self.assertEqual(serial + 1, answer.first_serial)
            self.assertEqual([B] * log.head.serial, [fact.rows for fact in self.kept()])
        self.assertEqual([("a2",), ("b2",)], self.execute("SELECT key FROM synrepl.receipts ORDER BY key"))

    def test_a_commit_whose_answer_is_lost_is_answered_as_kept(self) -> None:
        """The log asks what became of it; nothing is kept twice."""
        engine = self.again()
        log = self.log_over(engine)

        def lose() -> None:
            self.terminate(engine)
            raise psycopg.OperationalError("the connection was lost")

        with self.at_commit(engine, after=lose):
            self.assertEqual(Appended(1, 1, [1]), self.append(log, "events", "w1", A))

        self.assertEqual(Appended(1, 2, [2]), self.append(log, "events", "w1", B))
        self.assertEqual([A, B], [fact.rows for fact in self.kept()])

    def test_a_commit_of_unknown_outcome_is_settled_when_the_server_is_back(self) -> None:
        """Kept or not, history stays one; asking again with the key gives the one answer."""
        for when, count in (("before", 0), ("after", 1)):
            with self.subTest(when), PostgresServer() as server:
                self.url = server.new_database()
                engine = self.again()
                log = self.started(engine)

                def lose(server: PostgresServer = server) -> None:
                    server.kill()
                    raise psycopg.OperationalError("the connection was lost")

                with self.at_commit(engine, **{when: lose}):
                    failed = log.append("events", "w1", [A], key="k")
                error = self.failureResultOf(failed, StorageError).value
                refused = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value
                server.start()
                again = self.append(log, "events", "w1", A, key="k")

                self.assertIn("the append may have been stored", str(error))
                self.assertIn("the log's position is unknown", str(refused))
                self.assertTrue(error.retryable)
                self.assertTrue(refused.retryable)
                self.assertEqual(Appended(1, 1, [1]), again)
                self.assertEqual([A], [fact.rows for fact in self.kept()])
                self.assertEqual(
                    count, sum("were stored after all" in event["log_format"] for event in self.told)
                )
                self.wait(log.stop())
                self.told.clear()

    def test_what_was_never_tried_is_not_in_doubt(self) -> None:
        """As long as there is no server, an append fails for certain, and the log knows where it stands."""
        with PostgresServer() as server:
            self.url = server.new_database()
            log = self.started(self.again())
            self.append(log, "events", "w1", A)
            server.stop()

            error = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value
            server.start()

            self.assertTrue(error.retryable)
            self.assertNotIn("may have been stored", str(error))
            self.assertEqual(Appended(1, 2, [2]), self.append(log, "events", "w1", C))
            self.wait(log.stop())

    def test_a_log_that_another_process_took_over_is_left_alone(self) -> None:
        """Two that write by turns, each from its own memory, would tell two histories."""
        engine = self.again(lock_seconds=0.3)
        log = self.started(engine)
        self.append(log, "events", "w1", A)
        # Without the connection, the lock is free for anyone.
        self.terminate(engine)
        other = self.opened()
        ours = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value
        other.commit(facts_after(self.kept()[-1], ("events", "w2", 0, 2)), [])
        other.close()
        lost = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value
        for_ever = self.failureResultOf(log.append("events", "w1", [B]), StorageError).value

        self.assertIn(f"process {os.getpid()} on", str(ours))
        self.assertFalse(ours.retryable)
        for error in (lost, for_ever):
            self.assertIn("another process has opened the log", str(error))
            self.assertFalse(error.retryable)
        self.assertFalse(log.healthy[0])
        self.assertEqual([1, 2], [fact.serial for fact in self.kept()])
        self.assertIsNone(verify(self.kept(), EMPTY))
        self.wait(log.stop())
        self.assertEqual(3, self.opened().head().boots)

    def test_a_log_whose_tables_are_gone_is_unhealthy_before_anybody_asks(self) -> None:
        """Somebody has dropped the schema: there is nothing to restart into."""
        log = self.log_over(self.again())
        self.append(log, "events", "w1", A)
        self.execute("DROP SCHEMA synrepl CASCADE")

        self.clock.advance(6)

        is_healthy, why = log.healthy
        self.assertFalse(is_healthy)
        self.assertIn("stop the daemon and restore a backup", why)
        self.failureResultOf(log.append("events", "w1", [B]), StorageError)

    def test_a_process_that_takes_over_is_noticed_before_anybody_writes(self) -> None:
        """It has counted its start; readers here would go on with a log that is not told any more."""
        log = self.log_over(self.again())
        self.append(log, "events", "w1", A)
        self.execute("UPDATE synrepl.log_header SET boots = boots + 1")
        self.reseal()

        self.clock.advance(6)

        self.assertIn("another process has opened this log", log.healthy[1])
        self.failureResultOf(log.append("events", "w1", [B]), StorageError)
        self.assertEqual([1], [fact.serial for fact in self.kept()])

    def test_a_server_that_is_away_is_told_once_it_stays_away(self) -> None:
        """And forgotten as soon as it is back."""
        with PostgresServer() as server:
            self.url = server.new_database()
            log = self.started(self.again())
            server.stop()
            self.clock.advance(6)
            self.assertEqual((True, ""), log.healthy)
            self.clock.advance(2)
            self.assertFalse(log.healthy[0])
            server.start()
            self.clock.advance(2)
            self.assertEqual((True, ""), log.healthy)
            self.wait(log.stop())

    def test_a_database_that_lost_what_was_acknowledged_is_not_gone_on_with(self) -> None:
        """After a failover to a server that was behind, going on would give the same serials twice."""
        engine = self.opened()
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 4)))
        engine.commit(facts, [])
        self.terminate(engine)
        self.execute("DELETE FROM synrepl.facts WHERE serial = 3")

        error = self.error(engine.head)

        self.assertIn("serial 3 is missing, or has another digest", str(error))
        self.assertFalse(error.retryable)

    def test_a_lost_connection_that_the_server_still_believes_in_is_waited_for(self) -> None:
        """After a network cut it holds the lock until the server notices: that is no other process."""
        engine = self.opened(lock_seconds=0.3)
        database = of_postgres(engine)
        believed, database._writes = database._writes, None
        assert believed is not None
        facts = facts_after(None, ("events", "w1", 0, 1))

        error = self.error(lambda: engine.commit(facts, []))
        self.assertIn("the lost connection uses the log", str(error))
        self.assertEqual((True, False), (error.retryable, error.tried))
        believed.close()

        engine.commit(facts, [])

    def test_a_commit_that_the_server_still_works_on_is_waited_for(self) -> None:
        """Looking too early would find nothing, and the facts would be there a moment later."""
        engine = self.opened()
        database = of_postgres(engine)
        lost, database._writes = database._writes, None
        assert lost is not None
        fact = facts_after(None, ("events", "w1", 0, 1))

        with ThreadPoolExecutor(1) as threads:
            with lost.transaction():
                head = threads.submit(engine.head)
                lost.insert("facts", STORED_FACT, map(row_of_fact, fact))
                self.execute("SELECT pg_sleep(0.1)")
                self.assertFalse(head.done())
            lost.close()
            self.assertEqual(1, head.result().serial)

    def test_a_hung_server_is_given_up(self) -> None:
        """A daemon that waits for ever answers nobody, and cannot be stopped."""
        with PostgresServer() as server:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            self.url = server.url + "&connect_timeout=2"

            error = self.error(self.again().open)

            os.kill(server.pid, signal.SIGCONT)
        self.assertTrue(error.retryable)
