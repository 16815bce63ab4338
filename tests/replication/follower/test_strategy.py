"""What a follower makes of what servers say, real ones' bad habits included."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import CancelledError, Deferred

from synrepl.base.metrics import Metrics
from synrepl.errors import ConfigError, NotConnected
from synrepl.replication.follower.facts import MAX_WAITING_BYTES
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, MissedFacts, Updates
from synrepl.streams.catalog import RECEIPTS, Receipt
from synrepl.streams.table import StreamTable
from synrepl.testing import Cluster, MemoryEndpoint, MemoryPositions, Network
from synrepl.testing.heap_clock import HeapClock
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.commands import RemoteServerUp, UserSync
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect
from tests.raw_peer import RawPeer, raw_server

TABLE = StreamTable.default()


class FakeCatchUp:
    """Where missed rows are pulled from: a list of facts, and a record of who asked for what."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], list[tuple[int, list[bytes]]]] = {}
        self.asked: list[tuple[str, str, int, int]] = []
        self.failures: list[Exception] = []
        self.waiting: list[Deferred[None]] | None = None
        self.page = 1000

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        self.asked.append((stream, writer, after, upto))
        if self.waiting is not None:
            answer: Deferred[None] = Deferred()
            self.waiting.append(answer)
            await answer
        if self.failures:
            raise self.failures.pop(0)
        held = [fact for fact in self.facts.get((stream, writer), []) if after < fact[0] <= upto]
        page = held[: self.page]
        limited = len(page) < len(held)
        return MissedFacts(facts=page, upto=page[-1][0] if limited else upto, limited=limited)


class Setup:
    """A follower, and a master spoken by hand."""

    def __init__(
        self, dialect: Dialect, *streams: str, positions: MemoryPositions | None = None, **options: Any
    ) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock)
        self.masters = raw_server(self.network, "master")
        self.fake_catch_up = FakeCatchUp()
        self.positions = positions or MemoryPositions()
        self.applied: list[tuple[str, str, int, int]] = []
        self.rows: list[Any] = []
        self.events: list[FollowerEvent] = []
        self.metrics = Metrics(CollectorRegistry())
        self.follower = Follower(
            instance="worker",
            clock=self.clock,
            positions=self.positions,
            catch_up=self.fake_catch_up,
            metrics=self.metrics,
            **options,
        )
        for name in streams:
            self.follower.on(TABLE[name])(self.apply)
        if not streams:
            self.follower.on_everything(self.apply)
        self.follower.on_event(self.events.append)
        self.factory = FollowerFactory(
            self.follower,
            dialect=dialect,
            expected_server="hs",
            clock=self.clock,
            metrics=self.metrics,
        )
        self.factory.jitter = 0.0
        self.factory.connect(MemoryEndpoint(self.network, "worker", "master"))
        self.wait()
        self.master.says("SERVER hs", "PING 1")

    def apply(self, updates: Updates[Any]) -> None:
        self.applied.append((updates.stream, updates.writer, updates.token, len(updates.rows)))
        self.rows += updates.rows

    @property
    def master(self) -> RawPeer:
        return self.masters[-1]

    def wait(self, seconds: float = 0.1) -> None:
        self.clock.pump([0.001] * int(seconds * 1000))

    def hears(self, *lines: str) -> Self:
        self.master.says(*lines)
        self.wait()
        return self

    def reconnect(self) -> None:
        before = len(self.masters)
        self.master.drop()
        while len(self.masters) == before:
            self.wait()
        self.wait()
        self.master.says("SERVER hs", "PING 1")

    def tokens(self) -> list[int]:
        return [token for _, _, token, _ in self.applied]

    def errors(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "error"]

    def gaps(self) -> tuple[float, float]:
        return self.metrics.gaps_detected.value, self.metrics.gaps_repaired.value

    def shelve(self, stream: str, tokens: Iterable[int], writer: str = "master") -> None:
        self.fake_catch_up.facts[stream, writer] = [(token, [to_device(token).encode()]) for token in tokens]


def to_device(n: int) -> str:
    return f'["@u{n}:hs"]'


def rows(first: int, last: int, writer: str = "master") -> list[str]:
    return [f"RDATA to_device {writer} {n} {to_device(n)}" for n in range(first, last + 1)]


class TestGreeting:
    """What a follower asks for."""

    def test_current_asks_for_positions_only(self) -> None:
        """With the trailing space of real clients."""
        setup = Setup(CURRENT)

        assert setup.master.hears() == ["NAME worker synrepl/1", "REPLICATE "]

    def test_legacy_asks_for_all_streams_when_it_knows_none(self) -> None:
        """Naming a stream that this master does not have would close the connection."""
        setup = Setup(LEGACY)

        assert setup.master.hears() == ["NAME worker synrepl/1", "REPLICATE ALL NOW"]

    def test_legacy_asks_by_name_for_what_it_wants(self) -> None:
        """From now if it is new, from its position if not."""
        positions = MemoryPositions()
        positions.save({"events": {"master": 53}})
        setup = Setup(LEGACY, "events", "typing", positions=positions)

        assert setup.master.hears() == [
            "NAME worker synrepl/1",
            "REPLICATE events 53",
            "REPLICATE typing NOW",
        ]

    def test_a_server_of_another_name_is_left_and_tried_again_later(self) -> None:
        """With growing delay, as it will most likely stay another."""
        setup = Setup(CURRENT)
        setup.masters.clear()
        setup.network.links[-1].cut()
        for _ in range(600):
            setup.wait(0.1)
            for master in setup.masters:
                if master.is_connected:
                    master.says("SERVER other")

        assert 5 <= len(setup.masters) <= 12
        assert "ERROR wrong server_name: the server is other, expected hs" in setup.masters[-2].heard


class TestJoiningLate:
    """Streams that are subscribed to while the connection is open."""

    def test_a_stream_joined_late_is_asked_for_and_typed(self) -> None:
        """A part of a worker may start when the worker has run for long."""
        setup = Setup(CURRENT, "push_rules").hears("POSITION push_rules master 1 1")
        setup.master.hears()

        setup.follower.on(TABLE["to_device"])(setup.apply)
        setup.wait()
        asked = setup.master.hears()
        setup.hears("POSITION push_rules master 1 1", "POSITION to_device master 5 5", *rows(6, 7))

        assert asked == ["REPLICATE "]
        assert [row.entity for row in setup.rows] == ["@u6:hs", "@u7:hs"]
        assert setup.follower.positions() == {"push_rules": {"master": 1}, "to_device": {"master": 7}}

    def test_legacy_asks_for_it_by_name(self) -> None:
        """And for nothing else again."""
        setup = Setup(LEGACY, "push_rules").hears("POSITION push_rules 1")
        setup.master.hears()

        setup.follower.on(TABLE["to_device"])(setup.apply)
        setup.wait()

        assert setup.master.hears() == ["REPLICATE to_device NOW"]

    def test_a_stream_that_nobody_knows_is_followed_raw_without_asking(self) -> None:
        """As `tail` does."""
        setup = Setup(CURRENT, raw=True)
        setup.master.hears()

        setup.hears("POSITION newest master 1 1", "RDATA newest master 2 [1]", "RDATA newest master 3 [2]")

        assert [[1], [2]] == setup.rows
        assert setup.master.hears() == []


class TestPositions:
    """POSITION against what we have: the five cases, and whether anything is asked over HTTP for them."""

    @pytest.mark.parametrize(
        ("known", "position", "asked", "reached"),
        [
            ((10), "POSITION to_device master 10 10", [], 10),
            ((10), "POSITION to_device master 8 12", [], 12),
            ((10), "POSITION to_device master 10 15", [], 15),
            ((10), "POSITION to_device master 15 15", [(10, 15)], 15),
            ((10), "POSITION to_device master 12 20", [(10, 20)], 20),
            ((10), "POSITION to_device master 4 4", [(0, 4)], 4),
            ((10), "POSITION to_device master 0 0", [], 0),
        ],
    )
    def test_only_a_gap_is_fetched(
        self, known: int, position: str, asked: list[tuple[int, int]], reached: int
    ) -> None:
        """Needless fetches have hurt real masters; missing ones lose rows."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": known}})
        setup = Setup(CURRENT, "to_device", positions=positions)

        setup.hears(position)

        assert asked == [(after, upto) for _, _, after, upto in setup.fake_catch_up.asked]
        assert setup.follower.positions() == {"to_device": {"master": reached}}
        detected, repaired = setup.gaps()
        assert detected == repaired

    def test_a_position_behind_rows_of_this_connection_tells_nothing(self) -> None:
        """It was sent before them: going back would apply them twice."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 5))

        setup.hears("POSITION to_device master 3 3", *rows(4, 6))

        assert setup.tokens() == [2, 3, 4, 5, 6]
        assert setup.fake_catch_up.asked == []

    def test_rows_before_the_first_position_are_covered_by_it(self) -> None:
        """There may be a hole before them; the position tells, and the fetch brings both."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": 3}})
        setup = Setup(CURRENT, "to_device", positions=positions)
        setup.shelve("to_device", [4, 5, 6, 7])

        setup.hears(*rows(6, 7), "POSITION to_device master 7 7", *rows(8, 8))

        assert setup.tokens() == [4, 5, 6, 7, 8]

    def test_rows_that_come_during_a_fetch_wait_and_are_not_applied_twice(self) -> None:
        """The fetch may bring them as well."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.fake_catch_up.waiting = []
        setup.shelve("to_device", range(2, 8))

        setup.hears("POSITION to_device master 6 6", *rows(6, 9))
        assert setup.tokens() == []
        setup.fake_catch_up.waiting[0].callback(None)
        setup.wait()

        assert setup.tokens() == [2, 3, 4, 5, 6, 7, 8, 9]
        assert setup.gaps() == (1, 1)

    def test_other_streams_do_not_wait_for_one_that_is_fetching(self) -> None:
        """One poisonous item must hold up nothing else."""
        setup = Setup(CURRENT, "to_device", "push_rules")
        setup.hears("POSITION to_device master 1 1", "POSITION push_rules master 1 1")
        setup.fake_catch_up.waiting = []

        setup.hears("POSITION to_device master 6 6", 'RDATA push_rules master 2 ["@a:hs"]')

        assert setup.applied == [("push_rules", "master", 2, 1)]

    def test_pages_are_pulled_until_nothing_is_missing(self) -> None:
        """However far behind."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": 0}})
        setup = Setup(CURRENT, "to_device", positions=positions)
        setup.fake_catch_up.page = 100
        setup.shelve("to_device", range(1, 2501))

        setup.hears("POSITION to_device master 2500 2500")

        assert setup.tokens() == list(range(1, 2501))
        assert len(setup.fake_catch_up.asked) == 25

    def test_a_page_without_progress_is_told_and_asked_for_again_later(self) -> None:
        """A master that answers so would otherwise be asked without a pause, and this process hang."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        whole = setup.fake_catch_up.fetch

        async def fetch(**asked: Any) -> MissedFacts:
            page = await whole(**asked)
            few = len(setup.fake_catch_up.asked) <= 3
            return MissedFacts(facts=[], upto=asked["after"], limited=True) if few else page

        setup.fake_catch_up.fetch = fetch  # type: ignore[method-assign]
        setup.hears("POSITION to_device master 3 3")
        at_once = len(setup.fake_catch_up.asked)
        for _ in range(10):
            setup.master.says("PING 1")
            setup.clock.advance(1)

        assert at_once == 1
        assert setup.tokens() == [2, 3]
        assert setup.errors()[0].endswith("its page ends at token 1, not beyond 1")
        assert setup.gaps() == (1, 1)

    @pytest.mark.parametrize("limited", [True, False])
    def test_a_copy_that_is_behind_moves_nobody_beyond_what_it_has(self, *, limited: bool) -> None:
        """The follower believed that there was nothing more, and never got facts 4 and 5."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        whole = setup.fake_catch_up.fetch

        async def fetch(**asked: Any) -> MissedFacts:
            page = await whole(**asked)
            return page if len(setup.fake_catch_up.facts) > 1 else MissedFacts(page.facts, 3, limited)

        setup.fake_catch_up.fetch = fetch  # type: ignore[method-assign]
        setup.hears("POSITION to_device master 5 5", *rows(6, 6))
        asked = [(after, upto) for _, _, after, upto in setup.fake_catch_up.asked]
        behind = (setup.tokens(), setup.follower.positions(), len(setup.follower.gaps()))
        setup.shelve("to_device", [2, 3, 4, 5])
        setup.fake_catch_up.facts["other", "master"] = []
        setup.wait(3)

        assert asked == [(1, 5), (3, 5)]
        assert behind == ([2, 3], {"to_device": {"master": 3}}, 1)
        assert setup.tokens() == [2, 3, 4, 5, 6]
        assert setup.errors()[0].endswith("its page ends at token 3, not beyond 3")
        assert setup.gaps() == (1, 1)

    def test_a_failed_fetch_is_told_and_tried_again_for_ever(self) -> None:
        """A stream left disconnected in silence is what real workers do."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        setup.fake_catch_up.failures = [NotConnected("refused")] * 12

        setup.hears("POSITION to_device master 3 3", *rows(4, 4))
        assert setup.tokens() == []
        for _ in range(300):
            setup.master.says("PING 1")
            setup.clock.advance(1)

        assert setup.tokens() == [2, 3, 4]
        error = "gap in to_device of master: facts after 1 up to 3 are missing: refused"
        assert setup.errors() == [error] * 12
        assert setup.gaps() == (1, 1)

    def test_a_fetch_that_fails_by_a_bug_is_tried_again(self) -> None:
        """Rows after the gap must not be applied before it is repaired."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        setup.fake_catch_up.failures = [KeyError("bug"), CancelledError()]

        setup.hears("POSITION to_device master 3 3", *rows(4, 5))
        setup.wait(3)

        assert setup.tokens() == [2, 3, 4, 5]
        assert setup.gaps() == (1, 1)

    def test_a_listener_that_fails_does_not_stop_a_fetch(self) -> None:
        """Its failure is logged."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        setup.fake_catch_up.failures = [NotConnected("away")]

        @setup.follower.on_event
        def fail(event: FollowerEvent) -> None:
            if event.kind == "error":
                raise KeyError("bug")

        setup.hears("POSITION to_device master 3 3")
        setup.wait(3)

        assert setup.tokens() == [2, 3]

    def test_losing_the_connection_while_fetching_loses_nothing(self) -> None:
        """What waited behind the hole must not be applied when the fetch is called off."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.fake_catch_up.waiting = []
        setup.hears("POSITION to_device master 5 5", *rows(6, 9))

        setup.reconnect()
        setup.fake_catch_up.waiting = None
        setup.shelve("to_device", range(2, 10))
        setup.hears("POSITION to_device master 9 9")

        assert setup.tokens() == list(range(2, 10))
        assert setup.gaps() == (1, 1)

    def test_losing_the_connection_calls_off_the_fetch(self) -> None:
        """Or each cut would leave a request behind that nobody waits for any more."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.fake_catch_up.waiting = []
        setup.hears("POSITION to_device master 5 5")
        (asked,) = setup.fake_catch_up.waiting
        assert not asked.called

        setup.master.drop()
        setup.wait()

        assert asked.called

    def test_a_response_to_a_cancelled_fetch_is_ignored(self) -> None:
        """It would pass for the response to the request of the next connection."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        late: Deferred[None] = Deferred()
        pull = setup.fake_catch_up.fetch

        async def fetch(**asked: Any) -> MissedFacts:
            try:
                await Deferred()
            except CancelledError:
                await late
            return MissedFacts(facts=[], upto=asked["upto"], limited=False)

        setup.fake_catch_up.fetch = fetch  # type: ignore[method-assign]
        setup.hears("POSITION to_device master 5 5")
        setup.reconnect()
        setup.fake_catch_up.fetch = pull  # type: ignore[method-assign]
        setup.fake_catch_up.waiting = []
        setup.shelve("to_device", range(2, 6))
        setup.hears("POSITION to_device master 5 5")
        late.callback(None)
        setup.wait()
        before = setup.follower.positions()
        setup.fake_catch_up.waiting[0].callback(None)
        setup.wait()

        assert before == {"to_device": {"master": 1}}
        assert setup.tokens() == [2, 3, 4, 5]

    def test_a_fetch_ends_with_its_connection_also_while_a_subscriber_is_busy(self) -> None:
        """What it would ask next may never be answered; the next POSITION asks for the rest."""
        setup = Setup(CURRENT, "push_rules")
        waits: list[Deferred[None]] = []
        begun: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        async def slow(updates: Updates[Any]) -> None:
            begun.append(updates.token)
            waits.append(Deferred())
            await waits[-1]

        setup.hears("POSITION to_device master 1 1")
        setup.shelve("to_device", [2, 3])
        setup.fake_catch_up.page = 1
        setup.hears("POSITION to_device master 3 3")
        setup.network.stop_listening("master")
        setup.master.drop()
        waits.pop().callback(None)
        setup.wait()

        assert begun == [2]
        assert setup.fake_catch_up.asked == [("to_device", "master", 1, 3)]
        assert setup.follower.positions() == {"to_device": {"master": 2}}

    def test_missed_rows_without_order_count_when_all_are_applied(self) -> None:
        """Real masters answer with backfill from the newest down: having 48 does not mean having 47."""
        positions = MemoryPositions()
        positions.save({"backfill": {"master": 40}})
        setup = Setup(CURRENT, "push_rules", positions=positions)
        waits: list[Deferred[None]] = []

        @setup.follower.on(TABLE["backfill"])
        async def slow(updates: Updates[Any]) -> None:
            waits.append(Deferred())
            await waits[-1]

        rows = [(token, [b'["$b","!r","t",null,null,null]']) for token in (48, 47)]
        setup.fake_catch_up.facts["backfill", "master"] = rows
        setup.hears("POSITION backfill master 48 48")
        waits[0].callback(None)
        setup.wait()
        half = setup.follower.positions()
        waits[1].callback(None)
        setup.wait()

        assert half == {"backfill": {"master": 40}}
        assert setup.follower.positions() == {"backfill": {"master": 48}}

    def test_too_much_waiting_is_let_go_and_fetched_later(self) -> None:
        """Memory is bounded however long HTTP is away."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.fake_catch_up.waiting = []
        big = "x" * 10_000
        count = MAX_WAITING_BYTES // 10_000 + 50
        setup.hears("POSITION to_device master 2 2")
        for n in range(3, 3 + count):
            setup.master.says(f'RDATA to_device master {n} ["{big}"]')
        setup.wait(3)
        queued = setup.follower.server.streams.executors["to_device"].machine.intake.bytes

        setup.shelve("to_device", range(2, 3 + count))
        waiting, setup.fake_catch_up.waiting = setup.fake_catch_up.waiting, None
        waiting[0].callback(None)
        setup.wait(1)

        assert queued <= MAX_WAITING_BYTES
        assert setup.tokens() == list(range(2, 3 + count))

    def test_the_rest_of_a_fact_that_was_let_go_is_let_go_too(self) -> None:
        """Its last row alone would pass for the whole fact. It is fetched whole."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.fake_catch_up.waiting = []
        setup.hears("POSITION to_device master 2 2")
        big = "x" * 10_000
        for _ in range(MAX_WAITING_BYTES // 10_000 + 1):
            setup.master.says(f'RDATA to_device master batch ["{big}"]')
        setup.wait(3)
        setup.hears('RDATA to_device master batch ["@waits:hs"]')
        setup.fake_catch_up.facts["to_device", "master"] = [
            (2, [b'["@a:hs"]']),
            (3, [b'["@b:hs"]', b'["@c:hs"]', b'["@d:hs"]']),
        ]
        waiting, setup.fake_catch_up.waiting = setup.fake_catch_up.waiting, None
        waiting[0].callback(None)
        setup.wait(1)
        setup.hears('RDATA to_device master batch ["@waits no more:hs"]', *rows(3, 4))

        assert setup.applied == [("to_device", "master", n, count) for n, count in ((2, 1), (3, 3), (4, 1))]
        assert [(1, 2), (2, 3)] == [(after, upto) for _, _, after, upto in setup.fake_catch_up.asked]

    def test_a_writer_that_appears_later_starts_with_its_first_row(self) -> None:
        """Writers are added to running homeservers."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 5 5")

        setup.hears(*rows(6, 7, writer="w2"), "POSITION to_device w2 7 7")

        assert setup.applied == [("to_device", "w2", 6, 1), ("to_device", "w2", 7, 1)]
        assert setup.fake_catch_up.asked == []

    def test_a_writer_that_came_while_we_were_away_is_fetched_from_where_all_others_stood(self) -> None:
        """Not from the beginning of time."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": 50, "w1": 40}})
        setup = Setup(CURRENT, "to_device", positions=positions)

        setup.hears("POSITION to_device master 50 50", "POSITION to_device w2 60 60")

        assert setup.fake_catch_up.asked == [("to_device", "w2", 40, 60)]

    @pytest.mark.parametrize("dialect", [MIDDLE, CURRENT], ids=str)
    def test_latest_is_from_now_on_for_every_writer(self, dialect: Dialect) -> None:
        """The history of all but the first was fetched, and delivered as if it were news."""
        end = " 0" if dialect is CURRENT else ""
        setup = Setup(dialect, "to_device").hears(f"POSITION to_device master 0{end}")
        end = " 3" if dialect is CURRENT else ""
        setup.hears(f"POSITION to_device w1 3{end}", f"POSITION to_device w2 3{end}")

        setup.hears(*rows(4, 4, writer="w1"), *rows(5, 5, writer="master"))

        assert setup.fake_catch_up.asked == []
        assert setup.tokens() == [4, 5]
        assert setup.follower.positions() == {"to_device": {"master": 5, "w1": 4, "w2": 3}}

    def test_a_stream_followed_from_latest_fetches_a_writer_that_came_during_a_cut(self) -> None:
        """From now on is told by the first connection; after that nothing may be missed."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 5 5")
        setup.reconnect()
        setup.shelve("to_device", [6], writer="w2")

        setup.hears("POSITION to_device master 5 5", "POSITION to_device w2 6 6")

        assert setup.fake_catch_up.asked == [("to_device", "w2", 5, 6)]
        assert setup.tokens() == [6]

    def test_middle_positions_have_no_previous_token(self) -> None:
        """Any other token than ours means that something may be missing."""
        setup = Setup(MIDDLE, "to_device").hears("POSITION to_device master 1")
        setup.shelve("to_device", [2])

        setup.hears("POSITION to_device master 2", "POSITION to_device master 2", *rows(3, 3))

        assert setup.tokens() == [2, 3]
        assert len(setup.fake_catch_up.asked) == 1


class TestCutsWithoutOrder:
    """Streams whose tokens do not tell what is missing, cut while a subscriber is at work."""

    def test_what_ends_after_the_cut_does_not_count(self) -> None:
        """Having 48 does not mean having 47: the rest of the push must be asked for again."""
        positions = MemoryPositions()
        positions.save({"backfill": {"master": 40}})
        setup = Setup(LEGACY, "push_rules", positions=positions)
        waits: list[Deferred[None]] = []
        begun: list[int] = []

        async def slow(updates: Updates[Any]) -> None:
            begun.append(updates.token)
            waits.append(Deferred())
            await waits[-1]

        setup.follower.on(TABLE["backfill"])(slow)
        row = '["$b", "!r", "t", null, null, null]'
        setup.wait()
        setup.hears(f"RDATA backfill 48 {row}", f"RDATA backfill 47 {row}")
        setup.network.stop_listening("master")
        setup.master.drop()
        waits[0].callback(None)
        setup.wait()

        assert begun == [48]
        assert setup.follower.positions() == {"backfill": {"master": 40}}


class TestLag:
    """What a worker says of itself."""

    def test_it_is_in_step_until_something_is_missing(self) -> None:
        """Operators page on seconds; rows tell whether there is progress."""
        setup = Setup(CURRENT, "to_device")
        assert setup.follower.lag_seconds() == float("inf")
        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        assert setup.follower.lag_seconds() < 0.2
        setup.fake_catch_up.waiting = []

        setup.hears("POSITION to_device master 9 9")
        setup.wait(2)
        setup.hears("PING 1")
        behind = (setup.follower.lag_rows(), setup.follower.lag_seconds())
        setup.fake_catch_up.waiting[0].callback(None)
        setup.hears("PING 2")
        setup.wait(0.1)

        assert behind[0] == 6
        assert 2 < behind[1] < 2.5
        assert (0, True) == (setup.follower.lag_rows(), setup.follower.lag_seconds() < 0.2)
        assert setup.metrics.lag_rows.read() == 0
        assert setup.metrics.position.labels("to_device", "master").value == 9


class TestTokensThatGoBack:
    """Restarted masters count some streams from the beginning again."""

    def test_current_takes_the_lower_position_and_all_of_the_new_life(self) -> None:
        """It must not wait for its old token to come round again."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 41))
        setup.applied.clear()
        setup.reconnect()
        setup.shelve("to_device", [1, 2, 3])

        setup.hears("POSITION to_device master 3 3", *rows(4, 5))

        assert setup.tokens() == [1, 2, 3, 4, 5]

    def test_a_new_life_that_cannot_be_fetched_does_not_stop_the_stream(self) -> None:
        """What the old life had is void anyway; it is said aloud, and the stream goes on."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 41))
        setup.applied.clear()
        setup.reconnect()
        setup.fake_catch_up.failures = [NotConnected("refused")] * 99

        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        setup.wait(5)

        assert setup.tokens() == [2, 3]
        assert len(setup.errors()) == 3
        assert setup.gaps() == (1, 0)

    def test_legacy_takes_the_lower_position(self) -> None:
        """1.0 forgets typing, federation, to_device and account data."""
        setup = Setup(LEGACY, "to_device", "typing")
        setup.hears("POSITION to_device 41", "POSITION typing 485")
        setup.reconnect()

        setup.hears(
            "POSITION to_device 8",
            "POSITION typing 1",
            'RDATA to_device 9 ["@a:hs"]',
            'RDATA typing 2 ["!r", []]',
        )

        assert setup.master.hears() == [
            "NAME worker synrepl/1",
            "REPLICATE typing 485",
            "REPLICATE to_device 41",
        ]
        assert setup.tokens() == [9, 2]
        assert setup.follower.positions() == {"to_device": {"master": 9}, "typing": {"master": 2}}

    @pytest.mark.parametrize("stream", ["typing", "federation", "account_data"])
    def test_the_same_row_at_the_same_token_of_a_new_life_is_news(self, stream: str) -> None:
        """A restarted master of 1.0 says the very same line again, and means it."""
        rows_of = {
            "typing": '["!r", []]',
            "federation": '["p", {}]',
            "account_data": '["@a:hs", null, "t", "{}"]',
        }
        setup = Setup(LEGACY, stream).hears(f"POSITION {stream} 1", f"RDATA {stream} 2 {rows_of[stream]}")
        setup.reconnect()

        setup.hears(f"POSITION {stream} 1", f"RDATA {stream} 2 {rows_of[stream]}")

        assert setup.tokens() == [2, 2]

    @pytest.mark.parametrize(
        ("dialect", "lines"),
        [
            (
                LEGACY,
                ["POSITION typing 1", 'RDATA typing 90 ["!r", []]', 'RDATA typing 51 ["!r", ["@a:hs"]]'],
            ),
            (
                CURRENT,
                [
                    "POSITION typing master 1 1",
                    'RDATA typing master 90 ["!r",[]]',
                    'RDATA typing master 51 ["!r",["@a:hs"]]',
                ],
            ),
        ],
    )
    def test_typing_may_go_back_without_a_word(self, dialect: Dialect, lines: list[str]) -> None:
        """Seen on both real masters."""
        assert Setup(dialect, "typing").hears(*lines).tokens() == [90, 51]


class TestOrder:
    """Streams that real masters send out of order."""

    def test_descending_backfill_is_all_kept(self) -> None:
        """Of 48, 47, 46 a real current worker keeps 48."""
        setup = Setup(CURRENT, "backfill").hears("POSITION backfill master 40 40")

        setup.hears(
            *[f'RDATA backfill master {n} ["$b{n}","!r","t",null,null,null]' for n in (48, 47, 46, 49)]
        )

        assert setup.tokens() == [48, 47, 46, 49]

    def test_caches_sent_early_and_again_are_applied_once(self) -> None:
        """211 first, then 206 to 211: rows are read without an upper bound there."""
        setup = Setup(CURRENT, "caches").hears("POSITION caches master 205 205")

        setup.hears(
            *[f'RDATA caches master {n} ["f{n}",null,1]' for n in (211, 206, 207, 208, 209, 210, 211)]
        )

        assert setup.tokens() == [211, 206, 207, 208, 209, 210]

    def test_other_rows_at_the_same_token_are_another_fact(self) -> None:
        """A restarted master counts from the beginning again, and says something else there."""
        setup = Setup(CURRENT, "caches").hears("POSITION caches master 205 205")

        setup.hears(*[f'RDATA caches master 206 ["{name}",null,1]' for name in ("f", "g", "f")])

        assert setup.tokens() == [206, 206]
        assert [row.cache_func for row in setup.rows] == ["f", "g"]

    def test_a_numeric_gap_between_rows_is_no_loss(self) -> None:
        """Only POSITION's previous token tells of one."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 2), *rows(90, 90))

        assert setup.tokens() == [2, 90]
        assert setup.fake_catch_up.asked == []

    def test_a_repeated_row_of_an_ordered_stream_is_dropped(self) -> None:
        """Whoever brings it."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 4), *rows(3, 5))

        assert setup.tokens() == [2, 3, 4, 5]


class TestFacts:
    """A fact is whole or not there."""

    def test_a_batch_is_one_fact(self) -> None:
        """Rows of one token travel as batch, batch, N."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")

        setup.hears(
            'RDATA to_device master batch ["@a:hs"]', 'RDATA to_device master batch ["@b:hs"]', *rows(2, 2)
        )

        assert setup.applied == [("to_device", "master", 2, 3)]

    def test_batches_of_two_writers_may_interleave(self) -> None:
        """Real workers mix them up."""
        setup = Setup(CURRENT, "to_device")
        setup.hears("POSITION to_device w1 1 1", "POSITION to_device w2 1 1")

        setup.hears(
            'RDATA to_device w1 batch ["@a:hs"]',
            'RDATA to_device w2 batch ["@b:hs"]',
            'RDATA to_device w2 3 ["@c:hs"]',
            'RDATA to_device w1 2 ["@d:hs"]',
        )

        assert [("to_device", "w2", 3, 2), ("to_device", "w1", 2, 2)] == setup.applied

    def test_what_was_begun_before_a_position_never_joins_what_comes_after(self) -> None:
        """A real master that skips an over-long row leaves its batch behind."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")

        setup.hears('RDATA to_device master batch ["@lost:hs"]', "POSITION to_device master 1 2", *rows(3, 3))

        assert setup.applied == [("to_device", "master", 3, 1)]

    def test_what_was_begun_before_a_cut_is_forgotten(self) -> None:
        """The rest of it comes again, whole."""
        setup = Setup(LEGACY, "to_device").hears("POSITION to_device 1", 'RDATA to_device batch ["@a:hs"]')
        setup.reconnect()

        setup.hears('RDATA to_device batch ["@a:hs"]', 'RDATA to_device 2 ["@b:hs"]', "POSITION to_device 2")

        assert setup.applied == [("to_device", "master", 2, 2)]

    def test_rows_of_a_legacy_backlog_are_joined_by_their_token(self) -> None:
        """Real masters of 1.0 do not mark them as a batch there: N, N, N."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": 1}})
        setup = Setup(LEGACY, "to_device", positions=positions)

        setup.hears(
            'RDATA to_device 2 ["@a:hs"]', 'RDATA to_device 2 ["@b:hs"]', 'RDATA to_device 3 ["@c:hs"]'
        )
        before = list(setup.applied)
        setup.hears("POSITION to_device 3")

        assert before == [("to_device", "master", 2, 2)]
        assert setup.applied == [("to_device", "master", 2, 2), ("to_device", "master", 3, 1)]

    def test_a_batch_without_end_is_refused(self) -> None:
        """A peer must not fill our memory with rows of a fact that never ends."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        setup.follower.server.streams.batches.max_rows = 100

        setup.hears(*['RDATA to_device master batch ["@a:hs"]'] * 101)

        assert setup.master.heard[-1].startswith("ERROR too many unfinished batch rows")

    def test_a_batch_without_end_that_has_waited_is_refused(self) -> None:
        """As one that is read at once. Nothing else that waits is applied: a half of it may be forgotten."""
        setup = Setup(CURRENT, "to_device", "push_rules")
        setup.hears(
            *[f"POSITION {stream} 1 1" for stream in ("to_device master", "push_rules w1", "push_rules w2")]
        )
        setup.follower.server.streams.batches.max_rows = 100
        waits: dict[str, Deferred[None]] = {}

        @setup.follower.on("push_rules")
        @setup.follower.on("to_device")
        def wait(updates: Updates[Any]) -> "Deferred[None] | None":
            return waits.setdefault(updates.stream, Deferred()) if updates.token == 2 else None

        rules = [f'RDATA push_rules {at} ["@u:hs"]' for at in ("w2 batch", "w1 2", "w2 3", "w1 4")]
        setup.hears(*rules, *rows(2, 2), *['RDATA to_device master batch ["@a:hs"]'] * 100, *rows(3, 4))
        peer = setup.master
        waits["to_device"].callback(None)
        waits["push_rules"].callback(None)
        setup.wait(2)

        assert setup.applied == [("push_rules", "w1", 2, 1), ("to_device", "master", 2, 1)]
        assert peer.heard[-1].startswith("ERROR too many unfinished batch rows")
        assert setup.follower.positions() == {"to_device": {"master": 2}, "push_rules": {"w1": 2, "w2": 1}}
        assert peer is not setup.master

    @pytest.mark.parametrize(
        "row", ['["ev",["$e"]]', "[1,2", '"x"', "[NaN]", '["ev",[null,1,2,3,4,5,6,7,8]]']
    )
    def test_a_row_of_no_known_shape_is_told_and_holds_up_nothing(self, row: str) -> None:
        """One poisonous item: the others go on."""
        setup = Setup(CURRENT, "events").hears("POSITION events master 1 1")
        good = '["ev",["$e","!r","t",null,null,null,null,false,false]]'

        setup.hears(
            f"RDATA events master 2 {good}", f"RDATA events master 3 {row}", f"RDATA events master 4 {good}"
        )

        assert setup.tokens() == [2, 4]
        assert len(setup.errors()) == 1
        assert setup.errors()[0].startswith("bad row 0 of stream events: ")
        assert setup.follower.positions() == {"events": {"master": 4}}
        assert setup.metrics.rows_refused.labels("events").value == 1

    def test_rows_are_typed_and_lifted_to_the_newest_shape(self) -> None:
        """Subscribers know one shape, whatever the master's age."""
        setup = Setup(LEGACY, "account_data")

        setup.hears(
            "POSITION account_data 1", 'RDATA account_data 2 ["@a:hs", null, "m.direct", "{\\"a\\": 1}"]'
        )

        assert [("@a:hs", None, "m.direct")] == [
            (row.user_id, row.room_id, row.data_type) for row in setup.rows
        ]

    def test_a_stream_that_the_release_lacks_is_followed_if_it_comes(self) -> None:
        """The server may be of another release than the connection says."""
        setup = Setup(CURRENT, "thread_subscriptions")

        setup.hears(
            "POSITION thread_subscriptions master 1 1",
            'RDATA thread_subscriptions master 2 ["@a:hs","!r:hs","$e"]',
        )

        assert CURRENT.release not in TABLE["thread_subscriptions"].span
        assert [row.user_id for row in setup.rows] == ["@a:hs"]

    def test_a_stream_unknown_here_is_told_once(self) -> None:
        """A newer master has streams that we do not know."""
        setup = Setup(CURRENT)

        setup.hears("POSITION newest master 1 1", "RDATA newest master 2 [1]", "RDATA newest master 3 [1]")

        assert setup.errors() == ["ignoring the rows of stream newest: this follower does not know it"]


class TestSubscribers:
    """Who is called, when, and what if they fail."""

    def test_one_that_fails_is_called_again_with_the_same_fact(self) -> None:
        """Its database may be away for a moment; a fact is never skipped."""
        setup = Setup(CURRENT, "push_rules")
        calls: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        async def fails_twice(updates: Updates[Any]) -> None:
            calls.append(updates.token)
            if len(calls) < 3:
                raise OSError("database is away")

        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        assert setup.follower.positions() == {"to_device": {"master": 1}}
        setup.wait(5)

        assert calls == [2, 2, 2, 3]
        assert setup.errors() == ["a subscriber of to_device failed: OSError('database is away')"] * 2
        assert setup.follower.positions() == {"to_device": {"master": 3}}

    def test_a_stray_stop_iteration_of_a_subscriber_is_a_failure_like_any_other(self) -> None:
        """It must not be taken for the end of a coroutine, or the fact would be lost."""
        setup = Setup(CURRENT, "push_rules")
        calls: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        def stumbles(updates: Updates[Any]) -> None:
            calls.append(updates.token)
            if len(calls) == 1:
                next(iter(()))

        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        setup.wait(1)

        assert calls == [2, 2, 3]

    def test_a_cancelled_error_of_a_subscriber_is_a_failure_like_any_other(self) -> None:
        """It may come from a Deferred of its own; nobody stopped the follower."""
        setup = Setup(CURRENT, "push_rules").hears("POSITION push_rules master 1 1")
        failures = [CancelledError(), CancelledError()]
        seen: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        async def shaky(updates: Updates[Any]) -> None:
            if failures:
                raise failures.pop()
            seen.append(updates.token)

        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        setup.wait(3)

        assert seen == [2, 3]

    def test_the_next_fact_waits_until_a_subscriber_is_done(self) -> None:
        """Order holds through whatever it awaits; another stream does not wait."""
        setup = Setup(CURRENT, "push_rules")
        waits: list[Deferred[None]] = []
        begun: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        async def slow(updates: Updates[Any]) -> None:
            begun.append(updates.token)
            waits.append(Deferred())
            await waits[-1]

        setup.hears("POSITION to_device master 1 1", "POSITION push_rules master 1 1", *rows(2, 4))
        setup.hears('RDATA push_rules master 2 ["@a:hs"]')
        assert begun == [2]
        assert setup.applied == [("push_rules", "master", 2, 1)]
        while waits:
            waits.pop().callback(None)
            setup.wait()

        assert begun == [2, 3, 4]
        assert setup.follower.positions()["to_device"] == {"master": 4}

    def test_one_that_stops_the_follower_may_finish_and_is_the_last(self) -> None:
        """It has work of its own to end; the fact does not count, as others have not applied it."""
        setup = Setup(CURRENT, "push_rules")
        busy: Deferred[None] = Deferred()
        called: list[str] = []

        @setup.follower.on(TABLE["to_device"])
        async def stops(updates: Updates[Any]) -> None:
            setup.follower.stop()
            await busy
            called.append("finished")

        setup.follower.on(TABLE["to_device"])(lambda updates: called.append("another"))
        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        busy.callback(None)
        setup.wait()

        assert ["finished"] == called
        assert {"to_device": {"master": 1}} == setup.follower.positions()

    def test_the_position_moves_after_the_rows(self) -> None:
        """Who sees the position must find the rows applied."""
        setup = Setup(CURRENT, "push_rules")
        seen: list[int] = []

        @setup.follower.on(TABLE["to_device"])
        def look(updates: Updates[Any]) -> None:
            seen.append(setup.follower.positions()["to_device"]["master"])

        setup.hears("POSITION to_device master 1 1", *rows(2, 4))

        assert seen == [1, 2, 3]

    def test_caught_up_fires_when_the_fact_is_applied(self) -> None:
        """A worker that was told of a token waits for it here."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1")
        fired: list[Any] = []
        waiter = setup.follower.caught_up(TABLE["to_device"], writer="master", token=3)
        waiter.addCallback(fired.append)

        setup.hears(*rows(2, 2))
        assert fired == []
        setup.hears(*rows(3, 3))

        assert fired == [None]
        assert not setup.follower.server.waits.waiters.queues

    def test_a_waiter_that_gives_up_is_forgotten(self) -> None:
        """Time-outs must not leave anything behind."""
        setup = Setup(CURRENT, "to_device")
        waiter = setup.follower.caught_up(TABLE["to_device"], writer="master", token=3)
        waiter.addErrback(lambda _: None)

        waiter.cancel()

        assert not setup.follower.server.waits.waiters.queues

    def test_commands_of_the_server_reach_who_subscribed(self) -> None:
        """REMOTE_SERVER_UP makes a federation sender try again."""
        setup = Setup(CURRENT, "to_device")
        got: list[str] = []
        setup.follower.on_command(RemoteServerUp)(lambda command: got.append(command.server))

        setup.hears("REMOTE_SERVER_UP example.org")

        assert got == ["example.org"]

    def test_what_a_function_of_commands_raises_is_told_and_the_rest_of_the_read_goes_on(self) -> None:
        """Or facts would be lost: those of the same read, which the server has sent."""
        setup = Setup(CURRENT, "to_device")
        setup.hears("POSITION to_device master 1 1")
        got: list[str] = []

        @setup.follower.on_command(RemoteServerUp)
        def fail(command: RemoteServerUp) -> None:
            raise ValueError(command.server)

        setup.follower.on_command(RemoteServerUp)(lambda command: got.append(command.server))
        setup.hears("REMOTE_SERVER_UP example.org", 'RDATA to_device master 2 ["@b:hs"]')

        assert got == ["example.org"]
        assert {"master": 2} == setup.follower.positions()["to_device"]
        (told,) = [event.text for event in setup.events if event.kind == "error"]
        assert "a function for REMOTE_SERVER_UP failed: ValueError('example.org')" == told
        assert setup.follower.is_connected

    def test_a_command_sent_while_not_connected_is_an_error_not_a_silence(self) -> None:
        """Real current workers drop it without a word."""
        setup = Setup(CURRENT, "to_device")
        command = UserSync(instance_id="i", user_id="@a:hs", is_syncing=True, last_sync_ms=1)
        setup.follower.send(command)
        setup.wait()
        assert setup.master.hears()[-1] == "USER_SYNC i @a:hs start 1"

        setup.network.stop_listening("master")
        setup.master.drop()

        with pytest.raises(NotConnected):
            setup.follower.send(command)

    @pytest.mark.parametrize("dialect", [LEGACY, CURRENT], ids=str)
    def test_syncing_users_are_sent_at_each_connection(self, dialect: Dialect) -> None:
        """The server may have restarted since, and has forgotten them."""
        syncing = [UserSync(instance_id="i", user_id="@ada:hs", is_syncing=True, last_sync_ms=1)]
        setup = Setup(dialect, "to_device", syncing_users=lambda: syncing)
        line = "USER_SYNC @ada:hs start 1" if dialect is LEGACY else "USER_SYNC i @ada:hs start 1"
        setup.wait()
        assert 1 == setup.master.hears().count(line)

        setup.master.drop()
        syncing.append(UserSync(instance_id="i", user_id="@bob:hs", is_syncing=True, last_sync_ms=2))
        setup.wait(30)

        heard = setup.master.hears()
        assert [line, line.replace("ada", "bob").replace("start 1", "start 2")] == [
            one for one in heard if one.startswith("USER_SYNC")
        ]

    def test_a_list_of_syncing_users_that_fails_is_reported(self) -> None:
        """The worker follows all the same."""
        setup = Setup(CURRENT, "to_device", syncing_users=lambda: 1 / 0)
        setup.hears("POSITION to_device master 1 1", *rows(2, 3))
        setup.wait()

        assert [2, 3] == [token for _, _, token, _ in setup.applied]
        assert any("the list of syncing users failed" in event.text for event in setup.events)

    def test_positions_are_saved_after_the_facts(self) -> None:
        """And not once for each, as that would cost more than the facts."""
        setup = Setup(CURRENT, "to_device").hears("POSITION to_device master 1 1", *rows(2, 50))
        setup.wait(0.2)

        assert setup.positions.saved == {"to_device": {"master": 50}}

    def test_where_a_stream_begins_is_saved_at_once(self) -> None:
        """Killed right after it, a follower that began at latest must not begin at a later latest."""
        setup = Setup(CURRENT, "to_device")
        setup.master.says("POSITION to_device master 7 7")
        setup.wait(0.005)

        assert setup.positions.saved == {"to_device": {"master": 7}}

    def test_positions_of_streams_not_followed_now_are_kept(self) -> None:
        """A worker that follows less for a day must not forget where it was."""
        positions = MemoryPositions()
        positions.save({"events": {"master": 7}})
        setup = Setup(CURRENT, "to_device", positions=positions)

        setup.hears("POSITION to_device master 1 1", *rows(2, 2))
        setup.wait(0.2)

        assert positions.saved == {"events": {"master": 7}, "to_device": {"master": 2}}


class TestBatchSubscribers:
    """Those that are called with all facts that are ready."""

    def test_fetched_facts_and_live_ones(self) -> None:
        """A page is divided; nothing is held back to fill a batch, and a fact stays whole."""
        positions = MemoryPositions()
        positions.save({"to_device": {"master": 1}})
        setup = Setup(CURRENT, "push_rules", positions=positions)
        batches: list[list[tuple[int, int]]] = []

        @setup.follower.on_batch(TABLE["to_device"], max_facts=3)
        def record(batch: Sequence[Updates[Any]]) -> None:
            batches.append([(updates.token, len(updates.rows)) for updates in batch])

        setup.shelve("to_device", range(2, 6))
        setup.hears("POSITION to_device master 5 5", f"RDATA to_device master batch {to_device(6)}")
        setup.hears(*rows(6, 7)).hears(*rows(8, 8))

        assert batches[:2] == [[(2, 1), (3, 1), (4, 1)], [(5, 1)]]
        assert [one for batch in batches[2:] for one in batch] == [(6, 2), (7, 1), (8, 1)]
        assert setup.follower.positions()["to_device"] == {"master": 8}

    def test_the_next_batch_waits_and_has_all_that_came_meanwhile(self) -> None:
        """Of this stream; another does not wait."""
        setup = Setup(CURRENT, "push_rules")
        waits: list[Deferred[None]] = []
        begun: list[list[int]] = []

        @setup.follower.on_batch("to_device")
        async def slow(batch: Sequence[Updates[Any]]) -> None:
            begun.append([updates.token for updates in batch])
            waits.append(Deferred())
            await waits[-1]

        setup.hears("POSITION to_device master 1 1", "POSITION push_rules master 1 1", *rows(2, 4))
        setup.hears(*rows(5, 8)).hears('RDATA push_rules master 2 ["@a:hs"]').hears(*rows(9, 9))
        assert begun == [[2, 3, 4]]
        assert setup.follower.positions()["to_device"] == {"master": 1}
        assert setup.applied == [("push_rules", "master", 2, 1)]
        while waits:
            waits.pop().callback(None)
            setup.wait()

        assert begun == [[2, 3, 4], [5, 6, 7, 8, 9]]
        assert setup.follower.positions()["to_device"] == {"master": 9}

    def test_a_row_of_no_shape_is_skipped_alone(self) -> None:
        """Facts before and after it are applied, in batches of their own."""
        setup = Setup(CURRENT, "push_rules")
        batches: list[list[int]] = []
        setup.follower.on_batch(TABLE["to_device"])(
            lambda batch: batches.append([updates.token for updates in batch])
        )

        setup.hears("POSITION to_device master 1 1", *rows(2, 3), "RDATA to_device master 4 []", *rows(5, 6))

        assert batches == [[2, 3], [5, 6]]
        (error,) = setup.errors()
        assert error.startswith("bad row 0 of stream to_device")
        assert setup.follower.positions()["to_device"] == {"master": 6}

    def test_the_smallest_bound_of_a_stream_counts(self) -> None:
        """All its subscribers get the same batches, in the order of registration."""
        setup = Setup(CURRENT, "push_rules")
        seen: list[tuple[str, list[int]]] = []

        def record(name: str, *batch: Updates[Any]) -> None:
            seen.append((name, [updates.token for updates in batch]))

        setup.follower.on_batch(TABLE["to_device"], max_facts=3)(lambda batch: record("first", *batch))
        setup.follower.on(TABLE["to_device"])(lambda updates: record("second", updates))
        setup.follower.on_batch(TABLE["to_device"], max_facts=2)(lambda batch: record("third", *batch))
        setup.follower.on_batch(TABLE["to_device"], max_facts=9)(lambda batch: record("fourth", *batch))
        setup.hears("POSITION to_device master 1 1", *rows(2, 4))

        assert seen[:5] == [
            ("first", [2, 3]),
            ("second", [2]),
            ("second", [3]),
            ("third", [2, 3]),
            ("fourth", [2, 3]),
        ]
        assert seen[5:] == [(name, [4]) for name in ("first", "second", "third", "fourth")]

    def test_a_batch_of_nothing_is_refused(self) -> None:
        """It would never end."""
        setup = Setup(CURRENT, "push_rules")

        with pytest.raises(ConfigError, match="max_facts must be at least 1, not 0"):
            setup.follower.on_batch(TABLE["to_device"], max_facts=0)

    @pytest.mark.parametrize("is_killed", [True, False])
    def test_a_batch_in_the_middle_of_which_a_worker_ends_is_delivered_again(self, is_killed: bool) -> None:
        """The whole of it: the position counts whole batches."""
        cluster, positions = Cluster(), MemoryPositions()
        cluster.append("receipts", ["!r", "m.read", "@u:hs", "$e", None, {}])
        seen: list[list[int]] = []
        never: Deferred[None] = Deferred()

        def make() -> Follower:
            follower = Follower(instance="worker", positions=positions, start="earliest")

            @follower.on_batch(RECEIPTS)
            async def slowly(batch: Sequence[Updates[Receipt]]) -> None:
                seen.append([updates.token for updates in batch])
                if len(seen) == 2:
                    await never

            return follower

        worker = cluster.follower(make())
        cluster.append("receipts", *[["!r", "m.read", "@u:hs", "$e", None, {}]] * 3)
        worker.kill() if is_killed else worker.stop()
        worker = cluster.follower(make())

        assert seen == [[1], [2, 3, 4], [2, 3, 4]]
        assert worker.follower.positions() == {"receipts": {"master": 4}}


class TestReconnecting:
    """Being there again soon, without hammering."""

    def test_a_peer_that_accepts_and_drops_is_tried_less_and_less(self) -> None:
        """Real current workers try four times a second, for ever."""
        setup = Setup(CURRENT, "to_device")

        for _ in range(600):
            if setup.master.is_connected:
                setup.master.drop()
            setup.wait(0.1)

        assert 5 <= len(setup.masters) <= 13

    def test_the_first_position_applied_makes_a_connection_good(self) -> None:
        """Then the next loss is answered quickly again."""
        setup = Setup(CURRENT, "to_device")
        for _ in range(100):
            setup.master.drop()
            setup.wait(0.1)
        setup.wait(20)
        setup.hears("SERVER hs", "POSITION to_device master 1 1")
        count = len(setup.masters)

        setup.master.drop()
        setup.wait(0.5)

        assert len(setup.masters) == count + 1

    def test_a_bad_line_of_the_server_is_told_to_it(self) -> None:
        """With an ERROR, then the close, then another try."""
        setup = Setup(CURRENT, "to_device")
        first = setup.master

        setup.hears("FOO bar")
        setup.wait(1)

        assert first.heard[-1] == "ERROR invalid command: 'FOO'"
        assert not first.is_connected
        assert setup.master is not first

    def test_an_error_of_the_server_is_told_and_waited_out(self) -> None:
        """Who sent it closes."""
        setup = Setup(CURRENT, "to_device").hears("ERROR server shutting down")

        assert setup.errors() == ["the server reports: server shutting down"]
        assert setup.master.is_connected


class TestStarting:
    """A follower is stopped, and started again, as services are."""

    def test_it_goes_on_with_a_fact_in_the_middle_of_which_it_was_stopped(self) -> None:
        """What was half done is done again; the stream does not wait for ever for what was called off."""
        cluster = Cluster()
        worker = cluster.worker(streams=[])
        seen: list[Any] = []
        never: Deferred[None] = Deferred()

        @worker.follower.on(RECEIPTS)
        async def slowly(updates: Updates[Receipt]) -> None:
            if not seen:
                seen.append("begun")
                await never
            seen.append(updates.token)

        cluster.settle()
        cluster.append("receipts", ["!r", "m.read", "@u:hs", "$e", None, {}])
        worker.stop()
        cluster.settle()

        worker.start()
        cluster.settle(5)

        assert ["begun", 1] == seen
        assert {"master": 1} == worker.follower.positions()["receipts"]
