"""The twelve ways in which a stream's ids are found at a start, on both databases.

Each begins with what an operator did to the database, and says what the first id is afterwards, what was
warned of, and where readers may think they are. The numbers of issues are Synapse's.
"""

from typing import Any

from twisted.internet.defer import ensureDeferred

from synrepl.errors import StorageError
from synrepl.ids.generator import AllocatedIds, MultiWriterIdGenerator, StreamIdGenerator
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.id_tables.id_problems import IdProblems, examine, repair
from synrepl.storage.threads import ImmediateThread
from tests.ids.databases import IdCase


class StartUp(IdCase):
    """Written once, run on each."""

    def kinds(self, generator: MultiWriterIdGenerator) -> list[str]:
        return [finding.kind for finding in generator.problems]

    def test_switched_over_and_back(self) -> None:
        """`nextval` logs 32 values ahead: after two switch-overs a position can stand 32 above the sequence
        (S#18544). Nothing was lost, so it starts, and says once what it mended.
        """
        self.write_facts(self.started("A", ["A", "B"]), 3)
        self.set_position("A", 36)

        generator = self.started("A", ["A", "B"])

        self.assertEqual(["sequence_behind_positions"], self.kinds(generator))
        self.assertEqual((4, 36), (generator.problems[0].before, generator.problems[0].after))
        self.assertEqual(36, self.get_sequence())
        self.assertEqual([37], self.write_facts(generator))
        self.assertEqual([], self.started("A", ["A", "B"]).problems)

    def test_ids_reserved_by_a_killed_writer_are_never_used(self) -> None:
        """What a killed writer had reserved is never written, and never given again."""
        killed = self.started("A", ["A", "B"])
        self.write_facts(killed)
        self.wait(killed.next_many(3).__aenter__())

        generator = self.started("A", ["A", "B"])

        self.assertEqual([], generator.problems)
        self.assertEqual([6], self.write_facts(generator))
        self.assertEqual(6, generator.minimal_token)

    def test_the_position_that_was_found_is_not_stored_again(self) -> None:
        """Each store wakes all who follow; while an id is unfinished there is nothing to see."""
        self.write_facts(self.started("A", ["A", "B"]))
        generator = self.started("A", ["A", "B"])
        unfinished, later = generator.next(), generator.next()
        self.wait(unfinished.__aenter__())
        self.wait(later.__aenter__())
        commits: list[str] = []
        self.pool.before_commit = lambda: commits.append("commit")

        self.wait(later.__aexit__(None, None, None))
        self.assertEqual([], commits)
        self.wait(unfinished.__aexit__(None, None, None))

        self.assertEqual(["commit"], commits)

    def test_older_dump_restored(self) -> None:
        """Readers have seen more than the database knows: history is lost, said so, and no id that anybody
        has seen is given to something else.
        """
        self.write_facts(self.started("A", ["A"]), 3)

        generator = self.started("A", ["A"], seen=50)

        self.assertEqual(["history_lost"], self.kinds(generator))
        self.assertTrue(generator.problems[0].is_loss)
        self.assertIn("restored", generator.problems[0].text)
        self.assertEqual([51], self.write_facts(generator))

    def test_ported_with_no_rows(self) -> None:
        """An empty stream begins with 2: 1 counts as seen by everybody."""
        self.set_sequence(1, is_called=False)

        generator = self.started("A", ["A"])

        self.assertEqual(1, generator.persisted_upto)
        self.assertEqual([2], self.write_facts(generator))

    def test_ported_with_one_row(self) -> None:
        """A port that set the sequence to the one row that there was (S#19671)."""
        self.row("master", 2)
        self.set_sequence(2, is_called=False)

        generator = self.started("A", ["A"])

        self.assertEqual(["sequence_behind_tables"], self.kinds(generator))
        self.assertEqual([3], self.write_facts(generator))

    def test_ported_with_many_rows(self) -> None:
        """A port that forgot the sequence altogether."""
        for token in range(2, 12):
            self.row("master", token)

        generator = self.started("A", ["A", "B"])

        self.assertEqual(["sequence_behind_tables"], self.kinds(generator))
        self.assertEqual((1, 11), (generator.problems[0].before, generator.problems[0].after))
        self.assertEqual(11, generator.persisted_upto)
        self.assertEqual([12], self.write_facts(generator))

    def test_sequence_never_called(self) -> None:
        """`START WITH 2` and `last_value` 2 before the first call are not the same as 2 given (S#18712)."""
        self.set_sequence(2, is_called=False)

        generator = self.started("A", ["A"])

        self.assertEqual([], generator.problems)
        self.assertEqual([2], self.write_facts(generator))

    def test_negative_stream(self) -> None:
        """Backfilled events count downwards; what is behind is behind in that direction."""
        self.row("A", -8)
        self.set_position("A", -8)

        generator = self.started("A", ["A", "B"], negative=True)

        self.assertEqual(["sequence_behind_tables", "sequence_behind_positions"], self.kinds(generator))
        self.assertEqual([-9], self.write_facts(generator))
        self.assertEqual(-9, generator.minimal_token)

    def test_writer_added(self) -> None:
        """A new writer's first id is above everything, and it is not announced early (S#16473)."""
        old = self.started("A", ["A"])
        self.write_facts(old, 4)

        added = self.started("B", ["A", "B"])
        context = added.next()
        token = self.wait(context.__aenter__())

        self.assertEqual(6, token)
        self.assertEqual((5, 5), (added.minimal_token, added.announced_token))
        self.assertEqual(5, added.persisted_upto)

    def test_writer_removed(self) -> None:
        """The lowest position was that of a writer who is no more: the linear one moves (S#8374)."""
        self.set_position("A", 9)
        self.set_position("gone", 3)
        self.set_sequence(9)

        generator = self.started("A", ["A"])

        self.assertEqual(["unknown_writer"], self.kinds(generator))
        self.assertEqual({"A": 9}, self.get_positions())
        self.assertEqual(9, generator.persisted_upto)

    def test_writer_renamed(self) -> None:
        """The old name's facts stay, its position goes, the new name begins where the sequence stands."""
        self.write_facts(self.started("old", ["old", "B"]), 3)

        generator = self.started("new", ["new", "B"])

        self.assertEqual(["unknown_writer"], self.kinds(generator))
        self.assertEqual(4, generator.minimal_token)
        self.assertEqual([5], self.write_facts(generator))

    def test_rolled_back_then_forward(self) -> None:
        """An older release ran in between, wrote rows, and knew no positions."""
        self.write_facts(self.started("A", ["A", "B"]), 3)
        for token in range(5, 9):
            self.row("master", token)

        generator = self.started("A", ["A", "B"])

        self.assertEqual(["sequence_behind_tables"], self.kinds(generator))
        self.assertEqual(8, generator.persisted_upto)
        self.assertEqual([9], self.write_facts(generator))

    def test_a_stream_of_one_writer(self) -> None:
        """Its own position is the linear one: there is nobody else to wait for."""
        generator = StreamIdGenerator(
            self.pool,
            name="things",
            sequence=self.sequence,
            tables=self.stream([]).tables,
            instance="A",
            flavor=self.flavor,
            clock=self.clock,
        )
        self.wait(generator.start())

        self.assertEqual([2, 3], self.write_facts(generator, 2))
        self.assertEqual(
            (3, 3, 3), (generator.minimal_token, generator.announced_token, generator.persisted_upto)
        )
        self.assertEqual({"A": 3}, self.get_positions())

    def test_the_own_last_row_counts_as_complete(self) -> None:
        """The linear position goes on over it as soon as what lies before it is complete."""
        a, b = self.started("A", ["A", "B"]), self.started("B", ["A", "B"])
        self.write_facts(a)
        self.set_position("B", 2)
        waiting = b.next()
        token = self.wait(waiting.__aenter__())
        self.write_facts(a)
        again = self.started("A", ["A", "B"])
        self.assertEqual((2, 4), (again.persisted_upto, again.minimal_token))

        self.row("B", token)
        self.wait(waiting.__aexit__(None, None, None))
        again.advance("B", token, wrote=True)

        self.assertEqual(4, again.persisted_upto)

    def test_a_stream_without_writers_begins_at_its_highest_row(self) -> None:
        """What the sequence gave beyond may be in the hands of a process that is still at work."""
        first = self.started("A", [])
        self.write_facts(first)
        self.wait(first.next_many(3).__aenter__())

        second = self.started("B", [])

        self.assertEqual((2, 2, 2), (second.persisted_upto, second.minimal_token, second.announced_token))
        self.assertEqual([6], self.write_facts(second))

    def test_how_far_it_can_be_waited_for(self) -> None:
        """Unfinished ids exist, and may be waited for; those of other streams are not known here."""
        generator = self.started("A", ["A", "B"])
        self.write_facts(generator, 2)
        self.wait(generator.next_many(3).__aenter__())
        allocated = AllocatedIds({"things": generator})

        self.assertEqual(6, self.wait(allocated.highest("things")))
        self.assertIsNone(self.wait(allocated.highest("others")))

    def test_others_write_meanwhile(self) -> None:
        """On PostgreSQL each statement sees what is committed when it begins: that is right so."""
        if self.flavor == "sqlite":
            return
        other = self.started("B", ["A", "B"])
        generator = self.generator("A", ["A", "B"], pool=self.new_pool())
        database = generator.database
        for name in ("allocated", "highest_row", "positions"):
            look = getattr(database, name)

            def look_and_be_late(cursor: Any, name: str = name, look: Any = look) -> Any:
                setattr(database, name, look)
                found = look(cursor)
                self.write_facts(other, 3)
                return found

            setattr(database, name, look_and_be_late)

        self.wait(generator.start())

        self.assertEqual([], generator.problems)

    def test_two_writers_race(self) -> None:
        """Both find the sequence behind. The second must not take it back below what the first gave."""
        for token in range(2, 12):
            self.row("master", token)
        first = self.generator("A", ["A", "B"])
        second = self.generator("B", ["A", "B"], pool=self.new_pool())
        pool = self.pool
        given: list[int] = []

        def start_first_meanwhile() -> None:
            pool.before_commit = lambda: None
            self.wait(first.start())
            given.extend(self.write_facts(first, 2))

        stale = self.examined()
        start_first_meanwhile()
        self.mend(stale)
        self.wait(second.start())

        self.assertEqual([12, 13], given)
        self.assertEqual([14], self.write_facts(second))
        self.assertEqual([15], self.write_facts(first))

    def examined(self) -> IdProblems:
        """What a start saw just before another one was done."""
        return self.interact(lambda cursor: examine(cursor, self.generator("B", ["A", "B"]).database))

    def mend(self, findings: IdProblems) -> None:
        self.interact(lambda cursor: repair(cursor, self.generator("B", ["A", "B"]).database, findings))

    def test_same_name_twice(self) -> None:
        """Two processes of one name would pass each other's unfinished ids: the second does not start."""
        one = self.session("A")
        self.wait(one.start())
        two = self.session("A")

        with self.assertRaises(StorageError) as caught:
            self.start_slowly(two)

        self.assertIn("another process writes as A", str(caught.exception))
        self.wait(one.stop())

    def session(self, instance: str) -> WriterSession:
        return WriterSession(
            self.connect,
            [self.generator(instance, ["A", "B"])],
            instance=instance,
            flavor=self.flavor,
            clock=self.clock,
            thread=ImmediateThread(),
        )

    def start_slowly(self, session: WriterSession) -> None:
        results: list[Any] = []
        ensureDeferred(session.start()).addBoth(results.append)
        self.clock.pump([0.25] * 80)
        results[0].raiseException()


class SQLiteStartUpTests(StartUp):
    """On SQLite."""


class PostgreSQLStartUpTests(StartUp):
    """On PostgreSQL."""

    flavor = "postgresql"


del StartUp
