"""Which files there are, what is missing, and what people are told of it."""

from unittest import mock

from twisted.internet.defer import ensureDeferred

from synrepl.errors import StorageError
from synrepl.files.names import FileQueue
from synrepl.files.store import ChecksumMismatch
from tests.files.builders import checksum
from tests.files.setup import FilesCase, missing

A, B, C = (checksum(name.encode()) for name in "abc")


class NamesTests(FilesCase):
    """The log says which files there are."""

    def test_names_are_learned_from_the_whole_log_and_then_live(self) -> None:
        """Whether they were said before the start or after it."""
        self.say(("one", A))
        files = self.started(replica=False)

        self.say(("two", B), ("three", C))
        self.log.commit(("receipts", [["x"]]))
        self.say(("one", None))

        self.assertEqual([("three", C), ("two", B)], missing(files))

    def test_a_restart_reads_only_what_is_new(self) -> None:
        """Also when the last life was killed."""
        files = self.started(replica=False)
        self.say(("one", A))
        self.log.commit(*[("receipts", [["x"]])] * 5)
        self.wait(files.stop())
        reads = self.log.read_count
        again = self.started(replica=False)
        self.assertEqual(0, self.log.read_count - reads)
        self.wait(again.stop())

        self.say(("two", B))
        files = self.started(replica=False)

        self.assertEqual([("one", A), ("two", B)], missing(files))
        self.assertEqual(1, self.log.read_count - reads)

    def test_another_log_is_read_anew(self) -> None:
        """As after a restore from a backup that went on differently."""
        files = self.started(replica=False)
        self.say(("one", A))
        self.say(("two", B))
        self.wait(files.stop())
        self.log.committed.clear()
        self.say(("three", C))
        self.log.commit(("receipts", [["x"]]))

        files = self.started(replica=False)

        self.assertEqual([("three", C)], missing(files))

    def test_a_stop_before_another_log_is_read_forgets_nothing_of_that(self) -> None:
        """The names of the former log would stay for ever."""
        files = self.started(replica=False)
        self.say(("one", A))
        self.wait(files.stop())
        self.log.committed.clear()
        self.say(("two", B))
        with mock.patch.object(FileQueue, "reset", side_effect=StorageError(op="write", why="a full disk")):
            self.wait(self.started(replica=False).stop())

        files = self.started(replica=False)

        self.assertEqual([("two", B)], missing(files))

    def test_a_log_that_was_replaced_under_way_is_read_anew(self) -> None:
        """A replica that resynced tells so."""
        files = self.started(replica=False)
        self.say(("one", A))
        self.log.committed.clear()
        self.say(("two", B))

        files.rebuild()

        self.assertEqual([("two", B)], missing(files))
        self.say(("three", C))
        self.assertEqual([("two", B), ("three", C)], missing(files))

    def test_many_facts_come_in_pages(self) -> None:
        """Memory is bounded, whatever the length of the log."""
        for number in range(2_500):
            self.say((f"name {number:04}", checksum(b"%d" % number)))

        files = self.started(replica=False)

        self.assertEqual(2_500, len(missing(files)))
        self.assertEqual(3, self.log.read_count)

    def test_a_broken_queue_is_told_and_tried_again(self) -> None:
        """Nothing of the log is skipped."""
        files = self.started(replica=False)
        broken = StorageError(op="note files", why="the disk is full", retryable=True)
        note = files._queue.note

        def fail(*_: object, **__: object) -> None:
            raise broken

        self.patch(files._queue, "note", fail)
        self.say(("one", A))
        self.say(("two", B))
        ((text, since, _),) = files.problems()
        self.assertIn("the disk is full", text)
        self.assertEqual(self.clock.seconds(), since)

        self.patch(files._queue, "note", note)
        self.clock.advance(1)

        self.assertEqual([("one", A), ("two", B)], missing(files))
        self.assertEqual([], files.problems())
        self.say(("three", C))
        self.assertEqual(["{what}: {why}; will retry", "{what}: {name} works again"], self.texts())

    def test_a_daemon_without_files_makes_no_directory(self) -> None:
        """Not even after days."""
        files = self.started()
        self.log.commit(*[("receipts", [["x"]])] * 20)
        self.clock.pump([3_600] * 50)

        self.wait(files.stop())

        self.assertFalse(self.directory.exists())


class PrimaryTests(FilesCase):
    """Files are brought to a primary."""

    def setUp(self) -> None:
        super().setUp()
        self.files = self.started(replica=False)

    def bring(self, data: bytes, sha256: str) -> bool:
        """Upload."""
        spool = self.wait(self.files.receive())
        self.wait(self.files.append(spool, data))
        is_new: bool = self.wait(self.files.keep(spool, sha256))
        return is_new

    def test_what_is_brought_is_missing_no_more(self) -> None:
        """Whoever waits for it is told at once."""
        self.say(("one", A))
        waiting = ensureDeferred(self.files.wait_for(A, 10))
        self.assertNoResult(waiting)

        self.assertTrue(self.bring(b"a", A))

        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual([], missing(self.files))
        self.assertFalse(self.bring(b"a", A))
        self.assertEqual(b"a", self.served(self.files, A))
        self.assertEqual([], self.upstream.asked)

    def test_each_wait_has_a_time_limit(self) -> None:
        """Every wait is bounded."""
        waiting = ensureDeferred(self.files.wait_for(A, 10))

        self.clock.advance(10)

        self.assertFalse(self.successResultOf(waiting))
        self.assertEqual({}, self.files._waiting)

    def test_wrong_bytes_are_refused(self) -> None:
        """And nothing is kept."""
        spool = self.wait(self.files.receive())
        self.wait(self.files.append(spool, b"b"))

        self.failureResultOf(ensureDeferred(self.files.keep(spool, A)), ChecksumMismatch)

        self.assertEqual([], self.everything())

    def test_damage_is_an_error_that_people_are_told_of(self) -> None:
        """There is nobody to get it from again: it must be brought."""
        self.bring(b"a", A)
        self.say(("one", A))
        self.flip(A)

        self.assertIsNone(self.served(self.files, A))

        self.assertEqual([("one", A)], missing(self.files))
        self.assertIn("upload it again", "".join(self.texts()))
        self.clock.advance(70)
        ((text, *_),) = self.files.problems()
        self.assertIn("one", text)
        self.assertEqual((1, 1), (self.files.status()["quarantined"], self.files.status()["missing"]))
        self.bring(b"a", A)
        self.clock.advance(2)
        self.assertEqual(([], b"a"), (self.files.problems(), self.served(self.files, A)))

    def test_the_scrub_finds_damage_that_nobody_asks_for(self) -> None:
        """Slowly, and for ever."""
        self.bring(b"a", A)
        self.bring(b"b", B)
        self.say(("one", A), ("two", B))
        self.flip(B)

        self.clock.pump([1.0] * 86_400)

        self.assertEqual([("two", B)], missing(self.files))

    def test_a_file_taken_away_under_our_feet_is_missing(self) -> None:
        """Promotion must not believe the books."""
        self.bring(b"a", A)
        self.say(("one", A))
        self.say(("two", B))
        self.path(A).unlink()

        self.assertEqual([("one", A)], self.wait(self.files.missing_upto(1)))
        self.assertEqual([("one", A), ("two", B)], self.wait(self.files.missing_upto(99)))

    def test_a_file_that_no_name_refers_to_is_deleted_after_a_day(self) -> None:
        """Not before: who has brought it may still be about to name it."""
        self.bring(b"a", A)
        self.bring(b"b", B)
        self.say(("one", A), ("two", B))
        self.say(("one", None))

        self.clock.pump([1_800] * 47)
        self.assertTrue(self.store.has(A))
        self.clock.pump([1_800] * 5)

        self.assertEqual((False, True), (self.store.has(A), self.store.has(B)))
        self.assertEqual(1, self.files.status()["stored"])

    def test_files_of_a_log_that_was_replaced_are_garbage_too(self) -> None:
        """In time; those that the new one names as well stay."""
        self.bring(b"a", A)
        self.bring(b"b", B)
        self.say(("one", A), ("two", B))
        self.log.committed.clear()
        self.say(("two", B))

        self.files.rebuild()
        self.clock.pump([1_800] * 52)

        self.assertEqual((False, True), (self.store.has(A), self.store.has(B)))

    def test_missing_files_are_those_of_the_log_that_replaced_another(self) -> None:
        """A promotion asks for them; the names of the former log must not answer."""
        self.say(("one", A))
        # As between the replacement of the log and the reset of the queue.
        self.files._names._is_stale = True
        before = self.log.read_count

        self.assertEqual([("one", A)], self.wait(self.files.missing_upto(1)))
        self.assertGreater(self.log.read_count, before)

    def test_nothing_is_deleted_while_the_names_are_not_known(self) -> None:
        """As when the log cannot be read: every file would look like garbage."""
        self.bring(b"a", A)
        self.say(("one", A))
        self.log.committed.clear()
        self.say(("one", A))

        def fail(**_: object) -> None:
            raise StorageError(op="read", why="the disk is broken", retryable=True)

        self.patch(self.log, "facts", fail)

        self.files.rebuild()
        self.clock.pump([1_800] * 100)

        self.assertTrue(self.store.has(A))
        self.assertEqual(0, self.wait(self.files._maintenance.delete_unreferenced()))

    def test_a_file_that_is_named_during_the_deletion_stays(self) -> None:
        """An upload that HEAD found here is not repeated, and its old bytes have had no name for days."""
        self.bring(b"a", A)
        self.bring(b"b", B)
        self.clock.advance(1)
        self.clock.pump([3_600.0] * 23)

        def commit_meanwhile() -> None:
            self.log._subscribers.clear()
            self.say(("one", A))

        with mock.patch.object(self.files._queue, "check", commit_meanwhile):
            self.clock.pump([3_600.0] * 2)
        names = self.files._names
        known = names.is_complete, self.store.has(A), self.store.has(B)
        names._wakeup.open()
        self.clock.pump([60.0] * 6)

        self.assertEqual((False, True, True), known)
        self.assertEqual((True, False), (self.store.has(A), self.store.has(B)))

    def test_files_of_an_earlier_life_are_counted_and_compared(self) -> None:
        """Those that came or went while nobody looked, too."""
        self.bring(b"a", A)
        self.bring(b"b", B)
        self.say(("one", A), ("two", B), ("three", C))
        self.wait(self.files.stop())
        self.path(A).unlink()
        self.kept(b"c")

        files = self.started(replica=False)
        self.clock.advance(3)

        self.assertEqual([("one", A)], missing(files))
        told = files.status()
        self.assertEqual((2, 2, 1), (told["stored"], told["stored_bytes"], told["missing"]))
        self.assertEqual("none", told["rule"])
