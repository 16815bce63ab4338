"""What followers get from a daemon, line by line."""

import json
from typing import Any

import pytest

from synrepl.replication.serving.federation_acks import RECONNECT_SECONDS
from synrepl.replication.serving.presence import EXPIRY_SECONDS, SyncingUser
from synrepl.testing import Cluster
from synrepl.transports.connection import STALLED_SECONDS
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.commands import LockReleased, UserIp
from synrepl.wire.dialect import NEWEST
from tests.raw_peer import RawPeer, raw_client
from tests.replication.listeners import listener

EVENT = ["ev", ["$e", "!r", "m.room.message", None, None, None, None, False, False]]
STATE = ["state", ["!r", "m.room.topic", "", "$e"]]
EVENT_LEGACY = '["ev", ["$e", "!r", "m.room.message", null, null, null]]'
EVENT_CURRENT = '["ev",["$e","!r","m.room.message",null,null,null,null,false,false]]'


def cluster(**daemon: Any) -> Cluster:
    return Cluster(**daemon)


def client(one: Cluster, *lines: str, address: str = "daemon", name: str = "raw") -> RawPeer:
    """A hand-spoken follower that has said these lines, past the greeting."""
    peer = raw_client(one.network, address, name)
    one.settle(0.1)
    assert peer.hears() == ["SERVER hs"]
    peer.says(*lines)
    one.settle(0.1)
    return peer


def append(one: Cluster, stream: str, *facts: list[Any], writer: str = "master") -> None:
    one._run(one.daemon.append(stream, facts, writer=writer))
    one.settle(0.1)


class TestLegacy:
    """Before 1.13: by name and token, backlog pushed."""

    def test_nothing_comes_before_it_is_asked_for(self) -> None:
        """A person at netcat must be able to type in peace."""
        one = cluster()
        peer = client(one, "NAME someone", "")

        append(one, "events", [EVENT])

        assert peer.hears() == []

    def test_now_means_from_now(self) -> None:
        """The position first, then what comes."""
        one = cluster()
        append(one, "events", [EVENT])
        peer = client(one, "REPLICATE events NOW")

        append(one, "events", [EVENT])

        assert peer.hears() == ["POSITION events 1", f"RDATA events 2 {EVENT_LEGACY}"]

    def test_the_backlog_comes_in_batches_and_ends_with_its_position(self) -> None:
        """Rows of one fact stay together in the backlog too, which real masters forget."""
        one = cluster()
        append(one, "events", [EVENT], [EVENT, STATE], [EVENT])

        peer = client(one, "REPLICATE events 1")

        assert peer.hears() == [
            f"RDATA events batch {EVENT_LEGACY}",
            'RDATA events 2 ["state", ["!r", "m.room.topic", "", "$e"]]',
            f"RDATA events 3 {EVENT_LEGACY}",
            "POSITION events 3",
        ]

    def test_writers_are_one_to_whom_does_not_know_them(self) -> None:
        """Their tokens come from one sequence, so they can be told as one."""
        one = cluster()
        append(one, "events", [EVENT], writer="w1")
        peer = client(one, "REPLICATE events 0")

        append(one, "events", [EVENT], writer="w2")

        assert peer.hears() == [
            f"RDATA events 1 {EVENT_LEGACY}",
            "POSITION events 1",
            f"RDATA events 2 {EVENT_LEGACY}",
        ]

    @pytest.mark.parametrize("token", ["NOW", "now", "0"])
    def test_all_means_every_stream_that_the_release_knows(self, token: str) -> None:
        """And none that it does not: real clients fail on those."""
        one = cluster()

        peer = client(one, f"REPLICATE ALL {token}")

        assert [line.split()[1] for line in peer.hears()] == [
            "events", "backfill", "presence", "typing", "receipts", "push_rules", "pushers", "caches",
            "public_rooms", "device_lists", "to_device", "federation", "tag_account_data", "account_data",
            "groups",
        ]  # fmt: skip

    def test_an_unknown_stream_is_an_error(self) -> None:
        """As with real masters, but in words that make sense."""
        one = cluster()

        peer = client(one, "REPLICATE nosuch 1")

        assert peer.hears() == ["ERROR unknown stream nosuch"]
        assert not peer.is_connected

    def test_asking_from_the_future_is_answered_with_the_position(self) -> None:
        """The daemon was restored, or the stream restarted: the follower must hear it."""
        one = cluster()
        append(one, "events", [EVENT])
        append(one, "typing", [["!r", ["@a:hs"]]])

        peer = client(one, "REPLICATE events 99", "REPLICATE typing 485")

        assert peer.hears() == [
            "POSITION events 1",
            'RDATA typing 1 ["!r", ["@a:hs"]]',
            "POSITION typing 1",
        ]

    def test_asking_again_is_answered_again(self) -> None:
        """A repeated REPLICATE re-answers on real masters."""
        one = cluster()
        append(one, "to_device", [["@a:hs"]])
        peer = client(one, "REPLICATE to_device 0")
        peer.says("REPLICATE to_device 0")
        one.settle(0.1)
        append(one, "to_device", [["@b:hs"]])

        assert peer.hears() == [
            'RDATA to_device 1 ["@a:hs"]',
            "POSITION to_device 1",
            'RDATA to_device 1 ["@a:hs"]',
            "POSITION to_device 1",
            'RDATA to_device 2 ["@b:hs"]',
        ]

    def test_a_row_too_long_for_a_line_holds_up_nothing(self) -> None:
        """It cannot be told to a release without catch-up; the stream goes on, and the operator sees it."""
        one = cluster()
        peer = client(one, "REPLICATE to_device NOW")
        peer.hears()

        append(one, "to_device", [["@a:hs"]], [["x" * MAX_LENGTH]], [["@b:hs"]])

        assert peer.hears() == ['RDATA to_device 1 ["@a:hs"]', 'RDATA to_device 3 ["@b:hs"]']
        assert one.daemon.metrics.facts_withheld.labels("to_device").value == 1


class TestCurrent:
    """From 1.13 on: everything to everybody, positions on request."""

    def test_a_bare_replicate_is_answered_with_all_positions_then_rows_come(self) -> None:
        """What netcat shows when somebody types REPLICATE."""
        one = cluster()
        append(one, "events", [EVENT], writer="w1")
        peer = client(one, "REPLICATE")

        positions = peer.hears()
        append(one, "events", [EVENT, STATE])

        assert positions[:3] == [
            "POSITION events master 0 0",
            "POSITION events w1 1 1",
            "POSITION backfill master 0 0",
        ]
        assert len(positions) == 16
        assert peer.hears() == [
            f"RDATA events master batch {EVENT_CURRENT}",
            'RDATA events master 2 ["state",["!r","m.room.topic","","$e"]]',
        ]

    def test_a_real_client_is_served_from_its_first_decisive_word(self) -> None:
        """USER_SYNC comes before REPLICATE on real clients, and rows may come from then on."""
        one = cluster()
        peer = client(one, "USER_SYNC abc @a:hs start 1")

        append(one, "to_device", [["@a:hs"]])

        assert peer.hears() == ['RDATA to_device master 1 ["@a:hs"]']

    def test_middle_gets_positions_of_one_token(self) -> None:
        """Between 1.13 and 1.21, which only the configuration can tell."""
        one = cluster()
        append(one, "events", [EVENT])

        peer = client(one, "REPLICATE", address="daemon-middle")

        assert peer.hears()[0] == "POSITION events master 1"

    def test_a_row_too_long_for_a_line_is_told_by_a_position_that_makes_it_be_fetched(self) -> None:
        """One oversize row must neither be lost nor stop the stream (real masters skip it in silence)."""
        one = cluster()
        peer = client(one, "REPLICATE")
        peer.hears()
        exact = MAX_LENGTH - len('RDATA to_device master 1 [""]')

        append(one, "to_device", [["a" * exact]], [["x" * MAX_LENGTH]], [["@b:hs"]])

        heard = peer.hears()
        assert heard[0].startswith("RDATA to_device master 1 ")
        assert heard[1:] == ["POSITION to_device master 2 2", 'RDATA to_device master 3 ["@b:hs"]']

    def test_rows_that_the_release_does_not_know_move_the_position_only(self) -> None:
        """A hole is certified by a POSITION, so that nobody looks for what is not for him."""
        one = cluster()
        peer = client(one, "REPLICATE")
        peer.hears()

        append(one, "events", [["state-all", ["!r"]]])
        append(one, "thread_subscriptions", [["@a:hs", "!r", "$e"]])

        assert peer.hears() == ["POSITION events master 0 1"]

    def test_one_port_serves_old_and_new_followers_at_once(self) -> None:
        """No flag day for workers."""
        one = cluster()
        old, new = client(one, "REPLICATE receipts 0", name="old"), client(one, "REPLICATE", name="new")
        old.hears(), new.hears()

        append(one, "receipts", [["!r", "m.read", "@a:hs", "$e", "main", {"ts": 1}]])

        assert old.hears() == ['RDATA receipts 1 ["!r", "m.read", "@a:hs", "$e", {"ts": 1}]']
        assert new.hears() == ['RDATA receipts master 1 ["!r","m.read","@a:hs","$e",{"ts":1}]']


class TestUpstream:
    """What followers send up."""

    def test_an_invalidation_becomes_a_fact_for_everybody(self) -> None:
        """Workers of old invalidate through the master."""
        one = cluster()
        other = client(one, "REPLICATE caches NOW", name="other")
        other.hears()

        client(one, 'INVALIDATE_CACHE get_user_by_id ["@a:hs"]', "REPLICATE events NOW")
        one.settle(0.1)

        (line,) = other.hears()
        assert line.startswith('RDATA caches 1 ["get_user_by_id", ["@a:hs"], ')

    def test_an_invalidation_that_is_none_is_told_so(self) -> None:
        """Keys are a list of strings or null; nothing else is stored."""
        one = cluster()

        peer = client(one, 'INVALIDATE_CACHE get_user_by_id {"a": 1}')

        (line,) = peer.hears()
        assert line.startswith(
            "ERROR cannot parse INVALIDATE_CACHE: bad row 0 of stream caches: keys (item 1)"
        )
        assert one.daemon.log.head.serial == 0

    def test_remote_server_up_goes_to_the_others_whose_release_knows_it(self) -> None:
        """And not back to who said it."""
        one = cluster()
        sender = client(one, "REPLICATE", name="sender")
        other = client(one, "REPLICATE", name="other")
        old = client(one, "REPLICATE events NOW", name="old")
        for peer in (sender, other, old):
            peer.hears()

        sender.says("REMOTE_SERVER_UP example.org")
        one.settle(0.1)

        assert [peer.hears() for peer in (sender, other, old)] == [[], ["REMOTE_SERVER_UP example.org"], []]

    def test_lock_released_goes_to_the_others_whose_release_knows_it(self) -> None:
        """Workers that wait for the lock would otherwise wait for their own poll."""
        one = cluster()
        listener(one, "new", dialect=NEWEST)
        sender = client(one, "REPLICATE", address="new", name="sender")
        other = client(one, "REPLICATE", address="new", name="other")
        old = client(one, "REPLICATE", name="old")
        for peer in (sender, other, old):
            peer.hears()

        sender.says('LOCK_RELEASED ["i","n","k"]')
        one.settle(0.1)

        assert [peer.hears() for peer in (sender, other, old)] == [[], ['LOCK_RELEASED ["i","n","k"]'], []]

    def test_a_federation_ack_lets_memory_go_up_to_the_slowest_sender(self) -> None:
        """Two senders; what one of them lacks must stay."""
        one = cluster()
        append(one, "federation", *[[["p", {"n": n}]] for n in range(5)])
        held = lambda: [fact.token for fact in one.daemon.log.ephemeral.after("federation", 0)]  # noqa: E731

        first = client(one, "FEDERATION_ACK sender1 3", name="sender1")
        assert [4, 5] == held()
        client(one, "FEDERATION_ACK sender2 1", name="sender2")
        first.says("FEDERATION_ACK sender1 5")
        one.settle(0.1)

        assert [4, 5] == held()

    def test_a_federation_sender_that_reconnects_finds_what_it_lacks(self) -> None:
        """What the others acked meanwhile is not all that it has."""
        one = cluster()
        append(one, "federation", *[[["p", {"n": n}]] for n in range(5)])
        first = client(one, "FEDERATION_ACK sender1 2", name="sender1")
        second = client(one, "FEDERATION_ACK sender2 2", name="sender2")

        first.drop()
        one.settle(1)
        second.says("FEDERATION_ACK sender2 5")
        one.settle(0.1)
        assert [3, 4, 5] == [fact.token for fact in one.daemon.log.ephemeral.after("federation", 0)]

        one.clock.pump([1] * (int(RECONNECT_SECONDS) + 1))
        second.says("FEDERATION_ACK sender2 5")
        one.settle(0.1)
        assert [] == one.daemon.log.ephemeral.after("federation", 0)

    def test_commands_reach_who_subscribed(self) -> None:
        """The homeserver's own code hangs here."""
        one = cluster()
        got: list[Any] = []
        one.daemon.publisher.follower_commands.subscribers[UserIp].append(got.append)
        one.daemon.publisher.follower_commands.subscribers[LockReleased].append(got.append)

        client(one, 'USER_IP @a:hs ["t","ip","ua",null,1]', 'LOCK_RELEASED ["i","n","k"]')

        assert got == [
            UserIp(user_id="@a:hs", seen=["t", "ip", "ua", None, 1]),
            LockReleased(lock=["i", "n", "k"]),
        ]

    def test_a_subscriber_that_fails_costs_the_connection_nothing(self) -> None:
        """A bug in one place must not cut off workers."""
        one = cluster()
        one.daemon.publisher.follower_commands.subscribers[UserIp].append(lambda command: 1 / 0)  # type: ignore[arg-type]

        peer = client(one, 'USER_IP @a:hs ["t","ip","ua",null,1]', "REPLICATE")

        assert len(peer.hears()) == 15


class TestRepeatedReplicate:
    """11 bytes may be answered with half a megabyte."""

    def chunks(self, peer: RawPeer, one: Cluster, line: str) -> None:
        for _ in range(100):
            peer.says(*[line] * 1_000)
            one.settle(0.01)

    def test_repetitions_of_a_turn_are_answered_once(self) -> None:
        """The first at once, all others together in the next turn."""
        one = cluster()
        peer = client(one, "NAME flood")

        peer.says(*["REPLICATE"] * 1_000)
        one.settle(0.1)

        assert 2 * 15 == len([line for line in peer.hears() if line.startswith("POSITION")])

    def test_the_newest_of_a_stream_is_answered(self) -> None:
        """A follower that asks again has changed its mind."""
        one = cluster()
        append(one, "to_device", [["@a:hs"]], [["@b:hs"]], [["@c:hs"]])
        peer = client(one, "REPLICATE to_device NOW", "REPLICATE to_device 0", "REPLICATE to_device 2")

        assert ["POSITION to_device 3", 'RDATA to_device 3 ["@c:hs"]', "POSITION to_device 3"] == peer.hears()

    @pytest.mark.parametrize("line", ["REPLICATE", "REPLICATE to_device 0", "REPLICATE ALL 0"])
    def test_a_client_that_does_not_read_is_not_read(self, line: str) -> None:
        """Memory stays flat; once it reads it is answered, and read again."""
        one = cluster(ring_bytes=50_000)
        append(one, "to_device", *[[[f"@{n:06d}{'x' * 500}:hs"]] for n in range(1000)])
        peer = client(one, line, name="flood")
        peer.hears()
        (link,) = one.network.links_of("flood")
        peer.transport.pauseProducing()
        for number in range(2000):
            append(one, "to_device", [[f"@{number:06d}{'x' * 500}:hs"]])
            if not number % 20:
                peer.says(*[line] * 1_000)

        assert not link.server._reading
        assert link.server.most_buffered < 64 * 1024 + 600 * 1024
        assert len(one.daemon.publisher.tasks) <= 1
        peer.transport.resumeProducing()
        one.settle(60)
        assert link.server._reading
        heard = peer.hears()
        assert any(line.startswith("POSITION to_device") for line in heard[-60:])

    def test_a_follower_far_behind_is_read_whenever_it_has_taken_something(self) -> None:
        """A long backlog fills the transport again at once; until its end nothing would be heard of it."""
        one = cluster(ring_bytes=50_000)
        append(one, "push_rules", [["@a:hs"]])
        for start in range(0, 10_000, 500):
            append(one, "to_device", *[[[f"@{n:06d}{'x' * 500}:hs"]] for n in range(start, start + 500)])
        peer = client(one, name="slow")
        (link,) = one.network.links_of("slow")
        peer.transport.pauseProducing()
        peer.says("REPLICATE to_device 0")
        one.settle(1)
        peer.says("REPLICATE push_rules 0")
        one.settle(1)
        assert not link.server._reading

        peer.transport.resumeProducing()
        for _ in range(100):
            if link.server._reading:
                break
            one.clock.advance(0.001)
        heard = peer.hears()

        assert link.server._reading
        assert not any(line.startswith("POSITION to_device") for line in heard)
        one.settle(20)
        assert {"POSITION push_rules 1", "POSITION to_device 10000"} <= set(peer.hears())

    def test_one_that_never_takes_its_answers_is_closed(self) -> None:
        """Unread it cannot be timed out by its silence."""
        one = cluster()
        peer = client(one, "REPLICATE", "PING 1", name="flood")
        peer.transport.pauseProducing()
        append(one, "to_device", *[[[f"@{n:06d}{'x' * 500}:hs"]] for n in range(1000)])
        peer.says("REPLICATE")
        one.clock.pump([1] * int(STALLED_SECONDS - 5))
        assert peer.is_connected

        one.clock.pump([1] * 40)

        assert not peer.is_connected


class TestSyncing:
    """Who is syncing where."""

    def start(self) -> tuple[Cluster, list[tuple[str, bool]]]:
        one = cluster()
        seen: list[tuple[str, bool]] = []

        def note(change: SyncingUser) -> None:
            seen.append((change.user_id, change.is_syncing))

        one.daemon.publisher.follower_commands.syncing.subscribers.append(note)
        return one, seen

    def test_a_user_on_two_workers_stops_with_the_last(self) -> None:
        """Two phones on two workers are one presence."""
        one, seen = self.start()
        first = client(one, "USER_SYNC w1 @a:hs start 1", name="first")
        second = client(one, "USER_SYNC w2 @a:hs start 2", name="second")

        first.says("USER_SYNC w1 @a:hs end 3")
        second.says("CLEAR_USER_SYNC w2")
        one.settle(0.1)

        assert seen == [("@a:hs", True), ("@a:hs", False)]

    def test_a_legacy_connection_takes_its_users_with_it(self) -> None:
        """It has no other name than the connection."""
        one, seen = self.start()
        peer = client(one, "USER_SYNC @a:hs start 1")

        peer.drop()
        one.settle(0.1)

        assert seen == [("@a:hs", True), ("@a:hs", False)]

    def test_an_instance_outlives_its_connection_but_not_for_ever(self) -> None:
        """A worker that reconnects makes no user flicker; one that died keeps none online."""
        one, seen = self.start()
        peer = client(one, "USER_SYNC w1 @a:hs start 1")
        peer.drop()
        one.settle(1)
        assert seen == [("@a:hs", True)]

        for _ in range(int(EXPIRY_SECONDS) + 60):
            one.clock.advance(1)

        assert seen == [("@a:hs", True), ("@a:hs", False)]
        assert one.daemon.publisher.follower_commands.syncing.users() == set()

    def test_a_connected_worker_keeps_its_users_by_its_pings(self) -> None:
        """USER_SYNC is said once; a long sync is not a dead one."""
        one, seen = self.start()
        peer = client(one, "USER_SYNC w1 @a:hs start 1")

        for _ in range(int(EXPIRY_SECONDS) + 60):
            peer.says("PING 1")
            one.clock.advance(1)

        assert seen == [("@a:hs", True)]


class TestNumbers:
    """What is counted."""

    def test_rows_are_counted_when_they_are_taken_and_never_as_sent(self) -> None:
        """A follower that has asked for nothing is sent no row, though it is there when rows are taken."""
        one = cluster()
        client(one)

        append(one, "push_rules", [["@ada:hs"]])

        assert one.daemon.metrics.rows.labels("push_rules").value == 1


class TestSlowReaders:
    """A slow reader costs a byte budget, loses nothing, and nobody else feels it."""

    def rows(self, start: int, count: int) -> list[list[Any]]:
        return [[[f"@{n:06d}{'x' * 500}:hs"]] for n in range(start, start + count)]

    def tokens(self, peer: RawPeer) -> list[int]:
        return [int(line.split()[3]) for line in peer.hears() if line.startswith("RDATA")]

    def test_it_gets_everything_when_it_reads_again_from_the_log(self) -> None:
        """Real masters drop 10,000 rows and the connection."""
        one = cluster(ring_bytes=50_000)
        slow, fast = client(one, "REPLICATE", name="slow"), client(one, "REPLICATE", name="fast")
        slow.hears(), fast.hears()
        slow.transport.pauseProducing()

        for start in range(0, 4000, 100):
            append(one, "to_device", *self.rows(start, 100))
        seen_by_fast = self.tokens(fast)
        (link,) = one.network.links_of("slow")
        buffered = link.server.most_buffered
        slow.transport.resumeProducing()
        one.settle(20)

        assert seen_by_fast == list(range(1, 4001))
        assert buffered < 64 * 1024 + 300 * 1024
        assert self.tokens(slow) == list(range(1, 4001))
        metrics = one.daemon.metrics
        assert metrics.readers_demoted.value == metrics.readers_promoted.value == 1
        append(one, "to_device", [["@live:hs"]])
        assert slow.hears() == ['RDATA to_device master 4001 ["@live:hs"]']

    def test_a_page_that_ends_in_the_middle_of_a_group_is_gone_on_with(self) -> None:
        """Nothing of the group comes twice; and its position comes when all of it is sent."""
        one = cluster(ring_bytes=1_500_000)
        slow = client(one, "REPLICATE", name="slow")
        slow.hears()
        slow.transport.pauseProducing()
        for start in range(0, 7_600, 190):
            append(one, "to_device", *self.rows(start, 190))

        slow.says("REPLICATE")
        slow.transport.resumeProducing()
        one.settle(20)

        lines = [line.split()[:4] for line in slow.hears() if " to_device " in line]
        assert [int(line[3]) for line in lines if line[0] == "RDATA"] == list(range(1, 7_601))
        assert lines[-1] == ["POSITION", "to_device", "master", "7600"]

    def test_a_legacy_reader_far_behind_converges_while_writes_go_on(self) -> None:
        """Real masters cut off who is 10,000 rows behind, for ever."""
        one = cluster(ring_bytes=50_000)
        for start in range(0, 12_000, 1000):
            append(one, "to_device", *self.rows(start, 1000))
        peer = client(one, "REPLICATE to_device 0")

        for _ in range(50):
            append(one, "to_device", [["@more:hs"]])
        one.settle(20)

        lines = peer.hears()
        position = next(line for line in lines if line.startswith("POSITION"))
        tokens = [int(line.split()[2]) for line in lines if line.startswith("RDATA")]
        assert tokens == list(range(1, 12_051))
        assert int(position.split()[2]) >= 12_000

    def test_a_short_stream_need_not_wait_for_a_long_one(self) -> None:
        """Fifteen REPLICATEs at once are the usual start of a legacy worker."""
        one = cluster()
        for start in range(0, 5000, 1000):
            append(one, "to_device", *self.rows(start, 1000))
        append(one, "push_rules", [["@a:hs"]])
        peer = client(one, "REPLICATE to_device 0", "REPLICATE push_rules 0")
        one.settle(20)

        lines = peer.hears()

        assert lines.index("POSITION push_rules 1") < lines.index("POSITION to_device 5000")

    def test_ephemeral_facts_survive_falling_behind(self) -> None:
        """Typing is not in the log, yet a slow reader must end up with who is typing now."""
        one = cluster(ring_bytes=1_000)
        slow = client(one, "REPLICATE")
        slow.hears()
        slow.transport.pauseProducing()
        for n in range(300):
            append(one, "typing", [[f"!r{n % 3}", [f"@u{n}:{'x' * 500}"]]])
        slow.transport.resumeProducing()
        one.settle(5)

        last = {}
        for line in slow.hears():
            room, users = json.loads(line.split(" ", 4)[4])
            last[room] = users[0].partition(":")[0]
        assert last == {"!r0": "@u297", "!r1": "@u298", "!r2": "@u299"}


class TestTableStreams:
    """In a stream that is read from tables a writer may be ahead of others."""

    def copied(self, one: Cluster, *facts: tuple[str, int]) -> None:
        """What a table source appends: facts of these writers, under these ids."""
        rows = [(writer, token, b'[["@u%d:hs"]]' % token) for writer, token in facts]
        one._run(one.daemon.log.append_assigned("to_device", rows))
        one.settle(0.1)

    def tables(self) -> Cluster:
        """A daemon that reads to_device from a table; A and B are at 2."""
        one = cluster()
        one.daemon.log.table_streams = frozenset({"to_device"})
        self.copied(one, ("A", 1), ("B", 2))
        one._run(one.daemon.log.append_assigned("to_device", [("A", 2, b"[]")]))
        return one

    def tokens(self, peer: RawPeer) -> list[str]:
        """The lines of to_device, without rows."""
        return [" ".join(line.split()[0:3:2]) for line in peer.hears() if " to_device " in line]

    def test_who_knows_writers_is_sent_each_as_it_comes(self) -> None:
        one = self.tables()
        peer = client(one, "REPLICATE")
        peer.hears()
        self.copied(one, ("B", 4), ("B", 5))
        self.copied(one, ("A", 3))

        lines = [line.split()[2:4] for line in peer.hears() if line.startswith("RDATA to_device")]
        assert lines == [["B", "4"], ["B", "5"], ["A", "3"]]

    def test_who_does_not_is_sent_what_is_complete_of_all(self) -> None:
        """In the order of tokens, live and from a backlog."""
        one = self.tables()
        early = client(one, "REPLICATE to_device 0", name="early")
        assert self.tokens(early) == ["RDATA 1", "RDATA 2", "POSITION 2"]
        self.copied(one, ("B", 4), ("B", 6))
        late = client(one, "REPLICATE to_device 0", name="late")
        now = client(one, "REPLICATE to_device NOW", name="now")
        ahead = client(one, "REPLICATE to_device 6", name="ahead")
        assert self.tokens(early) == []
        assert self.tokens(late) == ["RDATA 1", "RDATA 2", "POSITION 2"]
        assert self.tokens(now) == self.tokens(ahead) == ["POSITION 2"]

        self.copied(one, ("A", 3), ("A", 5))
        for peer in (early, late, now, ahead):
            assert self.tokens(peer) == ["RDATA 3", "RDATA 4", "RDATA 5"]
        one._run(one.daemon.log.append_assigned("to_device", [("A", 6, b"[]")]))
        one.settle(0.1)
        assert self.tokens(early) == ["RDATA 6"]

    def test_other_streams_do_not_wait(self) -> None:
        """Nor is somebody without these streams behind."""
        one = self.tables()
        peer = client(one, "REPLICATE to_device NOW", "REPLICATE push_rules NOW")
        self.copied(one, ("B", 9))
        append(one, "push_rules", [["@a:hs"]])

        assert [line for line in peer.hears() if "push_rules 1" in line] == ['RDATA push_rules 1 ["@a:hs"]']

    def test_a_long_stream_is_sent_in_pages(self) -> None:
        one = self.tables()
        self.copied(one, *[("B", token) for token in range(3, 3_000)])
        self.copied(one, ("A", 3_000), ("B", 3_001))
        peer = client(one, "REPLICATE to_device 1")
        one.settle(5)

        assert self.tokens(peer) == [*(f"RDATA {n}" for n in range(2, 3_001)), "POSITION 3000"]


def test_a_connection_that_was_closed_leaves_no_timer() -> None:
    """One that did not end by itself would be aborted later; this one has ended."""
    one = cluster()
    one.settle(1)
    before = len(one.clock.getDelayedCalls())
    peer = client(one, "NAME someone", "NONSENSE of a peer")
    one.settle(1)

    assert not peer.is_connected
    assert before == len(one.clock.getDelayedCalls())
