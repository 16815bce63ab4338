"""Which files are missing, and which is next."""

import sqlite3
from contextlib import closing
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from synrepl.files.names import FileQueue, LogProgress, NamedFile, QueueSummary, Rule, WantedFile
from tests.files.builders import NOW, DiskCase, checksum

A, B, C = (checksum(name.encode()) for name in "abc")
MS = NOW * 1000


class QueueCase(DiskCase):
    """A queue in a directory; what is in `here` is in the store."""

    def setUp(self) -> None:
        super().setUp()
        self.here: set[str] = set()
        self.serial = 0
        self.rule: Rule = "eager"
        self.running: set[str] = set()
        self.queue = self.restarted()

    def restarted(self) -> FileQueue:
        """The queue, as after a restart."""
        if hasattr(self, "queue"):
            self.queue.close()
        self.running.clear()
        self.queue = FileQueue(
            self.directory, has=self.here.__contains__, seconds=self.clock.seconds, rule=self.rule
        )
        self.queue.open()
        self.addCleanup(self.queue.close)
        return self.queue

    def note(self, *rows: tuple[str, str | None]) -> None:
        """The log says this, a row a fact."""
        named = []
        for name, sha256 in rows:
            self.serial += 1
            named.append(NamedFile(name, sha256, None if sha256 is None else 5, self.serial))
        self.queue.note(named, LogProgress(self.serial, "d" * 64))

    def taken(self, limit: int = 10) -> list[str]:
        """What a fetcher takes now, beside what it has taken."""
        taken = [one.sha256 for one in self.queue.due(limit, self.running)[0]]
        self.running.update(taken)
        return taken

    def fetch_fails(self, sha256: str) -> None:
        """What it has taken did not come."""
        self.running.discard(sha256)
        self.queue.mark_failed(sha256, "it rains")

    def have(self, *sha256s: str, is_new: bool = True) -> None:
        """These came, or were counted."""
        self.here.update(sha256s)
        self.running.difference_update(sha256s)
        self.queue.settle(sha256s, is_new=is_new)

    def lose(self, *sha256s: str) -> None:
        """These are gone from the disk."""
        self.here.difference_update(sha256s)
        self.queue.settle(sha256s)

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes."""
        self.clock.advance(milliseconds / 1000)


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
            ([WantedFile(C, 5, "c", 1, False, 0), WantedFile(A, 5, "a", 3, False, 0)], None),
            self.queue.due(9),
        )

    def test_one_file_under_two_names_is_wanted_once(self) -> None:
        """Until the last of them is gone."""
        self.note(("one", A), ("two", A))
        self.note(("one", None))
        self.assertEqual([("two", A)], self.queue.missing())
        self.assertEqual("two", self.queue.summary(1).first_missing)

        self.note(("two", B))

        self.assertEqual([B], self.taken())
        self.assertIsNone(self.queue.name_of(A))

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

        queue.note([], LogProgress(7, "d" * 64))
        queue.follow("eager")
        queue.reset()
        queue.remember("scrub", "x")

        queue.settle([A])

        told = queue.due(1), queue.missing(), queue.garbage(0, 1), queue.names_after("", 1), queue.name_of(A)
        self.assertEqual((([], None), [], [], [], None), told)
        self.assertEqual(
            (QueueSummary(), "", LogProgress()), (queue.summary(1), queue.recall("scrub"), queue.open())
        )
        self.assertFalse(self.queue.demand(A) or queue.is_missing(A))
        self.assertFalse(self.directory.exists())

    def test_another_log_has_other_names(self) -> None:
        """The files stay, and become garbage if nobody names them."""
        self.here.add(A)
        self.note(("a", A), ("b", B))

        self.queue.reset()

        self.assertEqual(([], LogProgress()), (self.queue.missing(), self.queue.open()))
        self.have(A, is_new=False)
        self.assertEqual([A], self.queue.garbage(0, 9))

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
        self.running.discard(B)
        self.assertEqual([B], self.taken())

    def test_demanded_ones_come_first(self) -> None:
        """Somebody waits for them."""
        self.note(("a", A), ("b", B), ("c", C))

        self.assertTrue(self.queue.demand(C))

        self.assertEqual([C, A, B], self.taken())

    def test_with_the_lazy_rule_only_those_are_fetched(self) -> None:
        """And in the next life too."""
        self.queue.follow("lazy")
        self.note(("a", A), ("b", B))
        self.assertEqual([], self.taken())

        self.queue.demand(B)
        self.queue = self.restarted()
        self.queue.follow("lazy")

        self.assertEqual([B], self.taken())
        self.assertFalse(self.queue.demand(C), "no name refers to it")

    def test_the_rule_can_change(self) -> None:
        """A replica becomes a primary, or is configured anew."""
        self.note(("a", A))

        for name, taken in (("none", []), ("lazy", []), ("eager", [A])):
            self.queue.follow(name)  # type: ignore[arg-type]
            self.assertEqual(taken, self.taken(), name)

    def test_failures_are_tried_again_ever_later(self) -> None:
        """Up to ten minutes; people see when, and why."""
        self.note(("a", A))
        delays = []
        for _ in range(12):
            self.assertEqual([A], self.taken())
            self.fetch_fails(A)
            none, next_at = self.queue.due(9)
            assert next_at is not None
            delays.append((next_at - self.queue.now_ms()) // 1000)
            self.pass_ms(delays[-1] * 1000 - 1)
            self.assertEqual(([], []), (none, self.taken()))
            self.pass_ms(1)

        self.assertEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600], delays)
        summary = self.queue.summary(5)
        self.assertEqual((1, 1, 1), (summary.missing, summary.wanted, summary.failing_count))
        (failing,) = summary.failing
        self.assertEqual(
            ("a", A, "it rains", 12, self.queue.now_ms()),
            (failing.name, failing.sha256, failing.why, failing.tries, failing.next_at * 1000),
        )

    def test_a_failing_file_can_be_demanded_but_not_hammered(self) -> None:
        """A thousand readers must not make a thousand tries."""
        self.note(("a", A))
        for _ in range(9):
            self.fetch_fails(A)

        for _ in range(100):
            self.queue.demand(A)

        self.assertEqual(([], MS + 1_000), self.queue.due(9))

    def test_a_stored_file_is_no_longer_missing(self) -> None:
        """However it came; what nobody named becomes garbage in time."""
        self.note(("a", A))

        self.have(A, B)

        self.assertEqual([], self.queue.missing())
        self.assertEqual([B], self.queue.garbage(0, 9))

    def test_a_lost_file_with_a_name_is_queued_again(self) -> None:
        """If a name refers to it."""
        self.here.update((A, B))
        self.note(("a", A))

        self.lose(A, B)

        self.assertEqual(("a", None), (self.queue.name_of(A), self.queue.name_of(B)))
        self.assertEqual([A], self.taken())

    def test_a_lost_file_that_came_again_meanwhile_is_not_missing(self) -> None:
        """The disk decides, not who tells of the loss."""
        self.here.add(A)
        self.note(("a", A))

        self.queue.settle([A])

        self.assertEqual([], self.taken())


class GarbageTests(QueueCase):
    """Files that no name refers to."""

    def test_a_file_is_garbage_once_its_last_name_is_gone(self) -> None:
        """As of that time."""
        self.here.add(A)
        self.note(("one", A), ("two", A))
        self.note(("one", None))
        self.assertEqual([], self.queue.garbage(0, 9))

        self.pass_ms(2)
        self.note(("two", B))

        self.pass_ms(1)
        self.assertEqual(([], [A]), (self.queue.garbage(2, 9), self.queue.garbage(1, 9)))
        self.lose(A)
        self.assertEqual([], self.queue.garbage(0, 9))

    def test_a_new_name_saves_it(self) -> None:
        """The usual case: bytes are brought, then the fact that names them."""
        self.have(A)

        self.note(("a", A))

        self.assertEqual([], self.queue.garbage(0, 9))

    def test_bringing_it_again_begins_the_grace_anew(self) -> None:
        """Or it would be deleted before it is named; a count does not."""
        self.have(A)
        self.pass_ms(5)
        self.have(A, is_new=False)
        self.assertEqual([A], self.queue.garbage(5, 9))

        self.have(A)

        self.assertEqual([], self.queue.garbage(1, 9))


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

    @rule(name=NAMES, sha256=st.none() | SHA)
    def say(self, name: str, sha256: str | None) -> None:
        """The log says something."""
        self.case.note((name, sha256))
        self.names.pop(name, None)
        if sha256 is not None:
            self.names[name] = sha256

    @rule(limit=st.integers(1, 3), passed=st.integers(0, 5_000))
    def take(self, limit: int, passed: int) -> None:
        """Workers take some."""
        self.case.pass_ms(passed)
        owned = set(self.case.running)
        for sha256 in self.case.taken(limit):
            assert sha256 not in owned
            assert sha256 not in self.case.here

    @rule(sha256=SHA)
    def fail(self, sha256: str) -> None:
        """An owner fails."""
        if sha256 in self.case.running:
            self.case.fetch_fails(sha256)

    @rule(sha256=SHA)
    def arrive(self, sha256: str) -> None:
        """It came, fetched or brought."""
        self.case.have(sha256)

    @rule(sha256=SHA)
    def lose(self, sha256: str) -> None:
        """It went bad."""
        self.case.lose(sha256)
        assert (self.case.queue.name_of(sha256) is not None) == (sha256 in self.names.values())

    @rule(sha256=SHA)
    def demand(self, sha256: str) -> None:
        """Somebody wants it."""
        is_missing = sha256 not in self.case.here and sha256 in self.names.values()
        assert self.case.queue.demand(sha256) == is_missing

    @rule()
    def clear(self) -> None:
        """Garbage goes."""
        for sha256 in self.case.queue.garbage(0, 9):
            assert sha256 in self.case.here
            assert sha256 not in self.names.values()
            self.case.lose(sha256)

    @rule()
    def restart(self) -> None:
        """A kill: what was in flight is due again."""
        self.case.restarted()

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
