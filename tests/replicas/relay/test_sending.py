"""What is sent to a replica: at its speed, and with signs of life."""

import msgspec
import pytest
from twisted.internet.defer import Deferred

from synrepl.replicas.wire.native import VERSION, Hello, Welcome
from synrepl.replication.serving import text_pages as pages_module
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition
from tests.replicas.clusters import FakeCluster, RawReplica
from tests.replicas.nodes import KEEPALIVE

MOST = 2 * 1024 * 1024


def subscribed(cluster: FakeCluster, to: str, *, uuid: str = "raw-uuid", **other: object) -> RawReplica:
    raw = cluster.raw(to)
    welcome = raw.greet(cluster, uuid=uuid)
    assert welcome is not None
    raw.subscribe(cluster, welcome, LogPosition(1, 0, "0" * 64), **other)
    return raw


def test_a_slow_replica_costs_no_memory_and_holds_up_nobody() -> None:
    """The log itself is the buffer."""
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=10_000)
    b = cluster.node("b", "a")
    cluster.pass_(1)
    slow = subscribed(cluster, "a")
    (link,) = a.links()[-1:]
    slow.transport.pauseProducing()
    for _ in range(20):
        cluster.wrote(a, 2_000)
    cluster.pass_(1)

    assert a.log.position == b.log.position
    assert link.server.most_buffered < MOST
    slow.transport.resumeProducing()
    cluster.pass_(20)
    assert 40_000 == sum(block.lines for block in slow.blocks("facts"))
    assert link.server.most_buffered < MOST


def test_each_fact_is_sent_once_and_in_order() -> None:
    """From the log and from memory alike."""
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=2_000)
    cluster.wrote(a, 100)
    raw = subscribed(cluster, "a")
    for _ in range(50):
        cluster.append(a, 3)
        cluster.pass_(0.02)
    cluster.pass_(1)

    text = b"".join(block.data for block in raw.blocks("facts"))
    serials = [int(line.split(b":")[1].split(b",")[0]) for line in text.splitlines()]
    assert list(range(1, 251)) == serials


def test_heartbeats_go_on_while_a_filter_lets_nothing_through() -> None:
    """A replica must not take a primary that looks through a long log for a dead one (Tarantool 5762)."""
    cluster = FakeCluster()
    delay = [0.001]
    a = cluster.node("a", ring_bytes=1, disk_delay=lambda: delay[0])
    before, pages_module.PAGE_FACTS = pages_module.PAGE_FACTS, 5  # type: ignore[misc]
    try:
        cluster.wrote(a, 500)
        delay[0] = 0.1
        raw = subscribed(cluster, "a", filter=Filter.of(streams=("to_device",), writers=("nobody",)))
        raw.wait(cluster, 15)
    finally:
        pages_module.PAGE_FACTS = before  # type: ignore[misc]

    assert [] == raw.blocks("facts")
    assert len(raw.lines("HEARTBEAT")) > 10
    assert raw.lines("HEARTBEAT")[-1].startswith(b"1 500 ")


def test_a_filtered_page_is_confirmed_with_the_digest_of_its_end() -> None:
    """The last fact that was sent may be far before the end of what was looked through."""
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=1)
    cluster.wrote(a, 3)
    cluster.wrote(a, 5, stream="push_rules")
    digests = {fact.serial: fact.digest.encode() for fact in a.engine.facts}
    raw = subscribed(cluster, "a", filter=Filter.of(streams=("to_device",)))
    cluster.pass_(3)

    told = [line.split()[1:3] for line in raw.lines("HEARTBEAT")]
    assert [b"8", digests[8]] in told
    assert all(digests.get(int(serial), digest) == digest for serial, digest in told)


def test_an_idle_primary_is_heard() -> None:
    """Each second, with where it stands and its clock."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    raw = subscribed(cluster, "a")
    before = len(raw.lines("HEARTBEAT"))
    for _ in range(5):
        raw.say("PING 1")
        cluster.pass_(1)

    assert 5 == len(raw.lines("HEARTBEAT")) - before
    assert raw.lines("HEARTBEAT")[-1].startswith(b"1 3 " + a.log.head.digest.encode() + b" 3 ")


def test_a_relay_whose_connection_is_lost_serves_nobody() -> None:
    """Its work would go on for a ghost."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = subscribed(cluster, "a")
    (relay,) = a.connected_relays
    (link,) = a.links()[-1:]
    link.cut()
    cluster.pass_(0.1)

    assert raw.is_lost
    assert ("gone", False) == (relay.state, relay.is_serving)
    assert relay.why


def test_a_dead_replica_is_found_in_bounded_time() -> None:
    """It pinged once, and then was silent."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = subscribed(cluster, "a")
    raw.say("PING 1")
    cluster.pass_(KEEPALIVE.timeout_seconds + 1)

    assert [] == a.connected_relays
    assert raw.is_lost


def test_a_dead_primary_is_found_in_bounded_time() -> None:
    """Nothing comes through, and nobody is told."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a")
    cluster.pass_(2)
    assert b.replica is not None
    assert "live" == b.replica.state
    for link in a.links():
        link.stall()
    cluster.pass_(KEEPALIVE.timeout_seconds + 1)

    assert b.replica.state != "live" or b.replica.freshness.silence() < 1
    cluster.pass_(5)
    assert "live" == b.replica.state


def test_receipts_come_before_the_facts_they_are_of() -> None:
    """Whoever is promoted must know of an append whole, or not at all."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5, key="one")
    raw = subscribed(cluster, "a")

    kinds = [one.kind for one in raw.heard if not isinstance(one, bytes)]
    assert ["meta", "facts", "held"] == kinds


def test_what_nobody_keeps_is_told_whole_to_who_becomes_live() -> None:
    """Who is typing now, although it was told before anybody listened."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.done(a.append("typing", [[["!r", ["@u"]]]]))
    b = cluster.node("b", "a")
    cluster.pass_(2)

    assert {"master": 1} == b.log.positions("typing")
    assert [b'[["!r",["@u"]]]'] == [fact.rows for fact in b.log.ephemeral.after("typing", 0)]


def test_a_primary_that_began_anew_begins_anew_on_its_replicas() -> None:
    """Its tokens do, so that what it says from then on is news."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a")
    cluster.pass_(2)
    for _ in range(3):
        cluster.done(a.append("typing", [[["!r", ["@u"]]]]))
    cluster.pass_(0.5)
    assert {"master": 3} == b.log.positions("typing")
    a.kill()
    cluster.start(a)
    cluster.pass_(3)
    cluster.done(a.append("typing", [[["!r", ["@v"]]]]))
    cluster.pass_(0.5)

    assert {"master": 1} == b.log.positions("typing")


def test_a_replica_that_was_slow_is_told_what_nobody_keeps() -> None:
    """As soon as it reads again, and not with the next kept fact."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = subscribed(cluster, "a")
    relay = a.connected_relays[0]
    relay.pause()
    cluster.done(a.append("typing", [[["!r", ["@u"]]]]))
    before = len(raw.blocks("held"))
    relay.resume()
    cluster.pass_(0.2)

    assert before + 1 == len(raw.blocks("held"))


def test_what_nobody_keeps_is_told_as_far_as_it_is_wanted() -> None:
    """As it comes, and as it is held."""
    cluster = FakeCluster()
    a = cluster.node("a")
    chosen = subscribed(cluster, "a", filter=Filter.of(streams=("to_device", "presence")))
    whole = subscribed(cluster, "a", uuid="whole")
    cluster.done(a.append("typing", [[["!r", ["@u"]]]]))
    cluster.pass_(0.2)
    late = subscribed(cluster, "a", uuid="late", filter=Filter.of(streams=("to_device",)))

    told = [b"".join(block.data for kind in ("ephemeral", "held") for block in one.blocks(kind)) for one in (
        chosen, whole, late
    )]  # fmt: skip
    assert [False, True, False] == [b"typing" in data for data in told]


def test_digests_are_told_as_far_as_they_are_known() -> None:
    """And no more of them at once than fit in a line."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    raw = cluster.raw("a")
    raw.greet(cluster)
    raw.say("DIGESTS [2,9]")
    cluster.pass_(0.2)

    second = cluster.done(Deferred.fromCoroutine(_digest(a.log, 2)))
    assert [f'{{"digests":{{"2":"{second}","9":null}}}}'.encode()] == raw.lines("DIGESTS_ARE")
    raw.say(f"DIGESTS {list(range(201))}".replace(" ", "").replace("DIGESTS", "DIGESTS "))
    cluster.pass_(0.2)
    assert raw.is_lost


@pytest.mark.parametrize("serial", [2**63, -1, 2**70])
def test_digests_of_serials_that_cannot_be_are_refused(serial: int) -> None:
    """One line with a reason, and no traceback: the peer is wrong, not the log."""
    cluster = FakeCluster()
    cluster.node("a")
    raw = cluster.raw("a")
    raw.greet(cluster)
    raw.say(f"DIGESTS [{serial}]")
    cluster.pass_(0.2)

    assert raw.is_lost
    assert raw.lines("ERROR")[0].startswith(b"cannot parse DIGESTS: serials is invalid: Expected `int`")


def test_digests_are_answered_one_by_one_and_only_as_they_are_taken() -> None:
    """62 MB of DIGESTS whose answers nobody took made 700 MB of tasks and answers, and held up every read."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 200)
    raw = cluster.raw("a")
    raw.greet(cluster)
    (link,) = a.links()
    relay = a.connected_relays[0]
    most = len(a.registry.tasks)
    raw.transport.pauseProducing()
    asked = f"DIGESTS {list(range(1, 151))}".replace("[1, ", "[1,").replace(", ", ",")
    for _ in range(20):
        raw.say(*[asked] * 2)
        cluster.pass_(1)
        most = max(most, len(a.registry.tasks))

    assert most <= 1
    assert not link.server._reading
    assert link.server.most_buffered < 128 * 1024
    assert len(relay._commands) <= 2
    assert link.client._buffered > 5_000

    raw.transport.resumeProducing()
    raw.wait(cluster, 100)
    assert 40 == len(raw.lines("DIGESTS_ARE"))
    assert link.server._reading
    assert not raw.is_lost


def test_a_replica_that_is_slow_is_heard_while_its_transport_is_full() -> None:
    """Its ACKs and PINGs are not answered, so nothing piles up by them; unread it would look dead."""
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=10_000)
    raw = subscribed(cluster, "a")
    (link,) = a.links()
    raw.transport.pauseProducing()
    cluster.wrote(a, 5_000)
    cluster.pass_(1)
    relay = a.connected_relays[0]
    assert relay._sender is not None
    assert relay._sender.is_paused
    raw.say("PING 1", f"ACK 1 {relay.sent.serial // 2} 1")
    cluster.pass_(0.1)

    assert relay.sent.serial // 2 == relay.acknowledged > 0
    assert link.server._reading


async def _digest(log: object, serial: int) -> str:
    digest: str = await log.reads.digest(serial)  # type: ignore[attr-defined]
    return digest


def test_a_replica_is_not_sent_what_it_does_not_know() -> None:
    """A daemon of another release may know less than this one."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = cluster.raw("a")
    raw.tell("HELLO", Hello(uuid="u", name="old", version=VERSION, capabilities=("receipts",)))
    cluster.pass_(0.1)
    raw.subscribe(cluster, msgspec.json.decode(raw.lines("WELCOME")[-1], type=Welcome))
    a.append("typing", [[["!room:hs", ["@ada:hs"]]]])
    a.append("push_rules", [[["@ada:hs"]]])
    cluster.node("b", "a")
    cluster.pass_(2)

    assert 1 == sum(block.lines for block in raw.blocks("facts"))
    assert [] == [*raw.blocks("ephemeral"), *raw.blocks("held"), *raw.lines("PEERS")]


def test_a_replica_that_falls_silent_is_lost_even_if_it_never_sent_ping() -> None:
    """It was listed as idle, and its relay as live, for as long as its socket stood open."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = subscribed(cluster, "a")
    cluster.pass_(1)
    before = a.registry.status()[0]["state"]

    cluster.pass_(10)

    assert "lost" != before
    assert "lost" == a.registry.status()[0]["state"]
    assert raw.is_lost
