"""From followers into the log."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.errors import StorageError
from synrepl.ingest import ingester as ingester_module
from synrepl.ingest.ingester import Ingester, LoggedPositions
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, MissedFacts, Updates
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.strategies import SHARED
from synrepl.storage.epochs import LOOK_UPS
from synrepl.storage.log import Log
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.memory_engine import DelayedThread
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import Command
from tests.memory_engine import FaultyEngine

TABLE = StreamTable.default()
ROW = b'["@a:hs"]'


class FakeCatchUp:
    """Where nothing was missed; `asked` says from where on."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        self.asked.append(after)
        return MissedFacts(facts=[], upto=upto, limited=False)


class Line:
    """A connection on which nothing need be said."""

    def write(self, data: bytes) -> None:
        pass

    def send(self, command: Command) -> None:
        pass

    def fail(self, why: str) -> None:
        raise AssertionError(why)

    def established(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Setup:
    """An ingester over a real log, whose disk takes a hundredth of a second."""

    def __init__(self, *, knows_history: bool = True, confirms: bool = False) -> None:
        self.clock = HeapClock()
        self.engine = FaultyEngine()
        self.log = Log(
            self.engine,
            DelayedThread(self.clock, lambda: 0.01),
            DelayedThread(self.clock, lambda: 0.01),
            self.clock,
            ephemeral=[stream.name for stream in TABLE if stream.ephemeral],
            unordered=[stream.name for stream in TABLE if not stream.ordered],
            any_writer=[stream.name for stream in TABLE if stream.any_writer],
            logger=Logger(),
        )
        Deferred.fromCoroutine(self.log.start())
        self.clock.advance(0.01)
        self.lost: list[str] = []
        self.follower = Follower(instance="us", clock=self.clock, streams=TABLE, canonical=True)
        self.refused = RefusedFacts(self.log, TABLE, Metrics(CollectorRegistry()), instance="us")
        self.log.subscribe(self.refused.committed)
        self.ingester = Ingester(
            self.log, TABLE, self.clock, refused=self.refused, history_lost=self.lost.append
        )
        self.ingester.attach(self.follower, knows_history=knows_history, confirms=confirms)

    def take(
        self, *tokens: int, stream: str = "to_device", writer: str = "w1", rows: Sequence[bytes] = (ROW,)
    ) -> list["Deferred[None] | None"]:
        return [self.ingester.submit(Updates(stream, writer, token, list(rows))) for token in tokens]

    def happens(self, kind: str, *, stream: str = "to_device", writer: str = "w1", token: int = 0) -> None:
        self.follower.server.events.emit(FollowerEvent(kind=kind, stream=stream, writer=writer, token=token))  # type: ignore[arg-type]

    def wait(self, seconds: float = 0.1) -> None:
        self.clock.pump([0.01] * round(seconds * 100))

    def fail(self) -> None:
        self.engine.fail_next(StorageError(op="commit", why="the disk is full"))

    def kept(self, stream: str = "to_device") -> list[tuple[str, int, bool]]:
        """Writer, token and whether there are rows."""
        facts = [fact for fact in self.engine.facts if fact.stream == stream]
        return [(fact.writer, fact.token, fact.rows != NO_ROWS) for fact in facts]

    def tokens(self, stream: str = "to_device") -> list[int]:
        return [token for _, token, _ in self.kept(stream)]


class TestStoring:
    """Each fact once, in order."""

    def test_what_comes_in_one_turn_is_one_commit(self) -> None:
        """Also of several streams."""
        setup = Setup()
        setup.take(2, 3, 4)
        setup.take(2, stream="push_rules", writer="w2")
        setup.wait()

        assert [2, 3, 4] == setup.tokens()
        assert [2] == setup.tokens("push_rules")
        assert 1 == setup.engine.commits

    def test_what_comes_during_a_commit_goes_into_the_next(self) -> None:
        """One flight at a time."""
        setup = Setup()
        setup.take(2)
        setup.clock.advance(0)
        for token in range(3, 50):
            setup.take(token)
            setup.clock.advance(0.001)
        setup.wait()

        assert list(range(2, 50)) == setup.tokens()
        assert 2 < setup.engine.commits < 12

    @pytest.mark.parametrize("kept", [False, True])
    def test_a_commit_that_fails_is_tried_again_in_order(self, kept: bool) -> None:
        """Also one of which nobody knows whether it was kept; and what came later waits for it."""
        setup = Setup()
        setup.engine.fail_next(StorageError(op="commit", why="the disk is full"), kept=kept)
        setup.take(2, 3)
        setup.clock.advance(0.02)
        setup.take(4, 5)
        setup.wait(0.1)
        assert [] == setup.tokens() or kept
        assert "the disk is full" in setup.ingester.error

        setup.wait(10)

        assert [2, 3, 4, 5] == setup.tokens()
        assert "" == setup.ingester.error

    def test_it_is_tried_until_it_is_kept(self) -> None:
        """However often, and nothing is lost meanwhile."""
        setup = Setup()
        for token in range(2, 12):
            setup.fail()
            setup.take(token)
            setup.wait(1)
        setup.wait(30)

        assert list(range(2, 12)) == setup.tokens()

    def test_a_busy_log_is_tried_again(self) -> None:
        """It refuses at once, and says so."""
        setup = Setup()
        setup.log._committer._max_pending_bytes = 10
        setup.take(2)
        setup.take(2, stream="push_rules")
        setup.take(2, stream="pushers", rows=[b'["@a:hs","app","key",false]'])
        setup.wait(5)

        assert [[2]] * 3 == [setup.tokens(stream) for stream in ("to_device", "push_rules", "pushers")]

    def test_too_much_that_waits_holds_streams_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until the log has taken it."""
        monkeypatch.setattr(ingester_module, "MAX_PENDING_BYTES", 1_000)
        setup = Setup()
        setup.fail()
        waits = setup.take(*range(2, 8))
        held = [wait for wait in waits if wait is not None]
        assert waits[0] is None
        assert held

        setup.wait(0.1)
        assert not any(wait.called for wait in held)
        setup.wait(1)

        assert all(wait.called for wait in held)
        assert [None] == setup.take(8)

    def test_facts_that_are_known_are_left_out(self) -> None:
        """Two sources may bring the same."""
        setup = Setup()
        setup.take(2, 3)
        setup.wait()
        setup.take(2, 3, 4)
        setup.wait()

        assert [2, 3, 4] == setup.tokens()

    def test_late_facts_are_kept_once(self) -> None:
        """Where there is no order; and lead nowhere back."""
        setup = Setup()
        caches = {"stream": "caches", "rows": [b'["get_x",null,5]']}
        for tokens in ([10], [9], [9, 10, 11]):
            setup.take(*tokens, **caches)  # type: ignore[arg-type]
            setup.wait()

        assert [10, 9, 11] == setup.tokens("caches")
        assert {"w1": 11} == setup.log.positions("caches")

    def test_what_another_has_told_is_a_fact_without_rows(self) -> None:
        """Where all tell all."""
        setup = Setup()
        setup.take(5, stream="device_lists", writer="w1", rows=[b'["@a:hs",false,false]'])
        setup.wait()
        setup.take(5, stream="device_lists", writer="w2", rows=[b'["@a:hs",false,false]'])
        setup.wait()

        assert [("w1", 5, True), ("w2", 5, False)] == setup.kept("device_lists")

    def test_after_stop_nothing_is_under_way(self) -> None:
        """What is not stored is heard again."""
        setup = Setup()
        setup.fail()
        setup.take(2)
        setup.happens("position", writer="w2", token=5)
        setup.wait(0.05)
        setup.ingester.stop()
        setup.wait(10)

        assert [] == setup.kept() or [("w2", 5, False)] == setup.kept()


class TestCertificates:
    """A writer's silence."""

    def test_the_first_position_of_a_writer_is_kept_at_once(self) -> None:
        """Where it begins must survive a kill."""
        setup = Setup()
        setup.happens("position", token=7)
        setup.wait(0.05)

        assert [("w1", 7, False)] == setup.kept()

    @pytest.mark.parametrize(("has_been_here", "asked"), [(True, [0]), (False, [])])
    def test_a_stream_that_the_log_never_heard_of_is_new(self, has_been_here: bool, asked: list[int]) -> None:
        """A writer at 0 cannot be certified; what it wrote first, while we were away, is asked for. Only a
        log that is all empty begins with the latest."""
        setup = Setup()
        if has_been_here:
            setup.take(2, stream="push_rules")
        setup.wait(1)
        fake_catch_up = FakeCatchUp()
        follower = Follower(
            instance="us",
            clock=setup.clock,
            streams=TABLE,
            positions=LoggedPositions(setup.log),
            catch_up=fake_catch_up,
            canonical=True,
        )
        setup.ingester.attach(follower)
        follower.server.connected(Line(), NEWEST, SHARED)
        follower.server.received([Position(stream="to_device", instance="w1", prev_token=5, token=5)])
        setup.wait(2)

        assert asked == fake_catch_up.asked
        assert {"w1": 5} == setup.log.positions("to_device")

    def test_later_ones_at_most_once_a_second(self) -> None:
        """Each is a fact."""
        setup = Setup()
        setup.happens("position", token=7)
        setup.wait(0.1)
        for token in range(8, 58):
            setup.happens("position", token=token)
            setup.wait(0.05)
        setup.wait(2)

        kept = setup.tokens()
        assert [7, 57] == [kept[0], kept[-1]]
        assert 4 <= len(kept) <= 5

    def test_none_where_the_facts_themselves_say_it(self) -> None:
        """The usual POSITION after a row."""
        setup = Setup()
        setup.take(7)
        setup.wait()
        setup.happens("position", token=7)
        setup.wait(2)

        assert [("w1", 7, True)] == setup.kept()

    def test_a_certificate_does_not_overtake_facts_that_wait(self) -> None:
        """It says that everything up to there is here."""
        setup = Setup()
        setup.take(7)
        setup.wait()
        setup.happens("position", token=7)
        setup.wait(0.9)
        setup.fail()
        setup.take(8)
        setup.happens("position", token=9)
        setup.wait(5)

        assert [("w1", 7, True), ("w1", 8, True), ("w1", 9, False)] == setup.kept()


class TestRestart:
    """A writer of a stream in memory began anew."""

    def test_what_waits_of_its_former_life_is_void(self) -> None:
        """And its tokens begin again."""
        setup = Setup()
        resets: list[Fact] = []
        setup.log.subscribe(lambda facts: resets.extend(fact for fact in facts if fact.token == 0))
        typing = {"stream": "typing", "rows": [b'["!r",["@a:hs"]]']}
        setup.take(7, **typing)  # type: ignore[arg-type]
        setup.wait()
        setup.take(8, **typing)  # type: ignore[arg-type]
        setup.take(3, writer="w2", **typing)  # type: ignore[arg-type]
        setup.happens("restarted", stream="typing")
        setup.take(1, **typing)  # type: ignore[arg-type]
        setup.wait()

        assert {"w1": 1, "w2": 3} == setup.log.positions("typing")
        assert [("w1", 1), ("w2", 3)] == [
            (fact.writer, fact.token) for fact in setup.log.ephemeral.after("typing", 0)
        ]
        assert ["w1"] == [fact.writer for fact in resets]


class TestHistory:
    """A writer that stands lower than it did."""

    def stand(self, setup: Setup) -> None:
        setup.take(2, 3, 4)
        setup.wait()

    def test_facts_that_it_lost_begin_a_new_epoch(self) -> None:
        """Once, and followers are told."""
        setup = Setup()
        self.stand(setup)
        setup.happens("went_back", token=2)
        setup.take(3, rows=[b'["@new:hs"]'])
        setup.wait(1)

        assert ["to_device"] == setup.lost
        assert [2, 3, 4, 3] == setup.tokens()
        assert [1, 1, 1, 2] == [fact.epoch for fact in setup.engine.facts]
        assert {"w1": 3} == setup.log.positions("to_device")

    def test_a_position_alone_is_no_loss(self) -> None:
        """Ids that were rolled back, or another's."""
        setup = Setup()
        self.stand(setup)
        setup.happens("position", token=9)
        setup.wait(1.5)
        setup.happens("went_back", token=4)
        setup.wait(1)

        assert [] == setup.lost
        assert 1 == setup.log.head.epoch

    @pytest.mark.parametrize("stream", ["caches", "backfill", "presence", "typing", "unheard"])
    def test_streams_that_say_nothing_of_history(self, stream: str) -> None:
        """Without order, in memory, or unknown."""
        setup = Setup()
        self.stand(setup)
        setup.happens("went_back", stream=stream, token=1)
        setup.wait(1)

        assert [] == setup.lost

    def test_a_lower_position_from_a_relaying_server_is_no_rewind(self) -> None:
        """Only who hears the writer itself knows."""
        setup = Setup(knows_history=False)
        self.stand(setup)
        setup.happens("went_back", token=2)
        setup.wait(1)

        assert [] == setup.lost

    def test_what_waits_is_stored_after_the_loss(self) -> None:
        """Or it would be lost with the rest."""
        setup = Setup()
        self.stand(setup)
        setup.fail()
        setup.take(5)
        setup.wait(0.05)
        setup.happens("went_back", token=2)
        setup.wait(5)

        assert ["to_device"] == setup.lost

    def test_what_waited_before_the_loss_is_no_part_of_the_new_history(self) -> None:
        """Stored after the epoch, it would make each new fact up to its token a known one."""
        setup = Setup()
        self.stand(setup)
        setup.fail()
        setup.take(5)
        setup.wait(0.05)
        setup.take(6)
        setup.happens("went_back", token=2)
        setup.take(3, rows=[b'["@new:hs"]'])
        setup.wait(5)

        assert ["to_device"] == setup.lost
        facts = [(fact.epoch, fact.token) for fact in setup.engine.facts]
        assert [(1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 3)] == facts

    @pytest.mark.parametrize(("kept", "silent"), [(False, 0), (True, LOOK_UPS)])
    def test_an_epoch_that_fails_is_tried_again(self, kept: bool, silent: int) -> None:
        """Until it has begun nothing else is stored, and the daemon says so."""
        setup = Setup()
        self.stand(setup)
        away = StorageError(op="begin_epoch", why="the server is away", retryable=True)
        setup.engine.fail_next(away, kept=kept, silent=silent)
        setup.happens("went_back", token=2)
        setup.take(3, rows=[b'["@new:hs"]'])
        setup.wait(0.1)
        assert "the server is away" in setup.ingester.error + setup.log.healthy[1]
        setup.wait(2 * silent + 5)

        assert "" == setup.ingester.error
        assert ["to_device"] == setup.lost
        assert [2, 3, 4, 3] == setup.tokens()
        assert {"w1": 3} == setup.log.positions("to_device")


class TestReached:
    """What another source has brought."""

    def test_the_external_position_is_that_of_the_log(self) -> None:
        """-1 where that says nothing."""
        setup = Setup()
        setup.take(2, 3)
        setup.wait()

        assert 3 == setup.ingester.durable_position("to_device", "w1")
        assert -1 == setup.ingester.durable_position("to_device", "w2")
        assert -1 == setup.ingester.durable_position("typing", "w1")

    def test_it_says_nothing_while_history_is_looked_at(self) -> None:
        """What is there may be void."""
        setup = Setup()
        setup.take(2, 3)
        setup.wait()
        setup.happens("went_back", token=2)

        assert -1 == setup.ingester.durable_position("to_device", "w1")
        setup.wait(1)
        assert 2 == setup.ingester.durable_position("to_device", "w1")


class TestConfirming:
    """On a channel an old word may come late; the writer is asked before it counts."""

    def suspected(self) -> Setup:
        """Facts up to 4 are in the log, and then the writer is heard at 2."""
        setup = Setup(confirms=True)
        setup.take(2, 3, 4)
        setup.wait()
        setup.happens("went_back", token=2)
        setup.happens("position", token=2)
        setup.wait(0.2)
        return setup

    def test_a_writer_that_still_stands_lower_has_lost_history(self) -> None:
        """What it wrote meanwhile is news of the new one."""
        setup = self.suspected()
        setup.take(3, rows=[b'["@new:hs"]'])
        setup.happens("position", token=3)
        setup.wait(2)

        assert ["to_device"] == setup.lost
        assert [2, 3, 4, 3] == setup.tokens()

    def test_one_that_stands_where_it_did_has_lost_nothing(self) -> None:
        """It was an old word, held up on its way."""
        setup = self.suspected()
        setup.happens("position", token=4)
        setup.take(5)
        setup.wait(2)

        assert [] == setup.lost
        assert [2, 3, 4, 5] == setup.tokens()

    def test_one_that_says_nothing_more_is_left_in_peace(self) -> None:
        """It may be gone; nothing is thrown away for a single word."""
        setup = self.suspected()
        setup.take(5)
        setup.wait(10)

        assert [] == setup.lost
        assert [2, 3, 4, 5] == setup.tokens()

    def test_its_next_facts_show_that_it_has_lost_history(self) -> None:
        """It came back without another word: under a known token it says something else."""
        setup = self.suspected()
        setup.wait(10)
        setup.take(3, rows=[b'["@new:hs"]'])
        setup.wait()

        assert ["to_device"] == setup.lost
        assert [2, 3, 4, 3] == setup.tokens()
        assert [1, 1, 1, 2] == [fact.epoch for fact in setup.engine.facts]

    def test_its_next_facts_show_that_it_has_lost_nothing(self) -> None:
        """It says the same again, and goes on."""
        setup = self.suspected()
        setup.wait(10)
        assert -1 == setup.ingester.durable_position("to_device", "w1")
        setup.take(3, 4, 5)
        setup.wait()

        assert [] == setup.lost
        assert [2, 3, 4, 5] == setup.tokens()
        assert 5 == setup.ingester.durable_position("to_device", "w1")

    @pytest.mark.parametrize(
        ("rows", "is_lost"),
        [([b'["@b:hs"]'], False), ([b'["@a:hs"]', b'["@b:hs"]'], False), ([b'["@c:hs"]'], True)],
    )
    def test_what_is_fetched_again_can_have_less(self, rows: list[bytes], is_lost: bool) -> None:
        """Synapse's tables give the newest row of a key alone: that is no new history."""
        setup = Setup(confirms=True)
        setup.take(2)
        setup.take(3, rows=[b'["@a:hs"]', b'["@b:hs"]'])
        setup.wait()
        setup.happens("went_back", token=2)
        setup.wait(10)
        setup.take(3, rows=rows)
        setup.take(4)
        setup.wait()

        assert (["to_device"] if is_lost else []) == setup.lost
        assert ([2, 3, 3, 4] if is_lost else [2, 3, 4]) == setup.tokens()

    def test_a_fact_between_those_of_before_is_of_a_new_history(self) -> None:
        """Nothing was there, and the log is whole."""
        setup = Setup(confirms=True)
        setup.take(2, 5)
        setup.wait()
        setup.happens("went_back", token=2)
        setup.wait(10)
        setup.take(3)
        setup.wait()

        assert ["to_device"] == setup.lost
        assert [2, 5, 3] == setup.tokens()

    def test_a_writer_that_is_started_twice_after_its_loss(self) -> None:
        """The first start of a restored homeserver ends before it answers; the second says the same."""
        setup = Setup(confirms=True)
        follower = Follower(
            instance="us",
            clock=setup.clock,
            streams=TABLE,
            canonical=True,
            positions=LoggedPositions(setup.log),
            catch_up=FakeCatchUp(),
            external_position=setup.ingester.durable_position,
        )
        setup.ingester.attach(follower, confirms=True)

        def at(token: int) -> Position:
            return Position(stream="to_device", instance="w1", prev_token=token, token=token)

        def row(token: int, text: bytes) -> Rdata:
            return Rdata(stream="to_device", instance="w1", token=token, row=text)

        follower.server.connected(Line(), NEWEST, SHARED)
        follower.server.received([at(100), row(101, ROW)])
        setup.wait()
        follower.server.received([at(50)])
        setup.wait(6)
        follower.server.received([at(50)])
        follower.server.received([row(token, b'["@new:hs"]') for token in (51, 52)])
        setup.wait(10)

        assert ["to_device"] == setup.lost
        assert [(1, 100), (1, 101), (2, 51), (2, 52)] == [
            (one.epoch, one.token) for one in setup.engine.facts
        ]
        assert {"w1": 52} == setup.log.positions("to_device")
