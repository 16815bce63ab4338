"""Facts that have their writer and token already: what is news, what is known, and what came late."""

from collections.abc import Iterable

from twisted.internet.defer import Deferred

from synrepl.base.history import Appended
from synrepl.errors import StorageError
from synrepl.storage.append_errors import FROM_TABLE, GivenElsewhere
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.catalog import ALL
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from tests.memory_engine import FaultyEngine
from tests.storage.builders import DISK_FULL, LogCase, rows

A, B, C = rows("a"), rows("b"), rows("c")
NONE = b"[]"

Given = tuple[str, int, bytes]
Kept = tuple[str, int, int, bytes]


class Asked(FaultyEngine):
    """Notes how often anybody looks under a token."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[tuple[str, int]] = []

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        self.looked.append((stream, token))
        return super().rows_at_token(stream, token)


class AdoptCase(LogCase):
    """A log of one ordered, one unordered, one told by all, and one that is both."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = Asked()
        self.adopting = self.start()

    def start(self) -> Log:
        return self.started(
            self.engine, ephemeral=["typing"], unordered=["backfill", "both"], any_writer=["lists", "both"]
        )

    def adopt(self, stream: str, *facts: Given) -> list[int]:
        """Adopt these at once, and the tokens that were kept."""
        answer: Appended = self.wait(self.adopting.append_assigned(stream, facts))
        return answer.tokens

    def kept(self, stream: str) -> list[Kept]:
        """What the log has: writer, prev_token, token, rows."""
        return _places(fact for fact in self.engine.facts if fact.stream == stream)


def _places(facts: Iterable[Fact]) -> list[Kept]:
    return [(fact.writer, fact.prev_token, fact.token, fact.rows) for fact in facts]


class OrderedTests(AdoptCase):
    """As it is where tokens only go up."""

    def test_what_a_writer_has_reached_is_left_out(self) -> None:
        """Whoever brings facts may bring some again, after a restart or a lost answer."""
        self.adopt("events", ("w1", 3, A), ("w1", 5, B))

        again = self.adopt("events", ("w1", 3, A), ("w1", 4, C), ("w1", 5, B), ("w2", 4, C), ("w1", 9, C))

        self.assertEqual([4, 9], again)
        self.assertEqual(
            [("w1", 0, 3, A), ("w1", 3, 5, B), ("w2", 0, 4, C), ("w1", 5, 9, C)], self.kept("events")
        )
        self.assertEqual([], self.engine.looked)

    def test_many_in_one_turn_go_into_one_commit(self) -> None:
        """A burst that came in one piece costs one sync of the disk, whatever streams it is of."""
        answers = [self.adopting.append_assigned(f"s{n % 3}", [("w1", n + 1, A)]) for n in range(30)]
        self.clock.advance(0)

        self.assertTrue(all(self.successResultOf(answer).tokens for answer in answers))
        self.assertEqual(1, self.engine.commits)

    def test_a_log_that_ends_keeps_what_it_was_given(self) -> None:
        """Also when it ends in the same turn."""
        answer = self.adopting.append_assigned("events", [("w1", 1, A)])
        self.wait(self.adopting.stop())

        self.assertEqual([1], self.successResultOf(answer).tokens)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_what_was_given_before_a_loss_is_kept_before_it(self) -> None:
        """Or it would count in the new epoch, in which it never was."""
        self.adopting.append_assigned("events", [("w1", 5, A)])
        lost = Deferred.fromCoroutine(self.adopting.epochs.begin_next("lost", stream="events", token=3))
        self.wait(lost)

        self.assertEqual(([(1, 5)], {"w1": 3}), (self.epochs("events"), self.adopting.positions("events")))

    def epochs(self, stream: str) -> list[tuple[int, int]]:
        return [(fact.epoch, fact.token) for fact in self.engine.facts if fact.stream == stream]


class UnorderedTests(AdoptCase):
    """Backfill goes down, caches come ahead and again."""

    def test_lower_tokens_are_kept_late(self) -> None:
        """The burst of a real master: all of it is news, though only the first moves the position."""
        kept = self.adopt("backfill", ("w1", 101, A), ("w1", 100, B), ("w1", 99, C))

        self.assertEqual([101, 100, 99], kept)
        self.assertEqual([("w1", 0, 101, A), ("w1", 100, 100, B), ("w1", 99, 99, C)], self.kept("backfill"))
        self.assertEqual({"w1": 101}, self.adopting.positions("backfill"))
        self.assertEqual(101, self.adopting.linear_position("backfill"))
        self.assertIsNone(verify(self.engine.facts, EMPTY))

    def test_the_very_same_fact_is_known(self) -> None:
        """Committed or in the same group; with other rows, or of another writer, it is another."""
        self.adopt("backfill", ("w1", 5, A), ("w1", 4, B), ("w1", 4, B), ("w1", 5, A))

        self.assertEqual([5, 4], [token for _, _, token, _ in self.kept("backfill")])
        again = self.adopt(
            "backfill", ("w1", 5, A), ("w1", 4, B), ("w1", 4, C), ("w1", 4, C), ("w2", 4, B), ("w1", 6, A)
        )

        self.assertEqual([4, 4, 6], again)
        self.assertEqual([("w1", 4, 4, C), ("w2", 0, 4, B), ("w1", 5, 6, A)], self.kept("backfill")[2:])

    def test_a_certificate_is_never_late(self) -> None:
        """It says nothing that the position does not say."""
        self.adopt("backfill", ("w1", 5, A))

        self.assertEqual([7], self.adopt("backfill", ("w1", 4, NONE), ("w1", 5, NONE), ("w1", 7, NONE)))

    def test_tokens_below_the_first_are_never_news(self) -> None:
        """All who read ask for what is after 0."""
        self.assertEqual([], self.adopt("backfill", ("w1", 0, A), ("w1", -3, A)))
        self.assertEqual({}, self.adopting.positions("backfill"))

    def test_it_stands_where_it_stood_after_a_restart(self) -> None:
        """The last fact is not the highest: a log that takes it for that gives tokens twice."""
        path = self.directory() / "synrepl.db"
        log = self.started(SQLEngine(SQLiteDatabase(path)), unordered=["backfill"])
        self.wait(log.append_assigned("backfill", [("w1", 101, A), ("w1", 99, B), ("w2", 100, A)]))
        self.wait(log.stop())

        log = self.started(SQLEngine(SQLiteDatabase(path)), unordered=["backfill"])
        self.assertEqual({"w1": 101, "w2": 100}, log.positions("backfill"))
        again = self.wait(log.append_assigned("backfill", [("w1", 99, B), ("w1", 98, C), ("w1", 102, A)]))
        self.assertEqual([98, 102], again.tokens)
        self.assertEqual({"w1": 102, "w2": 100}, log.positions("backfill"))
        self.wait(log.stop())

    def test_an_unknown_outcome_repeats_nothing(self) -> None:
        """Who is told that it may have been stored asks again."""
        log = self.adopting
        self.adopt("backfill", ("w1", 5, A))
        self.engine.fail_next(DISK_FULL, kept=True)
        lost = log.append_assigned("backfill", [("w1", 4, B), ("w1", 6, C)])
        self.clock.advance(0)
        self.failureResultOf(lost, StorageError)

        self.assertEqual([3], self.adopt("backfill", ("w1", 4, B), ("w1", 6, C), ("w1", 3, A)))
        self.assertEqual([5, 4, 6, 3], [token for _, _, token, _ in self.kept("backfill")])

    def test_tokens_that_go_up_are_looked_up_nowhere(self) -> None:
        """This is the hot path; a query for each fact would halve it."""
        for first in range(1, 1000, 10):
            self.adopt("backfill", *(("w1", first + n, A) for n in range(10)))
        self.adopt("backfill", *(("w2", 2000 - n, A) for n in range(10)))
        self.assertEqual([], self.engine.looked)

        self.adopt("backfill", ("w1", 7, B))

        self.assertEqual([("backfill", 7)], self.engine.looked)


class ToldByAllTests(AdoptCase):
    """Two instances that publish the same row of the same table."""

    def test_what_another_has_told_becomes_a_certificate(self) -> None:
        """Followers hear of it once; and who waits for the second writer does not wait for ever."""
        self.adopt("lists", ("w1", 5, A))

        self.assertEqual([5, 6, 6], self.adopt("lists", ("w2", 5, A), ("w2", 6, B), ("w1", 6, B)))

        self.assertEqual(
            [("w1", 0, 5, A), ("w2", 0, 5, NONE), ("w2", 5, 6, B), ("w1", 5, 6, NONE)], self.kept("lists")
        )
        self.assertEqual({"w1": 6, "w2": 6}, self.adopting.positions("lists"))

    def test_other_rows_under_the_same_token_are_news(self) -> None:
        """Each told half of what happened at once."""
        self.adopt("lists", ("w1", 5, A))

        self.adopt("lists", ("w2", 5, B), ("w3", 5, B))

        self.assertEqual([A, B, NONE], [told for _, _, _, told in self.kept("lists")])

    def test_where_writers_are_filtered_each_has_its_own_facts(self) -> None:
        """The same row under the same token of two writers is then two facts."""
        self.adopt("events", ("w1", 5, A), ("w2", 5, A))

        self.assertEqual([A, A], [told for _, _, _, told in self.kept("events")])

    def test_a_late_fact_that_another_has_told_is_left_out(self) -> None:
        """Without rows and below the position it would say nothing at all."""
        self.adopt("both", ("w1", 5, A), ("w2", 9, B))

        self.assertEqual([], self.adopt("both", ("w2", 5, A)))
        self.assertEqual([4], self.adopt("both", ("w2", 4, A)))

    def test_only_tokens_that_were_reached_are_looked_up(self) -> None:
        """The first to tell, which is nearly always the only one, pays nothing."""
        for token in range(1, 100):
            self.adopt("lists", ("w1", token, A))
        self.assertEqual([], self.engine.looked)

        self.adopt("lists", ("w2", 50, A), ("w2", 99, NONE), ("w2", 100, A), ("w1", 100, A))

        self.assertEqual([("lists", 50)], self.engine.looked)

    def test_the_streams_of_synapse_that_are(self) -> None:
        """Those whose rows it does not filter by writer."""
        self.assertEqual(
            {
                "account_data",
                "device_lists",
                "profile_updates",
                "push_rules",
                "pushers",
                "quarantined_media",
                "sticky_events",
                "thread_subscriptions",
                "to_device",
            },
            {stream.name for stream in ALL if stream.any_writer},
        )


class EphemeralAdoptTests(AdoptCase):
    """Streams in memory, with tokens of their own."""

    def setUp(self) -> None:
        super().setUp()
        self.shown: list[Kept] = []
        self.adopting.subscribe(lambda facts: self.shown.extend(_places(facts)))

    def test_they_are_answered_at_once_and_shown(self) -> None:
        """As appended ones are; what is known is shown to nobody."""
        facts = [("w1", 7, A), ("w1", 7, A), ("w1", 9, NONE), ("w1", 8, B)]
        answer = self.successResultOf(self.adopting.append_assigned("typing", facts))
        self.successResultOf(self.adopting.append_assigned("typing", facts))

        self.assertEqual(Appended(1, None, [7, 9]), answer)
        self.assertEqual([("w1", 0, 7, A), ("w1", 7, 9, NONE)], self.shown)
        self.assertEqual([7], [fact.token for fact in self.adopting.ephemeral.after("typing", 0)])
        self.assertEqual(
            ({"w1": 9}, 9), (self.adopting.positions("typing"), self.adopting.linear_position("typing"))
        )
        self.assertEqual(0, self.engine.commits)

    def test_a_writer_that_begins_anew(self) -> None:
        """Its low tokens are news then, and followers are told that it stands at 0."""
        self.successResultOf(self.adopting.append_assigned("typing", [("w1", 7, A), ("w2", 5, B)]))

        self.adopting.reset_writer("typing", "w1")
        self.successResultOf(self.adopting.append_assigned("typing", [("w1", 1, C)]))

        self.assertEqual([("w1", 0, 0, NONE), ("w1", 0, 1, C)], self.shown[2:])
        self.assertEqual([1, 5], [fact.token for fact in self.adopting.ephemeral.after("typing", 0)])
        self.assertEqual(
            ({"w1": 1, "w2": 5}, 5),
            (self.adopting.positions("typing"), self.adopting.linear_position("typing")),
        )

    def test_appending_goes_on_after_the_highest(self) -> None:
        """Whoever wrote it."""
        self.successResultOf(self.adopting.append_assigned("typing", [("w1", 7, A)]))

        self.assertEqual([8], self.append(self.adopting, "typing", "w2", B).tokens)

    def test_a_kept_stream_never_goes_back(self) -> None:
        """What is in the log is durable; `lose` is for what was lost."""
        with self.assertRaises(StorageError) as caught:
            self.adopting.reset_writer("events", "w1")
        self.assertIn("never go back", str(caught.exception))

        self.assertRaises(StorageError, self.adopting.reset_writer, "typing", "two words")
        self.wait(self.adopting.stop())
        self.assertRaises(StorageError, self.adopting.reset_writer, "typing", "w1")


class RefusedTests(LogCase):
    """Appending to what comes from elsewhere."""

    def refused(self, log: Log, stream: str) -> GivenElsewhere:
        error = self.failureResultOf(log.append(stream, "w1", [A]), GivenElsewhere).value
        assert isinstance(error, GivenElsewhere)
        return error

    def test_who_appends_is_told_where_the_facts_come_from(self) -> None:
        """A person has to know where to write instead, a program what to do without a person."""
        log = self.started(
            FaultyEngine(),
            assigned={"caches": FROM_TABLE, "receipts": "its facts come over Redis", "typing": "so do these"},
        )

        table, brought, memory = (self.refused(log, stream) for stream in ("caches", "receipts", "typing"))

        self.assertEqual("table_backed", table.code)
        self.assertIn("its facts come from the homeserver's table", str(table))
        self.assertEqual(["brought_elsewhere"] * 2, [brought.code, memory.code])
        self.assertIn("append of receipts failed: its facts come over Redis", str(brought))
        self.assertEqual({(False, False)}, {(one.retryable, one.tried) for one in (table, brought, memory)})

    def test_names_alone_are_tables(self) -> None:
        """What a daemon that follows tables has always said."""
        log = self.started(FaultyEngine(), assigned=["caches"])

        self.assertEqual("table_backed", self.refused(log, "caches").code)
