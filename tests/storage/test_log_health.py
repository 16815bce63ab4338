"""A log that cannot be read says so until it can, and one that is not ours any more takes nothing."""

import sqlite3
from contextlib import closing
from typing import Any

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import KeysOf
from synrepl.errors import ReplicationError, RowError, StorageError
from synrepl.storage.append_errors import InvalidValue, LogNotOurs
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.facts import Fact
from tests.memory_engine import FaultyEngine
from tests.storage.builders import DISK_FULL, LogCase, facts_after, rows

A = rows("a")
DAMAGED = StorageError(op="read", why="a page is damaged")
GONE = StorageError(op="receipt", why="the server is away", retryable=True)
BUSY = StorageError(op="read", why="somebody has it", retryable=True)
NOT_OURS = LogNotOurs(op="check", why="somebody else writes to it", retryable=True, tried=False)


class Damaged(FaultyEngine):
    """Fails to read whatever comes after these serials, to trim, or to be what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[int, StorageError] = {}
        self.untrimmable: ReplicationError | None = None
        self.not_ours: LogNotOurs | None = None
        self.unwritable: StorageError | None = None
        self.trials = 0
        self.reads: list[int] = []
        self._read = self.pages.facts
        self.pages.facts = self.read  # type: ignore[method-assign]

    def read(self, *, after: int, **options: Any) -> tuple[list[Fact], int]:
        self.reads.append(after)
        if after in self.unreadable:
            raise self.unreadable[after]
        return self._read(after=after, **options)

    def try_write(self) -> None:
        self.trials += 1
        if self.unwritable is not None:
            raise self.unwritable
        super().try_write()

    def trim(self, upto: int, keys: KeysOf, limit: int) -> Any:
        if self.untrimmable is not None:
            raise self.untrimmable
        return super().trim(upto, keys, limit)

    def check(self) -> None:
        super().check()
        if self.not_ours is not None:
            raise self.not_ours


class HealthCase(LogCase):
    """A log over an engine that can be damaged."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = Damaged()
        self.health = self.started(self.engine)
        self.append(self.health, "events", "w1", *[A] * 9)

    def read(self, after: int) -> StorageError | None:
        """Read there; what was wrong, if anything."""
        found = self.asked(after, 99)
        if self.engine.unreadable.get(after) is None:
            self.successResultOf(found)
            return None
        error = self.failureResultOf(found, StorageError).value
        assert isinstance(error, StorageError)
        return error

    def asked(self, after: int, upto: int) -> "Deferred[Any]":
        found = self.health.reads.facts(after=after, upto=upto, limit=10**6)
        assert isinstance(found, Deferred)
        return found

    def pass_seconds(self, seconds: float) -> None:
        self.clock.pump([0.1] * round(seconds * 10))

    def check_well(self) -> None:
        self.assertEqual((True, ""), self.health.healthy)

    def check_unwell(self, why: str) -> None:
        is_healthy, told = self.health.healthy
        self.assertEqual((False, True), (is_healthy, why in told), told)


class WriteTests(HealthCase):
    """A failed append makes the log unhealthy until it takes appends again, whether or not one comes."""

    def fail_append(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        self.engine.fail_next(error, kept=kept, silent=silent)
        self.failureResultOf(self.tried(), StorageError)

    def tried(self) -> "Deferred[Any]":
        append = self.health.append("events", "w1", [A])
        self.pass_seconds(0.1)
        return append

    def test_a_log_that_takes_appends_again_says_so_before_one_comes(self) -> None:
        """A load balancer that asks for health sends no append to a daemon that is not ready."""
        self.fail_append(GONE)
        self.check_unwell("the server is away")

        self.pass_seconds(6)

        self.check_well()
        self.assertEqual(9, self.health.position.serial)
        self.assertEqual(9, self.engine.facts[-1].serial)
        self.assertIn("the log takes appends again", [event["log_format"] for event in self.told])

    def test_a_log_that_takes_none_yet_stays_unhealthy_with_the_newest_reason(self) -> None:
        """A disk that was full and is read only now needs another cure."""
        self.fail_append(GONE)
        self.engine.unwritable = DISK_FULL

        self.pass_seconds(30)

        self.check_unwell("the disk is full")
        self.engine.unwritable = None
        self.pass_seconds(6)
        self.check_well()

    def test_an_append_that_was_not_stored_after_all_is_no_reason_for_ever(self) -> None:
        """Its outcome was unknown at first, while nobody could ask the server."""
        self.fail_append(GONE, silent=3)

        self.pass_seconds(12)

        self.check_well()

    def test_an_append_is_not_held_up_by_the_trial(self) -> None:
        """It comes in its turn, and its own commit is trial enough."""
        self.fail_append(GONE)

        self.assertEqual(10, self.successResultOf(self.tried()).first_serial)
        self.check_well()
        self.pass_seconds(20)
        self.assertEqual(0, self.engine.trials)

    def test_a_log_is_not_tried_while_it_is_uncertain_what_it_has(self) -> None:
        """What this daemon may have stored itself would look like the write of another one."""
        self.fail_append(GONE)
        self.health._committer.doubt(lambda head: None)

        self.pass_seconds(30)

        self.check_unwell("the server is away")
        self.assertEqual(0, self.engine.trials)

    def test_a_log_that_is_not_ours_is_not_tried(self) -> None:
        """Only a restart gives it back."""
        self.fail_append(NOT_OURS)

        self.pass_seconds(30)

        self.check_unwell("somebody else writes to it")
        self.assertEqual(0, self.engine.trials)


class ReadTests(HealthCase):
    """Reads that fail are a failure of the daemon, not only of who asked."""

    def test_a_read_of_a_damaged_page_makes_the_log_unhealthy(self) -> None:
        """A load balancer would go on sending readers to it."""
        self.engine.unreadable[3] = DAMAGED
        self.clock.advance(7)
        since = self.clock.seconds()

        self.assertIs(DAMAGED, self.read(3))

        self.check_unwell("a page is damaged")
        self.pass_seconds(60)
        self.check_unwell("a page is damaged")
        self.assertEqual(since, self.health.failing_since())
        told = [event for event in self.told if "cannot be read" in event["log_format"]]
        self.assertEqual(1, len(told))

    def test_only_the_same_read_makes_it_healthy_again(self) -> None:
        """Another one reads other pages, which may be good."""
        self.engine.unreadable[3] = DAMAGED
        self.read(3)

        self.assertIsNone(self.read(4))
        self.append(self.health, "events", "w1", A)
        self.pass_seconds(6)
        self.check_unwell("a page is damaged")

        del self.engine.unreadable[3]
        self.pass_seconds(6)
        self.check_well()
        self.assertEqual(3, self.engine.reads[-1])

    def test_a_read_that_is_busy_once_says_nothing(self) -> None:
        """What passes by itself within a second must not take a daemon out of service."""
        self.engine.unreadable[3] = BUSY
        self.read(3)
        self.read(3)
        self.check_well()

        del self.engine.unreadable[3]
        self.pass_seconds(20)

        self.check_well()
        self.assertEqual([], [event for event in self.told if event["log_level"].name == "error"])

    def test_a_read_that_stays_busy_is_told_and_forgotten_soon(self) -> None:
        """As a server that is away."""
        self.engine.unreadable[3] = BUSY
        self.read(3)
        self.pass_seconds(1.2)
        self.check_unwell("somebody has it")

        del self.engine.unreadable[3]
        self.pass_seconds(1.2)

        self.check_well()

    def test_one_that_is_busy_does_not_hide_one_that_is_damaged(self) -> None:
        """The worse of the two is told."""
        self.engine.unreadable = {3: BUSY, 4: DAMAGED}
        self.read(3)
        self.read(4)
        del self.engine.unreadable[3]

        self.pass_seconds(10)

        self.check_unwell("a page is damaged")

    def test_a_question_that_nobody_can_answer_is_not_the_logs_fault(self) -> None:
        """Or a peer could take a daemon out of service by one number."""
        self.engine.unreadable[2**70] = InvalidValue(op="read", why="too large")

        self.read(2**70)

        self.check_well()

    def test_an_append_that_no_database_can_hold_is_not_the_logs_fault(self) -> None:
        """It fails, and all others go on."""
        self.engine.fail_next(InvalidValue(op="commit", why="too large"))

        self.failureResultOf(self.health.append("events", "w1", [A]), InvalidValue)

        self.check_well()

    def test_an_idle_log_is_looked_at(self) -> None:
        """Nobody may be reading when it is damaged."""
        self.engine.check = self.fail_once  # type: ignore[method-assign]
        self.failing: StorageError | None = DAMAGED
        self.pass_seconds(6)
        self.check_unwell("a page is damaged")

        self.failing = None
        self.pass_seconds(6)

        self.check_well()

    def fail_once(self) -> None:
        if self.failing is not None:
            raise self.failing

    def test_trimming_that_fails_is_told_until_it_works(self) -> None:
        """It touches indexes that no read does. Only retention tries again: leases may need the facts."""

        def trim() -> Any:
            return Deferred.fromCoroutine(self.health.trim(3, lambda stream, row: None, 9))

        self.engine.untrimmable = BUSY
        self.failureResultOf(trim(), StorageError)
        self.check_well()
        self.failureResultOf(trim(), StorageError)
        self.check_unwell("somebody has it")
        self.engine.untrimmable = DAMAGED
        self.pass_seconds(20)
        self.failureResultOf(trim(), StorageError)
        self.check_unwell("a page is damaged")

        self.engine.untrimmable = RowError(stream="events", why="no release has such a row")
        self.failureResultOf(trim(), StorageError)
        self.check_unwell("no release has such a row")

        self.engine.untrimmable = None
        self.pass_seconds(20)
        self.check_unwell("no release has such a row")
        self.successResultOf(trim())
        self.check_well()

    def test_a_copy_that_takes_the_place_is_another_log(self) -> None:
        """This is how an operator mends a damaged replica."""
        self.engine.unreadable[3] = DAMAGED
        self.read(3)

        async def adopt() -> None:
            copy = await self.health.copies.open_staged()
            await self.health.copies.adopt(copy)

        self.wait(adopt())

        self.check_well()

    def test_a_stopped_log_leaves_no_timer(self) -> None:
        """A process that wants to end must not wait for a timer."""
        self.engine.unreadable[3] = DAMAGED
        self.read(3)

        self.wait(self.health.stop())

        self.assertEqual([], self.clock.getDelayedCalls())

    def test_damage_in_the_middle_of_a_file_is_reported(self) -> None:
        """The end of the log is good, so that it starts and appends work."""
        path = self.directory() / "synrepl.db"
        engine = SQLEngine(SQLiteDatabase(path))
        engine.open()
        engine.commit(facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 5001))), [])
        engine.close()
        with closing(sqlite3.connect(path)) as database:
            size = database.execute("PRAGMA page_size").fetchone()[0]
            damaged = (
                database.execute(
                    "SELECT pageno FROM dbstat WHERE name = 'facts' AND pagetype = 'leaf' LIMIT 1 OFFSET 20"
                ).fetchone()[0]
                if self.has_dbstat(database)
                else 60
            )
        data = bytearray(path.read_bytes())
        data[(damaged - 1) * size : (damaged - 1) * size + 64] = b"\xff" * 64
        path.write_bytes(data)
        self.health = self.started(SQLEngine(SQLiteDatabase(path)))
        self.check_well()

        for after in range(0, 5000, 500):
            reading = self.asked(after, after + 500)
            reading.addErrback(lambda failure: failure.trap(StorageError))

        self.append(self.health, "events", "w1", A)
        self.pass_seconds(11)
        self.check_unwell("database disk image is malformed")
        self.check_unwell("the file is damaged; restore it, or join again as a replica")
        self.wait(self.health.stop())

    @staticmethod
    def has_dbstat(database: sqlite3.Connection) -> bool:
        try:
            database.execute("SELECT 1 FROM dbstat LIMIT 1")
        except sqlite3.OperationalError:
            return False
        return True


class LostTests(HealthCase):
    """Somebody else has it, or it is gone: nothing more is written, whatever is asked."""

    def test_a_log_that_is_not_ours_is_noticed_while_nobody_writes(self) -> None:
        """Within a few seconds, by a look at it now and then."""
        self.engine.not_ours = NOT_OURS
        self.pass_seconds(6)

        self.check_unwell("somebody else writes to it")
        told = [event for event in self.told if event["log_level"].name == "critical"]
        self.assertEqual(1, len(told))

    def test_a_log_that_is_no_longer_ours_stays_so(self) -> None:
        """What was written meanwhile is not this process's history, even if it looks well again."""
        self.engine.not_ours = NOT_OURS
        self.pass_seconds(6)
        self.engine.not_ours = None
        commits = self.engine.commits

        self.assertIs(NOT_OURS, self.failureResultOf(self.health.append("events", "w1", [A])).value)
        self.assertIs(
            NOT_OURS, self.failureResultOf(self.health.append_assigned("events", [("w1", 99, A)])).value
        )
        turning = Deferred.fromCoroutine(self.health.epochs.begin_next("promoted"))
        self.assertIs(NOT_OURS, self.failureResultOf(turning).value)
        self.pass_seconds(60)

        self.check_unwell("somebody else writes to it")
        self.assertEqual(commits, self.engine.commits)
        self.assertIsNone(self.read(0))

    def test_an_append_that_finds_it_not_ours_says_so(self) -> None:
        """And not that it may have been stored, with advice to ask again."""
        self.engine.fail_next(NOT_OURS, kept=True)

        error = self.failureResultOf(self.health.append("events", "w1", [A]), LogNotOurs).value

        self.assertIs(NOT_OURS, error)
        self.check_unwell("somebody else writes to it")

    def test_a_log_that_somebody_else_wrote_to_meanwhile_is_no_longer_ours(self) -> None:
        """Found out when the outcome of a commit is looked up."""
        self.engine.fail_next(DISK_FULL, silent=2)
        self.failureResultOf(self.health.append("events", "w1", [A]))
        self.engine.commit(facts_after(self.engine.facts[-1], ("events", "w2", 0, 10)), [])
        self.pass_seconds(2)

        self.check_unwell("another process writes to this log: it ends at serial 10 (digest ")
        self.failureResultOf(self.health.append("events", "w1", [A]), LogNotOurs)
        self.assertEqual(10, len(self.engine.facts))

    def test_a_log_that_is_not_ours_can_be_stopped(self) -> None:
        """A daemon must end all the same."""
        self.engine.not_ours = NOT_OURS
        self.pass_seconds(6)

        self.wait(self.health.stop())

        self.assertEqual([], self.clock.getDelayedCalls())
