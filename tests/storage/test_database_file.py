"""The file of a log: one process has it, by whatever path, and the next start will find it."""

import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from synrepl.base.history import EpochStart
from synrepl.errors import StorageError
from synrepl.storage import file_swap
from synrepl.storage.append_errors import LogNotOurs
from synrepl.storage.checked_rows import FACT_COLUMNS
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.state_file import StateFile
from tests.resealing import reseal
from tests.storage.builders import facts_after
from tests.storage.engines import OverSQLite

ROOT = Path(__file__).parents[2]
FACTS = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 31)))


class FileCase(OverSQLite):
    """A log in a file, and what may be done to it behind its back."""

    def opened(self, path: Path | None = None) -> SQLEngine:
        engine = SQLEngine(SQLiteDatabase(self.path if path is None else path))
        self.addCleanup(engine.close)
        engine.open()
        return engine

    def filled(self, count: int = 10) -> SQLEngine:
        engine = self.opened()
        engine.commit(FACTS[:count], [])
        return engine

    def refused(self, path: Path | None = None) -> StorageError:
        engine = SQLEngine(SQLiteDatabase(self.path if path is None else path))
        with self.assertRaises(StorageError) as caught:
            engine.open()
        error = caught.exception
        assert isinstance(error, StorageError)
        return error

    def beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def modes(self, folder: Path) -> dict[str, str]:
        return {
            one.name: f"{stat.S_IMODE(one.stat().st_mode):04o}" for one in folder.rglob("*") if one.is_file()
        }

    def killed(self, count: int = 10) -> None:
        """A process has committed so many facts, and was killed."""
        code = (
            "import sys; from synrepl.storage.engine import SQLEngine\n"
            "from synrepl.storage.sqlite import SQLiteDatabase\n"
            "from tests.storage.test_database_file import FACTS\n"
            "engine = SQLEngine(SQLiteDatabase(sys.argv[1])); engine.open()\n"
            "engine.commit(FACTS[:int(sys.argv[2])], [])\n"
            "print('done', flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(self.path), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as child:
            assert child.stdout is not None
            self.assertEqual(b"done\n", child.stdout.readline())
            child.send_signal(signal.SIGKILL)

    @contextmanager
    def elsewhere(self, path: Path) -> Iterator[list[str]]:
        """What another process says that opens the log at this path."""
        code = (
            "import sys; from synrepl.errors import StorageError\n"
            "from synrepl.storage.engine import SQLEngine\n"
            "from synrepl.storage.sqlite import SQLiteDatabase\n"
            "try:\n    SQLEngine(SQLiteDatabase(sys.argv[1])).open(); print('opened')\n"
            "except StorageError as error:\n    print(error)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        yield found.stdout.splitlines()


class LockTests(FileCase):
    """What is locked is the file, not a name of it."""

    def test_a_symbolic_link_leads_to_the_same_lock(self) -> None:
        """Two daemons in one log acknowledge facts that followers of the other one never see."""
        engine = self.filled()
        link = self.directory() / "link.db"
        link.symlink_to(self.path)

        with self.elsewhere(link) as told:
            self.assertEqual(1, len(told))
            self.assertIn(f"process {os.getpid()} uses {self.path}.lock", told[0])
        engine.close()

        self.assertEqual(10, self.opened(link).head().serial)
        self.assertTrue(self.beside("-wal").exists())
        self.assertEqual(["link.db"], [one.name for one in link.parent.iterdir()])

    def test_the_file_is_locked_whatever_became_of_the_note(self) -> None:
        """Somebody who cleans up lock files must not let a second process in."""
        self.filled()
        self.beside(".lock").unlink()

        with self.elsewhere(self.path) as told:
            self.assertIn(f"another process has opened {self.path}, perhaps by another path", told[0])

    def test_a_file_with_two_names_is_refused(self) -> None:
        """Each name would have a -wal of its own, so that each process sees a part of the facts."""
        self.filled().close()
        other = self.path.with_name("other.db")
        other.hardlink_to(self.path)

        for path in (self.path, other):
            told = str(self.refused(path))
            self.assertIn(f"{path} is one file with 2 names (hard links)", told)
            self.assertIn(f"find / -xdev -samefile {path} lists them", told)

        other.unlink()
        self.assertEqual(10, self.opened().head().serial)

    def test_a_refusal_in_this_process_does_not_take_the_locks_of_sqlite_away(self) -> None:
        """Closing any descriptor of a file drops a process's POSIX locks on it; SQLite would lose its WAL."""
        engine = self.filled()
        self.refused()
        self.beside(".lock").unlink()
        self.assertIn(f"this process ({os.getpid()}) has", str(self.refused()))

        # A program that closes last takes the WAL away, unless it sees that others have the file.
        code = (
            "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]);"
            " d.execute('SELECT count(*) FROM facts'); d.close()"
        )
        subprocess.run([sys.executable, "-c", code, str(self.path)], check=True)

        self.assertTrue(self.beside("-wal").exists())
        engine.commit(FACTS[10:12], [])
        engine.check()

    def test_the_lock_follows_onto_an_adopted_copy(self) -> None:
        """The file is another one then: a lock on the old one would guard nothing."""
        engine = self.filled()
        copy = engine.staging()
        copy.open()
        copy.commit(FACTS[:5], [])
        with self.elsewhere(self.beside(".joining")) as told:
            self.assertIn("another process has", told[0])
        copy.close()
        engine.adopt_staged()
        self.beside(".lock").unlink()

        with self.elsewhere(self.path) as told:
            self.assertIn("another process has", told[0])
        engine.commit(FACTS[5:7], [])
        engine.check()

    def test_an_adoption_that_fails_keeps_the_lock(self) -> None:
        """And the copy can be adopted later."""
        engine = self.filled()
        copy = engine.staging()
        copy.open()
        copy.commit(FACTS[:5], [])
        copy.close()
        failing = self.patch(file_swap, "replace", lambda fresh, path: 1 / 0)
        self.assertRaises(ZeroDivisionError, engine.adopt_staged)
        failing.restore()
        self.beside(".lock").unlink()

        with self.elsewhere(self.path) as told:
            self.assertIn("another process has", told[0])
        engine.commit(FACTS[10:11], [])
        engine.check()
        self.assertEqual(5, engine.adopt_staged().serial)

    def test_somebody_who_writes_to_the_log_ends_our_writing_for_good(self) -> None:
        """Going on would tell two histories; which of them is right, only a person can say."""
        engine = self.filled()
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute(
                f"INSERT INTO facts ({FACT_COLUMNS})"
                " SELECT 11, epoch, stream, 'w2', 0, 11, rows, committed_at_ms, digest"
                " FROM facts WHERE serial = 10"
            )

        for _ in range(2):
            with self.assertRaises(LogNotOurs) as caught:
                engine.commit(FACTS[10:11], [])
            told = str(caught.exception)
            self.assertIn("it ends at serial 11 (digest ", told)
            self.assertIn("restart this daemon", told)
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("DELETE FROM facts WHERE serial = 11")
        for write in (
            lambda: engine.commit(FACTS[10:11], []),
            lambda: engine.notes.store({"a": "b"}),
            lambda: engine.begin_epoch(EpochStart(2, 10, FACTS[9].digest, 1, "lost", "", 0)),
            engine.check,
            engine.head,
        ):
            self.assertRaises(LogNotOurs, write)

        self.assertEqual(10, len(engine.pages.facts(after=0, upto=99, limit=10**6)[0]))
        engine.close()
        self.assertEqual(10, self.opened().head().serial)

    def test_a_process_that_has_opened_the_log_is_noticed_before_it_writes(self) -> None:
        """Also one of a release that locks nothing but a name."""
        engine = self.filled()
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("UPDATE log_header SET boots = boots + 1")
            reseal(other.execute)

        with self.assertRaises(LogNotOurs) as caught:
            engine.check()

        self.assertIn("another process has opened this log", str(caught.exception))
        self.assertRaises(LogNotOurs, engine.commit, FACTS[10:11], [])


class PlaceTests(FileCase):
    """The file must be where the next start looks for it."""

    def check_not_ours(self, engine: SQLEngine, path: Path) -> None:
        for attempt in (engine.check, lambda: engine.commit(FACTS[10:11], [])):
            with self.assertRaises(LogNotOurs) as caught:
                attempt()
            told = str(caught.exception)
            self.assertIn(f"{path} was deleted or replaced while the log was open", told)
            self.assertIn("stop the daemon, then restore the log from a copy", told)

    def test_a_deleted_file_is_noticed(self) -> None:
        """SQLite goes on in a file that has no name any more, and all of it is gone with the process."""
        engine = self.filled()
        engine.check()
        self.path.unlink()

        self.check_not_ours(engine, self.path)
        engine.close()

        told = str(self.refused())
        self.assertIn(f"{self.path} holds nothing, but {self.path}.state says", told)
        self.assertIn("had reached serial 10 in epoch 1", told)
        self.assertFalse(self.path.exists())

    def test_an_append_to_a_deleted_file_is_never_acknowledged(self) -> None:
        """Nobody may be told that a fact is kept that no start will find."""
        engine = self.filled()
        self.path.unlink()

        self.assertRaises(LogNotOurs, engine.commit, FACTS[10:11], [])

    def test_a_replaced_file_is_noticed(self) -> None:
        """As by a restore while the daemon runs. The one that was put there stays as it is."""
        self.filled().close()
        copy = self.directory() / "copy.db"
        shutil.copy(self.path, copy)
        engine = self.opened()
        engine.commit(FACTS[10:12], [])
        copy.replace(self.path)
        before = self.path.read_bytes()
        self.beside("-wal").unlink()

        self.assertRaises(LogNotOurs, engine.commit, FACTS[12:13], [])
        self.check_not_ours(engine, self.path)
        engine.close()

        self.assertEqual(before, self.path.read_bytes())
        self.assertIn("holds serial 10 in epoch 1", str(self.refused()))

    def test_a_deleted_write_ahead_log_is_noticed(self) -> None:
        """The newest facts are in it alone. A proper end brings them into the file."""
        engine = self.filled()
        self.beside("-wal").unlink()

        self.check_not_ours(engine, self.beside("-wal"))
        engine.close()

        self.assertGreaterEqual(self.opened().head().serial, 10)

    def test_readers_do_not_open_what_is_there_instead(self) -> None:
        """A connection that is made late would read another log."""
        self.filled().close()
        engine = self.opened()
        self.assertIsNone(engine.database._reads)  # type: ignore[attr-defined]
        self.path.rename(self.path.with_name("away.db"))
        SQLEngine(SQLiteDatabase(self.directory() / "other.db")).open()

        self.assertRaises(LogNotOurs, engine.pages.facts, after=0, upto=9, limit=9)


class StateTests(FileCase):
    """A good database may be an older one."""

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.beside(".state").read_bytes())
        return found

    def test_it_says_how_far_the_log_has_come(self) -> None:
        """When it is looked at, and at the end; for people as well."""
        engine = self.filled()
        engine.notes.store({"server_name": "example.org"})
        engine.check()
        head, notes = engine.head(), engine.notes.all()

        self.assertEqual(
            {
                "version": 1,
                "log": {
                    "history": notes["history"],
                    "uuid": notes["uuid"],
                    "server_name": "example.org",
                    "boots": 1,
                    "epoch": 1,
                    "serial": 10,
                    "digest": head.digest,
                },
            },
            self.state(),
        )
        engine.commit(FACTS[10:20], [])
        engine.close()
        self.assertEqual(20, self.state()["log"]["serial"])  # type: ignore[index]

    def test_an_idle_log_writes_nothing(self) -> None:
        """A disk of an idle machine wants to sleep."""
        engine = self.filled()
        engine.check()
        before = self.beside(".state").stat()
        writes = self.patch(StateFile, "write", lambda *args: self.fail("written"))

        for _ in range(3):
            engine.check()

        writes.restore()
        engine.close()
        self.assertEqual(before, self.beside(".state").stat())

    def test_a_removed_write_ahead_log_is_noticed_at_the_next_start(self) -> None:
        """A kill leaves it with all the newest facts; whoever removes it removes them."""
        self.killed()
        self.beside("-wal").rename(self.beside(".away"))

        told = str(self.refused())

        self.assertIn(f"{self.path} was open when it was last written, and {self.path}-wal is missing", told)
        self.assertIn("put that back beside it; or, if this shall be the log from now on, run synrepl", told)
        self.assertIn(f"restore --in-place --database sqlite:{self.path}", told)
        self.beside(".away").rename(self.beside("-wal"))
        self.assertEqual(10, self.opened().head().serial)

    def test_a_copy_of_an_open_log_is_refused(self) -> None:
        """Without its -wal it lacks the newest facts; with it, two daemons would write the same serials."""
        engine = self.filled()
        for wal in (False, True):
            copy = self.directory() / "copy.db"
            for ending in ("", "-wal")[: 1 + wal]:
                # In another process: who closes a file here loses SQLite's locks on it.
                subprocess.run(["cp", self.beside(ending), f"{copy}{ending}"], check=True)

            told = str(self.refused(copy))

            self.assertIn(f"{copy} is a copy of a log, made while that was open: facts may be missing", told)
            self.assertIn(f"run synrepl restore --in-place --database sqlite:{copy}", told)
            # Until it has begun an epoch it is the same copy: after a kill, and after a failure.
            for is_killed in (True, False):
                meant = SQLEngine(SQLiteDatabase(copy))
                meant.database.is_put_back = True
                meant.open()
                (meant.database.release if is_killed else meant.close)()
                self.refused(copy)
            meant = SQLEngine(SQLiteDatabase(copy))
            meant.database.is_put_back = True
            meant.open()
            meant.database.is_put_back = False
            meant.close()
            self.assertEqual(10 if wal else 0, self.opened(copy).head().serial)
        self.assertEqual(10, engine.head().serial)

    def test_a_log_may_be_moved_and_copied_while_it_is_closed(self) -> None:
        """And renamed after a kill, as an image of its disk may be."""
        self.filled().close()
        copy = self.directory() / "copy.db"
        shutil.copy(self.path, copy)
        self.assertEqual(10, self.opened(copy).head().serial)
        self.beside(".state").unlink()
        for one in (self.path,):
            one.unlink()
        self.killed()
        moved = self.directory() / "moved.db"
        for ending in ("", "-wal", ".state"):
            self.beside(ending).rename(f"{moved}{ending}")

        self.assertEqual(10, self.opened(moved).head().serial)

    def test_a_mark_of_an_earlier_boot_says_nothing(self) -> None:
        """A release that does not know it has opened the log since, and closed it."""
        self.killed()
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("UPDATE log_header SET boots = boots + 1")
            reseal(other.execute)
        self.assertFalse(self.beside("-wal").exists())

        self.assertEqual(10, self.opened().head().serial)

    def test_an_older_copy_is_refused_until_it_is_meant(self) -> None:
        """Followers have seen more than it holds; the operator must know, and may want it."""
        self.filled().close()
        copy = self.directory() / "copy.db"
        shutil.copy(self.path, copy)
        engine = self.opened()
        engine.commit(FACTS[10:20], [])
        engine.close()
        shutil.copy(copy, self.path)

        told = str(self.refused())

        self.assertIn("holds serial 10 in epoch 1 after 1 starts", told)
        self.assertIn("had reached serial 20 in epoch 1 after 2 starts", told)
        self.assertIn(f"remove {self.path}.state", told)
        self.beside(".state").unlink()
        self.assertEqual(10, self.opened().head().serial)

    def test_an_older_copy_of_the_same_start_is_refused(self) -> None:
        """It was made while the log was open; only its serial tells."""
        engine = self.filled()
        copy = self.directory() / "copy.db"
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        engine.commit(FACTS[10:20], [])
        engine.close()
        shutil.copy(copy, self.path)

        told = str(self.refused())

        self.assertIn("holds serial 10 in epoch 1 after 1 starts", told)
        self.assertIn("had reached serial 20 in epoch 1 after 1 starts", told)

    def test_a_copy_that_went_on_elsewhere_is_refused(self) -> None:
        """It is as long, and of the same history, and yet another one."""
        self.filled().close()
        copy = self.directory() / "copy.db"
        shutil.copy(self.path, copy)
        other = self.opened(copy)
        other.commit(facts_after(FACTS[9], *(("events", "w2", n - 1, n) for n in range(11, 31))), [])
        other.close()
        self.opened(copy).close()
        engine = self.opened()
        engine.commit(FACTS[10:20], [])
        engine.close()
        shutil.copy(copy, self.path)

        self.assertIn("with another digest at that serial", str(self.refused()))

    def test_another_log_is_refused(self) -> None:
        """However long it is."""
        self.filled(1).close()
        other = self.opened(self.path.with_name("other.db"))
        other.commit(FACTS, [])
        other.close()
        self.path.with_name("other.db").replace(self.path)

        self.assertIn("holds serial 30", str(self.refused()))

    def test_a_log_without_one_is_opened(self) -> None:
        """Of an earlier release, or restored on purpose."""
        self.filled().close()
        self.beside(".state").unlink()

        self.assertEqual(10, self.opened().head().serial)

    def test_a_position_file_behind_the_log_is_accepted(self) -> None:
        """It is written now and then; a log that is further is what a kill leaves."""
        self.filled(3).close()
        engine = self.opened()
        engine.commit(FACTS[3:20], [])
        engine.close()
        for serial in (3, 4):
            state = self.state()
            state["log"].update(serial=serial, digest=FACTS[serial - 1].digest, boots=1)  # type: ignore[attr-defined]
            self.beside(".state").write_text(json.dumps(state))

            engine = self.opened()
            self.assertEqual(20, engine.head().serial)
            engine.close()

    def test_nonsense_is_reported(self) -> None:
        """Not taken for nothing: it may have been a warning."""
        self.filled().close()
        for text in ("", "[]", '{"version": 2, "log": {}}', "\xff"):
            self.beside(".state").write_text(text, encoding="latin-1")
            self.assertIn(f"{self.path}.state is not a valid state file", str(self.refused()))

    def test_a_disk_that_is_full_does_not_fail_reads(self) -> None:
        """It is written again later."""
        engine = self.filled()
        self.beside(".state").unlink()
        self.beside(".state").mkdir()

        engine.check()

        self.beside(".state").rmdir()
        engine.check()
        self.assertEqual(10, self.state()["log"]["serial"])  # type: ignore[index]
        self.flushLoggedErrors()

    def test_after_a_copy_took_the_place_it_is_of_the_copy(self) -> None:
        """The copy may well be shorter than what was here before."""
        engine = self.filled(20)
        copy = engine.staging()
        copy.open()
        copy.commit(FACTS[:5], [])
        history = copy.notes.all()["history"]
        copy.close()

        engine.adopt_staged()

        self.assertEqual((history, 5), tuple(self.state()["log"][key] for key in ("history", "serial")))  # type: ignore[index]
        self.assertNotIn("adopting", self.state())


class PrivacyTests(FileCase):
    """A secret at the doors is of no use where anybody can read the file."""

    def test_a_link_next_to_the_database_is_refused_and_its_target_untouched(self) -> None:
        """It got the process id, or mode 0600: whoever may write to the directory chose which file."""
        for ending in (".lock", "-wal", "-shm", "-journal", ".state", ".joining"):
            target = self.path.with_name("target")
            target.write_text("of another program")
            target.chmod(0o644)
            self.beside(ending).symlink_to(target)

            path = self.beside(ending)
            with self.assertRaisesRegex(StorageError, f"{path} is a symbolic link"):
                self.acquire_staged() if ending == ".joining" else self.opened()

            self.assertEqual("of another program", target.read_text())
            self.assertEqual(0o644, stat.S_IMODE(target.stat().st_mode))
            self.beside(ending).unlink()
        # The database itself may be on another disk.
        other = self.path.with_name("link.db")
        other.symlink_to(self.path)
        self.opened(other)

    def acquire_staged(self) -> None:
        SQLiteDatabase(self.beside(".joining"), staged=True).acquire()

    def setUp(self) -> None:
        super().setUp()
        before = os.umask(0)
        self.addCleanup(os.umask, before)

    def test_created_files_are_private(self) -> None:
        """Whatever the umask says."""
        engine = self.filled()
        engine.pages.facts(after=0, upto=9, limit=9)
        copy = engine.staging()
        copy.open()
        copy.commit(FACTS[:5], [])

        self.assertEqual(
            dict.fromkeys(
                f"synrepl.db{ending}"
                for ending in (
                    "",
                    "-wal",
                    "-shm",
                    ".lock",
                    ".state",
                    ".joining",
                    ".joining-wal",
                    ".joining-shm",
                )
            ),
            dict.fromkeys(self.modes(self.path.parent)),
        )
        self.assertEqual({"0600"}, set(self.modes(self.path.parent).values()))
        copy.close()
        engine.adopt_staged()
        self.assertEqual({"0600"}, set(self.modes(self.path.parent).values()))

    def test_files_of_earlier_releases_become_private(self) -> None:
        """Nobody should have to read the news for that."""
        self.killed()
        for one in self.path.parent.iterdir():
            one.chmod(0o644)

        self.opened()

        self.assertEqual({"0600"}, set(self.modes(self.path.parent).values()))
