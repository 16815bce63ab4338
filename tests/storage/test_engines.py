"""The contract of every engine, and what only SQLite can do wrong; PostgreSQL's own is in test_postgres."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from synrepl.base.history import Appended, AppendKey, AppendReceipt, Lease, LogRange
from synrepl.errors import StorageError
from synrepl.storage import fact_pages
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.engine import SQLEngine
from synrepl.storage.schema import VERSION
from synrepl.streams.atomic_appends import opening_rows
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact, decode_facts, encode_facts
from synrepl.streams.writer import Writer
from synrepl.wire.filter import ALL, Filter
from tests.resealing import reseal
from tests.storage.builders import NOW, LogCase, facts_after, tokens
from tests.storage.engines import OverMemory, OverPostgres, OverSQLite, fact_after, lose

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object


class Contract(Case):
    """What every engine keeps to. `again` gives the engine of the next process over the same storage."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def test_a_new_log_is_empty(self) -> None:
        """Everything counts from here: serial 0, the digest of nothing, the first start."""
        head = self.again().open()

        self.assertEqual((1, 0, EMPTY, 1), (head.epoch, head.serial, head.digest, head.boots))
        self.assertEqual(({}, {}), (dict(head.positions), dict(head.allocated)))

    def test_what_is_committed_is_there_after_a_restart(self) -> None:
        """This is what a log is for."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("events", "w1", 0, 1), ("events", "w2", 0, 2), ("caches", "w1", 0, 1))

        engine.commit(facts, [])
        engine.close()
        engine = self.again()
        head = engine.open()

        self.assertEqual((3, facts[-1].digest, 2), (head.serial, head.digest, head.boots))
        self.assertEqual(
            {("events", "w1"): 1, ("events", "w2"): 2, ("caches", "w1"): 1}, dict(head.positions)
        )
        self.assertEqual({"events": 2, "caches": 1}, dict(head.allocated))
        self.assertEqual((facts, 3), engine.pages.facts(after=0, upto=99, limit=99))

    def test_facts_as_text_are_the_same_facts(self) -> None:
        """Field by field, however odd the names: what is read by the million is built from this."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("events", "w\u00e4%s\U0001f4a7", 0, 1),
            ("caches", "w,1", 0, 2**62),
            ("events", '\\w"2/\\', -3, 7),
        )
        engine.commit(facts, [])
        expected = [
            (str(field) if not isinstance(field, bytes) else field.decode())
            for fact in facts
            for field in astuple(fact)
        ]

        text, looked = engine.pages.text(after=0, upto=99, limit=99, form="fields")
        lines, looked_for_lines = engine.pages.text(after=0, upto=99, limit=99)

        self.assertEqual((expected, 3), (text.decode()[:-1].replace("\n", "\x1f").split("\x1f"), looked))
        self.assertEqual((encode_facts(facts), 3), (lines, looked_for_lines))
        for after, upto, streams, limit, serials, reached in (
            (0, 99, None, 2, [1, 2], 2),
            (1, 2, None, 9, [2], 2),
            (0, 99, {"events"}, 9, [1, 3], 3),
            (0, 99, {"events"}, 1, [1], 1),
            (0, 99, [], 9, [], 3),
            (3, 99, None, 9, [], 3),
        ):
            text, looked = engine.pages.text(
                after=after, upto=upto, limit=limit, filter=Filter.of(streams=streams)
            )
            self.assertEqual((serials, reached), ([fact.serial for fact in decode_facts(text)], looked))

    def test_an_extent_is_what_reading_would_give(self) -> None:
        """How much, how far, and how far each writer is in it."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("events", "w1", 0, 5),
            ("caches", "w1", 0, 2),
            ("events", "w2", 0, 7),
            ("events", "w1", 5, 9),
        )
        engine.commit(facts, [])
        size = len(facts[0].rows)

        whole = engine.pages.extent(after=0, upto=99, limit=99)
        some = engine.pages.extent(after=0, upto=99, limit=2, filter=Filter.of(streams={"events"}))
        nothing = engine.pages.extent(after=4, upto=99, limit=2, filter=Filter.of(writers=["w9"]))

        self.assertEqual((4, 4, NOW * 1000), (whole.serial, whole.facts, whole.at_ms))
        self.assertEqual(sum(len(fact.rows) for fact in facts), whole.bytes)
        self.assertEqual({("events", "w1"): 9, ("caches", "w1"): 2, ("events", "w2"): 7}, whole.tokens)
        self.assertEqual(
            LogRange(
                serial=3,
                facts=2,
                bytes=2 * size,
                tokens={Writer("events", "w1"): 5, Writer("events", "w2"): 7},
                at_ms=NOW * 1000,
            ),
            some,
        )
        self.assertEqual(LogRange(serial=4), nothing)

    def test_no_page_ends_inside_an_atomic_append(self) -> None:
        """Facts, text and extent go on to its end; only who says `upto` gets a part of it."""
        self.patch(fact_pages, "SCANNED_AT_ONCE", 4)
        self.patch(fact_pages, "TEXT_SERIALS", 4)
        engine = self.again()
        engine.open()
        facts: list[Fact] = []
        for stream, content in [
            *[("events", b"[[1]]")] * 2,
            ("atomic_appends", opening_rows(3)),
            *[("events", b"[[1]]"), ("caches", b"[[1]]"), ("events", b"[[1]]")],
            *[("events", b"[[1]]")] * 2,
        ]:
            tokens = [fact.token for fact in facts if fact.stream == stream]
            last = facts[-1] if facts else None
            facts.append(fact_after(last, stream, len(tokens) + 1, content))
        engine.commit(facts, [])
        engine.close()
        caches = Filter.of(streams={"caches"})

        for _ in range(2):
            engine = self.again()
            engine.open()
            for after, upto, limit, wanted, serials, reached in (
                (0, 99, 1, ALL, [1], 1),
                (0, 99, 2, ALL, [1, 2], 2),
                (0, 99, 3, ALL, [1, 2, 3, 4, 5, 6], 6),
                (1, 99, 2, ALL, [2, 3, 4, 5, 6], 6),
                (3, 99, 1, ALL, [4, 5, 6], 6),
                (2, 99, 4, ALL, [3, 4, 5, 6], 6),
                (0, 4, 3, ALL, [1, 2, 3, 4], 4),
                (0, 99, 9, caches, [5], 6),
                (0, 99, 1, caches, [5], 6),
                (0, 4, 9, caches, [], 4),
                (6, 99, 9, ALL, [7, 8], 8),
            ):
                found, looked = engine.pages.facts(after=after, upto=upto, limit=limit, filter=wanted)
                text, looked_for_text = engine.pages.text(after=after, upto=upto, limit=limit, filter=wanted)
                extent = engine.pages.extent(after=after, upto=upto, limit=limit, filter=wanted)
                self.assertEqual((serials, reached), ([fact.serial for fact in found], looked))
                self.assertEqual((found, reached), (decode_facts(text), looked_for_text))
                self.assertEqual((len(serials), reached), (extent.facts, extent.serial))
                self.assertEqual(sum(len(fact.rows) for fact in found), extent.bytes)
                tokens_found = {(fact.stream, fact.writer): fact.token for fact in found}
                self.assertEqual(tokens_found, extent.tokens)
            engine.close()

    def test_a_large_text_is_cut_before_or_after_an_atomic_append(self) -> None:
        engine = self.again()
        engine.open()
        facts = [fact_after(None, "events", 1, b"[[1]]")]
        facts.append(fact_after(facts[-1], "atomic_appends", 1, opening_rows(20)))
        for number in range(20):
            facts.append(fact_after(facts[-1], "events", 2 + number, b'["0123456789"]'))
        engine.commit(facts, [])

        first, at = engine.pages.text(after=0, upto=99, limit=99, size=100)
        self.assertEqual((22, 22), (first.count(b"\n"), at))
        self.assertEqual((facts[:1], 1), engine.pages.facts(after=0, upto=1, limit=99))

    def test_a_filter_of_very_many_names_is_the_callers_mistake(self) -> None:
        """A statement takes so many values; a peer that names more must not look like a broken database."""
        engine = self.again()
        engine.open()
        engine.commit(facts_after(None, ("s7", "w1", 0, 1)), [])
        names = [f"s{number}" for number in range(70_000)]

        for streams, writers in ((names, None), (None, names)):
            try:
                engine.pages.facts(
                    after=0, upto=9, limit=9, filter=Filter.of(streams=streams, writers=writers)
                )
            except StorageError as error:
                self.assertIsInstance(error, InvalidValue)
                self.assertIn("at most 10000 streams or writers, not 70000", str(error))
        wanted = Filter.of(streams=names[:10_000], writers=[*names[:9_999], "w1"])
        self.assertEqual(1, len(engine.pages.facts(after=0, upto=9, limit=9, filter=wanted)[0]))

    def test_a_name_that_is_no_text_is_the_callers_mistake(self) -> None:
        """Half a surrogate pair comes out of JSON as easily as any name does."""
        engine = self.again()
        engine.open()
        engine.commit(facts_after(None, ("events", "w1", 0, 1)), [])

        for name in ("\ud800", "a\0b"):
            for read in (
                lambda name=name: engine.pages.facts(
                    after=0, upto=9, limit=9, filter=Filter.of(streams={name})
                ),
                lambda name=name: engine.rows_at_token(name, 1),
            ):
                try:
                    self.assertIn(read(), ([], ([], 1)))
                except StorageError as error:
                    self.assertIsInstance(error, InvalidValue)

    def test_a_number_over_64_bits_is_refused_or_beyond_the_log(self) -> None:
        """A peer may send any number; a fault of ours in answer would end its connection with a traceback."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("events", "w1", 0, 2**70))
        for number in (2**63, -(2**70)):
            attempts: tuple[Callable[[], object], ...] = (
                lambda number=number: engine.digest_at(number),  # type: ignore[misc]
                lambda number=number: engine.receipts.between(number, 2**70),  # type: ignore[misc]
                lambda number=number: engine.pages.facts(after=0, upto=number, limit=number),  # type: ignore[misc]
                lambda number=number: engine.pages.tokens(  # type: ignore[misc]
                    stream="events", writer=None, after=number, upto=2**70, serial=number, limit=9
                ),
                lambda number=number: engine.rows_at_token("events", number),  # type: ignore[misc]
                lambda number=number: engine.pages.size(number),  # type: ignore[misc]
                lambda number=number: engine.receipts.forget(number),  # type: ignore[misc]
                lambda number=number: engine.leases.store(  # type: ignore[misc]
                    [Lease(uuid="u", name="", registered=False, serial=number, made_ms=number)]
                ),
                lambda: engine.commit(facts, []),
            )
            for attempt in attempts:
                try:
                    attempt()
                except StorageError as error:
                    self.assertFalse(error.retryable)

        self.assertIn(engine.head().serial, (0, 1))

    def test_each_open_counts_as_one_boot(self) -> None:
        """Tokens of ephemeral streams begin again with each start; the count is what makes that visible."""
        boots = []
        for _ in range(3):
            engine = self.again()
            boots.append(engine.open().boots)
            engine.close()

        self.assertEqual([1, 2, 3], boots)

    def test_head_is_where_the_last_commit_left_it(self) -> None:
        """After a failed commit the log asks here what became of it."""
        engine = self.again()
        first = engine.open()
        self.assertEqual(first, engine.head())
        facts = facts_after(None, ("events", "w1", 0, 1))

        engine.commit(facts, [])

        self.assertEqual((1, facts[0].digest), (engine.head().serial, engine.head().digest))

    def test_a_hole_in_the_serials_is_refused_whole(self) -> None:
        """A log with holes cannot prove anything about its history."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("events", "w1", 0, 1), ("events", "w1", 1, 2), ("events", "w1", 2, 3))

        with self.assertRaises(StorageError):
            engine.commit([facts[0], facts[2]], [])

        self.assertEqual(([], 0), engine.pages.facts(after=0, upto=9, limit=9))
        self.assertEqual(0, engine.head().serial)
        engine.commit(facts, [])

    def test_facts_of_another_history_are_refused(self) -> None:
        """Two that wrote the same serials must not become one log by turns."""
        engine = self.again()
        engine.open()
        other = facts_after(None, ("events", "w2", 0, 1), ("events", "w2", 1, 2))
        engine.commit(facts_after(None, ("events", "w1", 0, 1)), [])

        with self.assertRaises(StorageError) as caught:
            engine.commit(other[1:], [])

        self.assertIn("the digest of serial 2 does not follow", str(caught.exception))
        self.assertFalse(caught.exception.retryable)
        self.assertEqual(1, engine.head().serial)

    def test_any_text_and_any_bytes_come_back_as_they_went(self) -> None:
        """Names may hold what means something in SQL; rows are not ours to judge."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("x';--", "w%1?", 0, 1), ("s\\N\u20ac", "\\.", 0, 2**53))
        key = AppendReceipt(AppendKey("s", "k\\'%s\u00e4"), "r", Appended(1, 1, [1]), 1)
        engine.commit(facts, [key])

        self.assertEqual((facts, 2), engine.pages.facts(after=0, upto=9, limit=9))
        self.assertEqual(
            (facts[:1], 2), engine.pages.facts(after=0, upto=9, limit=9, filter=Filter.of(streams={"x';--"}))
        )
        self.assertEqual(key, engine.receipts.get(key.key))
        self.assertEqual({"x';--": 1, "s\\N\u20ac": 2**53}, dict(engine.head().allocated))

    def test_a_page_ends_with_the_fact_that_fills_it(self) -> None:
        """A limit below one fact still moves on: or a reader would ask for the same page for ever."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, *(("events", "w1", token - 1, token) for token in range(1, 6)))
        engine.commit(facts, [])

        self.assertEqual((facts[1:3], 3), engine.pages.facts(after=1, upto=5, limit=2))
        self.assertEqual((facts[:1], 1), engine.pages.facts(after=0, upto=5, limit=0))
        self.assertEqual((facts[3:4], 4), engine.pages.facts(after=3, upto=4, limit=99))
        self.assertEqual(([], 5), engine.pages.facts(after=5, upto=99, limit=99))

    def test_a_reader_of_some_streams_learns_how_far_it_has_looked(self) -> None:
        """Otherwise it would look through the same facts of other streams again and again."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("events", "w1", 0, 1),
            ("caches", "w1", 0, 1),
            ("events", "w1", 1, 2),
            ("caches", "w1", 1, 2),
        )
        engine.commit(facts, [])

        self.assertEqual(
            ([facts[0], facts[2]], 4),
            engine.pages.facts(after=0, upto=9, limit=9, filter=Filter.of(streams={"events"})),
        )
        self.assertEqual(
            ([facts[0]], 1),
            engine.pages.facts(after=0, upto=9, limit=1, filter=Filter.of(streams={"events"})),
        )
        self.assertEqual(
            ([], 4), engine.pages.facts(after=3, upto=4, limit=9, filter=Filter.of(streams={"events"}))
        )
        self.assertEqual(([], 4), engine.pages.facts(after=0, upto=4, limit=9, filter=Filter.of(streams=[])))

    def test_lost_history_is_in_no_answer_by_token(self) -> None:
        """It stays in the order of serials, which never changes; but nobody who catches up is given it."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, *(("events", "w1", token - 1, token) for token in range(1, 5)))
        engine.commit(facts, [])

        head = lose(engine, "events", 2)
        after = facts_after(facts[-1], ("events", "w2", 0, 3), ("events", "w1", 2, 4), epoch=2)
        engine.commit(after, [])
        engine.close()
        engine = self.again()

        self.assertEqual(
            (2, {("events", "w1"): 2}, {"events": 2}), (head.epoch, head.positions, head.allocated)
        )
        self.assertEqual((2, 4), (engine.open().epoch, engine.head().allocated["events"]))
        found, _ = engine.pages.tokens(stream="events", writer=None, after=0, upto=9, serial=9, limit=99)
        self.assertEqual([*facts[:2], *after], found)
        self.assertEqual((facts + after, 6), engine.pages.facts(after=0, upto=9, limit=99))

    def test_a_log_that_lost_history_opens_again(self) -> None:
        """Its positions are not those of its last facts, and that is right so."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("events", "w1", 0, 4), ("events", "w1", 4, 8))
        engine.commit(facts, [])
        lose(engine, "events", 6)
        engine.close()

        self.assertEqual({("events", "w1"): 6}, dict(self.again().open().positions))

    def test_a_read_never_claims_to_have_seen_the_future(self) -> None:
        """A reader that is told "up to 99" would never ask for serials 2 to 99 once they exist."""
        engine = self.again()
        engine.open()
        engine.commit(facts_after(None, ("events", "w1", 0, 1)), [])

        for streams in (None, {"events"}, {"caches"}):
            self.assertEqual(
                1, engine.pages.facts(after=0, upto=99, limit=99, filter=Filter.of(streams=streams))[1]
            )

    def test_tokens_of_one_writer_or_of_all(self) -> None:
        """Catch-up asks per writer; the old protocols know only one sequence for all."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("events", "w1", 0, 1),
            ("events", "w2", 0, 2),
            ("caches", "w1", 0, 1),
            ("events", "w1", 1, 3),
        )
        engine.commit(facts, [])

        def read(writer: str | None, after: int, upto: int, serial: int = 99) -> list[int]:
            found, more = engine.pages.tokens(
                stream="events", writer=writer, after=after, upto=upto, serial=serial, limit=99
            )
            self.assertFalse(more)
            return [fact.token for fact in found]

        self.assertEqual([1, 2, 3], read(None, 0, 9))
        self.assertEqual([1, 3], read("w1", 0, 9))
        self.assertEqual([2], read(None, 1, 2))
        self.assertEqual([1, 2], read(None, 0, 9, serial=3))
        self.assertEqual([], read("w3", 0, 9))

    def test_facts_that_share_a_token_are_never_parted_by_a_page(self) -> None:
        """The next page begins after the last token: its other facts would be lost."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("events", "w1", 0, 5),
            ("events", "w2", 0, 5),
            ("events", "w1", 5, 6),
            ("events", "w2", 5, 4),
        )
        engine.commit(facts, [])

        def read(after: int, limit: int) -> tuple[list[int], bool]:
            found, more = engine.pages.tokens(
                stream="events", writer=None, after=after, upto=9, serial=9, limit=limit
            )
            return [fact.serial for fact in found], more

        self.assertEqual(([4], True), read(0, 1))
        self.assertEqual(([4, 1, 2], True), read(0, 2))
        self.assertEqual(([1, 2], True), read(4, 1))
        self.assertEqual(([3], False), read(5, 1))

    def test_a_late_fact_leaves_the_position_where_it_is(self) -> None:
        """Within a commit, in one of its own, and after a restart: the last fact need not be the highest."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("backfill", "w1", 0, 101),
            ("backfill", "w1", 99, 99),
            ("backfill", "w1", 100, 100),
            ("backfill", "w2", 0, 7),
        )
        engine.commit(facts[:2], [])
        engine.commit(facts[2:], [])
        positions = {("backfill", "w1"): 101, ("backfill", "w2"): 7}

        self.assertEqual((positions, {"backfill": 101}), (engine.head().positions, engine.head().allocated))
        engine.close()
        engine = self.again()
        head = engine.open()

        self.assertEqual((positions, {"backfill": 101}), (head.positions, head.allocated))
        found, _ = engine.pages.tokens(stream="backfill", writer="w1", after=0, upto=999, serial=9, limit=9)
        self.assertEqual([99, 100, 101], [fact.token for fact in found])

    def test_a_log_that_ends_in_late_facts_alone_opens_again(self) -> None:
        """Of a long burst downwards the end of the log, which is checked, has no fact at the position."""
        engine = self.again()
        engine.open()
        tokens = range(2000, 0, -1)
        facts = facts_after(
            None, *(("backfill", "w1", 0 if token == 2000 else token, token) for token in tokens)
        )
        engine.commit(facts, [])
        engine.close()

        self.assertEqual({("backfill", "w1"): 2000}, self.again().open().positions)

    def test_rows_at_a_token_are_read(self) -> None:
        """Whoever wrote it; but not what was lost where it came from."""
        engine = self.again()
        engine.open()
        facts = facts_after(
            None,
            ("s", "w2", 0, 5),
            ("s", "w1", 0, 5),
            ("s", "w1", 5, 6),
            ("t", "w1", 0, 5),
            ("s", "w1", 5, 5),
        )
        engine.commit(facts, [])

        self.assertEqual(
            [(writer, facts[0].rows) for writer in ("w2", "w1", "w1")], engine.rows_at_token("s", 5)
        )
        self.assertEqual(([], []), (engine.rows_at_token("s", 4), engine.rows_at_token("never", 5)))
        lose(engine, "s", 4)
        after = facts_after(facts[-1], ("s", "w3", 0, 6), epoch=2)
        engine.commit(after, [])

        self.assertEqual(
            ([], [("w3", after[0].rows)]), (engine.rows_at_token("s", 5), engine.rows_at_token("s", 6))
        )

    def test_positions_go_up_again_after_a_loss(self) -> None:
        """From where the loss left them, late facts or not."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("s", "w1", 0, 8), ("s", "w1", 4, 4))
        engine.commit(facts, [])
        lose(engine, "s", 5)

        engine.commit(facts_after(facts[-1], ("s", "w1", 3, 3), ("s", "w1", 5, 6), epoch=2), [])
        engine.close()

        head = self.again().open()
        self.assertEqual(({("s", "w1"): 6}, {"s": 6}), (head.positions, head.allocated))

    def test_receipts_are_kept_with_the_facts_and_forgotten_by_age(self) -> None:
        """A client that repeats an append after a restart must get its first answer."""
        engine = self.again()
        engine.open()
        old = AppendReceipt(AppendKey("s", "a"), "r1", Appended(1, 1, [1, 2]), 1000)
        young = AppendReceipt(AppendKey("s", "b"), "r2", Appended(1, None, []), 2000)
        engine.commit(facts_after(None, ("events", "w1", 0, 1)), [old, young])
        engine.close()
        engine = self.again()
        engine.open()

        self.assertEqual([old, young, None], [engine.receipts.get(AppendKey("s", key)) for key in "abc"])
        engine.receipts.forget(2000)

        self.assertEqual([None, young], [engine.receipts.get(AppendKey("s", key)) for key in "ab"])

    def test_a_log_is_open_once(self) -> None:
        """Two that write would give the same serials twice."""
        engine = self.again()
        engine.open()

        with self.assertRaises(StorageError):
            engine.open()

    def test_nothing_works_on_a_closed_log(self) -> None:
        """It fails by name, not by an attribute error somewhere inside."""
        engine = self.again()

        for use in (
            engine.head,
            lambda: engine.commit([], []),
            lambda: engine.pages.facts(after=0, upto=1, limit=1),
            lambda: engine.rows_at_token("events", 1),
            lambda: engine.receipts.get(AppendKey("s", "a")),
            lambda: engine.receipts.forget(1),
        ):
            with self.assertRaises(StorageError):
                use()
        engine.close()


class MemoryTests(OverMemory, Contract):
    """The engine of tests and simulator."""

    def test_committed_facts_outlive_a_crash(self) -> None:
        """The simulator kills daemons and starts them again over the same engine."""
        self.engine.open()
        self.engine.commit(facts_after(None, ("events", "w1", 0, 1)), [])

        self.engine.crash()

        head = self.engine.open()
        self.assertEqual((1, 2), (head.serial, head.boots))

    def test_a_commit_can_be_told_to_fail_before_or_after(self) -> None:
        """The two look the same to whoever commits, which is the trouble with commits."""
        self.engine.open()
        facts = facts_after(None, ("events", "w1", 0, 1), ("events", "w1", 1, 2))
        error = StorageError(op="commit", why="told to")

        for kept, fact in ((False, facts[0]), (True, facts[0])):
            self.engine.fail_next(error, kept=kept, silent=0)
            with self.assertRaises(StorageError):
                self.engine.commit([fact], [])
            self.assertEqual(int(kept), self.engine.head().serial)
        self.engine.commit(facts[1:], [])


class PostgresTests(OverPostgres, Contract):
    """For who has one already."""


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    def refused(self) -> StorageError:
        """What `open` says."""
        with self.assertRaises(StorageError) as caught:
            self.again().open()
        error: StorageError = caught.exception
        return error

    def filled(self, count: int) -> None:
        """Leave a log with this many facts, closed."""
        engine = self.again()
        engine.open()
        engine.commit(facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, count + 1))), [])
        engine.close()

    def execute(self, statement: str, *, resealed: bool = False) -> None:
        """Change the closed file behind the engine's back."""
        with sqlite3.connect(self.path) as database:
            database.execute(statement)
            if resealed:
                reseal(database.execute)
        database.close()

    def test_the_second_process_is_told_who_has_the_log(self) -> None:
        """The operator needs the number of the process to end."""
        self.again().open()

        self.assertIn(f"process {os.getpid()} uses", str(self.refused()))

    def test_the_lock_of_a_killed_process_is_free(self) -> None:
        """Nobody should have to remove a lock file at night."""
        code = (
            "import sys; from synrepl.storage.databases import engine_for;"
            "engine = engine_for(f'sqlite:{sys.argv[1]}');"
            "engine.open(); print('open', flush=True); input()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with child:
            assert child.stdout is not None
            self.assertEqual(b"open\n", child.stdout.readline())
            self.assertIn(f"process {child.pid} uses", str(self.refused()))
            child.kill()

        self.assertEqual(2, self.again().open().boots)

    def test_a_missing_directory_is_named(self) -> None:
        """A misspelled path is the most common mistake; making it would hide it."""
        self.path = self.path.parent / "missing" / "synrepl.db"

        self.assertIn(f"there is no directory {self.path.parent}", str(self.refused()))

    def test_another_kind_of_file_is_left_alone(self) -> None:
        """The wrong name in the configuration must not cost anyone a file."""
        self.path.write_bytes(b"Dear diary, " * 1000)

        self.assertIn("file is not a database", str(self.refused()))
        self.assertEqual(b"Dear diary, " * 1000, self.path.read_bytes())

    def test_a_read_only_directory_is_reported(self) -> None:
        """SQLite alone says "unable to open database file", which helps nobody."""
        self.path.parent.chmod(0o500)
        if os.geteuid() == 0:
            self.path = Path("/sys/synrepl.db")  # root may write everywhere, but for what the kernel made

        self.assertIn("check that the directory can be written", str(self.refused()))

    def test_a_newer_schema_is_refused(self) -> None:
        """After a downgrade the old release would destroy what it does not know."""
        self.filled(1)
        self.execute(f"UPDATE log_header SET schema_version = {VERSION + 1}", resealed=True)

        self.assertIn("a newer release wrote it", str(self.refused()))

    def test_a_refused_log_can_be_opened_once_it_is_mended(self) -> None:
        """The lock and the file must not stay held by an attempt that failed."""
        self.filled(1)
        self.execute("UPDATE log_header SET schema_version = 99", resealed=True)
        engine = self.again()
        self.assertRaises(StorageError, engine.open)

        self.execute(f"UPDATE log_header SET schema_version = {VERSION}", resealed=True)

        self.assertEqual(1, engine.open().serial)

    def test_a_damaged_head_is_refused(self) -> None:
        """Going on from a log that contradicts itself would spread the damage to every replica."""
        for damage, told in (
            ("DELETE FROM facts WHERE serial = 1195", "serial 1195 is missing"),
            ("DELETE FROM facts WHERE serial < 500", "serial 1 is missing"),
            ("UPDATE facts SET rows = x'5b5d' WHERE serial = 1190", "the digest of serial 1190"),
            ("DELETE FROM facts WHERE serial = 1200", "the last token of w1 in events is 1199"),
            ("DELETE FROM positions", "its stored position is missing"),
            ("UPDATE positions SET token = 1199", "is 1200, but its stored position is 1199"),
        ):
            with self.subTest(damage):
                self.path = self.directory() / "synrepl.db"
                self.filled(1200)
                self.execute(damage, resealed=True)

                self.assertIn(told, str(self.refused()))

    def test_what_does_not_fit_its_checksum_is_refused(self) -> None:
        """It is not what was written, whatever else it fits."""
        for damage, told in (
            ("UPDATE facts SET rows = x'5b5d' WHERE serial = 1190", "serial 1190 is damaged"),
            ("UPDATE facts SET crc = NULL WHERE serial = 1190", "open"),
            ("UPDATE facts SET crc = crc + 1 WHERE serial = 1190", "serial 1190 is damaged"),
            ("UPDATE positions SET token = token + 1", "a row of positions is damaged"),
            ("UPDATE log_header SET epoch = 2", "a row of log_header is damaged"),
            ("UPDATE notes SET value = 'x' WHERE name = 'uuid'", "a row of notes is damaged"),
        ):
            with self.subTest(damage):
                self.path = self.directory() / "synrepl.db"
                self.filled(1200)
                self.execute(damage)

                if told == "open":
                    # It is proved by the digest before it.
                    self.assertEqual(1200, self.again().open().serial)
                else:
                    self.assertIn(told, str(self.refused()))

    def test_a_full_disk_keeps_nothing_and_is_got_over(self) -> None:
        """Half a group on disk would be a fork; a log that stays broken with space again, a night shift."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 2001)))
        engine.commit(facts[:10], [])
        pages = engine.database.writer("test").execute("PRAGMA page_count").fetchone()[0]
        engine.database.writer("test").execute(f"PRAGMA max_page_count = {pages + 2}")

        with self.assertRaises(StorageError) as caught:
            engine.commit(facts[10:], [])

        self.assertIn("the disk is full", str(caught.exception))
        self.assertTrue(caught.exception.retryable)
        self.assertEqual((10, facts[9].digest), (engine.head().serial, engine.head().digest))
        engine.database.writer("test").execute("PRAGMA max_page_count = 1000000")
        engine.commit(facts[10:], [])
        self.assertEqual(2000, engine.head().serial)

    def test_a_page_read_in_part_holds_no_snapshot(self) -> None:
        """A reader that holds one keeps the WAL from ever shrinking."""
        engine = self.again()
        engine.open()
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 101)))
        engine.commit(facts, [])

        engine.pages.facts(after=0, upto=100, limit=3)
        engine.pages.tokens(stream="events", writer=None, after=0, upto=99, serial=99, limit=3)

        self.assertEqual(
            0, engine.database.writer("test").execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        )

    def test_a_reader_of_little_looks_through_so_much_at_a_time(self) -> None:
        """Or one read would hold up all others, however little it gives."""
        self.patch(fact_pages, "SCANNED_AT_ONCE", 30)
        self.filled(100)
        engine = self.again()
        engine.open()

        for streams, writers in (({"caches"}, None), (None, {"w2"}), (None, [])):
            self.assertEqual(
                ([], 40),
                engine.pages.facts(
                    after=10, upto=99, limit=9, filter=Filter.of(streams=streams, writers=writers)
                ),
            )
        self.assertEqual(89, len(engine.pages.facts(after=10, upto=99, limit=99)[0]))

    def test_a_text_that_would_be_large_is_cut(self) -> None:
        """Or a page of large facts would fill the memory; one fact goes whole, whatever it is."""
        self.filled(100)
        engine = self.again()
        engine.open()

        sizes, after = [], 0
        while after < 100:
            text, after = engine.pages.text(after=after, upto=100, limit=99, size=100)
            sizes.append(text.count(b"\n"))

        self.assertEqual(100, sum(sizes))
        self.assertLess(max(sizes), 10)

    def test_no_text_of_several_facts_is_larger_than_asked(self) -> None:
        """Whatever the first facts are like: small ones before large ones, the reverse, and one by one."""
        engine = self.again()
        engine.open()
        facts: list[Fact] = []
        for length in [1] * 120 + [900] + [1] * 60 + [90] * 70 + [1, 500] * 9:
            previous = facts[-1] if facts else None
            facts.append(fact_after(previous, "events", len(facts) + 1, b'["%s"]' % (b"a" * length)))
        engine.commit(facts, [])

        for size in (1, 100, 600, 2_000, 50_000):
            for streams in (None, {"events"}):
                read: list[Fact] = []
                while len(read) < len(facts):
                    text, after = engine.pages.text(
                        after=len(read), upto=999, limit=150, filter=Filter.of(streams=streams), size=size
                    )
                    page = list(decode_facts(text))
                    self.assertEqual(after, page[-1].serial)
                    self.assertTrue(len(page) == 1 or sum(len(fact.rows) for fact in page) <= size)
                    read += page
                self.assertEqual(facts, read)

    def test_a_page_of_some_streams_costs_no_more_when_much_follows(self) -> None:
        """A follower that is behind asks for page after page: sorting the rest for each takes hours."""
        self.filled(5000)
        engine = self.again()
        engine.open()
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 100
            return 0

        reader = engine.database.reader("test")
        assert isinstance(reader, sqlite3.Connection)
        reader.set_progress_handler(count, 100)
        for streams, writers in (({"caches", "events"}, None), (None, {"w1"}), ({"events"}, {"w1", "w2"})):
            steps = 0
            found, upto = engine.pages.facts(
                after=0, upto=5000, limit=10, filter=Filter.of(streams=streams, writers=writers)
            )
            self.assertEqual((10, 10), (len(found), upto))
            self.assertLess(steps, 2000)
        reader.set_progress_handler(None, 100)

    def test_commits_are_synced(self) -> None:
        """With less than FULL a power cut takes back what was acknowledged."""
        engine = self.again()
        engine.open()

        settings = [
            engine.database.writer("test").execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ]

        self.assertEqual(["wal", 2], settings)

    def test_names_with_marks_of_sql_and_paths_are_just_names(self) -> None:
        """A path may hold what means something in a URI, a stream what means something in SQL."""
        self.path = self.directory() / "50% of?what#this.db"
        engine = self.again()
        engine.open()
        facts = facts_after(None, ("x';--", "w%1", 0, 1))
        engine.commit(facts, [])

        self.assertEqual(
            (facts, 1), engine.pages.facts(after=0, upto=1, limit=9, filter=Filter.of(streams={"x';--"}))
        )
        self.assertEqual([(1, "x';--", "w%1", 0, 1)], tokens(facts))
        self.assertEqual(NOW * 1000, facts[0].committed_at_ms)
