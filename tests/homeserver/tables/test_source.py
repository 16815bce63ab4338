"""From a homeserver's tables into the log: what is committed, in order, whole, and not too early."""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger, formatEvent

from synrepl.homeserver.tables.layout import table_streams
from synrepl.homeserver.tables.scan import TableScan
from synrepl.homeserver.tables.source import TableSource
from synrepl.storage.id_tables.writers import create_writers
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import DelayedThread
from tests.memory_engine import FaultyEngine
from tests.storage.id_tables.databases import IdTablesCase

RECEIPTS = {
    "stream": "receipts",
    "table": "receipts_linearized",
    "row": ["room_id", {"value": "m.read"}, "user_id", "event_id", None, {"json": "data"}],
    "sequence": "things_sequence",
    "position": "things",
    "writers": ["A", "B"],
}


def receipt(user: int, token: int) -> bytes:
    return b'["!r:hs","m.read","@u%d:hs","$e%d",null,{"ts":1}]' % (user, token)


class Sources(IdTablesCase):
    """Written once, run on each database."""

    def setUp(self) -> None:
        super().setUp()
        self.do(
            "CREATE TABLE receipts_linearized (stream_id BIGINT NOT NULL, instance_name TEXT, room_id TEXT,"
            " user_id TEXT, event_id TEXT, data TEXT)"
        )
        self.interact(create_writers)
        self.table = StreamTable.default()
        self.engine = FaultyEngine()
        self.told: list[Any] = []
        self.errors: list[str] = []
        self.log = self.new_log()

    def new_log(self) -> Log:
        log = Log(
            self.engine,
            ImmediateThread(),
            ImmediateThread(),
            self.clock,
            ephemeral=["typing"],
            assigned=["receipts"],
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
        )
        self.wait(log.start())
        return log

    def source(self, *, lost: Callable[[str], None] = lambda stream: None, **changed: Any) -> TableSource:
        source = TableSource(
            self.connect,
            table_streams([RECEIPTS | changed], default_writer="master"),
            flavor=self.flavor,
            log=self.log,
            table=self.table,
            clock=self.clock,
            thread=ImmediateThread(),
            on_lost=lost,
        )
        source._logger = Logger(observer=lambda event: self.errors.append(formatEvent(event)))  # type: ignore[arg-type]
        source.start()
        self.turn()
        self.addCleanup(source._close)
        return source

    def wake(self, source: TableSource) -> None:
        source.wake()
        self.turn()

    def turn(self) -> None:
        """The log stores what it is given at the end of the reactor's turn, page after page."""
        self.clock.pump([0] * 20)

    def write(self, writer: str, *tokens: int, rows: int = 1, position: int | None = None) -> None:
        """Facts of `rows` rows each, and the position stored with them."""
        for token in tokens:
            for row in range(rows):
                self.do(
                    "INSERT INTO receipts_linearized VALUES (?, ?, ?, ?, ?, ?)",
                    token, writer, "!r:hs", f"@u{row}:hs", f"$e{token}", '{"ts": 1}',
                )  # fmt: skip
        self.set_position(writer, position if position is not None else tokens[-1])
        self.set_sequence(max(self.get_sequence(), *(tokens or (1,))))

    def facts(self) -> list[Fact]:
        return [fact for fact in self.engine.facts if fact.rows != b"[]"]

    def places(self) -> list[tuple[str, int]]:
        return [(fact.writer, fact.token) for fact in self.facts()]

    @pytest.mark.story
    def test_rows_become_facts(self) -> None:
        """Typed and in the newest shape, with the table's own ids and writers."""
        source = self.source(start="earliest")

        self.write("A", 2, rows=2)
        self.write("B", 3)
        self.set_position("A", 3)
        self.wake(source)

        self.assertEqual(
            [
                ("A", 0, 2, b'[%b,%b]' % (receipt(0, 2), receipt(1, 2))),
                ("B", 0, 3, b"[%b]" % receipt(0, 3)),
            ],
            [(fact.writer, fact.prev_token, fact.token, fact.rows) for fact in self.facts()],
        )  # fmt: skip

    def test_a_stuck_writer_holds_back_its_own_facts_alone(self) -> None:
        """B's facts are committed; A has an id below them that it has not finished."""
        source = self.source(start="earliest")
        self.write("A", 2)
        self.set_position("B", 2)
        self.set_sequence(3)

        self.write("B", 4, 5)
        self.wake(source)
        self.assertEqual([("A", 2), ("B", 4), ("B", 5)], self.places())
        self.assertEqual({"A": 2, "B": 5}, self.log.positions("receipts"))
        self.assertEqual((2, ["A"]), (source.states()[0].limit, source.states()[0].held_by))

        self.write("A", 3, position=5)
        self.wake(source)
        self.assertEqual([("A", 2), ("B", 4), ("B", 5), ("A", 3)], self.places())
        self.assertEqual([], source.states()[0].held_by)

    def test_nothing_of_a_writer_passes_its_own_unfinished_id(self) -> None:
        """A row above it is committed; a position says how far the writer is complete."""
        source = self.source(start="earliest")
        self.write("A", 2)
        self.write("B", 4, 6, position=4)
        self.wake(source)

        self.assertEqual([("A", 2), ("B", 4)], self.places())

    def test_what_was_copied_ahead_is_not_copied_again(self) -> None:
        """Nor read again, once it is certain that there is no more."""
        source = self.source(start="earliest")
        self.write("A", 2)
        self.write("B", 5, 9, position=12)
        self.wake(source)
        asked: list[Any] = []
        missed = source._followed[0].scan.missed

        def noted(cursor: Any, **asked_for: Any) -> Any:
            asked.append(asked_for)
            return missed(cursor, **asked_for)

        source._followed[0].scan.missed = noted  # type: ignore[method-assign]
        self.wake(source)
        self.assertEqual([], asked)
        self.assertEqual({"A": 2, "B": 12}, self.log.positions("receipts"))

        self.write("A", 7, position=12)
        self.wake(source)
        self.assertEqual([("A", 2), ("B", 5), ("B", 9), ("A", 7)], self.places())

    def test_a_restart_goes_on_at_the_place_of_each_writer(self) -> None:
        """B is ahead in the log; what A completes meanwhile lies below."""
        self.write("A", 2)
        self.set_position("B", 2)
        source = self.source(start="earliest")
        self.write("B", 4, 5)
        self.wake(source)
        self.wait(source.stop())
        self.wait(self.log.stop())
        self.write("A", 3)
        self.write("B", 6)
        self.set_position("A", 6)

        self.log = self.new_log()
        self.source(start="earliest")

        self.assertEqual([("A", 2), ("B", 4), ("B", 5), ("A", 3), ("B", 6)], self.places())

    def test_all_writers_are_known_before_one_is_ahead(self) -> None:
        """The lowest position in the log is that of all writers, also of one that never wrote."""
        source = self.source(start="earliest", writers=["A", "B", "C"])
        for writer, position in (("A", 1), ("B", 1), ("C", 1)):
            self.set_position(writer, position)
        self.write("B", 4)
        self.wake(source)

        self.assertEqual({"A": 0, "B": 4, "C": 0}, self.log.positions("receipts"))

    def test_a_database_older_than_what_was_copied_ahead_begins_an_epoch(self) -> None:
        """The highest position counts, not the linear one."""
        lost: list[str] = []
        source = self.source(start="earliest")
        self.write("A", 2)
        self.write("B", 9)
        self.wake(source)
        self.wait(source.stop())
        self.do("DELETE FROM receipts_linearized WHERE stream_id > 2")
        self.do("DELETE FROM stream_positions")
        self.set_position("A", 2)
        self.set_position("B", 2)
        self.set_sequence(2)
        self.source(start="earliest", lost=lost.append)

        self.assertEqual(["receipts"], lost)
        self.assertEqual(2, max(self.log.positions("receipts").values()))

    def test_pages_never_part_a_fact(self) -> None:
        """A fact of more rows than a page holds comes whole, and the next page begins after it."""
        self.write("A", *range(2, 6), rows=700)
        self.write("B", 6, rows=2500)
        self.write("A", 7, rows=3)
        self.set_position("B", 7)

        self.source(start="earliest")

        self.assertEqual([("A", n) for n in range(2, 6)] + [("B", 6), ("A", 7)], self.places())
        counts = [fact.rows.count(b"m.read") for fact in self.facts()]
        self.assertEqual([700] * 4 + [2500, 3], counts)

    def scan(self, only: tuple[str, ...] = ()) -> TableScan:
        (stream,) = table_streams([RECEIPTS], default_writer="master")
        return TableScan(msgspec.structs.replace(stream, only=only), self.flavor)

    def test_a_page_has_about_as_many_rows_as_asked_for(self) -> None:
        """All of a large table at once would be held in memory."""
        self.write("A", *range(2, 10))
        self.set_position("B", 9)

        page = self.interact(partial(self.scan().page, after=3, rows=3))

        self.assertEqual([4, 5, 6], [token for _, token, _ in page.facts])
        self.assertEqual((6, 9), (page.upto, page.limit))

    def test_facts_of_chosen_writers_wait_for_nobody_else(self) -> None:
        """The others are told by themselves; here they would be there twice."""
        self.write("A", 2, 4)
        self.write("B", 3, position=1)

        page = self.interact(partial(self.scan(only=("A",)).page, after=0, rows=99))

        self.assertEqual([("A", 2), ("A", 4)], [(writer, token) for writer, token, _ in page.facts])
        self.assertEqual((4, {"A": 4}), (page.limit, page.complete))

    def test_it_begins_at_the_end_unless_told_otherwise(self) -> None:
        """A homeserver's history may be long; what comes from now on is what followers lack."""
        self.write("A", 2, 3)
        self.write("B", 4)
        self.set_position("A", 4)

        source = self.source()
        self.write("A", 5)
        self.set_position("B", 5)
        self.wake(source)

        self.assertEqual([("A", 4, 5)], [(f.writer, f.prev_token, f.token) for f in self.facts()])
        self.assertEqual({"A": 5, "B": 4}, self.log.positions("receipts"))

    def test_a_restart_goes_on_exactly(self) -> None:
        """Where it was is where the log stands; nothing twice, nothing left out."""
        self.write("A", 2, 3)
        self.set_position("B", 3)
        self.wait(self.source(start="earliest").stop())
        self.wait(self.log.stop())
        self.write("A", 4)
        self.set_position("B", 4)

        self.log = self.new_log()
        self.source(start="earliest")

        self.assertEqual([("A", 2), ("A", 3), ("A", 4)], self.places())

    def test_what_is_being_read_at_a_stop_is_not_appended(self) -> None:
        """The log may be another's to write by then: a primary that was replaced stops its sources."""
        source = self.source(start="earliest")
        source._thread = DelayedThread(self.clock, lambda: 0.1)
        self.write("A", 2)
        self.set_position("B", 2)
        source.wake()

        stopped = Deferred.fromCoroutine(source.stop())
        self.clock.pump([0.1] * 5)

        self.successResultOf(stopped)
        self.assertEqual([], self.places())
        self.assertEqual([], self.errors)
        self.assertIsNone(source._connection, "it was closed, and not opened again")

    def test_silence_is_certified(self) -> None:
        """An idle writer's position moves in the log too, so that nobody who waits for it waits for ever."""
        self.source(start="earliest")

        self.write("A", 2)
        self.set_position("B", 2)
        self.clock.advance(1)

        self.assertEqual({"A": 2, "B": 2}, self.log.positions("receipts"))
        self.assertEqual(
            [("B", 0, 2, b"[]")], [(f.writer, f.prev_token, f.token, f.rows) for f in self.engine.facts[1:]]
        )

    def test_the_clock_wakes_it(self) -> None:
        """Without any notification it looks once a second."""
        self.source(start="earliest")
        self.write("A", 2)
        self.set_position("B", 2)

        self.clock.advance(1)

        self.assertEqual([("A", 2)], self.places())

    def test_a_database_that_is_away_comes_back(self) -> None:
        """It is said once what is wrong, and where; then it goes on by itself."""
        source = self.source(start="earliest")
        connect, source._connect = source._connect, self.refuse
        self.wait(source._thread.run(source._close))
        self.write("A", 2)
        self.set_position("B", 2)

        self.clock.advance(1)
        self.assertIn("connection refused", source.states()[0].trouble)
        source._connect = connect
        self.clock.advance(1)

        self.assertEqual("", source.states()[0].trouble)
        self.assertEqual([("A", 2)], self.places())

    def test_a_problem_that_stays_is_logged_once(self) -> None:
        """The source polls once a second."""
        source = self.source(start="earliest")
        source._connect = self.refuse
        self.wait(source._thread.run(source._close))

        for _ in range(3):
            self.clock.advance(1)

        self.assertEqual(
            ["cannot read receipts from its table, retrying: OperationalError: connection refused"],
            self.errors,
        )

    def refuse(self) -> Any:
        raise sqlite3.OperationalError("connection refused")

    def test_a_row_that_is_none_is_named_and_waits(self) -> None:
        """The stream stays where it is: passing over a fact would lose it for every follower."""
        source = self.source(start="earliest", row=["room_id"])

        self.write("A", 2)
        self.set_position("B", 2)
        self.wake(source)

        self.assertIn("id 2", source.states()[0].trouble)
        self.assertEqual([], self.places())

    def test_rows_of_which_nobody_says_how_far_they_are_complete(self) -> None:
        """An id below may be unfinished; to publish them would lose its row. It is said what is missing."""
        source = self.source(start="earliest")
        self.write("A", 2)
        self.do("DELETE FROM stream_positions")
        self.wake(source)

        self.assertEqual([], self.places())
        self.assertIn("no position of things is stored", source.states()[0].trouble)

    def test_appends_to_a_table_backed_stream_are_refused(self) -> None:
        """Its tokens are those of the table; one of ours would stand for two facts."""
        self.failureResultOf(self.log.append("receipts", "A", [b'[["x"]]']))

    def test_an_older_dump_begins_a_new_epoch(self) -> None:
        """The log has facts that the database lost: they count no more, and what comes takes their place."""
        lost: list[str] = []
        source = self.source(start="earliest")
        self.write("A", 2, 3, 4, 5)
        self.set_position("B", 5)
        self.wake(source)
        self.wait(source.stop())
        self.do("DELETE FROM receipts_linearized WHERE stream_id > 3")
        self.do("UPDATE stream_positions SET stream_id = 3")
        self.set_sequence(3)

        source = self.source(start="earliest", lost=lost.append)
        self.write("B", 4)
        self.set_position("A", 4)
        self.clock.advance(1)

        self.assertEqual((["receipts"], 2), (lost, self.log.head.epoch))
        self.assertEqual({"A": 4, "B": 4}, self.log.positions("receipts"))
        facts, _ = self.wait(
            self.log.reads.tokens(stream="receipts", writer=None, after=0, upto=9, serial=99, limit=99)
        )
        rows = [(fact.epoch, fact.writer, fact.token) for fact in facts if fact.rows != b"[]"]
        self.assertEqual([(1, "A", 2), (1, "A", 3), (2, "B", 4)], rows)
        self.assertIn("began epoch 2", self.errors[0])

    def test_an_older_dump_is_noticed_when_the_database_is_back(self) -> None:
        """It was restored while this daemon went on, and tried to connect."""
        lost: list[str] = []
        source = self.source(start="earliest", lost=lost.append)
        self.write("A", 2, 3, 4, 5)
        self.set_position("B", 5)
        self.wake(source)
        connect, source._connect = source._connect, self.refuse
        self.wait(source._thread.run(source._close))
        self.clock.advance(1)
        self.do("DELETE FROM receipts_linearized WHERE stream_id > 3")
        self.do("UPDATE stream_positions SET stream_id = 3")
        self.set_sequence(3)

        source._connect = connect
        self.clock.advance(1)

        self.assertEqual((["receipts"], 2), (lost, self.log.head.epoch))


class SQLiteSourceTests(Sources):
    """On SQLite."""


class PostgreSQLSourceTests(Sources):
    """On PostgreSQL."""

    flavor = "postgresql"


del Sources
