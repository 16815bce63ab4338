"""Which files are missing, and which is next."""

import sqlite3
from contextlib import closing
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from synrepl.files.queue import FileQueue, LogProgress, NamedFile, QueueSummary, WantedFile
from tests.files.builders import NOW, DiskCase, checksum

A, B, C = (checksum(name.encode()) for name in "abc")
MS = NOW * 1000


class QueueCase(DiskCase):
    """A queue in a directory; what is in `here` is in the store."""

    def setUp(self) -> None:
        super().setUp()
        self.here: set[str] = set()
        self.serial = 0
        self.queue = self.restarted()

    def restarted(self) -> FileQueue:
        """The queue, as after a restart."""
        if hasattr(self, "queue"):
            self.queue.close()
        self.queue = FileQueue(self.directory)
        self.queue.open()
        self.addCleanup(self.queue.close)
        return self.queue

    def note(self, *rows: tuple[str, str | None], at: int = MS, fetches: bool = True) -> None:
        """The log says this, a row a fact."""
        named = []
        for name, sha256 in rows:
            self.serial += 1
            named.append(NamedFile(name, sha256, None if sha256 is None else 5, self.serial))
        seen = LogProgress(self.serial, "d" * 64)
        self.queue.note(named, seen, now_ms=at, has=self.here.__contains__, fetches=fetches)

    def taken(self, at: int = MS, limit: int = 10) -> list[str]:
        """What is taken now."""
        return [one.sha256 for one in self.queue.take(at, limit)]


class VersionTests(QueueCase):
    """A queue of another release."""

    def test_a_queue_of_an_earlier_version_is_built_again(self) -> None:
        """The log and the disk have everything that is in it."""
        self.note(("a", A))
        self.queue.close()
        with closing(sqlite3.connect(self.directory / "queue.db")) as database:
            database.execute("PRAGMA user_version = 1")

        self.assertEqual(LogProgress(), self.restarted().open())
        self.note(("a", A))

        self.assertEqual([A], self.taken())
        self.assertTrue((self.directory / "queue.db.bad").exists())


class NoteTests(QueueCase):
    """What the log says."""

    def test_what_is_not_here_is_wanted_oldest_first(self) -> None:
        """What is here already is not."""
        self.here.add(B)

        self.note(("c", C), ("b", B), ("a", A))

        self.assertEqual(
            [WantedFile(C, 5, "c", 1, False, 0), WantedFile(A, 5, "a", 3, False, 0)], self.queue.take(MS, 9)
        )

    def test_one_file_under_two_names_is_wanted_once(self) -> None:
        """Until the last of them is gone."""
        self.note(("one", A), ("two", A))
        self.note(("one", None))
        self.assertEqual([("two", A)], self.queue.missing())
        self.assertEqual("two", self.queue.summary(1).first_missing)

        self.note(("two", B))

        self.assertEqual([B], self.taken())
        self.assertFalse(self.queue.is_named(A))

    def test_a_file_that_was_deleted_at_once_is_never_wanted(self) -> None:
        """Upstream may not have it any more."""
        self.note(("a", A), ("a", None), ("b", B), ("b", C))

        self.assertEqual([C], self.taken())

    def test_how_far_the_log_was_read_survives(self) -> None:
        """With the names, in one transaction."""
        self.note(("a", A))

        queue = self.restarted()

        self.assertEqual(LogProgress(1, "d" * 64), queue.open())
        self.assertEqual([("a", A)], queue.missing())
        self.assertEqual([], queue.missing(upto=0))

    def test_a_queue_without_files_makes_no_directory(self) -> None:
        """Nor does it fail."""
        queue = self.queue

        queue.note([], LogProgress(7, "d" * 64), now_ms=MS, has=self.here.__contains__, fetches=True)
        queue.follow("eager")
        queue.reset()
        queue.remember("scrub", "x")

        told = (
            queue.take(MS, 1),
            queue.next_at(),
            queue.missing(),
            queue.garbage(MS, 1),
            queue.names_after("", 1),
        )
        self.assertEqual(([], None, [], [], []), told)
        self.assertEqual(
            (QueueSummary(), "", LogProgress()), (queue.summary(1), queue.recall("scrub"), queue.open())
        )
        self.assertFalse(
            queue.demand(A, MS)
            or queue.is_named(A)
            or queue.is_missing(A)
            or queue.mark_lost(A, MS, fetches=True)
        )
        self.assertFalse(self.directory.exists())

    def test_another_log_has_other_names(self) -> None:
        """The files stay, and become garbage if nobody names them."""
        self.here.add(A)
        self.note(("a", A), ("b", B))

        self.queue.reset()

        self.assertEqual(([], LogProgress()), (self.queue.missing(), self.queue.open()))
        self.queue.mark_stored([A], MS)
        self.assertEqual([A], self.queue.garbage(MS, 9))

    def test_a_damaged_queue_is_put_aside(self) -> None:
        """All of it is in the log."""
        self.note(("a", A))
        self.queue.close()
        (self.directory / "queue.db").write_bytes(b"not a database" * 1_000)

        queue = self.restarted()

        self.assertEqual((LogProgress(), []), (queue.open(), queue.missing()))
        self.assertTrue((self.directory / "queue.db.bad").exists())


class TakeTests(QueueCase):
    """One owner a file."""

    def test_a_file_in_flight_is_not_taken_again(self) -> None:
        """Until it failed, or was let go."""
        self.note(("a", A), ("b", B))

        self.assertEqual([A], self.taken(limit=1))
        self.assertEqual([B], self.taken())
        self.assertEqual([], self.taken())
        self.queue.release(B)
        self.assertEqual([B], self.taken())

    def test_demanded_ones_come_first(self) -> None:
        """Somebody waits for them."""
        self.note(("a", A), ("b", B), ("c", C))

        self.assertTrue(self.queue.demand(C, MS))

        self.assertEqual([C, A, B], self.taken())

    def test_with_the_lazy_rule_only_those_are_fetched(self) -> None:
        """And in the next life too."""
        self.note(("a", A), ("b", B), fetches=False)
        self.assertEqual([], self.taken())

        self.queue.demand(B, MS)
        self.queue = self.restarted()
        self.queue.follow("lazy")

        self.assertEqual([B], self.taken())
        self.assertFalse(self.queue.demand(C, MS), "no name refers to it")

    def test_the_rule_can_change(self) -> None:
        """A replica becomes a primary, or is configured anew."""
        self.note(("a", A))

        for name, taken in (("none", []), ("lazy", []), ("eager", [A])):
            self.queue.follow(name)  # type: ignore[arg-type]
            self.assertEqual(taken, self.taken(), name)

    def test_failures_are_tried_again_ever_later(self) -> None:
        """Up to ten minutes; people see when, and why."""
        self.note(("a", A))
        at, delays = MS, []
        for _ in range(12):
            self.assertEqual([A], self.taken(at))
            self.queue.mark_failed(A, "it rains", at)
            next_at = self.queue.next_at()
            assert next_at is not None
            self.assertEqual([], self.taken(next_at - 1))
            delays.append((next_at - at) // 1000)
            at = next_at

        self.assertEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600], delays)
        summary = self.queue.summary(5)
        self.assertEqual((1, 1, 1), (summary.missing, summary.wanted, summary.failing_count))
        (failing,) = summary.failing
        self.assertEqual(
            ("a", A, "it rains", 12, at),
            (failing.name, failing.sha256, failing.why, failing.tries, failing.next_at * 1000),
        )

    def test_a_failing_file_can_be_demanded_but_not_hammered(self) -> None:
        """A thousand readers must not make a thousand tries."""
        self.note(("a", A))
        for _ in range(9):
            self.taken(2 * MS)
            self.queue.mark_failed(A, "it rains", MS)

        for _ in range(100):
            self.queue.demand(A, MS)

        self.assertEqual(MS + 1_000, self.queue.next_at())

    def test_a_stored_file_is_no_longer_missing(self) -> None:
        """However it came; what nobody named becomes garbage in time."""
        self.note(("a", A))

        self.queue.mark_arrived(A, MS)
        self.queue.mark_arrived(B, MS)

        self.assertEqual([], self.queue.missing())
        self.assertEqual([B], self.queue.garbage(MS, 9))

    def test_a_lost_file_with_a_name_is_queued_again(self) -> None:
        """If a name refers to it."""
        self.here.update((A, B))
        self.note(("a", A))

        self.assertEqual("a", self.queue.mark_lost(A, MS, fetches=True))
        self.assertIsNone(self.queue.mark_lost(B, MS, fetches=True))

        self.assertEqual([A], self.taken())


class GarbageTests(QueueCase):
    """Files that no name refers to."""

    def test_a_file_is_garbage_once_its_last_name_is_gone(self) -> None:
        """As of that time."""
        self.here.add(A)
        self.note(("one", A), ("two", A))
        self.note(("one", None), at=MS + 1)
        self.assertEqual([], self.queue.garbage(2 * MS, 9))

        self.note(("two", B), at=MS + 2)

        self.assertEqual(([], [A]), (self.queue.garbage(MS + 1, 9), self.queue.garbage(MS + 2, 9)))
        self.queue.mark_removed(A)
        self.assertEqual([], self.queue.garbage(2 * MS, 9))

    def test_a_new_name_saves_it(self) -> None:
        """The usual case: bytes are brought, then the fact that names them."""
        self.queue.mark_arrived(A, MS)
        self.here.add(A)

        self.note(("a", A))

        self.assertEqual([], self.queue.garbage(2 * MS, 9))

    def test_bringing_it_again_begins_the_grace_anew(self) -> None:
        """Or it would be deleted before it is named; a count does not."""
        self.queue.mark_arrived(A, MS)
        self.queue.mark_stored([A], MS + 5)
        self.assertEqual([A], self.queue.garbage(MS, 9))

        self.queue.mark_arrived(A, MS + 9)

        self.assertEqual([], self.queue.garbage(MS + 8, 9))


SHA = st.sampled_from([A, B, C])
NAMES = st.sampled_from(["x", "y", "z"])


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens: what is missing is what is named and not here, and each has one owner at most."""

    owned = Bundle("owned")

    def __init__(self) -> None:
        super().__init__()
        self.case = QueueCase()
        self.case.setUp()
        self.names: dict[str, str] = {}
        self.owners: set[str] = set()
        self.now = MS

    @rule(name=NAMES, sha256=st.none() | SHA)
    def say(self, name: str, sha256: str | None) -> None:
        """The log says something."""
        self.case.note((name, sha256), at=self.now)
        self.names.pop(name, None)
        if sha256 is not None:
            self.names[name] = sha256

    @rule(limit=st.integers(1, 3), passed=st.integers(0, 5_000))
    def take(self, limit: int, passed: int) -> None:
        """Workers take some."""
        self.now += passed
        for sha256 in self.case.taken(self.now, limit):
            assert sha256 not in self.owners
            assert sha256 not in self.case.here
            self.owners.add(sha256)

    @rule(sha256=SHA)
    def fail(self, sha256: str) -> None:
        """An owner fails."""
        if sha256 in self.owners:
            self.owners.discard(sha256)
            self.case.queue.mark_failed(sha256, "why", self.now)

    @rule(sha256=SHA)
    def arrive(self, sha256: str) -> None:
        """It came, fetched or brought."""
        self.owners.discard(sha256)
        self.case.here.add(sha256)
        self.case.queue.mark_arrived(sha256, self.now)

    @rule(sha256=SHA)
    def lose(self, sha256: str) -> None:
        """It went bad."""
        if sha256 in self.case.here:
            self.case.here.discard(sha256)
            named = self.case.queue.mark_lost(sha256, self.now, fetches=True)
            assert (named is not None) == (sha256 in self.names.values())

    @rule(sha256=SHA)
    def demand(self, sha256: str) -> None:
        """Somebody wants it, and it is not here."""
        if sha256 not in self.case.here:
            assert self.case.queue.demand(sha256, self.now) == (sha256 in self.names.values())

    @rule()
    def clear(self) -> None:
        """Garbage goes."""
        for sha256 in self.case.queue.garbage(self.now, 9):
            assert sha256 in self.case.here
            assert sha256 not in self.names.values()
            self.case.here.discard(sha256)
            self.case.queue.mark_removed(sha256)

    @rule()
    def restart(self) -> None:
        """A kill: what was in flight is due again."""
        self.case.restarted()
        self.owners.clear()

    @invariant()
    def missing_is_right(self) -> None:
        """What promotion relies on."""
        expected = {(name, sha256) for name, sha256 in self.names.items() if sha256 not in self.case.here}
        assert set(self.case.queue.missing()) == expected
        assert self.case.queue.summary(1).missing == len({sha256 for _, sha256 in expected})

    def teardown(self) -> None:
        """Remove the directory."""
        self.case.doCleanups()


QueueMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
QueueMachineTests: Any = QueueMachine.TestCase
