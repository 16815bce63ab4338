"""A copy of another log takes the place of this one: whole or not at all, whatever happens meanwhile."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import psycopg

from synrepl.base.history import Appended, AppendKey, AppendReceipt, EpochStart, Lease, LogSnapshot
from synrepl.errors import StorageError
from synrepl.storage import file_swap
from synrepl.storage.engine import SQLEngine
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.schema import TABLES
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from tests.storage.builders import LogCase, facts_after
from tests.storage.engines import OverMemory, OverPostgres, OverSQLite

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object

OLD = facts_after(None, *(("events", "old", n - 1, n) for n in range(1, 31)))
NEW = facts_after(None, *(("caches", "new", n - 1, n) for n in range(1, 8)))


class Contract(Case):
    """What every engine keeps to."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def opened(self) -> SQLEngine:
        engine = self.again()
        engine.open()
        return engine

    def filled(self) -> SQLEngine:
        """A log with a history that nobody wants any more."""
        engine = self.opened()
        engine.commit(OLD, [AppendReceipt(AppendKey("s", "old"), "r", Appended(1, 1, [1]), 1)])
        engine.begin_epoch(EpochStart(2, 30, OLD[-1].digest, 1, "lost", "events", 20))
        engine.notes.store({"filter": "old"})
        engine.leases.store([Lease(uuid="old", name="", registered=False, serial=1, made_ms=1)])
        return engine

    def stage(self, engine: SQLEngine) -> str:
        """Make the copy beside it, closed; gives the history it is of."""
        copy = engine.staging()
        copy.open()
        copy.commit(NEW[:5], [AppendReceipt(AppendKey("s", "new"), "r", Appended(1, 1, [1]), 1)])
        copy.commit(NEW[5:], [])
        copy.notes.store({"filter": "new"})
        history = copy.notes.all()["history"]
        copy.close()
        return history

    def serials(self, engine: SQLEngine) -> list[Fact]:
        return engine.pages.facts(after=0, upto=10**9, limit=10**9)[0]

    def check_old(self, engine: SQLEngine) -> None:
        """It is the log of `filled`, whole."""
        self.assertEqual((2, 30, OLD[-1].digest), (engine.head().epoch, engine.head().serial, OLD[-1].digest))
        self.assertEqual(OLD, self.serials(engine))
        self.assertEqual(("old", 1), (engine.notes.all()["filter"], len(engine.leases.all())))
        self.assertEqual({("events", "old"): 20}, engine.head().positions)
        self.assertEqual(
            [True, False], [engine.receipts.get(AppendKey("s", key)) is not None for key in ("old", "new")]
        )

    def check_new(self, engine: SQLEngine) -> None:
        """It is the log of `stage`, whole."""
        head = engine.head()
        self.assertEqual(
            (1, 7, NEW[-1].digest, ()), (head.epoch, head.serial, head.digest, tuple(head.epoch_starts))
        )
        self.assertEqual(NEW, self.serials(engine))
        self.assertEqual(("new", 0), (engine.notes.all()["filter"], len(engine.leases.all())))
        self.assertEqual({("caches", "new"): 7}, head.positions)
        self.assertEqual(
            [False, True], [engine.receipts.get(AppendKey("s", key)) is not None for key in ("old", "new")]
        )
        found, _ = engine.pages.tokens(stream="events", writer=None, after=0, upto=99, serial=99, limit=99)
        self.assertEqual([], found)

    def test_the_copy_takes_the_place_of_all(self) -> None:
        """And goes on as any log, also after a restart."""
        engine = self.filled()
        history = self.stage(engine)
        self.check_old(engine)

        head = engine.adopt_staged()

        self.assertEqual(head, engine.head())
        for _ in range(2):
            self.check_new(engine)
            self.assertEqual(history, engine.notes.all()["history"])
            engine.close()
            engine = self.opened()
        engine.commit(facts_after(NEW[-1], ("events", "old", 0, 1)), [])
        self.assertEqual(8, engine.head().serial)

    def test_starts_are_never_counted_twice(self) -> None:
        """Tokens of ephemeral streams begin anew with each; two with one number would be mixed up."""
        for ours, theirs in ((1, 1), (4, 1), (1, 5)):
            with self.subTest((ours, theirs)):
                self.setUp()
                seen = []
                for _ in range(ours):
                    engine = self.again()
                    seen.append(engine.open().boots)
                    if len(seen) < ours:
                        engine.close()
                for _ in range(theirs):
                    copy = engine.staging()
                    copy.open()
                    copy.close()

                seen.append(engine.adopt_staged().boots)
                engine.close()
                seen.append(self.again().open().boots)

                self.assertEqual(sorted(set(seen)), seen)
                self.doCleanups()

    def test_a_copy_in_the_making_outlives_a_restart(self) -> None:
        """Much was carried over already; and it can be adopted then."""
        engine = self.filled()
        self.stage(engine)
        engine.close()
        engine = self.opened()
        copy = engine.staging()

        self.assertEqual((7, NEW[-1].digest), (copy.open().serial, copy.head().digest))
        copy.close()
        self.check_old(engine)
        engine.adopt_staged()
        self.check_new(engine)

    def test_a_copy_with_a_snapshot_is_adopted(self) -> None:
        """As joining does it."""
        engine = self.filled()
        snapshot = engine.snapshot()
        copy = engine.staging()
        copy.open()
        copy.commit(OLD[10:], [], upto=snapshot.position)
        copy.restore(snapshot)
        copy.close()

        head = engine.adopt_staged()

        told = LogSnapshot(
            position=head.position,
            trimmed_upto=head.trimmed_upto,
            epoch_starts=head.epoch_starts,
            positions=head.positions,
            receipts=snapshot.receipts,
        )
        self.assertEqual(snapshot, told)
        self.assertEqual(OLD[10:], self.serials(engine))

    def test_a_copy_in_the_making_knows_no_lost_facts_yet(self) -> None:
        """It has tokens 3 and 4, which its source has lost, and what came after them; the loss comes last."""
        lost = facts_after(None, *(("events", "w", n - 1, n) for n in range(1, 5)))
        kept = facts_after(lost[-1], ("events", "w", 2, 3), epoch=2)
        engine = self.filled()
        copy = engine.staging()
        copy.open()
        copy.commit(lost[1:], [], upto=lost[-1].position)
        copy.commit(kept, [])
        copy.close()

        self.assertEqual(kept[-1].position, copy.open(is_whole=False).position)

        copy.restore(
            LogSnapshot(
                position=kept[-1].position,
                trimmed_upto=lost[0].position,
                epoch_starts=(EpochStart(2, 4, lost[-1].digest, 1, "lost", "events", 2),),
                positions={Writer("events", "w"): 3},
                receipts=(),
            )
        )
        copy.close()
        self.assertEqual(kept[-1].position, engine.adopt_staged().position)

    def test_a_dropped_copy_is_gone(self) -> None:
        """The next copy begins anew."""
        engine = self.filled()
        engine.drop_staged()
        self.stage(engine)

        engine.drop_staged()

        self.check_old(engine)
        self.assertEqual(0, engine.staging().open().serial)

    def test_an_empty_copy_is_not_adopted(self) -> None:
        """An empty log in place of a full one would be a disaster."""
        engine = self.filled()

        with self.assertRaises(StorageError):
            engine.adopt_staged()
        self.stage(engine)
        engine.drop_staged()
        with self.assertRaises(StorageError):
            engine.adopt_staged()

        self.check_old(engine)

    def test_a_copy_that_is_open_is_not_adopted(self) -> None:
        """Something may still be written to it."""
        engine = self.filled()
        self.stage(engine)
        copy = engine.staging()
        copy.open()

        with self.assertRaises(StorageError):
            engine.adopt_staged()
        self.check_old(engine)
        copy.close()

        engine.adopt_staged()
        self.check_new(engine)

    def test_one_can_become_a_copy_again_and_again(self) -> None:
        """Each time there is nothing left of the time before."""
        engine = self.filled()
        for _ in range(3):
            self.stage(engine)
            engine.adopt_staged()
            self.check_new(engine)
        engine.commit(facts_after(NEW[-1], ("caches", "new", 7, 8)), [])


class MemoryTests(OverMemory, Contract):
    """The engine of tests and simulator."""


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())

    def test_adopting_leaves_only_the_files_of_the_log(self) -> None:
        """What is beside a file belongs to it, or destroys it."""
        engine = self.filled()
        self.stage(engine)

        engine.adopt_staged()
        engine.close()

        self.assertEqual(["synrepl.db", "synrepl.db.lock", "synrepl.db.state"], self.files())
        with closing(sqlite3.connect(self.path)) as database:
            self.assertEqual(("ok",), database.execute("PRAGMA integrity_check").fetchone())

    def test_a_process_that_dies_at_any_moment_leaves_the_one_or_the_other(self) -> None:
        """Each state of the directory in between is kept, and opened as the next process would."""
        # The copies below stand for the file itself.
        self.patch(DatabaseFile, "inode", "7")
        engine = self.filled()
        self.stage(engine)
        states: list[Path] = []
        seen: list[object] = []

        def look() -> None:
            state = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in self.path.parent.iterdir()]
            if sorted(state) not in seen:
                seen.append(sorted(state))
                states.append(self.directory() / "state")
                # In another process: who closes a file here loses SQLite's locks on it.
                subprocess.run(["cp", "-a", self.path.parent, states[-1]], check=True)

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if "synrepl/storage" not in frame.f_code.co_filename:
                return None
            look()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            engine.adopt_staged()
        finally:
            sys.settrace(before)
        look()
        self.check_new(engine)
        engine.close()

        found = []
        for state in states:
            left = SQLEngine(SQLiteDatabase(state / "synrepl.db"))
            boots = left.open().boots
            is_new = left.notes.all()["filter"] == "new"
            (self.check_new if is_new else self.check_old)(left)
            if not is_new:
                # It can be done again, from what is there.
                self.assertGreater(left.adopt_staged().boots, boots)
                self.check_new(left)
            left.close()
            found.append(is_new)
            with closing(sqlite3.connect(state / "synrepl.db")) as database:
                self.assertEqual(("ok",), database.execute("PRAGMA integrity_check").fetchone())
        self.assertEqual(sorted(found), found)
        self.assertGreater(found.count(False), 5)
        self.assertGreater(found.count(True), 1)

    def test_a_step_that_fails_leaves_the_log_as_it_was(self) -> None:
        """Any of them, up to the one that counts."""
        for step, at in (("seal", 0), ("seal", 1), ("_sync", 0), ("_sync", 1), ("replace", 0)):
            with self.subTest((step, at)):
                self.setUp()
                engine = self.filled()
                self.stage(engine)
                real, calls = getattr(file_swap, step), [0]

                def fail(*args: Path, at: int = at, real: Any = real, calls: list[int] = calls) -> None:
                    calls[0] += 1
                    if calls[0] == at + 1:
                        raise OSError(5, "the disk failed")
                    real(*args)

                failing = self.patch(file_swap, step, fail)
                with self.assertRaises(StorageError) as caught:
                    engine.adopt_staged()
                failing.restore()

                self.assertIn("the disk failed", str(caught.exception))
                self.check_old(engine)
                engine.commit(facts_after(OLD[-1], ("events", "old", 20, 21), epoch=2), [])
                self.assertEqual(31, engine.head().serial)
                engine.adopt_staged()
                self.check_new(engine)
                engine.close()

    def test_a_log_that_cannot_tell_which_it_is_says_no_more(self) -> None:
        """The file is the other one already, and may not stay so through a power cut."""
        engine = self.filled()
        self.stage(engine)

        def fail(path: Path) -> None:
            raise OSError(5, "the disk failed")

        failing = self.patch(file_swap, "sync_directory", fail)
        with self.assertRaises(StorageError):
            engine.adopt_staged()
        failing.restore()

        self.assertRaises(StorageError, engine.head)
        self.check_new(self.opened())

    def test_a_program_that_reads_the_file_is_waited_for(self) -> None:
        """What it holds of the old log must not be found beside the new one."""
        self.patch(file_swap, "PATIENCE", 0.1)
        engine = self.filled()
        self.stage(engine)

        with closing(sqlite3.connect(self.path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM facts").fetchone()
            with self.assertRaises(StorageError) as caught:
                engine.adopt_staged()
            self.assertTrue(caught.exception.retryable)
            self.check_old(engine)
            engine.notes.store({"still": "here"})

        engine.adopt_staged()
        self.check_new(engine)

    def test_a_damaged_copy_is_not_adopted(self) -> None:
        """A log that is out of date is better than one that is broken."""
        engine = self.filled()
        self.stage(engine)
        with closing(sqlite3.connect(f"{self.path}.joining", isolation_level=None)) as database:
            database.execute("DELETE FROM facts WHERE serial = 4")

        with self.assertRaises(StorageError) as caught:
            engine.adopt_staged()

        self.assertIn("serial 4 is missing", str(caught.exception))
        self.check_old(engine)

    def test_what_is_left_of_a_copy_that_is_gone_is_not_taken_for_the_next_ones(self) -> None:
        """A process that died while it removed one leaves the rest of it."""
        engine = self.filled()
        copy = engine.staging()
        copy.open()
        copy.commit(NEW, [])
        wal = self.path.with_name("synrepl.db.joining-wal")
        kept = wal.read_bytes()
        copy.close()
        engine.drop_staged()
        self.assertEqual([], [name for name in self.files() if "joining" in name])
        wal.write_bytes(kept)

        self.assertEqual(0, engine.staging().open().serial)


class Ending:
    """A connection that ends after so many statements."""

    def __init__(self, database: Any, left: int) -> None:
        self.database = database
        self.left = left

    def execute(self, *args: Any) -> Any:
        """The next one."""
        self.left -= 1
        if self.left < 0:
            self.database.close()
        return self.database.execute(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


class PostgresTests(OverPostgres, Contract):
    """For who has one already."""

    def execute(self, statement: str) -> list[Any]:
        """Do something behind the engine's back."""
        with psycopg.connect(self.url, autocommit=True) as database:
            done = database.execute(statement.encode())
            return done.fetchall() if done.description is not None else []

    def test_what_is_not_the_logs_own_stays(self) -> None:
        """The schema may hold tables of the homeserver's writers, and rights that someone was given."""
        engine = self.filled()
        self.execute("CREATE TABLE synrepl.stream_positions (stream_name TEXT)")
        self.execute("INSERT INTO synrepl.stream_positions VALUES ('theirs')")
        self.stage(engine)

        engine.adopt_staged()

        self.assertEqual([("theirs",)], self.execute("SELECT * FROM synrepl.stream_positions"))
        staged = "SELECT count(*) FROM pg_tables WHERE schemaname = 'synrepl_joining'"
        self.assertEqual([(0,)], self.execute(staged))
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'synrepl'"
        self.assertEqual({*TABLES, "stream_positions"}, {name for (name,) in self.execute(tables)})

    def test_what_a_reader_has_prepared_is_prepared_again(self) -> None:
        """A plan for tables that are gone would read nothing, or fail."""
        engine = self.filled()
        for _ in range(8):
            engine.pages.facts(after=0, upto=9, limit=9)
            engine.digest_at(3)
            engine.rows_at_token("events", 1)
        self.stage(engine)

        engine.adopt_staged()

        for _ in range(8):
            self.assertEqual((NEW[:2], 2), engine.pages.facts(after=0, upto=9, limit=2))
            self.assertEqual(NEW[2].digest, engine.digest_at(3))
            self.assertEqual([("new", NEW[0].rows)], engine.rows_at_token("caches", 1))

    def test_a_connection_lost_at_any_step_leaves_the_log_as_it_was(self) -> None:
        """And it can be done again at once."""
        engine = self.filled()
        self.stage(engine)
        assert isinstance(engine, SQLEngine)
        database = engine.database
        assert isinstance(database, PostgresDatabase)
        real, left = database.replace, 0

        def replace(staged: Any, boots: int) -> None:
            database._writes = Ending(database._writes, left)  # type: ignore[assignment]
            real(staged, boots)

        database.replace = replace  # type: ignore[method-assign]
        while True:
            try:
                engine.adopt_staged()
                break
            except StorageError:
                left += 1
            if not engine.database.is_open:
                # All was done, and then it could not be told where the log stands.
                engine.open()
                self.check_new(engine)
                database.replace = real  # type: ignore[method-assign]
                self.stage(engine)
            else:
                self.check_old(engine)
        self.check_new(engine)
        self.assertGreater(left, 2 * len(TABLES))

    def test_an_answer_that_is_lost_is_looked_up(self) -> None:
        """The server has done it; nobody said so."""
        engine = self.filled()
        self.stage(engine)
        assert isinstance(engine, SQLEngine)
        connection = engine.database.writer("test")
        real = connection.transaction

        @contextmanager
        def transaction() -> Iterator[None]:
            patched.restore()
            with real():
                yield
            connection.close()
            raise psycopg.OperationalError("the connection was lost")

        patched = self.patch(connection, "transaction", transaction)
        engine.adopt_staged()

        self.check_new(engine)

    def test_who_reads_the_tables_for_long_is_not_waited_for(self) -> None:
        """Appends wait for it meanwhile."""
        engine = self.filled()
        self.stage(engine)
        with psycopg.connect(self.url) as other:
            other.execute("SELECT count(*) FROM synrepl.facts")
            self.patch(PostgresDatabase, "PATIENCE", 0.2)
            with self.assertRaises(StorageError) as caught:
                engine.adopt_staged()
        self.assertTrue(caught.exception.retryable)
        self.check_old(engine)
        engine.adopt_staged()
        self.check_new(engine)
