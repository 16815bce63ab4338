"""A log that follows another one, and becomes a copy of it."""

from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from synrepl.base.history import BEGINNING, Appended, AppendKey, AppendReceipt, EpochStart
from synrepl.errors import StorageError
from synrepl.storage.log import Log
from synrepl.storage.staged_copy import HistoryMismatch
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.memory_engine import FaultyEngine
from tests.storage.builders import DISK_FULL, LogCase, facts_after, rows

FACTS = facts_after(None, *(("events", "w", token - 1, token) for token in range(1, 7)))
RECEIPT = AppendReceipt(AppendKey("s", "key"), "asked", Appended(1, 1, [1, 2, 3]), 5)


def place(fact: Fact) -> LogPosition:
    return LogPosition(fact.epoch, fact.serial, fact.digest)


class FollowingTests(LogCase):
    """Over an engine that can fail at will."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = FaultyEngine()
        self.copy = self.slow_log()

    def slow_log(self) -> Log:
        log = self.log(self.engine, delay=lambda: 0.01)
        started = Deferred.fromCoroutine(log.start())
        self.pass_()
        self.successResultOf(started)
        return log

    def pass_(self) -> None:
        self.clock.pump([0.01] * 20)

    def follow(self, *arguments: Any, **options: Any) -> "Deferred[None]":
        return Deferred.fromCoroutine(self.copy.copies.follow(*arguments, **options))

    def test_facts_are_taken_as_they_are(self) -> None:
        """Serials, digests, and who got which answer."""
        shown: list[Fact] = []
        self.copy.subscribe(shown.extend)
        following = self.follow(FACTS[:3], [RECEIPT])
        self.pass_()

        self.successResultOf(following)
        self.assertEqual((place(FACTS[2]), FACTS[:3]), (self.copy.position, shown))
        self.assertEqual({"w": 3}, self.copy.positions("events"))
        self.assertEqual(RECEIPT, self.engine.receipts.get(AppendKey("s", "key")))

    def test_facts_that_are_followed_make_the_head_young(self) -> None:
        """A replica of a replica that is at a busy head is live, not idle."""
        self.clock.advance(100)
        following = self.follow(FACTS[:3])
        self.pass_()

        self.successResultOf(following)
        self.assertLess(self.copy.head_age(), 1)

    def test_a_fact_that_does_not_follow_is_not_taken(self) -> None:
        """One is missing, or one was changed."""
        for facts in (FACTS[1:2], [FACTS[0], FACTS[2]]):
            following = self.follow(facts)
            self.pass_()
            self.failureResultOf(following, HistoryMismatch)
        self.assertEqual((BEGINNING, []), (self.copy.position, self.engine.facts))

    def test_an_append_comes_after_what_is_followed(self) -> None:
        """One at a time changes the log."""
        following = self.follow(FACTS[:3])
        appended = self.copy.append("events", "w", [rows("mine")])
        self.pass_()

        self.successResultOf(following)
        self.assertEqual(4, self.successResultOf(appended).first_serial)

    def test_cancelled_it_still_knows_where_it_stands(self) -> None:
        """A replica that is promoted stops following in the middle of a commit."""
        following = self.follow(FACTS[:3])
        following.cancel()
        self.failureResultOf(following, CancelledError)
        turning = Deferred.fromCoroutine(self.copy.epochs.begin_next("promoted"))
        self.pass_()

        self.assertEqual(3, self.successResultOf(turning).serial)
        self.assertEqual(self.engine.head().position, self.copy.position)

    def test_what_was_cancelled_before_its_turn_never_happens(self) -> None:
        """Facts of the old epoch must not come after the new one began."""
        first = self.follow(FACTS[:3])
        second = self.follow(FACTS[3:])
        turning = Deferred.fromCoroutine(self.copy.epochs.begin_next("promoted"))
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.pass_()

        self.successResultOf(first)
        self.assertEqual(3, self.successResultOf(turning).serial)
        self.assertEqual(FACTS[:3], self.engine.facts)

    def test_kept_although_nobody_could_say_so(self) -> None:
        """The next one asks first, and shows what was kept."""
        shown: list[Fact] = []
        self.copy.subscribe(shown.extend)
        self.engine.fail_next(DISK_FULL, kept=True)
        following = self.follow(FACTS[:3])
        self.pass_()
        self.failureResultOf(following, StorageError)
        following = self.follow(FACTS[3:])
        self.pass_()

        self.successResultOf(following)
        self.assertEqual((FACTS, place(FACTS[-1])), (shown, self.copy.position))

    def test_kept_and_said_to_be_so_at_once(self) -> None:
        """A failure that is none."""
        self.engine.fail_next(DISK_FULL, kept=True, silent=0)
        following = self.follow(FACTS[:3])
        self.pass_()

        self.successResultOf(following)
        self.assertEqual(place(FACTS[2]), self.copy.position)

    def test_not_kept_it_can_be_followed_again(self) -> None:
        """A full disk was made empty."""
        for silent in (0, 1):
            self.engine.fail_next(DISK_FULL, silent=silent)
            following = self.follow(FACTS[:3])
            self.pass_()
            self.failureResultOf(following, StorageError)
        following = self.follow(FACTS)
        self.pass_()

        self.successResultOf(following)
        self.assertEqual(place(FACTS[-1]), self.copy.position)

    def test_some_facts_and_where_all_of_them_end(self) -> None:
        """A copy of some streams stands where the log does."""
        following = self.follow(FACTS[1:2], upto=place(FACTS[3]))
        self.pass_()

        self.successResultOf(following)
        self.assertEqual(place(FACTS[3]), self.copy.position)

    def test_an_epoch_begins_as_it_did_there(self) -> None:
        """And not twice."""
        epoch_start = EpochStart(2, 0, "0" * 64, 5, "promoted")
        told: list[int] = []
        self.copy.epochs.on_started(lambda: told.append(self.copy.head.epoch))
        turning = Deferred.fromCoroutine(self.copy.epochs.begin(epoch_start))
        self.pass_()
        self.successResultOf(turning)
        again = Deferred.fromCoroutine(self.copy.epochs.begin(epoch_start))
        self.pass_()

        self.failureResultOf(again, StorageError)
        self.assertEqual(([2], [epoch_start]), (told, list(self.copy.head.epoch_starts)))

    def test_a_copy_that_nobody_waits_for_is_closed_again(self) -> None:
        """Or the next attempt would find it open."""
        opening = Deferred.fromCoroutine(self.copy.copies.open_staged())
        opening.cancel()
        self.pass_()
        self.failureResultOf(opening, CancelledError)
        again = Deferred.fromCoroutine(self.copy.copies.open_staged())
        self.pass_()

        self.assertEqual(0, self.successResultOf(again).position.serial)

    def test_a_snapshot_may_lack_facts_only_if_it_is_filtered(self) -> None:
        """A snapshot of all facts is verified by their digests. Its facts are not added if one is missing."""
        opening = Deferred.fromCoroutine(self.copy.copies.open_staged())
        self.pass_()
        staged = self.successResultOf(opening)
        facts = [FACTS[0], FACTS[2]]
        adding = Deferred.fromCoroutine(staged.add(facts, place(FACTS[2]), trimmed_upto=BEGINNING))
        self.pass_()
        self.failureResultOf(adding, HistoryMismatch)
        self.assertEqual(BEGINNING, staged.position)

        adding = Deferred.fromCoroutine(staged.add(facts, place(FACTS[2]), trimmed_upto=None))
        self.pass_()

        self.successResultOf(adding)
        self.assertEqual(place(FACTS[2]), staged.position)

    def test_a_deleted_note_is_gone(self) -> None:
        """In memory as on the disk."""
        opening = Deferred.fromCoroutine(self.copy.copies.open_staged())
        self.pass_()
        staged = self.successResultOf(opening)
        for text in ("x", None):
            noting = Deferred.fromCoroutine(staged.note(joining=text))
            self.pass_()
            self.successResultOf(noting)

            self.assertEqual(text, staged.notes.get("joining"))

    def test_adopting_goes_on_to_its_end(self) -> None:
        """Cancelled in the middle, it stands either before or after."""
        replaced: list[int] = []
        self.copy.copies.on_replaced(lambda: replaced.append(self.copy.head.serial))
        opening = Deferred.fromCoroutine(self.copy.copies.open_staged())
        self.pass_()
        staged = self.successResultOf(opening)
        adding = Deferred.fromCoroutine(staged.add(FACTS, place(FACTS[-1]), trimmed_upto=BEGINNING))
        self.pass_()
        self.successResultOf(adding)
        uuid = self.copy.uuid
        adopting = Deferred.fromCoroutine(self.copy.copies.adopt(staged))
        self.clock.advance(0.01)
        adopting.cancel()
        self.failureResultOf(adopting, CancelledError)
        self.pass_()

        self.assertEqual(([6], place(FACTS[-1]), uuid), (replaced, self.copy.position, self.copy.uuid))
