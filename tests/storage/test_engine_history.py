"""What every engine knows of its history, and keeps beside its facts."""

from typing import TYPE_CHECKING

from synrepl.base.history import BEGINNING, Appended, AppendKey, AppendReceipt, EpochStart, Lease, LogSnapshot
from synrepl.errors import StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition
from tests.resealing import reseal
from tests.storage.builders import LogCase, facts_after
from tests.storage.engines import OverMemory, OverPostgres, OverSQLite, lose

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object


def place(fact: Fact) -> LogPosition:
    """Where a log stands after this fact."""
    return LogPosition(fact.epoch, fact.serial, fact.digest)


def notes_of(engine: SQLEngine) -> dict[str, object]:
    """The notes of a log, but for the one that says that it is open."""
    return {name: text for name, text in engine.notes.all().items() if name != "opened"}


def run(count: int, *, stream: str = "events", after: Fact | None = None, epoch: int = 1) -> list[Fact]:
    """So many facts of one writer."""
    first = after.serial if after else 0
    told = ((stream, f"w{n % 2}", n, n + 1) for n in range(first, first + count))
    return facts_after(after, *told, epoch=epoch)


class Contract(Case):
    """What every engine keeps to."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def opened(self) -> SQLEngine:
        engine = self.again()
        engine.open()
        return engine

    def reopened(self, engine: SQLEngine) -> SQLEngine:
        engine.close()
        return self.opened()

    def all(self, engine: SQLEngine) -> list[Fact]:
        return engine.pages.facts(after=0, upto=10**9, limit=10**9)[0]

    # Notes

    def test_a_log_knows_itself_from_its_first_day(self) -> None:
        """Two copies of one history are told apart by the one, and known for copies by the other."""
        engine = self.opened()
        notes = notes_of(engine)

        self.assertEqual({"uuid", "history"}, set(notes))
        self.assertEqual([36, 36], [len(str(text)) for text in notes.values()])
        self.assertNotEqual(notes["uuid"], notes["history"])
        self.assertEqual(notes, notes_of(self.reopened(engine)))

    def test_notes_are_kept_changed_and_forgotten(self) -> None:
        """Small things that must outlive a restart need no file of their own."""
        engine = self.opened()
        own = notes_of(engine)

        engine.notes.store({"primary": "https://a", "joining": "1", "e": ""})
        engine.notes.store({"primary": "https://b", "joining": None, "never": None})

        self.assertEqual({**own, "primary": "https://b", "e": ""}, notes_of(self.reopened(engine)))

    # Epochs

    def test_epochs_begin_where_the_log_stands(self) -> None:
        """Each in its turn, with what it says of itself; also after a restart."""
        engine = self.opened()
        first = run(3)
        engine.commit(first, [])
        epoch_starts = [EpochStart(2, 3, first[-1].digest, 1000, "promoted")]

        head = engine.begin_epoch(epoch_starts[0])
        self.assertEqual(
            (LogPosition(2, 3, first[-1].digest), epoch_starts), (head.position, list(head.epoch_starts))
        )
        more = run(2, after=first[-1], epoch=2)
        engine.commit(more, [])
        epoch_starts.append(EpochStart(7, 5, more[-1].digest, 2000, "lost", "events", 4))
        engine.begin_epoch(epoch_starts[1])

        head = self.reopened(engine).head()
        self.assertEqual((7, 5, epoch_starts), (head.epoch, head.serial, list(head.epoch_starts)))
        self.assertEqual({("events", "w0"): 4, ("events", "w1"): 4}, head.positions)

    def test_an_epoch_that_does_not_fit_is_refused(self) -> None:
        """It would be a fork of the history, made by mistake."""
        engine = self.opened()
        facts = run(3)
        engine.commit(facts, [])
        engine.begin_epoch(EpochStart(2, 3, facts[-1].digest, 0, "promoted"))

        for epoch, serial, digest in (
            (2, 3, facts[-1].digest),
            (1, 3, facts[-1].digest),
            (3, 2, facts[1].digest),
            (3, 4, facts[-1].digest),
            (3, 3, EMPTY),
        ):
            with self.subTest((epoch, serial)), self.assertRaises(StorageError):
                engine.begin_epoch(EpochStart(epoch, serial, digest, 0, "promoted"))
        with self.assertRaisesRegex(StorageError, "not that of the log's end, serial 3"):
            engine.begin_epoch(EpochStart(3, 3, EMPTY, 0, "promoted"))
        self.assertEqual((2, 1), (engine.head().epoch, len(engine.head().epoch_starts)))

    # Digests and receipts

    def test_the_digest_at_a_place_is_known(self) -> None:
        """So another copy can tell whether its history is this one."""
        engine = self.opened()
        self.assertEqual([EMPTY, None], [engine.digest_at(serial) for serial in (0, 1)])
        facts = run(3)
        engine.commit(facts, [])

        told = [engine.digest_at(serial) for serial in range(5)]

        self.assertEqual([EMPTY, *(fact.digest for fact in facts), None], told)

    def test_receipts_by_where_their_facts_begin(self) -> None:
        """They are shown to copies with the facts they are for."""
        engine = self.opened()
        receipts = [
            AppendReceipt(AppendKey("s", f"k{n}"), "r", Appended(1, n, [n]), 1000 - n) for n in (3, 1, 2)
        ]
        receipts.append(AppendReceipt(AppendKey("s", "none"), "r", Appended(1, None, []), 1))
        engine.commit(run(3), receipts)

        def between(after: int, upto: int) -> list[str]:
            return [receipt.key.text for receipt in engine.receipts.between(after, upto)]

        self.assertEqual(["k1", "k2", "k3"], between(0, 9))
        self.assertEqual(["k2"], between(1, 2))
        self.assertEqual([], between(3, 9))
        self.assertEqual(receipts[1:2], engine.receipts.between(0, 1))

    def test_a_key_that_is_known_keeps_its_first_answer(self) -> None:
        """A copy may be told of it twice."""
        engine = self.opened()
        facts = run(3)
        first, other = (AppendReceipt(AppendKey("s", "k"), "r", Appended(1, n, [n]), 1000) for n in (1, 2))
        engine.commit(facts[:1], [first])

        engine.commit(facts[1:2], [other, AppendReceipt(AppendKey("s", "new"), "r", Appended(1, 2, [2]), 1)])
        engine.commit(
            facts[2:],
            [
                other,
                *(AppendReceipt(AppendKey("s", f"{n}"), "r", Appended(1, 3, [3]), 1) for n in range(300)),
            ],
            upto=place(facts[2]),
        )

        self.assertEqual(first, engine.receipts.get(AppendKey("s", "k")))
        self.assertIsNotNone(engine.receipts.get(AppendKey("s", "new")))
        self.assertEqual(300, len(engine.receipts.between(2, 3)))

    # Another log's facts

    def test_facts_of_another_log_may_have_holes(self) -> None:
        """A copy of some streams has only their facts, and stands where the whole one does."""
        engine = self.opened()
        facts = run(10)
        engine.commit([facts[1], facts[4]], [], upto=place(facts[6]))

        for _ in range(2):
            head = engine.head()
            self.assertEqual(place(facts[6]), head.position)
            self.assertEqual({("events", "w1"): 2, ("events", "w0"): 5}, head.positions)
            self.assertEqual(([facts[1], facts[4]], 7), engine.pages.facts(after=0, upto=99, limit=99))
            self.assertEqual(
                ([], 7), engine.pages.facts(after=5, upto=99, limit=99, filter=Filter.of(streams={"events"}))
            )
            self.assertEqual(
                [None, facts[4].digest, None, facts[6].digest, None],
                [engine.digest_at(serial) for serial in (4, 5, 6, 7, 8)],
            )
            engine = self.reopened(engine)
        engine.commit([], [], upto=place(facts[8]))
        self.assertEqual(place(facts[8]), self.reopened(engine).head().position)

    def test_a_log_with_holes_goes_on_without_them(self) -> None:
        """A copy that was promoted adds facts of its own, chained to the last of the other."""
        engine = self.opened()
        facts = run(1500)
        engine.commit(facts[:2], [], upto=place(facts[9]))

        with self.assertRaises(StorageError):
            engine.commit(facts[2:4], [])
        with self.assertRaises(StorageError):
            engine.commit(facts[11:], [])
        engine.commit(facts[10:12], [])
        engine.commit(facts[12:], [], upto=place(facts[-1]))

        engine = self.reopened(engine)
        self.assertEqual(place(facts[-1]), engine.head().position)
        self.assertEqual(facts[:2] + facts[10:], self.all(engine))

    def test_facts_of_another_log_that_do_not_fit_are_refused(self) -> None:
        """Serials only ever ascend, and none is beyond where the log is to stand."""
        engine = self.opened()
        facts = run(9)
        engine.commit(facts[:2], [], upto=place(facts[4]))

        for told, upto in (
            (facts[3:5], facts[5]),
            ([facts[6], facts[5]], facts[7]),
            ([facts[6], facts[6]], facts[7]),
            (facts[5:8], facts[6]),
        ):
            with self.subTest([fact.serial for fact in told]), self.assertRaises(StorageError):
                engine.commit(told, [], upto=place(upto))
        self.assertEqual(place(facts[4]), engine.head().position)
        self.assertEqual(facts[:2], self.all(engine))

    def test_an_epoch_may_begin_where_nothing_is_kept(self) -> None:
        """The place is what counts."""
        engine = self.opened()
        facts = run(4)
        engine.commit([], [], upto=place(facts[3]))

        engine.begin_epoch(EpochStart(2, 4, facts[3].digest, 0, "promoted"))
        more = run(2, after=facts[3], epoch=2)
        engine.commit(more, [])

        self.assertEqual((2, 6), (self.reopened(engine).head().epoch, more[-1].serial))

    # Reading

    def test_a_reader_of_some_writers_is_given_theirs(self) -> None:
        """Alone, or of some streams; and it learns how far was looked."""
        engine = self.opened()
        facts = facts_after(
            None,
            ("events", "w1", 0, 1),
            ("caches", "w1", 0, 1),
            ("events", "w2", 0, 2),
            ("caches", "w2", 0, 2),
        )
        engine.commit(facts, [])

        for streams, writers, serials in (
            (None, {"w1"}, [1, 2]),
            (None, {"w1", "w2"}, [1, 2, 3, 4]),
            ({"events"}, {"w2"}, [3]),
            ({"events"}, {"w3"}, []),
            ({"events"}, [], []),
            ([], {"w1"}, []),
        ):
            with self.subTest((streams, writers)):
                found, upto = engine.pages.facts(
                    after=0, upto=99, limit=99, filter=Filter.of(streams=streams, writers=writers)
                )
                self.assertEqual((serials, 4), ([fact.serial for fact in found], upto))
        self.assertEqual(
            ([facts[0]], 1), engine.pages.facts(after=0, upto=9, limit=1, filter=Filter.of(writers={"w1"}))
        )

    # Snapshots

    def snapshot_of(self) -> tuple[list[Fact], LogSnapshot]:
        """What a log with a past gives."""
        engine = self.opened()
        facts = run(8)
        engine.commit(facts, [AppendReceipt(AppendKey("s", "k"), "r", Appended(1, 2, [2]), 5)])
        lose(engine, "events", 6)
        snapshot = engine.snapshot()
        engine.close()
        return facts, snapshot

    def test_a_snapshot_tells_what_stands_beside_the_facts(self) -> None:
        """With the facts it makes a whole copy."""
        facts, snapshot = self.snapshot_of()

        self.assertEqual(LogPosition(2, 8, facts[-1].digest), snapshot.position)
        self.assertEqual(BEGINNING, snapshot.trimmed_upto)
        self.assertEqual(
            [(2, 8, "events", 6)], [(t.epoch, t.serial, t.stream, t.token) for t in snapshot.epoch_starts]
        )
        self.assertEqual({("events", "w0"): 6, ("events", "w1"): 6}, snapshot.positions)
        self.assertEqual(["k"], [receipt.key.text for receipt in snapshot.receipts])

    def test_what_is_restored_is_what_the_snapshot_told(self) -> None:
        """Of what the copy thought before, nothing is left."""
        facts, snapshot = self.snapshot_of()
        copy = self.opened_copy()
        copy.commit(
            facts[:1],
            [AppendReceipt(AppendKey("s", "old"), "r", Appended(1, 1, [1]), 5)],
            upto=place(facts[0]),
        )
        copy.commit(facts[4:], [], upto=snapshot.position)
        copy.notes.store({"filter": "me"})

        head = copy.restore(snapshot)

        for _ in range(2):
            self.assertEqual(snapshot.position, head.position)
            self.assertEqual(
                (snapshot.trimmed_upto, list(snapshot.epoch_starts), snapshot.positions),
                (head.trimmed_upto, list(head.epoch_starts), head.positions),
            )
            self.assertEqual({"events": 6}, head.allocated)
            self.assertEqual(
                [None, snapshot.receipts[0]], [copy.receipts.get(AppendKey("s", key)) for key in ("old", "k")]
            )
            self.assertEqual("me", copy.notes.all()["filter"])
            tokens, _ = copy.pages.tokens(stream="events", writer=None, after=4, upto=9, serial=99, limit=99)
            self.assertEqual([5, 6], [fact.token for fact in tokens])
            self.assertEqual([facts[0], *facts[4:]], self.all(copy))
            self.assertEqual(snapshot, copy.snapshot())
            copy.close()
            head = copy.open()
        more = run(2, after=facts[-1], epoch=2)
        copy.commit(more, [])
        self.assertEqual(10, copy.head().serial)

    def test_a_snapshot_may_begin_later_and_stand_further(self) -> None:
        """Where nothing of the last part was wanted, no fact is there to stand at."""
        facts = run(30)
        snapshot = LogSnapshot(
            position=place(facts[19]),
            trimmed_upto=place(facts[9]),
            epoch_starts=[],
            positions={Writer("s", "w"): 4},
            receipts=[],
        )
        copy = self.opened_copy()
        copy.commit([facts[2], facts[7]], [], upto=place(facts[9]))
        copy.commit(facts[10:15], [], upto=place(facts[14]))

        self.assertEqual(
            (snapshot.position, snapshot.trimmed_upto),
            (copy.restore(snapshot).position, copy.head().trimmed_upto),
        )
        copy.close()
        head = copy.open()

        self.assertEqual((snapshot.position, snapshot.trimmed_upto), (head.position, head.trimmed_upto))
        self.assertEqual(facts[9].digest, copy.digest_at(10))
        copy.commit(facts[20:], [])
        self.assertEqual(30, copy.head().serial)

    def opened_copy(self) -> SQLEngine:
        """Another log."""
        engine = self.opened()
        copy = engine.staging()
        copy.open()
        self.addCleanup(copy.close)
        return copy

    # Sizes

    def test_the_size_of_what_is_beyond_a_serial(self) -> None:
        """Nearly right is right enough, to know what a reader holds back."""
        engine = self.opened()
        engine.commit(run(3000), [])

        whole, half = engine.pages.size(0), engine.pages.size(1500)

        self.assertTrue(3000 * 100 < whole < 3000 * 600, whole)
        self.assertTrue(0.4 < half / whole < 0.6, half)
        self.assertTrue(100 < engine.pages.size(2999) < 600)
        self.assertEqual([0, 0], [engine.pages.size(3000), engine.pages.size(9999)])

    # Leases

    def test_leases_are_kept_changed_and_dropped(self) -> None:
        """A reader's right to what it has not read outlives a restart."""
        engine = self.opened()
        first = Lease(uuid="b", name="spark", registered=False, serial=5, made_ms=1)
        second = Lease(
            uuid="a",
            name="copy",
            registered=True,
            serial=9,
            made_ms=1,
            seen_ms=2,
            address="- http://c",
            ended_ms=3,
            reason="too slow",
        )
        third = Lease(uuid="c", name="", registered=True, serial=0, made_ms=0, seen_ms=0, ended_ms=0)
        self.assertEqual([], engine.leases.all())

        engine.leases.store([first, second, third])
        self.assertEqual([second, first, third], engine.leases.all())
        later = Lease(uuid="b", name="spark", registered=False, serial=8, made_ms=1, seen_ms=7)
        engine.leases.store([later], ["a", "never"])

        self.assertEqual([later, third], self.reopened(engine).leases.all())

    def test_nothing_works_on_a_closed_log(self) -> None:
        """It fails by name, not by an attribute error somewhere inside."""
        engine = self.opened()
        engine.close()

        for use in (
            lambda: engine.begin_epoch(EpochStart(2, 0, EMPTY, 0, "promoted")),
            lambda: engine.digest_at(0),
            lambda: engine.receipts.between(0, 1),
            engine.snapshot,
            lambda: engine.pages.size(0),
            lambda: engine.trim(0, lambda stream, rows: None, 1),
            engine.notes.all,
            lambda: engine.notes.store({}),
            engine.leases.all,
            lambda: engine.leases.store([]),
            engine.adopt_staged,
        ):
            with self.assertRaises(StorageError):
                use()


class SQLContract(Contract):
    """What those with a database see to besides."""

    def test_a_snapshot_of_less_is_refused(self) -> None:
        """Positions of an earlier place beside later facts would give tokens twice."""
        facts, snapshot = self.snapshot_of()
        copy = self.opened_copy()
        copy.commit(facts, [])
        copy.commit(run(1, after=facts[-1]), [])
        before = copy.head()

        with self.assertRaises(StorageError):
            copy.restore(snapshot)
        self.assertEqual(before, copy.head())

    def test_facts_of_another_log_are_checked_where_nothing_is_missing(self) -> None:
        """What a copy has without holes is as good as any log: damage at its end is found."""
        engine = self.again()
        engine.open()
        facts = run(20)
        engine.commit(facts[:2], [], upto=place(facts[4]))
        engine.commit(facts[5:], [], upto=place(facts[-1]))
        engine.database.writer("test").execute("UPDATE facts SET digest = 'x' WHERE serial = 12")
        reseal(engine.database.writer("test").execute)
        engine.close()

        with self.assertRaises(StorageError) as caught:
            self.again().open()

        self.assertIn("the digest of serial 12 does not follow", str(caught.exception))
        self.assertIsNone(verify(facts, EMPTY))

    def test_a_place_whose_outcome_is_unknown_is_looked_up(self) -> None:
        """What memory holds of it must not outlive a transaction that failed."""
        engine = self.again()
        engine.open()
        facts = run(9)
        real = engine.receipts.add

        def fail(*args: object) -> None:
            raise StorageError(op="commit", why="told to")

        engine.receipts.add = fail  # type: ignore[method-assign, assignment]
        with self.assertRaises(StorageError):
            engine.commit(
                [], [AppendReceipt(AppendKey("s", "k"), "r", Appended(1, 1, [1]), 1)], upto=place(facts[4])
            )
        engine.receipts.add = real  # type: ignore[method-assign]

        engine.commit(facts[:2], [])
        self.assertEqual(2, engine.head().serial)


class MemoryTests(OverMemory, Contract):
    """The engine of tests and simulator."""


class SQLiteTests(OverSQLite, SQLContract):
    """The embedded default."""


class PostgresTests(OverPostgres, SQLContract):
    """For who has one already."""
