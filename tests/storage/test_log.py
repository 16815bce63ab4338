"""The log: group commit, idempotency, failures, overload, and its life."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent

from synrepl.base.history import Appended
from synrepl.base.settings import UNNAMED
from synrepl.config import settings
from synrepl.errors import StorageError
from synrepl.storage.append_errors import KeyReused, LogNotOurs
from synrepl.storage.engine import SQLEngine
from synrepl.storage.epochs import LOOK_UPS
from synrepl.storage.group_commit import checksum
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.memory_engine import FaultyEngine
from tests.storage.builders import DISK_FULL, NOW, LogCase, facts_after, rows, tokens

A, B, C = rows("a"), rows("b"), rows("c")


class AppendTests(LogCase):
    """What an append becomes."""

    def test_tokens_are_one_sequence_a_stream_and_chained_per_writer(self) -> None:
        """Old protocols know one position per stream; new ones check the chain of each writer."""
        engine = FaultyEngine()
        log = self.started(engine)

        answers = [
            self.append(log, "events", "w1", A, B),
            self.append(log, "events", "w2", A),
            self.append(log, "caches", "w1", A),
            self.append(log, "events", "w1", A),
        ]

        self.assertEqual(
            [Appended(1, 1, [1, 2]), Appended(1, 3, [3]), Appended(1, 4, [1]), Appended(1, 5, [4])], answers
        )
        self.assertEqual(
            [
                (1, "events", "w1", 0, 1),
                (2, "events", "w1", 1, 2),
                (3, "events", "w2", 0, 3),
                (4, "caches", "w1", 0, 1),
                (5, "events", "w1", 2, 4),
            ],
            tokens(engine.facts),
        )
        self.assertEqual({"events": {"w1": 4, "w2": 3}, "caches": {"w1": 1}}, log.positions_by_stream())
        self.assertEqual(
            (5, engine.facts[-1].digest, 4), (log.head.serial, log.head.digest, log.linear_position("events"))
        )
        self.assertEqual({"w1": 4, "w2": 3}, log.positions("events"))
        self.assertEqual(({}, 0), (log.positions("never"), log.linear_position("never")))
        self.assertIsNone(verify(engine.facts, EMPTY))
        self.assertEqual({NOW * 1000}, {fact.committed_at_ms for fact in engine.facts})

    def test_tokens_are_given_above_the_floor(self) -> None:
        """The lost history may have given those below it, also of streams that this log does not know.

        Those that come with their facts are the homeserver's, and stay as they are.
        """
        engine = FaultyEngine()
        log = self.started(engine)
        self.append(log, "events", "w1", A)
        self.successResultOf(Deferred.fromCoroutine(log.note(floor="100")))

        given = [self.append(log, *one) for one in (("events", "w1", A, B), ("new", "w1", A))]
        assigning = log.append_assigned("events", [("w2", 2, A)])
        self.clock.advance(0)
        assigned = self.successResultOf(assigning)
        again = self.append(log, "events", "w1", A)

        self.assertEqual([[101, 102], [101]], [one.tokens for one in given])
        self.assertEqual(([2], [103]), (assigned.tokens, again.tokens))
        self.assertEqual(
            [("w1", 0, 1), ("w1", 1, 101), ("w1", 101, 102), ("w2", 0, 2), ("w1", 102, 103)],
            [(one.writer, one.prev_token, one.token) for one in engine.facts if one.stream == "events"],
        )

    def test_what_comes_during_a_commit_goes_together_into_the_next(self) -> None:
        """One sync of the disk serves them all: this is where the speed comes from."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)

        answers = [log.append("events", f"w{n}", [A]) for n in range(20)]
        self.clock.advance(0.1)
        fired = [answer.called for answer in answers]
        self.clock.advance(0.1)

        self.assertEqual([True] + [False] * 19, fired)
        self.assertEqual([n + 1 for n in range(20)], [self.successResultOf(a).first_serial for a in answers])
        self.assertEqual(2, engine.commits)

    def test_a_group_is_bounded(self) -> None:
        """One sync of a gigabyte would hold up everyone."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1, max_batch_bytes=1000)

        answers = [log.append("events", "w1", [A]) for _ in range(7)]
        answers.append(log.append("events", "w1", [rows("x" * 5000)]))
        self.clock.pump([0.1] * 5)

        self.assertTrue(all(answer.called for answer in answers))
        self.assertEqual(4, engine.commits)

    def test_an_append_of_nothing_is_answered_with_nothing(self) -> None:
        """It needs no commit, and has no place in the log."""
        engine = FaultyEngine()
        log = self.started(engine)

        self.assertEqual(Appended(1, None, []), self.append(log, "events", "w1"))
        self.assertEqual(0, engine.commits)

    def test_names_that_would_make_the_digest_ambiguous_are_refused(self) -> None:
        """The digest's text is parted by spaces; and one bad name must not spoil its group."""
        log = self.started(FaultyEngine())

        for name in ("two words", "w\n1", "", "\ud800", "a\0b", "w" * 1025):
            self.failureResultOf(log.append(name, "w1", [A]), StorageError)
            self.failureResultOf(log.append("events", name, [A]), StorageError)
        for key in ("\ud800", "a\0b", "k" * 1025):
            self.failureResultOf(log.append("events", "w1", [A], key=key), StorageError)
        self.assertEqual(0, log.head.serial)

    def test_the_log_goes_on_where_it_stood(self) -> None:
        """Tokens that are given twice are the worst that a restart could do."""
        path = self.directory() / "synrepl.db"
        log = self.started(SQLEngine(SQLiteDatabase(path)))
        self.append(log, "events", "w1", A, B)
        self.append(log, "events", "w2", C)
        digest = log.head.digest
        self.wait(log.stop())

        log = self.started(SQLEngine(SQLiteDatabase(path)))

        self.assertEqual(
            (3, digest, {"w1": 2, "w2": 3}), (log.head.serial, log.head.digest, log.positions("events"))
        )
        self.assertEqual(Appended(1, 4, [4]), self.append(log, "events", "w1", C))
        found, _ = self.wait(log.reads.facts(after=0, upto=9, limit=99))
        self.assertEqual((4, "events", "w1", 2, 4), tokens(found)[-1])
        self.assertIsNone(verify(found, EMPTY))
        self.wait(log.stop())

    def test_a_caller_that_gives_up_does_not_disturb_the_others(self) -> None:
        """A client that hangs up cancels its request; the fact may be kept all the same."""
        log = self.started(FaultyEngine(), delay=lambda: 0.1)
        answers = [log.append("events", "w1", [A]) for _ in range(3)]

        answers[1].cancel()
        self.failureResultOf(answers[1])
        self.clock.pump([0.1] * 3)

        self.assertEqual([1, 3], [self.successResultOf(answers[n]).first_serial for n in (0, 2)])


class WatchTests(LogCase):
    """Who is told of what is committed."""

    def test_subscribers_see_a_group_before_its_appends_are_answered(self) -> None:
        """Who is answered and asks a follower at once should find it on its way."""
        setup: list[object] = []
        log = self.started(FaultyEngine(), delay=lambda: 0.1)
        log.subscribe(lambda facts: setup.append([fact.serial for fact in facts]))
        for _ in range(3):
            log.append("events", "w1", [A]).addCallback(lambda told: setup.append(told.first_serial))

        self.clock.pump([0.1, 0.1])

        self.assertEqual([[1], 1, [2, 3], 2, 3], setup)

    def test_a_watcher_finds_the_log_standing_after_what_it_is_reported(self) -> None:
        """A publisher that answers with positions right now must not answer with old ones."""
        seen: list[tuple[int, int, dict[str, int]]] = []
        log = self.started(FaultyEngine())
        log.subscribe(lambda facts: seen.append((facts[-1].serial, log.head.serial, log.positions("events"))))

        self.append(log, "events", "w1", A, B)

        self.assertEqual([(2, 2, {"w1": 2})], seen)

    def test_a_watcher_that_fails_stops_nobody(self) -> None:
        """One broken connection must not take the log with it."""
        seen: list[int] = []
        log = self.started(FaultyEngine())

        def fails(facts: Sequence[Fact]) -> None:
            raise ZeroDivisionError

        log.subscribe(fails)
        log.subscribe(lambda facts: seen.extend(fact.serial for fact in facts))

        self.append(log, "events", "w1", A)
        self.append(log, "events", "w1", A)

        self.assertEqual([1, 2], seen)
        self.assertEqual(["a log subscriber failed"] * 2, [formatEvent(event) for event in self.told])

    def test_a_watcher_may_append(self) -> None:
        """Its fact comes after the ones it was told of, and nothing recurses."""
        seen: list[int] = []
        log = self.started(FaultyEngine())

        def subscriber(facts: Sequence[Fact]) -> None:
            seen.extend(fact.serial for fact in facts)
            if len(seen) < 2000:
                log.append("caches", "w1", [A])

        log.subscribe(subscriber)
        self.append(log, "events", "w1", A)

        self.assertEqual(list(range(1, 2001)), seen)

    def test_readers_do_not_run_ahead_of_subscribers(self) -> None:
        """A fact read before it is announced would be announced to a reader that has it already."""
        engine = FaultyEngine()
        log = self.started(engine)
        self.append(log, "events", "w1", A)
        other = facts_after(engine.facts[0], ("events", "w1", 1, 2))
        engine.commit(other, [])

        found, looked = self.wait(log.reads.facts(after=0, upto=99, limit=9))
        by_token, _ = self.wait(
            log.reads.tokens(stream="events", writer=None, after=0, upto=99, serial=99, limit=9)
        )

        self.assertEqual(([1], 1, [1]), ([f.serial for f in found], looked, [f.serial for f in by_token]))


class IdempotencyTests(LogCase):
    """Asking again is harmless."""

    def test_the_same_key_gives_the_same_answer_and_stores_nothing(self) -> None:
        """A client whose answer was lost asks again."""
        engine = FaultyEngine()
        log = self.started(engine)

        first = self.append(log, "events", "w1", A, B, key="k")
        self.append(log, "events", "w1", C)
        again = self.append(log, "events", "w1", A, B, key="k")

        self.assertEqual((first, 3), (again, len(engine.facts)))

    def test_a_receipt_outlives_a_restart(self) -> None:
        """The answer may be lost because the daemon was killed."""
        path = self.directory() / "synrepl.db"
        log = self.started(SQLEngine(SQLiteDatabase(path)))
        first = self.append(log, "events", "w1", A, key="k")
        self.wait(log.stop())

        log = self.started(SQLEngine(SQLiteDatabase(path)))

        self.assertEqual((first, 1), (self.append(log, "events", "w1", A, key="k"), log.head.serial))
        self.wait(log.stop())

    def test_a_key_stands_for_one_request_only(self) -> None:
        """Answering with the tokens of something else would lose these facts in silence."""
        log = self.started(FaultyEngine())
        self.append(log, "events", "w1", A, B, key="k")

        for stream, writer, facts in (
            ("events", "w2", [A, B]),
            ("events", "w1", [A]),
            ("events", "w1", [A[:-1] + b"," + B[1:]]),
        ):
            refused = self.failureResultOf(log.append(stream, writer, facts, key="k"), KeyReused)
            self.assertEqual("k", refused.value.key)
        self.assertEqual(2, log.head.serial)

    def test_a_key_belongs_to_a_stream_an_owner_and_a_part(self) -> None:
        """What one peer writes cannot make the request of another fail."""
        log = self.started(FaultyEngine())
        scopes: list[tuple[str, str, int]] = [
            *(("events", "", 0), ("caches", "", 0), ("events", "paris", 0)),
            *(("events", "paris", 1), ("events", "paris", 2)),
        ]
        for number, (stream, owner, part) in enumerate(scopes, 1):
            fact = b'["%d"]' % number
            for _ in range(2):
                appended = self.successResultOf(
                    log.append(stream, "w1", [fact], key="k", owner=owner, part=part)
                )
                self.assertEqual(number, appended.first_serial)
        self.assertEqual(len(scopes), log.head.serial)

    def test_the_owner_of_a_key_is_limited(self) -> None:
        """Stream, key and owner fit together in an entry of an index, which would fail its whole group."""
        log = self.started(FaultyEngine())
        stream, key, owner = "s" * 1024, "k" * 1024, "o" * 512

        self.successResultOf(log.append(stream, "w1", [A], key=key, owner=owner))
        refused = log.append(stream, "w1", [A], key=key, owner=owner + "o")

        self.assertIn("512 bytes", self.failureResultOf(refused, StorageError).value.why)

    def test_where_a_fact_ends_makes_another_request(self) -> None:
        """Two of one row are not one of two, whatever the bytes between them."""
        asked = [[b"[1]", b"[2]"], [b"[1][2]", b""], [b"", b"[1][2]"], [b"[1][2]"]]

        self.assertEqual(4, len({checksum("events", "w1", facts) for facts in asked}))

    def test_two_at_once_share_one_answer(self) -> None:
        """An impatient client asks again before the first is answered."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)

        first, second = (log.append("events", "w1", [A], key="k") for _ in range(2))
        other = log.append("events", "w1", [B], key="k")
        first.cancel()
        self.failureResultOf(first)
        self.clock.advance(0.1)

        self.failureResultOf(other, KeyReused)
        self.assertEqual(Appended(1, 1, [1]), self.successResultOf(second))
        self.assertEqual(1, len(engine.facts))

    def test_a_key_whose_append_failed_is_free_again(self) -> None:
        """Trying again is what keys are for."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)
        engine.fail_next(DISK_FULL)
        failed = [log.append("events", "w1", [A], key="k") for _ in range(2)]
        self.clock.advance(0.1)

        for append in failed:
            self.failureResultOf(append, StorageError)
        self.assertEqual(Appended(1, 1, [1]), self.append(log, "events", "w1", A, key="k"))

    def test_answers_are_remembered_for_a_day(self) -> None:
        """For ever would be a second log."""
        engine = FaultyEngine()
        log = self.started(engine)
        self.append(log, "events", "w1", A, key="k")

        self.clock.pump([3600.0] * 23)
        self.assertEqual(1, self.append(log, "events", "w1", A, key="k").first_serial)
        self.clock.pump([3600.0] * 3)

        self.assertEqual({}, engine.receipts_by_key)
        self.assertEqual(2, self.append(log, "events", "w1", A, key="k").first_serial)


class AtomicTests(LogCase):
    """Facts of several streams in one append."""

    def atomic(self, log: Log, *appends: tuple[str, str, list[bytes]], key: str = "k") -> list[Appended]:
        """Append all of this, and what it became."""
        found: list[Appended] = self.wait(log.append_atomic(appends, key=key))
        return found

    def test_all_of_it_is_committed_together(self) -> None:
        """Each stream has its own tokens, each part its own result; the serials are in the order of parts."""
        engine = FaultyEngine()
        log = self.started(engine)
        self.append(log, "events", "w1", A)

        found = self.atomic(log, ("events", "w1", [B, C]), ("pushers", "w2", [A]), ("events", "w3", [A]))

        self.assertEqual(
            [Appended(1, 3, [2, 3]), Appended(1, 5, [1]), Appended(1, 6, [4])],
            found,
        )
        self.assertEqual(
            [
                ("atomic_appends", "w1", 1),
                ("events", "w1", 2),
                ("events", "w1", 3),
                ("pushers", "w2", 1),
                ("events", "w3", 4),
            ],
            [(fact.stream, fact.writer, fact.token) for fact in engine.facts[1:]],
        )
        self.assertEqual(b"[[4]]", engine.facts[1].rows)
        self.assertEqual([0, 0, 1, 2, 0, 0], [fact.prev_token for fact in engine.facts])
        self.assertIsNone(verify(engine.facts, EMPTY))
        self.assertEqual({"w1": 3, "w3": 4}, log.positions("events"))
        self.append(log, "pushers", "w2", B)
        self.assertEqual(2, engine.facts[-1].token)

    def test_it_has_one_receipt(self) -> None:
        """A retry stores nothing; other facts, or facts divided otherwise, are another request."""
        engine = FaultyEngine()
        log = self.started(engine)
        first = self.atomic(log, ("events", "w1", [A]), ("pushers", "w1", [B]))

        self.assertEqual(first, self.atomic(log, ("events", "w1", [A]), ("pushers", "w1", [B])))
        self.assertEqual(3, log.head.serial)
        self.assertEqual(
            [Appended(1, 1, [1, 1, 1])], [receipt.appended for receipt in self.wait(log.reads.receipts(0, 9))]
        )
        for other in ([("events", "w1", [A, B])], [("events", "w1", [A]), ("pushers", "w2", [B])]):
            self.failureResultOf(log.append_atomic(other, key="k"), KeyReused)
        self.append(log, "events", "w1", A, key="k")
        self.assertEqual(4, log.head.serial)

    def test_a_part_that_is_refused_refuses_all(self) -> None:
        """Nothing is stored."""
        log = self.started(FaultyEngine(), assigned=["receipts"])
        for stream, why in (("receipts", "receipts"), ("typing", "in memory"), ("two words", "one word")):
            done = log.append_atomic([("events", "w", [A]), (stream, "w", [A])], key="k")
            self.assertIn(why, str(self.failureResultOf(done, StorageError).value))
        done = log.append_atomic([("events", "w", [A] * 1_001)], key="k")
        self.assertIn("may have 1000 facts", str(self.failureResultOf(done, StorageError).value))
        own = log.append("atomic_appends", "w", [b"[[3]]"])
        self.assertIn("the daemon itself writes it", str(self.failureResultOf(own, StorageError).value))
        log.gate.close(lambda stream: StorageError(op="append", why=f"not {stream}"))
        done = log.append_atomic([("events", "w", [A])], key="k")
        self.assertIn("not events", str(self.failureResultOf(done, StorageError).value))
        self.assertEqual(0, log.head.serial)

    def test_nothing_is_a_part_too(self) -> None:
        log = self.started(FaultyEngine())

        self.assertEqual(
            [Appended(1, None, []), Appended(1, 2, [1])],
            self.atomic(log, ("events", "w1", []), ("events", "w1", [A])),
        )
        self.assertEqual([Appended(1, None, [])], self.atomic(log, ("events", "w1", []), key="other"))


class FailureTests(LogCase):
    """Commits that fail, and those of which nobody knows."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = FaultyEngine()
        self.seen: list[int] = []

    def start(self) -> Log:
        log = self.started(self.engine, delay=lambda: 0.1)
        log.subscribe(lambda facts: self.seen.extend(fact.serial for fact in facts))
        return log

    def test_a_failed_commit_fails_its_appends_and_changes_nothing(self) -> None:
        """Failed must mean that nothing of it is stored, or clients cannot try again."""
        log = self.start()
        self.append(log, "events", "w1", A)
        before = (log.head.serial, log.head.digest, log.positions_by_stream(), self.engine.facts[:])
        failing = [log.append("events", f"w{n}", [A, B]) for n in range(3)]

        for _ in range(2):
            self.engine.fail_next(DISK_FULL)
            self.clock.advance(0.1)

        for append in failing:
            self.failureResultOf(append, StorageError)
        self.assertEqual(
            before, (log.head.serial, log.head.digest, log.positions_by_stream(), self.engine.facts)
        )
        self.assertEqual([1], self.seen)

    def test_serials_stay_dense_after_a_failure(self) -> None:
        """The next group takes the numbers that the failed one would have had."""
        log = self.start()
        self.engine.fail_next(DISK_FULL)
        failed = log.append("events", "w1", [A, B])
        following = log.append("events", "w2", [C])

        self.clock.pump([0.1] * 3)

        self.assertIn("the disk is full", str(self.failureResultOf(failed, StorageError).value))
        self.assertEqual(Appended(1, 1, [1]), self.successResultOf(following))
        self.assertEqual([1], self.seen)

    def test_a_commit_that_says_it_failed_but_was_kept_is_answered_as_kept(self) -> None:
        """The engine is asked at once: what is in the log is in the log."""
        log = self.start()
        self.engine.fail_next(DISK_FULL, kept=True, silent=0)

        self.assertEqual(Appended(1, 1, [1]), self.append(log, "events", "w1", A))
        self.assertEqual([1], self.seen)
        self.assertEqual((True, ""), log.healthy)

    def test_an_unknown_outcome_is_settled_before_the_next_group(self) -> None:
        """Kept facts are shown, and their numbers are not given again."""
        log = self.start()
        self.engine.fail_next(DISK_FULL, kept=True)
        lost = log.append("events", "w1", [A, B])
        following = log.append("events", "w1", [C])

        self.clock.pump([0.1] * 3)

        self.assertIn("the append may have been stored", str(self.failureResultOf(lost, StorageError).value))
        self.assertEqual(Appended(1, 3, [3]), self.successResultOf(following))
        self.assertEqual([1, 2, 3], self.seen)
        self.assertEqual((3, "events", "w1", 2, 3), tokens(self.engine.facts)[-1])
        self.assertIsNone(verify(self.engine.facts, EMPTY))

    def test_asking_again_after_an_unknown_outcome_finds_the_receipt(self) -> None:
        """This is how a client gets exactly one fact through a lost connection to the database."""
        log = self.start()
        self.engine.fail_next(DISK_FULL, kept=True)
        lost = log.append("events", "w1", [A], key="k")
        self.clock.advance(0.1)
        self.failureResultOf(lost, StorageError)

        again = self.append(log, "events", "w1", A, key="k")

        self.assertEqual((Appended(1, 1, [1]), 1), (again, len(self.engine.facts)))

    def test_an_unknown_outcome_is_settled_without_further_appends(self) -> None:
        """Followers must not wait for the next writer to see what was kept."""
        log = self.start()
        self.engine.fail_next(DISK_FULL, kept=True, silent=4)
        self.failure_after(log.append("events", "w1", [A]), 0.1)
        self.assertEqual([], self.seen)

        self.clock.pump([0.1] * 80)

        self.assertEqual(([1], 1, (True, "")), (self.seen, log.head.serial, log.healthy))

    def test_appends_fail_as_long_as_nobody_knows_where_the_log_stands(self) -> None:
        """Giving numbers that may be taken would fork history."""
        log = self.start()
        self.engine.fail_next(DISK_FULL, silent=3)
        self.failure_after(log.append("events", "w1", [A]), 0.1)

        refused = self.failure_after(log.append("events", "w1", [A]), 0.2)
        self.assertTrue(refused.retryable)
        self.assertFalse(log.healthy[0])
        self.clock.pump([0.1] * 50)

        self.assertEqual(Appended(1, 1, [1]), self.append(log, "events", "w1", A))

    def test_a_snapshot_is_never_ahead_of_the_log(self) -> None:
        """A replica that joins reads its facts from the log: beyond the head there are none."""
        log = self.start()
        self.lose_track(log)

        async def take() -> tuple[LogPosition, LogPosition]:
            snapshot = await log.copies.snapshot()
            return snapshot.position, log.position

        taken = Deferred.fromCoroutine(take())
        self.clock.pump([0.1] * 3)

        position, head = self.successResultOf(taken)
        self.assertEqual((head, 1), (position, position.serial))

    def test_an_epoch_begins_after_an_unknown_outcome(self) -> None:
        """Watchers see the fact that was kept, once, and the epoch begins after it."""
        log = self.start()
        self.lose_track(log)

        began = Deferred.fromCoroutine(log.epochs.begin_next("for a test"))
        self.clock.pump([0.1] * 3)

        self.assertEqual(1, self.successResultOf(began).serial)
        self.assertEqual(([1], 1, 2), (self.seen, log.head.serial, log.head.epoch))
        self.assertEqual(Appended(2, 2, [2]), self.append(log, "events", "w1", B))

    def test_nothing_is_written_while_an_outcome_is_unknown(self) -> None:
        """An epoch that began now would begin before a fact, or after it."""
        log = self.start()
        self.lose_track(log, silent=3)

        began = Deferred.fromCoroutine(log.epochs.begin_next("for a test"))

        self.assertTrue(self.failure_after(began, 0.2).retryable)

    def test_an_epoch_is_told_even_if_its_caller_was_cancelled(self) -> None:
        """Followers would stay connected beyond what was discarded, and take new facts for known ones."""
        log = self.start()
        told: list[int] = []
        log.epochs.on_started(lambda: told.append(log.head.epoch))
        began = Deferred.fromCoroutine(log.epochs.begin_next("for a test"))
        began.addErrback(lambda _: None)
        began.cancel()

        self.clock.pump([0.1] * 3)

        self.assertEqual(([2], 2), (told, log.head.epoch))

    def test_an_epoch_of_unknown_outcome_is_looked_up_before_the_next_write(self) -> None:
        """Facts of the new history went into the old epoch, and those below its end were taken for known."""
        for silent in (0, 2, LOOK_UPS, LOOK_UPS + 1):
            with self.subTest(silent=silent):
                self.engine = FaultyEngine()
                log = self.start()
                self.wait(log.append_assigned("events", [("w1", 10, A), ("w1", 60, A)]))
                self.engine.fail_next(DISK_FULL, kept=True, silent=silent)
                told: list[int] = []
                log.epochs.on_started(partial(told.append, silent))
                began = Deferred.fromCoroutine(log.epochs.begin_next("lost", stream="events", token=20))
                self.clock.pump([0.1] * 15 * LOOK_UPS)

                if silent < LOOK_UPS:
                    self.assertEqual(2, self.successResultOf(began).epoch)
                else:
                    self.failureResultOf(began, StorageError)
                if silent > LOOK_UPS:
                    self.failure_after(log.append_assigned("events", [("w1", 30, B)]), 0.2)
                self.wait(log.append_assigned("events", [("w1", 30, B)]))

                self.assertEqual(
                    [(1, 10), (1, 60), (2, 30)], [(one.epoch, one.token) for one in self.engine.facts]
                )
                self.assertEqual(
                    (2, {"w1": 30}, (True, "")), (log.head.epoch, log.positions("events"), log.healthy)
                )
                self.assertEqual([silent], told)

    def test_what_was_unknown_of_an_epoch_is_no_problem_once_it_is_known(self) -> None:
        """An idle log stayed unwell, although no epoch had begun and its database was back."""
        for silent in (1, LOOK_UPS):
            with self.subTest(silent=silent):
                self.engine = FaultyEngine()
                log = self.start()
                self.engine.fail_next(DISK_FULL, silent=silent)
                began = Deferred.fromCoroutine(log.epochs.begin_next("for a test"))
                self.clock.pump([0.1] * 5)
                self.assertIn("it is unknown whether an epoch began", log.healthy[1])
                self.clock.pump([0.1] * 15 * LOOK_UPS)
                self.failureResultOf(began, StorageError)
                self.wait(log.copies.snapshot())  # nothing is committed

                self.assertEqual((True, ""), log.healthy)

    def lose_track(self, log: Log, *, silent: int = 2) -> None:
        """Commit a fact and lose the database until it is unknown whether it was kept."""
        self.engine.fail_next(DISK_FULL, kept=True, silent=silent)
        self.failure_after(log.append("events", "w1", [A]), 0.2)
        self.assertEqual(0, log.head.serial)

    def test_a_commit_that_was_never_tried_leaves_no_doubt(self) -> None:
        """With no connection to begin with, nothing can have been kept, whatever can be asked now."""
        log = self.start()
        gone = StorageError(op="commit", why="the server is away", retryable=True, tried=False)
        self.engine.fail_next(gone, silent=1)

        failed = self.failure_after(log.append("events", "w1", [A]), 0.1)

        self.assertIs(gone, failed)
        self.assertEqual(Appended(1, 1, [1]), self.append(log, "events", "w1", B))

    def test_a_log_that_went_on_without_us_says_that_trying_again_is_useless(self) -> None:
        """Clients that are told to try again would do so until someone reads the logs."""
        log = self.start()
        self.engine.fail_next(StorageError(op="head", why="it has moved on"), silent=2)
        self.failure_after(log.append("events", "w1", [A]), 0.1)

        refused = self.failure_after(log.append("events", "w1", [B]), 0.1)

        self.assertIn("it has moved on", str(refused))
        self.assertFalse(refused.retryable)

    def test_a_log_that_somebody_else_wrote_to_is_let_go_at_the_next_failure(self) -> None:
        """It is neither where this process left it nor where its commit would have led: nobody may number
        facts here any more."""
        log = self.start()
        other = FaultyEngine()
        self.append(self.started(other), "events", "w2", B)
        self.engine.commit(other.facts, [])
        failed = log.append("events", "w1", [A])

        self.clock.pump([0.1] * 30)

        self.assertIn(
            "the append may have been stored", str(self.failureResultOf(failed, StorageError).value)
        )
        self.assertIn("another process writes to this log: it ends at serial 1", log.healthy[1])
        refused = self.failure_after(log.append("events", "w1", [B]), 0.1)
        self.assertIsInstance(refused, LogNotOurs)
        self.assertEqual(1, len(self.engine.facts))

    def test_any_exception_of_the_engine_is_a_storage_error(self) -> None:
        """Callers know one class; and the log survives what nobody thought of."""
        log = self.start()
        self.engine.commit = None  # type: ignore[assignment,method-assign]
        failed = self.failure_after(log.append("events", "w1", [A]), 0.1)
        del self.engine.commit

        self.assertIn("unexpected TypeError", str(failed))
        self.assertEqual(1, self.append(log, "events", "w1", A).first_serial)

    def test_health_tells_the_last_failure_until_a_commit_succeeds(self) -> None:
        """A daemon that cannot write must leave the load balancer, and come back by itself."""
        log = self.start()
        self.assertEqual((True, ""), log.healthy)
        self.engine.fail_next(DISK_FULL)
        self.failure_after(log.append("events", "w1", [A]), 0.1)

        is_healthy, why = log.healthy
        self.assertEqual((False, True), (is_healthy, "the disk is full" in why))
        self.append(log, "events", "w1", A)

        self.assertEqual((True, ""), log.healthy)

    def test_the_age_of_the_head_is_counted_from_the_last_commit(self) -> None:
        """Operators want to see whether anything is written at all."""
        log = self.started(self.engine)
        self.clock.advance(5)
        self.assertEqual(5, log.head_age())

        self.append(log, "events", "w1", A)

        self.assertEqual(0, log.head_age())

    def failure_after(self, append: "Deferred[Any]", seconds: float) -> StorageError:
        self.clock.pump([0.1] * round(seconds / 0.1))
        error = self.failureResultOf(append, StorageError).value
        assert isinstance(error, StorageError)
        return error


class OverloadTests(LogCase):
    """More than the disk can take."""

    def test_a_busy_log_says_so_at_once(self) -> None:
        """Memory is bounded; a client that is told can wait, one that is kept waiting asks twice."""
        log = self.started(FaultyEngine(), delay=lambda: 0.1, max_pending_bytes=2000)
        answers = [log.append("events", "w1", [A]) for _ in range(10)]

        refused = [answer for answer in answers if answer.called]
        errors = [self.failureResultOf(answer, StorageError).value for answer in refused]
        self.clock.pump([0.1] * 3)

        self.assertEqual(4, len(refused))
        self.assertEqual({True}, {error.retryable for error in errors})
        self.assertIn("the log is busy", str(errors[0]))
        self.assertEqual((6, 0), (log.head.serial, log._committer.pending_bytes))
        self.assertEqual(7, self.append(log, "events", "w1", A).first_serial)

    def test_one_append_over_the_bound_goes_through_alone(self) -> None:
        """Refusing it as "busy" would have the client try for ever."""
        log = self.started(FaultyEngine(), max_pending_bytes=10)

        self.assertEqual(1, self.append(log, "events", "w1", A).first_serial)


class EphemeralLogTests(LogCase):
    """Streams that nobody stores, through the log."""

    def test_they_are_answered_at_once_and_never_stored(self) -> None:
        """Typing notifications are not worth a sync of the disk."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)
        seen: list[tuple[int, str, int]] = []
        log.subscribe(lambda facts: seen.extend((fact.serial, fact.digest, fact.token) for fact in facts))

        answer = self.successResultOf(log.append("typing", "w1", [A, B]))

        self.assertEqual(Appended(1, None, [1, 2]), answer)
        self.assertEqual([(0, "", 1), (0, "", 2)], seen)
        self.assertEqual(
            ({"typing": {"w1": 2}}, 2), (log.positions_by_stream(), log.linear_position("typing"))
        )
        self.assertEqual((0, 0), (engine.commits, log.head.serial))

    def test_a_restart_is_visible(self) -> None:
        """Token 1 after token 2 is news, not a repeat: the epoch says so."""
        engine = FaultyEngine()
        log = self.started(engine)
        self.append(log, "typing", "w1", A, B)
        self.wait(log.stop())

        log = self.started(engine)

        self.assertEqual({}, log.positions_by_stream())
        self.assertEqual(Appended(2, None, [1]), self.append(log, "typing", "w1", A))
        self.assertEqual(2, log.boots)

    def test_they_are_read_from_memory_until_forgotten(self) -> None:
        """What every follower has is of no use to anyone."""
        log = self.started(FaultyEngine())
        self.append(log, "typing", "w1", A, B, C)

        page, more = self.wait(
            log.reads.tokens(stream="typing", writer=None, after=1, upto=9, serial=0, limit=1)
        )
        self.assertEqual(([2], True), ([fact.token for fact in page], more))
        log.ephemeral.forget("typing", 2)

        self.assertEqual([3], [fact.token for fact in log.ephemeral.after("typing", 0)])
        self.assertEqual([], log.ephemeral.after("events", 0))

    def test_keys_work_for_them_too(self) -> None:
        """A client need not know which streams are stored."""
        log = self.started(FaultyEngine())
        first = self.append(log, "typing", "w1", A, key="k")

        self.assertEqual(first, self.append(log, "typing", "w1", A, key="k"))
        self.failureResultOf(log.append("typing", "w1", [B], key="k"), KeyReused)
        self.assertEqual(1, log.linear_position("typing"))


class LifeTests(LogCase):
    """Start and stop."""

    def test_stop_finishes_what_is_queued(self) -> None:
        """A planned restart must not fail appends that could be kept."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)
        answers = [log.append("events", "w1", [A]) for _ in range(3)]

        self.wait(log.stop())

        self.assertEqual([1, 2, 3], [self.successResultOf(answer).first_serial for answer in answers])
        self.failureResultOf(log.append("events", "w1", [A]), StorageError)
        self.assertEqual(3, len(engine.facts))
        self.assertEqual([], self.clock.getDelayedCalls())
        self.wait(log.stop())

    def test_flush_waits_for_every_append_before_it(self) -> None:
        """Whoever hands over or looks for leftovers must find all that will be acknowledged."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1, max_batch_bytes=1)
        answers = [log.append("events", "w1", [A]) for _ in range(3)]
        flushed = Deferred.fromCoroutine(log.flush())

        self.clock.pump([0.1] * 2)
        self.assertNoResult(flushed)
        self.clock.pump([0.1] * 2)

        self.assertIsNone(self.successResultOf(flushed))
        self.assertEqual([1, 2, 3], [self.successResultOf(answer).first_serial for answer in answers])
        self.assertEqual(3, log.head.serial)

    def test_flush_waits_for_appends_behind_an_exclusive_write(self) -> None:
        """A replica acknowledges what it flushed: a fact that waited for a trim was not stored yet."""
        log = self.started(FaultyEngine(), delay=lambda: 0.1)
        epoch = Deferred.fromCoroutine(log.epochs.begin_next("lost"))
        answer = log.append("events", "w1", [A])
        flushed = Deferred.fromCoroutine(log.flush())

        self.clock.advance(0.1)
        self.successResultOf(epoch)
        self.assertNoResult(flushed)
        self.clock.advance(0.1)

        self.assertIsNone(self.successResultOf(flushed))
        self.assertEqual(1, self.successResultOf(answer).first_serial)

    def test_appends_without_a_pause_do_not_hold_up_an_exclusive_write(self) -> None:
        """Under load the queue is never empty: a log could neither be trimmed nor handed over."""
        log = self.started(FaultyEngine(), delay=lambda: 0.1)

        def append(_: object = None) -> None:
            log.append("events", "w1", [A]).addCallback(append)

        append()
        epoch = Deferred.fromCoroutine(log.epochs.begin_next("lost"))
        append()
        self.clock.pump([0.1] * 3)

        self.assertEqual(1, self.successResultOf(epoch).serial)
        self.clock.pump([0.1] * 5)
        self.assertGreater(log.head.serial, 5)

    def test_flush_of_a_stopped_log_fails(self) -> None:
        """Nobody may take silence for safety."""
        log = self.started(FaultyEngine())
        self.wait(log.stop())

        self.failureResultOf(Deferred.fromCoroutine(log.flush()), StorageError)

    def test_stop_ends_even_when_nobody_knows_where_the_log_stands(self) -> None:
        """A dead database must not keep a daemon from ending."""
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)
        engine.fail_next(DISK_FULL, silent=1000)
        answers = [log.append("events", "w1", [A]) for _ in range(3)]

        self.wait(log.stop())

        for answer in answers:
            self.failureResultOf(answer, StorageError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_a_log_is_of_one_homeserver(self) -> None:
        """A typo in the configuration must not mix the facts of two of them."""
        engine = FaultyEngine()
        self.wait(self.started(engine).stop())
        # One without a name, as all of earlier releases are, takes the first real one it is given.
        self.wait(self.started(engine, server_name=UNNAMED).stop())
        (setting,) = (setting for setting in settings() if setting.name == "server_name")
        self.assertEqual(UNNAMED, setting.default)
        # While it is empty a wrong name costs nothing, and may be mended.
        for name in ("example.com", UNNAMED, "example.org"):
            named = self.started(engine, server_name=name)
            self.assertEqual(None if name == UNNAMED else name, named.notes.get("server_name"))
            if name == "example.org":
                self.append(named, "events", "w1", A)
            self.wait(named.stop())

        for other in ("other.org", UNNAMED):
            log = self.log(engine, server_name=other)
            error = self.failureResultOf(Deferred.fromCoroutine(log.start()), StorageError).value
            self.assertEqual(
                f"open failed: this log belongs to example.org, not to {other}"
                " (use --server-name example.org, or choose another database)",
                str(error),
            )
            self.failureResultOf(self.thread.run(lambda: None), StorageError)

        log = self.started(engine, server_name="example.org")
        self.append(log, "events", "w1", A)

    def test_a_copy_is_of_the_homeserver_of_the_daemon_that_has_it(self) -> None:
        """After a JOIN, and after a restored snapshot, which both end so."""
        engine = FaultyEngine()
        log = self.started(engine, server_name="example.org")

        async def adopt() -> None:
            await log.copies.adopt(await log.copies.open_staged())

        self.wait(adopt())

        self.assertEqual("example.org", engine.notes.all()["server_name"])

    def test_a_log_that_cannot_be_opened_ends_its_threads(self) -> None:
        """Or the process that wants to end because of it would hang."""
        log = self.log(SQLEngine(SQLiteDatabase(self.directory() / "missing" / "synrepl.db")))

        self.failureResultOf(Deferred.fromCoroutine(log.start()), StorageError)

        self.failureResultOf(self.thread.run(lambda: None), StorageError)
        self.assertEqual((False, "the log is not open"), log.healthy)

    def test_a_read_before_the_start_fails_as_storage_does(self) -> None:
        """Nothing is repeated in the background for it."""
        log = self.log(SQLEngine(SQLiteDatabase(self.directory() / "missing" / "synrepl.db")))

        self.failureResultOf(log.reads.digest(1), StorageError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_an_append_before_the_start_fails(self) -> None:
        """Not with tokens that begin at 1 again."""
        log = self.log(FaultyEngine())

        self.failureResultOf(log.append("events", "w1", [A]), StorageError)
