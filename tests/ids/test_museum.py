"""Bugs of the generators of ids, at a start and in between."""

from synrepl.errors import NeverAllocated
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.threads import ImmediateThread
from tests.ids.databases import IdCase
from tests.replication.follower.test_apply_queue import Waiting


class IdTests(IdCase):
    """On SQLite; tests/ids runs the same on PostgreSQL."""

    def test_the_first_id_of_a_new_writer_is_not_announced_early(self) -> None:
        """Case 9, Synapse #16473: a new writer announced its first id before the row with that id was
        written.

        Here: its position stays below the id until the transaction is over.
        """
        self.write_facts(self.started("A", ["A"]), 4)
        added = self.started("B", ["A", "B"])

        context = added.next()
        token = self.wait(context.__aenter__())
        before = (added.minimal_token, added.announced_token)
        self.wait(context.__aexit__(None, None, None))

        self.assertEqual(6, token)
        self.assertEqual((5, 5), before)
        self.assertEqual(6, added.announced_token)

    def end(self, session: WriterSession) -> None:
        """In order."""
        self.wait(session.stop())

    def test_a_removed_writer_holds_nothing_back(self) -> None:
        """Case 10, Synapse #8374: the writer with the lowest position was removed, and kept the linear
        position from advancing.

        Here: the linear position passes the removed writer; its rows stay.
        """
        self.row("gone", 3)
        self.set_position("gone", 3)
        self.set_position("A", 9)
        self.set_sequence(9)

        generator = self.started("A", ["A"])

        self.assertEqual(["unknown_writer"], [finding.kind for finding in generator.problems])
        self.assertEqual(9, generator.persisted_upto)
        self.assertEqual([(3,)], self.do("SELECT stream_id FROM facts_of_things"))

    def test_a_token_from_the_future_is_not_waited_for(self) -> None:
        """Case 11, Synapse #17386: after a rollback clients held tokens that did not exist yet. Syncs hung.

        Here: a wait for a token above all allocated ones fails at once, and names the highest. If told what
        readers have seen, a starting generator reports lost history and never reuses a seen id.
        """
        setup = Waiting()
        setup.begin("ada", master=99)
        setup.answer(54)
        self.write_facts(self.started("A", ["A"]), 3)
        generator = self.started("A", ["A"], seen=50)

        ((_, error),) = setup.ended
        self.assertIsInstance(error, NeverAllocated)
        self.assertEqual((99, 54), (error.want, error.allocated))
        self.assertEqual(["history_lost"], [finding.kind for finding in generator.problems])
        self.assertEqual([51], self.write_facts(generator))

    def test_a_sequence_32_behind_its_positions_heals(self) -> None:
        """Case 12, Synapse #18544: after a switch-over and back, positions were 32 above the sequence.

        Synapse refused to start. Here: the sequence is advanced, and one problem is reported.
        """
        self.write_facts(self.started("A", ["A", "B"]), 3)
        self.set_position("A", 4 + 32)

        generator = self.started("A", ["A", "B"])

        (finding,) = generator.problems
        self.assertEqual(("sequence_behind_positions", 4, 36), (finding.kind, finding.before, finding.after))
        self.assertFalse(finding.is_loss)
        self.assertEqual([37], self.write_facts(generator))

    def test_a_sequence_that_was_never_called_starts_right(self) -> None:
        """Case 13, Synapse #18712: a never-called sequence with `START WITH 2` was taken for one that had
        given out 2.

        Here: an empty stream starts without a warning, and gives the id that the sequence begins with.
        """
        self.set_sequence(2, is_called=False)

        generator = self.started("A", ["A"])

        self.assertEqual([], generator.problems)
        self.assertEqual([2], self.write_facts(generator))

    def test_a_stream_ported_with_one_row_starts(self) -> None:
        """Case 14, Synapse #19671: porting a table with one row from SQLite to PostgreSQL left a sequence
        that prevented startup.

        Here: the generator starts, and the next id is above the row's id.
        """
        self.row("master", 2)
        self.set_sequence(2, is_called=False)

        generator = self.started("A", ["A"])

        self.assertEqual(["sequence_behind_tables"], [finding.kind for finding in generator.problems])
        self.assertEqual([3], self.write_facts(generator))

    def test_an_idle_writer_does_not_pin_the_minimum(self) -> None:
        """Case 15, Synapse #8499: a writer that wrote nothing kept the position of the whole stream from
        advancing.

        Here: its position advances with the others within 5 seconds.
        """
        writers = {name: self.generator(name, ["A", "B"]) for name in "AB"}
        for name, generator in writers.items():
            session = WriterSession(
                self.connect,
                [generator],
                instance=name,
                flavor=self.flavor,
                clock=self.clock,
                thread=ImmediateThread(),
            )
            self.wait(session.start())
            self.addCleanup(self.end, session)

        self.write_facts(writers["A"], 5)
        self.clock.pump([0.25] * 20)

        self.assertEqual({"A": 6, "B": 6}, self.get_positions())
        self.assertEqual((6, 6), tuple(one.persisted_upto for one in writers.values()))
