"""Every engine lets go of what was replaced, and of nothing else."""

import sqlite3
from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synrepl.base.history import BEGINNING, Appended, AppendKey, AppendReceipt
from synrepl.errors import StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.storage.schema import migrate, migrations
from synrepl.streams.atomic_appends import opening_rows
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition
from tests.storage.builders import LogCase
from tests.storage.engines import OverMemory, OverPostgres, OverSQLite, fact_after, lose

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object

Told = tuple[str, list[int]]
"""A stream, and the key of each row."""

STREAMS = ("devices", "tags", "events")
"""The last one's rows have no keys."""


def keys_of(stream: str, rows: bytes) -> list[bytes] | None:
    """The first field of each row."""
    if stream == "events":
        return None
    return [str(row[0]).encode() for row in msgspec.json.decode(rows, type=list[list[int]])]


def made(told: list[Told], *, after: list[Fact] | None = None, epoch: int = 1) -> list[Fact]:
    """Facts with these keys."""
    facts = list(after or ())
    for stream, keys in told:
        last = facts[-1] if facts else None
        serial = last.serial + 1 if last else 1
        rows = msgspec.json.encode([[key, serial] for key in keys])
        facts.append(fact_after(last, stream, serial, rows, epoch=epoch))
    return facts[len(after or ()) :]


def place(fact: Fact) -> LogPosition:
    """Where a log stands after this fact."""
    return LogPosition(fact.epoch, fact.serial, fact.digest)


def left(facts: list[Fact], trimmed_upto: int) -> list[int]:
    """The serials that trimming up to `begin` leaves, told in the plainest way."""
    kept = []
    for fact in facts:
        keys = None if fact.rows == NO_ROWS else keys_of(fact.stream, fact.rows)
        later = [
            key
            for other in facts
            if fact.serial < other.serial <= trimmed_upto and other.stream == fact.stream
            for key in keys_of(other.stream, other.rows) or ()
        ]
        if fact.serial > trimmed_upto or any(key not in later for key in keys or ()):
            kept.append(fact.serial)
    return kept


class Contract(Case):
    """What every engine keeps to."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def opened(self) -> SQLEngine:
        engine = self.again()
        engine.open()
        return engine

    def filled(self, *told: Told) -> tuple[SQLEngine, list[Fact]]:
        engine, facts = self.opened(), made(list(told))
        engine.commit(facts, [])
        return engine, facts

    def serials(self, engine: SQLEngine) -> list[int]:
        return [fact.serial for fact in engine.pages.facts(after=0, upto=10**9, limit=10**9)[0]]

    def trim(self, engine: SQLEngine, upto: int, limit: int = 100) -> None:
        """Slice by slice, to the end."""
        trimmed_upto, last = engine.trim(upto, keys_of, limit), None
        while trimmed_upto != last:
            trimmed_upto, last = engine.trim(upto, keys_of, limit), trimmed_upto
        self.assertEqual(trimmed_upto, engine.head().trimmed_upto)

    def test_the_newest_fact_of_each_key_stays(self) -> None:
        """That is all that anyone needs who was not there."""
        for told, upto, serials in (
            ([("devices", [1]), ("devices", [2]), ("devices", [1]), ("devices", [1])], 3, [2, 3, 4]),
            # Another stream's keys are others.
            ([("devices", [1]), ("tags", [1]), ("tags", [1])], 3, [1, 3]),
            # A fact is whole, and stays for one of its rows.
            ([("devices", [1, 2, 3]), ("devices", [1]), ("devices", [3])], 3, [1, 2, 3]),
            ([("devices", [1, 2]), ("devices", [1]), ("devices", [2])], 3, [2, 3]),
            ([("devices", [1, 1]), ("devices", [2, 2])], 2, [1, 2]),
            # Nothing replaces what has no keys; what says nothing is needed by nobody.
            ([("events", [1]), ("events", [2]), ("devices", [1])], 2, [3]),
            ([("devices", []), ("devices", [1]), ("devices", [])], 3, [2]),
            ([("events", [1]), ("events", [2])], 2, []),
            # What comes later does not count yet.
            ([("devices", [1]), ("devices", [1])], 1, [1, 2]),
            ([("devices", [1]), ("devices", [1])], 0, [1, 2]),
        ):
            for limit in (1, 2, 100):
                with self.subTest((told, upto, limit)):
                    self.setUp()
                    engine, facts = self.filled(*told)
                    self.trim(engine, upto, limit)
                    self.assertEqual(serials, self.serials(engine))
                    self.assertEqual(left(facts, upto), serials)
                    self.assertEqual(
                        place(facts[upto - 1]) if upto else BEGINNING, engine.head().trimmed_upto
                    )
                    engine.close()

    def test_an_atomic_append_is_trimmed_whole(self) -> None:
        """A reader that begins where the log does has no part of one."""
        for upto, limit, expected in ((3, 9, 1), (5, 9, 5), (4, 1, 1), (6, 2, 6), (6, 3, 6), (5, 2, 5)):
            with self.subTest((upto, limit)):
                self.setUp()
                engine = self.opened()
                facts = made([("events", [1])])
                facts.append(fact_after(facts[-1], "atomic_appends", 1, opening_rows(3)))
                engine.commit([*facts, *made([("events", [2])] * 4, after=facts)], [])
                slices = [0]
                while (at := engine.trim(upto, keys_of, limit).serial) != slices[-1]:
                    slices.append(at)
                self.assertEqual(expected, at)
                self.assertFalse({2, 3, 4} & set(slices))
                engine.close()

    def test_a_slice_is_no_longer_than_asked_for(self) -> None:
        """Appends wait for it."""
        engine, facts = self.filled(*[("events", [n]) for n in range(10)])

        begins = [engine.trim(7, keys_of, 3) for _ in range(4)]

        self.assertEqual([place(facts[n - 1]) for n in (3, 6, 7, 7)], begins)
        self.assertEqual([8, 9, 10], self.serials(engine))

    def test_a_log_that_was_trimmed_whole_goes_on(self) -> None:
        """It still stands where it stood, also after a restart."""
        engine, facts = self.filled(*[("events", [n]) for n in range(5)])
        receipt = AppendReceipt(AppendKey("s", "k"), "r", Appended(1, 4, [4]), 1)
        engine.commit([], [receipt])
        before = engine.head()

        self.trim(engine, 99)

        for _ in range(2):
            head = engine.head()
            self.assertEqual((before.position, before.position), (head.position, head.trimmed_upto))
            self.assertEqual((before.positions, before.allocated), (head.positions, head.allocated))
            self.assertEqual(([], 5), engine.pages.facts(after=0, upto=9, limit=9))
            self.assertEqual(
                [None, None, facts[4].digest, None], [engine.digest_at(serial) for serial in (0, 4, 5, 6)]
            )
            self.assertEqual([receipt], engine.receipts.between(0, 9))
            self.assertEqual(0, engine.pages.size(5))
            engine.close()
            engine = self.opened()
        more = made([("events", [1]), ("devices", [1])], after=facts)
        engine.commit(more, [])
        with self.assertRaises(StorageError):
            engine.commit(facts[:1], [])
        engine.close()
        head = self.opened().head()
        self.assertEqual((7, before.position), (head.serial, head.trimmed_upto))

    def test_what_was_trimmed_is_in_no_answer(self) -> None:
        """By serial, by token, by what is held; where something is kept, its digest is known."""
        engine, facts = self.filled(("devices", [1]), ("devices", [2]), ("devices", [1]), ("devices", [3]))
        self.trim(engine, 3)

        self.assertEqual(
            (facts[1:], 4),
            engine.pages.facts(after=0, upto=9, limit=9, filter=Filter.of(streams={"devices"})),
        )
        found, more = engine.pages.tokens(stream="devices", writer=None, after=0, upto=9, serial=9, limit=9)
        self.assertEqual((facts[1:], False), (found, more))
        self.assertEqual(
            [[], [("w1", facts[1].rows)]], [engine.rows_at_token("devices", token) for token in (1, 2)]
        )
        self.assertEqual(
            [None, facts[1].digest, facts[2].digest, facts[3].digest],
            [engine.digest_at(serial) for serial in (1, 2, 3, 4)],
        )
        self.assertEqual(facts[2].serial, engine.snapshot().trimmed_upto.serial)

    def test_lost_history_replaces_nothing_and_goes(self) -> None:
        """What was true before it is true again; were it gone, nobody could learn it any more."""
        engine, facts = self.filled(("devices", [1]), ("devices", [2]), ("devices", [1]), ("devices", [3]))
        lose(engine, "devices", 2)
        more = made([("devices", [3])], after=facts, epoch=2)
        engine.commit(more, [])

        self.trim(engine, 99)

        self.assertEqual([1, 2, 5], self.serials(engine))
        found, _ = engine.pages.tokens(stream="devices", writer=None, after=0, upto=9, serial=9, limit=9)
        self.assertEqual([*facts[:2], *more], found)

    def test_a_copy_learns_the_keys_of_what_it_began_with(self) -> None:
        """Nobody told it which fact of its base has which key; what is replaced goes all the same."""
        engine, facts = self.filled(*[("devices", [n % 5]) for n in range(20)])
        self.trim(engine, 10)
        snapshot, kept = engine.snapshot(), self.serials(engine)
        copy = engine.staging()
        copy.open()
        self.addCleanup(copy.close)
        chosen = {fact.serial: fact for fact in facts if fact.serial in kept}
        copy.commit([chosen[n] for n in kept if n <= 10], [], upto=snapshot.trimmed_upto)
        copy.commit([chosen[n] for n in kept if n > 10], [], upto=snapshot.position)
        copy.restore(snapshot)
        self.assertEqual(kept, self.serials(copy))

        copy.trim(11, keys_of, 1)
        self.assertEqual(kept[-9:], self.serials(copy)[-9:])
        for upto in (12, 14, 17):
            for _ in range(6):
                self.trim(copy, upto, 2)
            self.assertEqual(left(facts, upto), self.serials(copy))
        copy.close()
        self.assertEqual((20, 17), (copy.open().serial, copy.head().trimmed_upto.serial))

    def test_a_copy_that_learns_late_keeps_the_newest(self) -> None:
        """Keys of its base are learned after those of newer facts, which must not make way for it."""
        engine, facts = self.filled(*[("devices", [n % 5]) for n in range(10)])
        facts += made([("devices", [4 - n]) for n in range(5)], after=facts)
        engine.commit(facts[10:], [])
        self.trim(engine, 10)
        snapshot, kept = engine.snapshot(), self.serials(engine)
        copy = engine.staging()
        copy.open()
        self.addCleanup(copy.close)
        copy.commit([facts[n - 1] for n in kept if n <= 10], [], upto=snapshot.trimmed_upto)
        copy.commit([facts[n - 1] for n in kept if n > 10], [], upto=snapshot.position)
        copy.restore(snapshot)

        for _ in range(12):
            copy.trim(15, keys_of, 1)

        self.assertEqual([11, 12, 13, 14, 15], self.serials(copy))

    def test_a_log_with_holes_is_trimmed_up_to_a_place_it_knows(self) -> None:
        """Its beginning has a digest, whatever happens."""
        facts = made([("devices", [n % 2]) for n in range(12)])
        engine = self.opened()
        engine.commit([facts[1], facts[3]], [], upto=place(facts[7]))
        engine.commit(facts[8:], [])

        self.trim(engine, 6)
        self.assertEqual(place(facts[3]), engine.head().trimmed_upto)
        self.trim(engine, 10)
        self.assertEqual(place(facts[9]), engine.head().trimmed_upto)
        self.assertEqual([9, 10, 11, 12], self.serials(engine))
        engine.close()
        self.assertEqual(place(facts[9]), self.opened().head().trimmed_upto)

    def test_a_log_that_was_trimmed_by_a_coarser_key_keeps_all_of_the_finer_ones(self) -> None:
        """A later release tells rows apart that were one: what is left of the old key stays as well."""
        engine, facts = self.filled(*[("devices", [n]) for n in (2, 4, 1, 3, 1, 3, 2, 4)])

        def coarse(stream: str, rows: bytes) -> list[bytes]:
            return [str(row[0] % 2).encode() for row in msgspec.json.decode(rows, type=list[list[int]])]

        engine.trim(4, coarse, 100)
        self.assertEqual([2, 4, 5, 6, 7, 8], self.serials(engine))
        engine.close()
        engine = self.opened()
        self.addCleanup(engine.close)
        self.trim(engine, 6, 1)
        self.assertEqual([2, 4, 5, 6, 7, 8], self.serials(engine))
        engine.commit(made([("devices", [1])], after=facts), [])
        self.trim(engine, 9)
        self.assertEqual([2, 4, 6, 7, 8, 9], self.serials(engine))

    def test_keys_that_cannot_be_told_leave_everything_as_it_is(self) -> None:
        """A slice is done whole or not at all."""
        engine, _ = self.filled(*[("devices", [1]) for n in range(4)])

        def fail(stream: str, rows: bytes) -> list[bytes]:
            raise ValueError

        with self.assertRaises(ValueError):
            engine.trim(4, fail, 9)
        self.assertEqual(([1, 2, 3, 4], BEGINNING), (self.serials(engine), engine.head().trimmed_upto))

    # Each step: facts to commit, or how far to trim and in slices of how many.
    STEPS = st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.sampled_from(STREAMS), st.lists(st.integers(0, 4), max_size=3)),
                min_size=1,
                max_size=8,
            ),
            st.tuples(st.integers(0, 12), st.integers(1, 6)),
        ),
        max_size=20,
    )

    EXAMPLES = settings().max_examples

    def test_any_log_keeps_the_newest_of_each_key_and_all_beyond_its_beginning(self) -> None:
        """Whatever was committed and trimmed, in whatever order and slices, with restarts between."""

        @settings(max_examples=self.EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(self.STEPS)
        def check(steps: list[list[Told] | tuple[int, int]]) -> None:
            self.setUp()
            engine = self.opened()
            facts: list[Fact] = []
            trimmed_upto = 0
            for step in steps:
                if isinstance(step, list):
                    fresh = made(step, after=facts)
                    engine.commit(fresh, [])
                    facts += fresh
                else:
                    back, limit = step
                    upto = max(0, len(facts) - back)
                    self.trim(engine, upto, limit)
                    trimmed_upto = max(trimmed_upto, upto)
                self.assertEqual(left(facts, trimmed_upto), self.serials(engine))
                self.assertEqual(trimmed_upto, engine.head().trimmed_upto.serial)
            engine.close()
            head = self.opened().head()
            self.assertEqual((len(facts), trimmed_upto), (head.serial, head.trimmed_upto.serial))
            engine.close()
            self.doCleanups()

        check()


class MemoryTests(OverMemory, Contract):
    """The engine of tests and simulator."""


class PostgresTests(OverPostgres, Contract):
    """For who has one already."""

    EXAMPLES = 10

    def test_a_connection_lost_after_trimming_is_made_again(self) -> None:
        """The fact that was committed last is not there any more, and that is right so."""
        engine, _ = self.filled(*[("events", [n]) for n in range(5)])
        assert isinstance(engine, SQLEngine)
        steps = (
            lambda: self.trim(engine, 5),
            lambda: engine.commit([], [], upto=LogPosition(1, 9, "told")),
            lambda: lose(engine, "events", 3),
        )
        for step in steps:
            step()
            engine.database.writer("test").close()
            before = engine.database.ownership.committed
            self.assertEqual(before, (engine.head().serial, engine.head().digest))


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    EXAMPLES = 30

    def bulk(self, engine: SQLEngine) -> int:
        """Many facts, of which almost none is needed; how big the file is then."""
        engine.commit(made([("events", [*range(200)]) for _ in range(4000)]), [])
        return self.size(engine)

    def size(self, engine: SQLEngine) -> int:
        engine.database.writer("test").execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self.path.stat().st_size

    def test_the_disk_gets_back_what_is_trimmed(self) -> None:
        """This is why one trims."""
        engine = self.again()
        engine.open()
        before = self.bulk(engine)

        self.trim(engine, 3990, 500)

        self.assertLess(self.size(engine), before / 10)

    def test_a_file_without_auto_vacuum_uses_the_room_again(self) -> None:
        """It has no way to shrink bit by bit, but need not grow either."""
        with sqlite3.connect(self.path) as database:
            migrate(database.execute, (), migrations("sqlite"), "")
        database.close()
        engine = self.again()
        engine.open()
        before = self.bulk(engine)
        self.trim(engine, 4000, 500)
        facts = made([("events", [*range(200)]) for _ in range(8000)])
        engine.commit(facts[4000:], [])

        self.assertLess(self.size(engine), before * 1.3)
