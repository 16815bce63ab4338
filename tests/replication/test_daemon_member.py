"""One process among its peers, on a channel that is spoken by hand."""

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger, globalLogPublisher

from synrepl.base.metrics import Metrics
from synrepl.errors import NotConnected
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import MissedFacts, Updates
from synrepl.replication.membership.channel_states import TRANSITIONS as CHANNEL_TRANSITIONS
from synrepl.replication.membership.channel_states import ChannelEvent, ChannelState
from synrepl.replication.membership.channel_writers import MAX_WRITERS
from synrepl.replication.membership.claim_states import TRANSITIONS as CLAIM_TRANSITIONS
from synrepl.replication.membership.claim_states import ClaimEvent, ClaimState
from synrepl.replication.membership.daemon_member import DaemonMember
from synrepl.replication.membership.name_claim import CONFLICT_SECONDS, PROBE_SECONDS, NameClaim
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.network import Network
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import RemoteServerUp, Replicate, UserIp, UserSync
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER, Command
from synrepl.wire.session import AUTO
from tests.memory_engine import FaultyEngine
from tests.raw_peer import RawPeer, raw_client
from tests.replication.machine_steps import allowed_steps, check_every_event, taken_steps

TABLE = StreamTable.default()
CODEC = codec_of(NEWEST, ours=BROKER, theirs=BROKER)
REPLICATE = "REPLICATE "
UP = "REMOTE_SERVER_UP far"


def _backfill(token: int, writer: str = "w1") -> str:
    return f'RDATA backfill {writer} {token} ["${token}","!r","t",null,null,null]'


class Channel:
    """The link of a member: what it was told, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed: list[str] = []
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.lines += data.decode().splitlines()

    def send(self, command: Command) -> None:
        self.lines.append(CODEC.format(command).decode())

    def fail(self, why: str) -> None:
        self.failed.append(why)

    def established(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class FakeCatchUp:
    """Where missed facts are pulled from."""

    def __init__(self) -> None:
        self.facts: list[tuple[int, list[bytes]]] = []
        self.asked: list[tuple[str, str, int, int]] = []
        self.is_silent = False

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        self.asked.append((stream, writer, after, upto))
        if self.is_silent:
            await Deferred()
        found = [fact for fact in self.facts if after < fact[0] <= upto]
        return MissedFacts(facts=found, upto=upto, limited=False)


class Chance(random.Random):
    """Always this part of what may be."""

    def __init__(self, part: float) -> None:
        super().__init__(0)
        self._part = part

    def uniform(self, a: float, b: float) -> float:
        return a + self._part * (b - a)


class Setup:
    """A daemon called ``us`` that writes to_device, and others spoken by hand."""

    def __init__(
        self,
        *,
        writes: Iterable[Writer] = (Writer("to_device", "us"),),
        exclusive: Iterable[str] = ("to_device",),
        instance: str = "",
        up: bool = True,
    ) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock)
        self.log = Log(
            FaultyEngine(),
            ImmediateThread(),
            ImmediateThread(),
            self.clock,
            ephemeral=[stream.name for stream in TABLE if stream.ephemeral],
            logger=Logger(),
        )
        Deferred.fromCoroutine(self.log.start())
        metrics = self.metrics = Metrics(CollectorRegistry())
        self.publisher = Publisher(self.log, TABLE, self.clock, metrics, instance="us")
        self.publisher.follow_log()
        factory = PublisherFactory(
            self.publisher, server_name="hs", dialect=AUTO, clock=self.clock, metrics=metrics
        )
        self.network.listen("us", factory)
        self.applied: list[tuple[str, str, int]] = []
        self.fake_catch_up = FakeCatchUp()
        self.follower = Follower(
            instance="us", clock=self.clock, streams=TABLE, catch_up=self.fake_catch_up, canonical=True
        )
        self.follower.on_everything(self.apply)
        self.channel = Channel()
        self.member = DaemonMember(
            clock=self.clock,
            follower=self.follower,
            publisher=self.publisher,
            writes=list(writes),
            exclusive=list(exclusive),
            instance=instance,
        )
        self.member.use(self.channel)
        self._seen = 0
        if up:
            self.member.subscriber_up()
            self.member.publisher_up()
            self.echo()
            self.wait(PROBE_SECONDS)
            self.echo()
            self.told()

    def apply(self, updates: Updates[Any]) -> None:
        self.applied.append((updates.stream, updates.writer, updates.token))

    def conflicts(self) -> float:
        """The messages that were counted."""
        return self.metrics.channel_conflicts.value

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.05] * round(seconds / 0.05))

    def says(self, *lines: str) -> None:
        """Somebody else says this."""
        self.member.received([CODEC.parse(line.encode()) for line in lines])

    def echo(self) -> None:
        """What we said comes back to us."""
        lines = self.channel.lines[self._seen :]
        self._seen = len(self.channel.lines)
        if lines:
            self.says(*lines)

    def told(self) -> list[str]:
        """What we said since we were asked last; it comes back to us as well."""
        told, self.channel.lines = self.channel.lines, []
        if self._seen < len(told):
            unseen = told[self._seen :]
            self._seen = 0
            self.says(*unseen)
            return told + self.told()
        self._seen = 0
        return told

    def append(self, *users: str, stream: str = "to_device", writer: str = "us") -> None:
        facts = [TABLE[stream].canonical_fact([[user]]) for user in users]
        self.log.append(stream, writer, facts)
        self.wait(0.05)

    def worker(self, *lines: str) -> RawPeer:
        peer = raw_client(self.network, "us", "worker")
        self.wait(0.1)
        peer.says(*lines)
        self.wait(0.1)
        peer.hears()
        return peer


class TestJoining:
    """Asking everybody where they stand."""

    @pytest.mark.parametrize("order", [["subscriber_up", "publisher_up"], ["publisher_up", "subscriber_up"]])
    def test_it_asks_once_it_both_hears_and_speaks(self, order: Sequence[str]) -> None:
        """An answer that comes before we hear is lost."""
        setup = Setup(up=False)
        getattr(setup.member, order[0])()
        assert [] == setup.told()

        getattr(setup.member, order[1])()

        assert [REPLICATE] == setup.told()

    def test_nothing_is_told_in_the_probe_second(self) -> None:
        """Somebody may have our name; not even REPLICATE is answered."""
        setup = Setup(up=False)
        setup.member.subscriber_up()
        setup.member.publisher_up()
        setup.append("@a:hs")
        setup.says(REPLICATE)
        setup.wait(PROBE_SECONDS - 0.2)
        assert [REPLICATE] == setup.told()

        setup.wait(0.2)

        assert [
            "POSITION to_device us 0 0",
            'RDATA to_device us 1 ["@a:hs"]',
            "POSITION to_device us 1 1",
        ] == setup.told()

    def test_each_reason_for_not_reaching_redis_is_logged_once(self) -> None:
        """Attempts repeat every few seconds, and would fill the log."""
        setup = Setup(up=False)
        reasons: list[str] = []

        def observe(event: Any) -> None:
            if str(event.get("log_format")).startswith("cannot connect to Redis"):
                reasons.append(event["why"])

        globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
        try:
            for why in ("refused", "refused", "timed out", "timed out"):
                setup.member.unreachable(why)
        finally:
            globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]

        assert ["refused", "timed out"] == reasons

    def test_it_asks_again_after_each_time_it_was_deaf(self) -> None:
        """What was told meanwhile was missed."""
        setup = Setup()
        for _ in range(2):
            setup.member.subscriber_down("cut")
            setup.member.subscriber_up()

            assert REPLICATE in setup.told()

    def test_it_asks_again_when_its_question_may_be_lost(self) -> None:
        """A question that went with the publisher's connection is answered by nobody: whoever is quiet is
        not believed until the next subscription."""
        setup = Setup(up=False)
        setup.member.subscriber_up()
        setup.member.publisher_up()
        setup.channel.lines.clear()  # lost with the connection
        setup.member.publisher_down("cut")
        setup.member.publisher_up()

        assert REPLICATE in setup.told()

    def test_it_asks_again_while_a_writer_does_not_answer(self) -> None:
        """Its answer can be lost with its connection. It is asked three times, then no more."""
        setup = Setup()
        setup.says("POSITION events w1 5 5", "POSITION events w2 3 3")
        setup.wait(400)
        assert REPLICATE not in setup.told()
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.told()
        setup.says("POSITION events w1 5 5")

        asked = []
        for seconds in range(5, 2_000, 5):
            setup.clock.advance(5)
            if REPLICATE in setup.told():
                asked.append(seconds)

        assert [5, 35, 335] == asked

    @pytest.mark.parametrize("answer", ["POSITION events w1 5 5", 'RDATA events w1 6 ["state-all",["!r"]]'])
    def test_it_does_not_ask_a_writer_that_has_answered(self, answer: str) -> None:
        """Its position says where it stands; rows alone do not."""
        setup = Setup()
        setup.says("POSITION events w1 5 5")
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.told()
        setup.says(answer)
        setup.wait(6)

        assert ("POSITION" not in answer) == (REPLICATE in setup.told())

    def test_rows_before_the_answers_are_not_believed(self) -> None:
        """There may be a hole before them, which the answer tells."""
        setup = Setup()
        setup.says("POSITION events w1 5 5")
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.fake_catch_up.facts = [(7, [b'["state-all",["!r"]]']), (8, [b'["state-all",["!r"]]'])]
        setup.says('RDATA events w1 8 ["state-all",["!r"]]')
        assert [] == setup.applied

        setup.says("POSITION events w1 8 8")

        assert [("events", "w1", 5, 8)] == setup.fake_catch_up.asked
        assert [("events", "w1", 7), ("events", "w1", 8)] == setup.applied

    def test_a_second_look_back_begins_where_the_first_did_that_was_cut_off(self) -> None:
        """Cache invalidations are told ahead of their position: 83 and 84 may come after 90."""
        setup = Setup()
        row = '["get_user",["@a:hs"],1]'
        setup.says("POSITION caches w1 77 77", f"RDATA caches w1 82 {row}", f"RDATA caches w1 90 {row}")
        setup.fake_catch_up.is_silent = True
        for token in (133, 218):
            setup.member.subscriber_down("cut")
            setup.member.subscriber_up()
            setup.says(f"POSITION caches w1 {token} {token}")
        setup.fake_catch_up.is_silent = False
        setup.fake_catch_up.facts = [(83, [row.encode()]), (90, [row.encode()]), (218, [row.encode()])]
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.says("POSITION caches w1 218 218")

        assert [("caches", "w1", 77, token) for token in (133, 218, 218)] == setup.fake_catch_up.asked
        assert [82, 90, 83, 218] == [token for _, _, token in setup.applied]

    def test_facts_of_before_a_cut_may_come_late(self) -> None:
        """Backfill is told from the highest token down: of 2010 and 2005 only the first may have come before
        the cut, so that the last thousand are asked for again."""
        setup = Setup()
        setup.says("POSITION backfill w1 5 5", _backfill(2010, writer="w2"))
        setup.wait(1)
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.fake_catch_up.facts = [(2005, [b'["$2005","!r","t",null,null,null]'])]

        setup.says("POSITION backfill w2 2010 2010")

        asked = [(after, upto) for _, _, after, upto in setup.fake_catch_up.asked]
        assert (1010, 2010) == (asked[0][0], asked[-1][1])
        assert [2010, 2005] == [token for _, _, token in setup.applied]

    def test_a_writer_that_was_cut_off_moves_on_without_its_facts(self) -> None:
        """It said 8 and 7, and was cut off before 6; then it says only where it stands. From where it said so
        before, facts are asked for."""
        setup = Setup()
        setup.says("POSITION backfill w1 5 5", _backfill(8), _backfill(7))
        setup.wait(1)
        setup.fake_catch_up.facts = [(6, [b'["$6","!r","t",null,null,null]'])]

        setup.says("POSITION backfill w1 8 8")

        assert [("backfill", "w1", 5, 8)] == setup.fake_catch_up.asked
        assert [7, 8, 6] == [token for _, _, token in setup.applied]

    def test_a_writer_may_come_later_than_all_others(self) -> None:
        """Its first rows are all it has."""
        setup = Setup()
        setup.says("POSITION events w1 5 5", 'RDATA events w2 6 ["state-all",["!r"]]')

        assert [("events", "w2", 6)] == setup.applied

    def test_a_writer_may_have_come_while_we_were_away(self) -> None:
        """What it writes before it has answered us is not all it has."""
        setup = Setup()
        setup.says("POSITION events w1 5 5")
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        row = '["state-all",["!r"]]'
        setup.fake_catch_up.facts = [(token, [row.encode()]) for token in (7, 8, 9)]

        setup.says("POSITION events w1 5 5", f"RDATA events w2 9 {row}", "POSITION events w2 9 9")

        assert [("events", "w2", 5, 9)] == setup.fake_catch_up.asked
        assert [("events", "w2", token) for token in (7, 8, 9)] == setup.applied

    def test_every_order_of_coming_and_going_ends_in_the_same(self) -> None:
        """Whatever connection is lost and found first, and how often."""
        steps = {"subscriber_up": "subscriber_down", "publisher_up": "publisher_down"}
        for order in itertools.product(["subscriber_up", "publisher_up"], repeat=4):
            setup = Setup()
            is_up = dict.fromkeys(steps, True)
            for which in order:
                is_up[which] = not is_up[which]
                step = which if is_up[which] else steps[which]
                getattr(setup.member, step)(*([] if is_up[which] else ["cut"]))
                setup.append("@a:hs")
            for which, there in is_up.items():
                if not there:
                    getattr(setup.member, which)()
            setup.wait(2)
            setup.told()
            setup.append("@last:hs")
            token = setup.log.linear_position("to_device")

            assert [f'RDATA to_device us {token} ["@last:hs"]'] == setup.told(), order
            assert setup.follower.is_connected
            assert setup.member.name_conflict is None


class TestTelling:
    """What this process writes, and nothing else."""

    def test_facts_are_told_as_they_are_committed(self) -> None:
        """In the newest release's words."""
        setup = Setup()
        setup.append("@a:hs", "@b:hs")

        assert ['RDATA to_device us 1 ["@a:hs"]', 'RDATA to_device us 2 ["@b:hs"]'] == setup.told()

    def test_replicate_is_answered_with_what_it_writes(self) -> None:
        """Whoever asks; and with nothing else, though the log has more."""
        setup = Setup(writes=[Writer("to_device", "us"), Writer("caches", "us")])
        setup.log.append_assigned("events", [("w1", 5, b'[["state-all",["!r"]]]')])
        setup.append("@a:hs")
        setup.told()
        setup.says(REPLICATE)

        assert ["POSITION caches us 0 0", "POSITION to_device us 1 1"] == sorted(setup.told())

    def test_an_observer_sends_only_its_request(self) -> None:
        """An observer is not heard but for its question."""
        setup = Setup(writes=[])
        setup.says(REPLICATE, "POSITION events w1 5 5")
        setup.wait(5)

        assert [] == setup.told()

    @pytest.mark.parametrize("stream", ["to_device", "events"])
    def test_facts_of_others_are_never_told(self, stream: str) -> None:
        """Also not those of a stream that we write as well."""
        setup = Setup()
        rows = b'[["@a:hs"]]' if stream == "to_device" else b'[["state-all",["!r"]]]'
        setup.log.append_assigned(stream, [("w1", 5, rows)])
        setup.wait(1)
        setup.says(REPLICATE)

        assert ["POSITION to_device us 0 0"] == setup.told()

    def test_a_stream_that_synapse_does_not_know_is_never_told(self) -> None:
        """Its POSITION would cut every real process off."""
        setup = Setup(writes=[Writer("to_device", "us"), Writer("user_signature", "us")])
        setup.append("@a:hs", stream="user_signature")
        setup.says(REPLICATE)

        assert ["POSITION to_device us 0 0"] == setup.told()

    def test_own_echoes_are_ignored(self) -> None:
        """They are here already."""
        setup = Setup()
        setup.append("@a:hs")
        setup.told()
        setup.says(REPLICATE)
        setup.told()

        assert [] == setup.applied
        assert "to_device" not in setup.follower.positions()
        assert setup.member.name_conflict is None

    def test_after_it_was_mute_it_tells_where_it_stands(self) -> None:
        """What was written last, and meanwhile, others fetch."""
        setup = Setup()
        setup.append("@a:hs")
        setup.told()
        setup.member.publisher_down("cut")
        setup.append("@b:hs")
        assert [] == setup.told()

        setup.member.publisher_up()

        assert "POSITION to_device us 2 2" in setup.told()

    def test_a_full_transport_is_waited_for(self) -> None:
        """And what waited is told, in order, once."""
        setup = Setup()
        setup.member.pause()
        setup.append("@a:hs")
        assert [] == setup.told()

        setup.member.resume()

        assert ['RDATA to_device us 1 ["@a:hs"]'] == setup.told()

    def test_losing_a_full_transport_ends_the_pause(self) -> None:
        """The new one is empty, and nobody will say that it can take more."""
        setup = Setup()
        setup.member.pause()
        setup.member.publisher_down("cut")
        setup.member.publisher_up()
        setup.append("@a:hs")

        assert 'RDATA to_device us 1 ["@a:hs"]' in setup.told()

    def test_after_stop_it_says_nothing(self) -> None:
        """And no timer of its own is left."""
        setup = Setup(up=False)
        setup.member.subscriber_up()
        setup.member.publisher_up()
        setup.told()
        setup.member.stop()
        setup.wait(PROBE_SECONDS + 1)
        setup.append("@a:hs")

        assert [] == setup.told()


class TestClash:
    """Somebody else under our name."""

    @pytest.mark.parametrize(
        "line", ['RDATA to_device us 7 ["@x:hs"]', "POSITION to_device us 7 7", "POSITION to_device us 0 0"]
    )
    def test_a_second_writer_of_one_name_stops_publishing(self, line: str) -> None:
        """Two under one name make everybody drop facts of both."""
        setup = Setup()
        setup.says(line)
        setup.append("@a:hs")
        setup.says(REPLICATE)

        assert [] == setup.told()
        assert setup.member.name_conflict is not None
        assert "another process on the channel writes to_device as us" in str(setup.member.name_conflict)

    def test_a_page_of_the_log_that_arrives_after_a_conflict_is_not_published(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log was being read when publishing stopped. Its facts have the name of two processes."""
        setup = Setup()
        monkeypatch.setattr(setup.publisher.ring, "_max_bytes", 0)
        setup.member.pause()
        setup.append("@a:hs")
        setup.append("@b:hs")
        is_read: Deferred[None] = Deferred()
        read = setup.log.reads.facts

        async def read_slowly(**options: Any) -> Any:
            await is_read
            return await read(**options)

        monkeypatch.setattr(setup.log.reads, "facts", read_slowly)
        setup.member.resume()
        setup.says("POSITION to_device us 7 7")
        is_read.callback(None)
        setup.wait(1)

        assert [] == setup.told()

    def test_the_very_next_fact_is_a_clash(self) -> None:
        """Both began at the same place, and the other was first; what is as far as ours may be ours."""
        setup = Setup()
        setup.append("@a:hs", "@b:hs")
        setup.told()
        setup.says('RDATA to_device us 2 ["@b:hs"]')
        assert setup.member.name_conflict is None

        setup.says('RDATA to_device us 3 ["@x:hs"]')

        assert setup.member.name_conflict is not None

    def test_two_that_stop_for_each_other_do_not_go_on_together(self) -> None:
        """Each would hear the other's question in its quiet second, and both stop again, for ever."""
        waits = []
        for chance in (0.0, 1.0):
            setup = Setup()
            setup.member._claim._rng = Chance(chance)
            setup.says("POSITION to_device us 7 7")
            began = setup.clock.seconds()
            while REPLICATE not in setup.channel.lines:
                setup.clock.advance(0.25)
            waits.append(setup.clock.seconds() - began)

        assert CONFLICT_SECONDS == waits[0]
        assert waits[1] - waits[0] > 2 * PROBE_SECONDS

    def test_what_the_other_says_is_not_taken_in(self) -> None:
        """It would go into the log as our own."""
        setup = Setup()
        setup.says("POSITION to_device us 7 7", 'RDATA to_device us 8 ["@x:hs"]')

        assert [] == setup.applied

    def test_it_goes_on_when_the_other_was_quiet_for_long_enough(self) -> None:
        """Counted from the last word, and it asks before; then it tells where it stands."""
        setup = Setup()
        setup.says("POSITION to_device us 7 7")
        setup.append("@a:hs")
        setup.wait(CONFLICT_SECONDS - 1)
        setup.says("POSITION to_device us 8 8")
        setup.wait(CONFLICT_SECONDS - 1)
        assert [] == setup.told()

        setup.wait(CONFLICT_SECONDS * 0.1 + 1.1 + PROBE_SECONDS)

        assert [REPLICATE, "POSITION to_device us 1 1"] == setup.told()[:2]
        assert setup.member.name_conflict is None

    def test_it_goes_on_although_redis_was_away_while_it_listened_again(self) -> None:
        """It waited for the end of a silence that nobody measured any more."""
        setup = Setup()
        setup.says('RDATA to_device us 9 ["@x:h"]')
        while REPLICATE not in setup.channel.lines:
            setup.wait(0.05)

        setup.member.subscriber_down("away")
        setup.wait(2 * PROBE_SECONDS)
        setup.member.subscriber_up()
        setup.wait(1.1 * CONFLICT_SECONDS + 2 * PROBE_SECONDS)

        assert setup.member.name_conflict is None
        assert setup.member.is_writing

    def test_one_that_is_heard_in_the_probe_second_is_a_clash(self) -> None:
        """That is what the second is for."""
        setup = Setup(up=False)
        setup.member.subscriber_up()
        setup.member.publisher_up()
        setup.echo()
        setup.says('RDATA to_device us 7 ["@x:hs"]')
        setup.wait(PROBE_SECONDS + 5)

        assert [REPLICATE] == setup.told()
        assert setup.member.name_conflict is not None

    def test_our_name_in_a_stream_that_we_do_not_write_is_another_writer(self) -> None:
        """Of a process that has a name of its own for each stream that it writes."""
        setup = Setup()
        setup.says("POSITION events us 1 1", 'RDATA events us 2 ["state-all",["!r"]]')

        assert setup.member.name_conflict is None
        assert [("events", "us", 2)] == setup.applied

    def test_our_facts_are_right_after_it(self) -> None:
        """One made-up line stopped appends; now they go on, and are told when the other one is silent."""
        setup = Setup()
        setup.says('RDATA to_device us 999999 ["@x:hs"]')
        setup.append("@a:hs", "@b:hs")
        assert {"us": 2} == setup.log.positions("to_device")
        assert [] == setup.told()

        setup.wait(CONFLICT_SECONDS * 1.1 + PROBE_SECONDS + 1)
        told = setup.told()
        setup.append("@c:hs")

        assert [REPLICATE, "POSITION to_device us 2 2"] == told[:2]
        assert ['RDATA to_device us 3 ["@c:hs"]'] == setup.told()
        assert 1 == setup.conflicts()

    @pytest.mark.parametrize("line", ['RDATA to_device evil 999999 ["@x:hs"]', "POSITION to_device evil 7 7"])
    def test_another_writer_of_our_stream_is_told_and_not_taken_in(self, line: str) -> None:
        """Its facts in the log stopped appends for ever, as two would give the ids of one stream."""
        setup = Setup()
        setup.says(line)
        setup.append("@a:hs")

        assert "another process on the channel writes to_device as evil" in str(setup.member.stream_conflict)
        assert [] == setup.applied
        assert {"us": 1} == setup.log.positions("to_device")
        assert ['RDATA to_device us 1 ["@a:hs"]'] == setup.told()
        setup.wait(CONFLICT_SECONDS + 1)
        assert setup.member.stream_conflict is None
        assert 1 == setup.conflicts()

    @pytest.mark.parametrize("token", [0, 1])
    def test_another_that_wrote_nothing_is_no_clash(self, token: int) -> None:
        """A process of Synapse announces token 1 before its first fact."""
        setup = Setup()
        setup.says(f"POSITION to_device w1 {token} {token}")

        assert setup.member.stream_conflict is None
        assert 0 == setup.conflicts()

    def test_a_token_that_no_sequence_reaches_is_not_believed(self) -> None:
        """It stayed as the highest of its stream for ever; after 2**63 - 1 no append finds a token."""
        setup = Setup()
        setup.says(f'RDATA caches w1 {2**63 - 1} ["a",null,1]', f"POSITION caches w1 1 {2**53 + 1}")
        assert set() == setup.member.writers

        setup.says(f"POSITION events w1 {2**53} {2**53}")

        assert {"w1"} == setup.member.writers
        assert [] == setup.applied

    def test_writers_beyond_the_limit_are_not_taken_in(self) -> None:
        """10,000 of 20,000 invented ones were, and a scrape had 669 kB; those in the log are known."""
        setup = Setup(exclusive=())
        setup.append("@a:hs")
        setup.member = DaemonMember(clock=setup.clock, publisher=setup.publisher)
        for number in range(MAX_WRITERS + 50):
            setup.says(f"POSITION events invented{number} 1 1")
        assert MAX_WRITERS - 1 == len(setup.member.writers)
        assert "facts of further ones, such as invented" in str(setup.member.overflow)

        setup.says("POSITION to_device us 1 1")

        assert "us" in setup.member.writers

    def test_the_name_of_a_process_that_publishes_is_its_own_in_every_stream(self) -> None:
        """Nobody else may have it, so that nobody else's facts are stored under it."""
        setup = Setup(instance="us")
        setup.says('RDATA events us 2 ["state-all",["!r"]]')

        assert "writes events as us" in str(setup.member.name_conflict)
        assert [] == setup.applied

    def test_a_new_connection_does_not_end_it(self) -> None:
        """The other is still there."""
        setup = Setup()
        setup.says("POSITION to_device us 7 7")
        setup.member.publisher_down("cut")
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.member.publisher_up()
        setup.wait(5)

        assert [REPLICATE] == setup.told()

    @pytest.mark.parametrize("seconds", [20.0, 59.9, 61.0, 200.0])
    def test_answers_that_are_alike_are_no_clash(self, seconds: float) -> None:
        """It stands still, and says so each time it is asked."""
        setup = Setup(writes=[Writer("to_device", "us"), Writer("caches", "us")])
        for _ in range(4):
            setup.says(REPLICATE)
            setup.told()
            setup.wait(seconds)

        assert setup.member.name_conflict is None

    @pytest.mark.parametrize("name", ["x" * 256, "\x07"])
    def test_names_that_cannot_be_kept_are_passed_over(self, name: str) -> None:
        """Names come from the channel."""
        setup = Setup()
        setup.says(f'RDATA events {name} 2 ["state-all",["!r"]]')

        assert [] == setup.applied


class TestCommands:
    """What followers say to all, and what all say to followers."""

    def test_what_a_worker_says_goes_up_once(self) -> None:
        """And does not come back down."""
        setup = Setup()
        worker = setup.worker("NAME w", REPLICATE)
        worker.says(UP)
        setup.wait(0.1)

        assert [UP] == setup.told()
        setup.wait(0.1)
        assert [] == [line for line in worker.hears() if UP in line]

    def test_commands_on_the_channel_reach_each_follower_once(self) -> None:
        """To each worker, and not up again."""
        setup = Setup()
        workers = [setup.worker("NAME w", REPLICATE) for _ in range(2)]
        setup.says(UP)
        setup.wait(0.1)

        assert [[UP], [UP]] == [worker.hears() for worker in workers]
        assert [] == setup.told()

    def test_equal_words_of_another_process_still_go_down(self) -> None:
        """Only our own one is left out."""
        setup = Setup()
        worker = setup.worker("NAME w", REPLICATE)
        worker.says(UP)
        setup.wait(0.1)
        setup.told()
        worker.hears()
        setup.says(UP)
        setup.wait(0.1)

        assert [UP] == worker.hears()

    def test_words_that_were_lost_are_not_waited_for(self) -> None:
        """The same words of another process go down, though our own never came back: we were deaf."""
        setup = Setup()
        worker = setup.worker("NAME w", REPLICATE)
        worker.says(UP)
        setup.wait(0.1)
        setup.channel.lines.clear()  # they do not come back
        setup.member.subscriber_down("cut")
        setup.member.subscriber_up()
        setup.told()
        worker.hears()
        setup.says(UP)
        setup.wait(0.1)

        assert [UP] == worker.hears()

    def test_a_worker_that_names_no_life_is_given_one(self) -> None:
        """Before 1.13 the connection was it; when it ends so do its users."""
        setup = Setup()
        worker = setup.worker("REPLICATE to_device NOW", "USER_SYNC @a:hs start 5")
        told = setup.told()
        life = told[0].split(" ")[1]
        assert [f"USER_SYNC {life} @a:hs None start 5"] == told
        assert {"@a:hs"} == setup.publisher.follower_commands.syncing.users()

        worker.drop()
        setup.wait(0.2)

        assert [f"CLEAR_USER_SYNC {life}"] == setup.told()
        assert set() == setup.publisher.follower_commands.syncing.users()

    def test_users_of_other_processes_are_known(self) -> None:
        """And end with them."""
        setup = Setup()
        setup.says("USER_SYNC life @b:hs None start 5")
        assert {"@b:hs"} == setup.publisher.follower_commands.syncing.users()

        setup.says("CLEAR_USER_SYNC life")

        assert set() == setup.publisher.follower_commands.syncing.users()

    def test_while_mute_it_is_lost(self) -> None:
        """Fire and forget, as between Synapse's own processes; no echo is waited for."""
        setup = Setup()
        worker = setup.worker("NAME w", REPLICATE)
        setup.member.publisher_down("cut")
        worker.says(UP)
        setup.wait(0.1)
        assert [] == setup.told()
        setup.says(UP)
        setup.wait(0.1)

        assert [UP] == worker.hears()
        with pytest.raises(NotConnected):
            setup.member.send(RemoteServerUp(server="far"))

    @pytest.mark.parametrize(
        "command",
        [UserIp(user_id="@a:hs", seen=["t", "ip", "ua", None, 1]), Replicate()],
    )
    def test_what_does_not_come_back_is_not_waited_for(self, command: Command) -> None:
        """USER_IP has a channel that we do not hear; REPLICATE is acted upon whoever says it."""
        setup = Setup()
        setup.member.send(command)

        assert not setup.member._position_echoes.match_and_remove(command)

    def test_the_follower_may_say_something_itself(self) -> None:
        """As a library's user does; its echo is not handed to it."""
        setup = Setup()
        heard: list[UserSync] = []
        setup.follower.on_command(UserSync)(heard.append)
        mine = UserSync(instance_id="x", user_id="@a:hs", device_id=None, is_syncing=True, last_sync_ms=1)
        setup.follower.send(mine)
        assert ["USER_SYNC x @a:hs None start 1"] == setup.told()
        setup.says("USER_SYNC y @b:hs None start 1")

        assert ["@b:hs"] == [command.user_id for command in heard]


class TestStates:
    """The tables of the member and of its claim: every step of them is taken, and no other one is."""

    def test_every_event_in_every_state(self) -> None:
        """It leads where the table says, or is an error."""
        check_every_event(CHANNEL_TRANSITIONS, ChannelState, ChannelEvent)
        check_every_event(CLAIM_TRANSITIONS, ClaimState, ClaimEvent)

    def test_a_peer_takes_every_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In each order of its connections, and stopped at each moment."""
        taken = taken_steps(monkeypatch, ChannelState)
        for length in range(6):
            for order in itertools.product(["subscriber", "publisher"], repeat=length):
                setup = Setup(up=False)
                up: set[str] = set()
                for which in order:
                    up ^= {which}
                    if which in up:
                        getattr(setup.member, f"{which}_up")()
                    else:
                        getattr(setup.member, f"{which}_down")("cut")
                setup.member.stop()
                for which in up:
                    getattr(setup.member, f"{which}_down")("closed")
        for event in (ChannelEvent.SUBSCRIBER_UP, ChannelEvent.PUBLISHER_UP, ChannelEvent.STOP):
            setup.member._machine.move(event)

        assert allowed_steps(CHANNEL_TRANSITIONS) == taken

    def test_a_claim_takes_every_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is contested in each state, and its process leaves and comes back in each."""
        taken = taken_steps(monkeypatch, ClaimState)
        channel: set[str] = set()
        for state in ClaimState:
            for happens in ("contest", "join", "leave"):
                clock = HeapClock()
                claim = NameClaim(
                    clock,
                    Chance(0),
                    probe_seconds=PROBE_SECONDS,
                    is_joined=lambda: bool(channel),
                    ask=lambda: bool(channel),
                    granted=lambda: None,
                    withdrawn=lambda: None,
                )
                channel.add("joined")
                if state is not ClaimState.UNASKED:
                    claim.joined()
                if state is ClaimState.GRANTED:
                    clock.advance(PROBE_SECONDS)
                if state in (ClaimState.CONTESTED, ClaimState.LISTENING_AGAIN):
                    claim.contest("to_device", "us")
                if state is ClaimState.LISTENING_AGAIN:
                    clock.advance(CONFLICT_SECONDS)
                assert state is claim.state
                if happens == "contest":
                    claim.contest("to_device", "us")
                    assert claim.state is ClaimState.CONTESTED
                elif happens == "join":
                    claim.joined()
                else:
                    channel.clear()
                clock.pump([PROBE_SECONDS] * 40)

        assert allowed_steps(CLAIM_TRANSITIONS) == taken
