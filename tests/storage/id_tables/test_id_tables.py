"""What is found in a stream's tables, and from where a process then starts, without any generator."""

from functools import partial
from typing import Any, NamedTuple

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.id_problems import IdProblem, examine, repair
from synrepl.storage.id_tables.id_start import IdStart, id_start
from synrepl.storage.id_tables.writers import (
    Unfinished,
    create_writers,
    last_process,
    read_writers,
    store_status,
)
from tests.storage.id_tables.databases import IdTablesCase


class Found(NamedTuple):
    """What is in a database of the writers A and B, which problems that is, and where a reader starts."""

    why: str
    rows: tuple[tuple[str, int], ...] = ()
    positions: tuple[tuple[str, int], ...] = ()
    sequence: int = 20
    seen: int = 0
    kinds: tuple[str, ...] = ()
    goal: int = 20
    start: tuple[int, int, int] = (1, 1, 1)
    """Persisted up to here, A's position and B's."""


FOUND = (
    Found("a sequence that has given no id", sequence=0, kinds=("sequence_unused",), goal=1),
    Found("nothing is stored: the highest row counts", rows=(("A", 2), ("B", 9)), start=(9, 9, 9)),
    Found(
        "the run of rows without a gap goes on after the lowest position",
        rows=(("A", 3), ("B", 4), ("A", 6)),
        positions=(("A", 6), ("B", 2)),
        start=(4, 6, 2),
    ),
    Found(
        "behind the rows",
        rows=(("A", 25),),
        kinds=("sequence_behind_tables",),
        goal=25,
        start=(25, 25, 25),
    ),
    Found(
        "behind a position",
        positions=(("A", 31), ("B", 31)),
        kinds=("sequence_behind_positions",),
        goal=31,
        start=(31, 31, 31),
    ),
    Found(
        "a writer that is none any more",
        positions=(("A", 7), ("B", 7), ("gone", 3)),
        kinds=("unknown_writer",),
        start=(7, 7, 7),
    ),
    Found("older than its readers", seen=50, kinds=("history_lost",), goal=50),
)


class IdTables(IdTablesCase):
    """Written once, run on each."""

    def setUp(self) -> None:
        super().setUp()
        self.ids = IdDatabase(self.stream(["A", "B"]), self.flavor)

    def fill(self, found: Found) -> None:
        """Put there what the case says, and nothing else."""
        self.do("DELETE FROM facts_of_things")
        self.do("DELETE FROM stream_positions")
        for writer, token in found.rows:
            self.row(writer, token)
        for writer, token in found.positions:
            self.set_position(writer, token)
        if found.sequence:
            self.set_sequence(found.sequence)
        else:
            self.set_sequence(1, is_called=False)

    def test_what_is_found(self) -> None:
        """Each problem by its name, how far the sequence must come, and where a reader starts."""
        for found in FOUND:
            with self.subTest(found.why):
                self.fill(found)

                problems = self.interact(partial(examine, database=self.ids, seen=found.seen))
                start = self.interact(partial(id_start, database=self.ids, instance=None))

                self.assertEqual(found.kinds, tuple(one.kind for one in problems.found))
                self.assertEqual(found.goal, problems.goal)
                upto, a, b = found.start
                self.assertEqual(IdStart(positions={"A": a, "B": b}, persisted_upto=upto), start)

    def test_a_repair_leaves_no_problem(self) -> None:
        """Lost history is none that a repair ends, but its ids are not given again."""
        for found in FOUND:
            with self.subTest(found.why):
                self.fill(found)

                self.interact(partial(self.examine_and_repair, seen=found.seen))

                self.assertEqual([], self.interact(self.examine_and_repair))
                self.assertGreaterEqual(self.get_sequence(), found.goal)

    def examine_and_repair(self, cursor: Any, seen: int = 0) -> list[IdProblem]:
        """What was found."""
        problems = examine(cursor, self.ids, seen=seen)
        repair(cursor, self.ids, problems)
        return problems.found

    def test_a_stored_position_never_goes_back(self) -> None:
        """Two heartbeats of one writer may be committed in the other order; readers may be at the later."""
        for writer, negative in (("A", False), ("B", True)):
            ids = IdDatabase(self.stream(["A", "B"], negative=negative), self.flavor)
            for token in (9, 5):
                self.interact(partial(ids.save_position, instance=writer, token=token))

        self.assertEqual({"A": 9, "B": -9}, self.get_positions())

    def test_the_status_of_a_writer(self) -> None:
        """Its position, how many ids are unfinished, and which is the oldest and since when."""
        self.interact(partial(create_writers, flavor=self.flavor))
        store = partial(store_status, database=self.ids, writer="A", position=7, now=1000.0)
        unfinished = Unfinished(stream="things", writer="A", tokens=(8, 9), owner="a.py:1", age_seconds=40.0)

        self.interact(partial(store, process="p1", unfinished=[unfinished]))

        [state] = self.interact(read_writers)
        self.assertEqual(
            ("A", "p1", 7, 2, 8, 960.0, "a.py:1"),
            (
                state.writer,
                state.process,
                state.position,
                state.unfinished,
                state.oldest_id,
                state.oldest_since,
                state.owner,
            ),
        )
        self.assertEqual("p1", self.interact(partial(last_process, database=self.ids, writer="A")))
        self.assertIsNone(self.interact(partial(last_process, database=self.ids, writer="B")))


class SQLiteIdTablesTests(IdTables):
    """On SQLite."""


class PostgreSQLIdTablesTests(IdTables):
    """On PostgreSQL."""

    flavor = "postgresql"


del IdTables
