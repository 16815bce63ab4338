"""A replica gets its files."""

from twisted.internet.defer import Deferred, ensureDeferred

from synrepl.errors import StorageError
from synrepl.files.files import Files
from tests.files.builders import checksum
from tests.files.setup import FilesCase, missing

DATA = b"0123456789" * 3
A, B, C = (checksum(name.encode()) for name in "abc")


class EagerTests(FilesCase):
    """Every file is fetched as soon as it is named."""

    def test_a_file_is_fetched_as_soon_as_it_is_named(self) -> None:
        """Whoever waits for it has it then."""
        sha256 = self.upstream_has(DATA)
        files = self.started()
        waiting = ensureDeferred(files.wait_for(sha256, 10))

        self.say(("one", sha256))

        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual(DATA, self.served(files, sha256))
        self.assertEqual([], self.wait(files.missing_upto(1)))

    def test_a_file_that_two_names_and_two_readers_want_is_fetched_once(self) -> None:
        """One owner a file."""
        sha256 = self.upstream_has(DATA)
        self.upstream.hold(sha256)
        files = self.started()
        waiting = [ensureDeferred(files.wait_for(sha256, 10)) for _ in range(2)]
        self.say(("one", sha256))
        self.say(("two", sha256))
        waiting.append(ensureDeferred(files.wait_for(sha256, 10)))
        self.assertEqual(1, files.status()["in_flight"])

        self.upstream.let_go(sha256)

        self.assertEqual([True] * 3, [self.successResultOf(one) for one in waiting])
        self.assertEqual([(sha256, 0)], self.upstream.asked)

    def test_no_more_than_so_many_at_once(self) -> None:
        """In the order of the log."""
        names = [self.upstream_has(b"%d" % number) for number in range(10)]
        for sha256 in names:
            self.upstream.hold(sha256)
        files = self.started(workers=3)
        for sha256 in names:
            self.say((sha256, sha256))
        self.assertEqual((3, 10), (files.status()["in_flight"], len(missing(files))))

        for sha256 in names:
            self.upstream.let_go(sha256)

        self.assertEqual((3, [(sha256, 0) for sha256 in names]), (self.upstream.most, self.upstream.asked))
        self.assertEqual([], missing(files))

    def test_a_file_with_wrong_bytes_does_not_hold_up_others(self) -> None:
        """Wrong bytes are not kept, and it is tried again, ever later; people see when."""
        good = [self.upstream_has(b"%d" % number) for number in range(20)]
        self.upstream.files[A] = b"poison"
        files = self.started(workers=1)

        self.say(("bad", A), *((sha256, sha256) for sha256 in good))

        self.assertEqual([("bad", A)], missing(files))
        self.assertFalse(self.store.has(A))
        self.clock.advance(2)
        self.clock.advance(2)
        (failing,) = files.status()["failing"]
        self.assertEqual(("bad", A), (failing["name"], failing["sha256"]))
        self.assertIn(checksum(b"poison"), failing["why"])
        self.assertGreater(failing["next_at"], self.clock.seconds())
        self.clock.advance(70)
        ((text, *_),) = files.problems()
        self.assertIn("cannot fetch bad", text)

        self.upstream.files[A] = b"a"
        self.clock.advance(600)
        self.clock.advance(2)

        self.assertEqual(([], []), (missing(files), files.problems()))
        self.assertEqual(b"a", self.served(files, A))

    def test_a_file_takes_no_more_than_its_row_states(self) -> None:
        """An answer that does not end filled the disk: 1,046 MB for a row of 4 bytes."""
        self.upstream.files[A] = b"x" * 1_000
        files = self.started()

        self.log.commit(("files", [["create", "endless", A, 10]]))

        self.assertEqual(3 * self.upstream.piece, self.upstream.sent)
        self.assertEqual([], [path for path in self.everything() if path.startswith("partial")])
        self.clock.advance(2)
        (failing,) = files.status()["failing"]
        self.assertEqual(
            "the upstream sent more than the 10 bytes that the row of endless states", failing["why"]
        )

    def test_the_largest_row_of_a_file_counts(self) -> None:
        """One of several names may be wrong about the size."""
        sha256 = self.upstream_has(DATA)
        self.upstream.hold(sha256)
        files = self.started(rule="lazy")

        self.log.commit(("files", [["create", "one", sha256, 1], ["create", "two", sha256, len(DATA)]]))
        self.upstream.let_go(sha256)
        self.assertTrue(self.wait(files.wait_for(sha256, 10)))

        self.assertEqual(DATA, self.served(files, sha256))

    def test_wrong_bytes_are_not_fetched_sooner_when_a_reader_asks(self) -> None:
        """Each request would take all of the bytes again; the retries are 10 minutes apart in the end."""
        self.upstream.files[A] = b"wrong"
        files = self.started()
        self.say(("bad", A))

        for _ in range(3_600):
            ensureDeferred(files.wait_for(A, 0))
            self.clock.advance(1)

        # After 1, 2, 4 ... 512 seconds, then after 600 each.
        self.assertEqual(15, len(self.upstream.asked))

    def test_a_row_over_the_limit_is_not_fetched(self) -> None:
        """The setting bounds it, as it bounds uploads."""
        self.upstream.files[A] = b"x" * 100
        files = self.started(max_bytes=50)

        self.say(("large", A))

        self.assertEqual([], self.upstream.asked)
        self.clock.advance(2)
        (failing,) = files.status()["failing"]
        self.assertIn(
            "its row states 99 bytes, over the limit of 50 (raise --max-file-bytes)", failing["why"]
        )

    def test_partial_bytes_of_a_deleted_name_are_removed(self) -> None:
        """Not only by the next start."""
        sha256 = self.upstream_has(DATA)
        self.upstream.cut_after = 8
        files = self.started()
        self.say(("one", sha256))
        self.assertIn(f"partial/{sha256}", self.everything())
        self.say(("one", None))

        self.wait(files._maintenance.delete_unreferenced())

        self.assertNotIn(f"partial/{sha256}", self.everything())

    def test_a_download_that_broke_off_is_gone_on_with(self) -> None:
        """Also by the next life, and after a kill."""
        sha256 = self.upstream_has(DATA)
        self.upstream.cut_after = 8
        files = self.started()
        self.say(("one", sha256))
        self.clock.advance(1)
        self.wait(files.stop())
        self.store.receive().append(b"half an upload")

        self.upstream.cut_after = None
        files = self.started()
        self.clock.advance(10)

        self.assertEqual([(sha256, 0), (sha256, 8), (sha256, 16)], self.upstream.asked)
        self.assertEqual(DATA, self.served(files, sha256))
        self.assertEqual([], [path for path in self.everything() if path.startswith(("incoming", "partial"))])

    def test_a_file_that_is_deleted_before_it_came_is_forgotten(self) -> None:
        """Upstream has it no more: a replica that is behind must not stumble over it."""
        files = self.started()
        self.say(("one", A))
        self.say(("one", None))

        self.clock.pump([600] * 3)

        self.assertEqual(([], [(A, 0)]), (missing(files), self.upstream.asked))

    def test_a_damaged_file_is_never_served_and_fetched_again(self) -> None:
        """Whether it was flipped or truncated; the reader gets the good bytes."""
        sha256 = self.upstream_has(DATA)
        files = self.started()
        self.say(("one", sha256))
        self.upstream.hold(sha256)
        self.flip(sha256)

        self.assertIsNone(self.served(files, sha256))
        waiting = ensureDeferred(files.wait_for(sha256, 10))
        self.upstream.let_go(sha256)

        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual((DATA, 1), (self.served(files, sha256), files.status()["quarantined"]))

    def test_the_scrub_repairs(self) -> None:
        """Before anybody asks."""
        sha256 = self.upstream_has(DATA)
        files = self.started()
        self.say(("one", sha256))
        self.flip(sha256)

        self.clock.pump([600] * 200)

        self.assertEqual(DATA, self.path(sha256).read_bytes())
        self.assertEqual(1, files.status()["quarantined"])

    def test_stopping_leaves_the_queue_as_it_should_be(self) -> None:
        """What was in flight is due again in the next life."""
        sha256 = self.upstream_has(DATA)
        self.upstream.hold(sha256)
        files = self.started()
        self.say(("one", sha256))
        waiting = ensureDeferred(files.wait_for(sha256, 10))

        self.wait(files.stop())

        self.assertFalse(self.successResultOf(waiting))
        self.upstream.held.clear()
        files = self.started()
        self.assertEqual(DATA, self.served(files, sha256))

    def test_a_replica_without_a_source_names_it_and_no_upload(self) -> None:
        """The primary may have the file, under an address that may not be used."""
        files = self.started(replica=False, is_primary=lambda: False)
        self.say(("one", "a" * 64))
        self.clock.pump([1.0] * 70)

        self.assertEqual(
            ["files: 1 missing, such as one; no usable address of the upstream's HTTP API is known"],
            [problem.text for problem in files.problems()],
        )

    def test_a_promoted_replica_fetches_no_more(self) -> None:
        """And says what is missing."""
        sha256 = self.upstream_has(DATA)
        self.upstream.hold(sha256)
        files = self.started()
        self.say(("one", sha256))

        self.wait(files.set_source(None))

        self.assertFalse(files.is_replica)
        self.assertEqual((0, "none"), (files.status()["in_flight"], files.status()["rule"]))
        self.assertEqual([("one", sha256)], self.wait(files.missing_upto(1)))
        self.upstream.held.clear()
        self.wait(files.set_source(self.upstream))
        self.assertEqual([], self.wait(files.missing_upto(1)))

    def test_a_check_is_shared_and_outlives_who_asked(self) -> None:
        """A reader that gives up and comes again must not begin it anew."""
        sha256 = self.upstream_has(DATA)
        files = self.started()
        self.say(("one", sha256))
        self.clock.advance(61)

        first, second = (ensureDeferred(files.open(sha256)) for _ in range(2))

        one, other = self.successResultOf(first), self.successResultOf(second)
        assert one is not None
        assert other is not None
        files.release(one)
        self.assertEqual(DATA, self.wait(files.read(other, 0, 99)))
        files.release(other)

    def test_who_waits_for_a_check_when_the_daemon_stops_is_reported(self) -> None:
        """Rather than left waiting."""
        sha256 = self.upstream_has(DATA)
        files = self.started()
        self.say(("one", sha256))
        thread = files._disk._thread
        self.patch(thread, "run", lambda work: Deferred())
        waiting = ensureDeferred(files.open(sha256))
        self.assertNoResult(waiting)

        ensureDeferred(files.stop())

        self.assertIn("stopping", str(self.failureResultOf(waiting, StorageError).value))


class LazyTests(FilesCase):
    """A laptop fetches what is asked for."""

    def lazy(self) -> Files:
        """Such a replica."""
        return self.started(rule="lazy")

    def test_nothing_is_fetched_until_it_is_asked_for(self) -> None:
        """Then at once."""
        sha256 = self.upstream_has(DATA)
        files = self.lazy()
        self.say(("one", sha256), ("two", A))
        self.assertEqual([], self.upstream.asked)

        self.assertTrue(self.wait(files.wait_for(sha256, 10)))

        self.assertEqual([(sha256, 0)], self.upstream.asked)
        self.clock.advance(2)
        told = files.status()
        self.assertEqual(("lazy", 1, 0), (told["rule"], told["missing"], told["wanted"]))

    def test_a_file_can_be_asked_for_before_it_is_named(self) -> None:
        """A write is answered when the file is here too, and the fact may not be here yet."""
        sha256 = self.upstream_has(DATA)
        files = self.lazy()
        waiting = ensureDeferred(files.wait_for(sha256, 10))

        self.say(("one", sha256))

        self.assertTrue(self.successResultOf(waiting))

    def test_what_was_asked_for_is_fetched_by_the_next_life(self) -> None:
        """It was promised."""
        sha256 = self.upstream_has(DATA)
        self.upstream.hold(sha256)
        files = self.lazy()
        self.say(("one", sha256), ("two", A))
        ensureDeferred(files.wait_for(sha256, 10))
        self.wait(files.stop())
        self.upstream.held.clear()

        files = self.lazy()

        self.assertEqual([("two", A)], missing(files))
