"""Everything that a primary cannot do for a replica, and what becomes of it."""

import msgspec
import pytest
from twisted.internet.defer import Deferred, succeed

from synrepl.base.access import Access, Key, Keyring
from synrepl.replicas.error_codes import REFUSALS
from synrepl.replicas.relay.leases import MAX_LEASES
from synrepl.replicas.wire.native import VERSION, Hello, Join, Subscribe, Welcome
from synrepl.replication.retention import keys_of
from synrepl.replication.serving import text_pages as pages_module
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition
from tests.replicas.clusters import FakeCluster, RawReplica
from tests.replicas.nodes import FakeNode

PINNED = "raw-uuid"


def known(cluster: FakeCluster, node: FakeNode) -> tuple[RawReplica, Welcome]:
    """A replica that may say what it wants."""
    raw = cluster.raw(node.name)
    welcome = raw.greet(cluster)
    assert welcome is not None
    return raw, welcome


def trim(cluster: FakeCluster, node: FakeNode, upto: int) -> None:
    cluster.done(Deferred.fromCoroutine(node.log.trim(upto, keys_of(node.table), 1000)))


def check(cluster: FakeCluster, node: FakeNode, raw: RawReplica, code: str) -> None:
    """Refused so, by code and in words; the connection ends, and nothing is kept for it."""
    cluster.pass_(0.2)
    refused = raw.refusal()

    assert code == refused["code"]
    assert REFUSALS[code].retryable is refused["retryable"]
    assert refused["message"]
    assert raw.is_lost
    lease = node.leases[PINNED]
    assert lease is None or lease.ended_ms is not None


@pytest.mark.parametrize("serial", [7, 14])
def test_trimmed(serial: int) -> None:
    """What it lacks is gone, be it one fact: it is told before it is told that all is well."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 20)
    trim(cluster, a, 15)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, serial, "d"))

    check(cluster, a, raw, "trimmed")
    assert [] == raw.lines("SUBSCRIBED")


@pytest.mark.parametrize("serial", [6, 9])
def test_ahead(serial: int) -> None:
    """It has more than there is: the primary was restored, and must not starve it in silence."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, serial, "d"))

    check(cluster, a, raw, "ahead")


def test_ahead_by_one_writer() -> None:
    """Sums and serials can be equal where vectors are not."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, clock={"to_device": {"master": 6}})

    check(cluster, a, raw, "ahead")


def test_a_subscription_that_was_corrupted_ends_no_lease() -> None:
    """The name of a stream or a token that changed on its way looks like a replica that is ahead."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    asked = Subscribe(
        history=welcome.history, position=welcome.position, clock={"eve.ts": {"master": 5}}, check="0a1b2c3d"
    )
    raw.tell("SUBSCRIBE", asked)
    cluster.pass_(0.2)

    assert raw.is_lost
    assert any(b"corrupted SUBSCRIBE: its check does not match" in line for line in raw.lines("ERROR"))
    assert [] == raw.lines("REFUSED")
    assert a.leases[PINNED] is None


def test_other_epoch() -> None:
    """It says that it knows a later epoch: this daemon says so in its status, and goes on."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(2, 5, welcome.position.digest))

    check(cluster, a, raw, "other_epoch")
    assert "primary" == a.roles.role
    assert ["knows epoch 2" in text for text, *_ in a.roles.rivals.problems] == [True]


def test_fork() -> None:
    """The same serial, another digest."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, 5, "d" * 64))

    check(cluster, a, raw, "fork")


def test_fork_that_trimming_hides() -> None:
    """Who wrote on after its epoch had ended elsewhere must not take itself for one that is behind."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    cluster.promote(b)
    cluster.wrote(b, 20)
    trim(cluster, b, 18)
    raw, welcome = known(cluster, b)
    raw.subscribe(cluster, welcome, LogPosition(1, 7, "d" * 64))

    check(cluster, b, raw, "fork")


def test_fork_within_an_epoch() -> None:
    """Two daemons were promoted into one epoch, at different places."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, epoch_start=LogPosition(1, 3, "c" * 64))

    check(cluster, a, raw, "fork")


def test_other_history() -> None:
    """It is a copy of another log."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, history="another")

    check(cluster, a, raw, "other_history")


def test_duplicate() -> None:
    """The same uuid twice: the first one stays."""
    cluster = FakeCluster()
    a = cluster.node("a")
    first, welcome = known(cluster, a)
    first.subscribe(cluster, welcome)
    second, welcome = known(cluster, a)
    second.subscribe(cluster, welcome)
    cluster.pass_(0.2)

    assert "duplicate" == second.refusal()["code"]
    assert second.refusal()["retryable"]
    assert not first.is_lost
    cluster.wrote(a, 1)
    cluster.pass_(0.2)
    assert 1 == len(first.blocks("facts"))


def test_unknown() -> None:
    """An operator dropped it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)
    raw.transport.abortConnection()
    cluster.pass_(0.1)
    assert a.leases.drop("raw") is not None
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)

    check(cluster, a, raw, "unknown")


@pytest.mark.parametrize("word", ["JOIN", "SUBSCRIBE"])
def test_not_ready(word: str) -> None:
    """A replica that has no whole copy has none to give."""
    cluster = FakeCluster()
    b = cluster.node("b", "nowhere")
    raw, welcome = known(cluster, b)
    if word == "JOIN":
        raw.tell("JOIN", Join())
    else:
        raw.subscribe(cluster, welcome)

    check(cluster, b, raw, "not_ready")


def test_not_ready_is_not_another_history() -> None:
    """An upstream with a new disk is one to wait for, not one to part from."""
    cluster = FakeCluster()
    b = cluster.node("b", "nowhere")
    raw, welcome = known(cluster, b)
    raw.subscribe(cluster, welcome, history="that of before")

    check(cluster, b, raw, "not_ready")


@pytest.mark.parametrize("word", ["JOIN", "SUBSCRIBE"])
def test_read_only(word: str) -> None:
    """A fenced daemon says where the primary is."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.promote(b)
    cluster.pass_(0.5)
    raw, welcome = known(cluster, a)
    if word == "JOIN":
        raw.tell("JOIN", Join())
    else:
        raw.subscribe(cluster, welcome)

    check(cluster, a, raw, "read_only")
    assert "b -" == raw.refusal()["moved_to"]


@pytest.mark.parametrize("word", ["JOIN", "SUBSCRIBE"])
def test_filtered(word: str) -> None:
    """A copy of some streams cannot give all."""
    cluster = FakeCluster()
    cluster.node("a")
    b = cluster.node("b", "a", upstream_streams=("events",))
    cluster.pass_(2)
    raw, welcome = known(cluster, b)
    if word == "JOIN":
        raw.tell("JOIN", Join(filter=Filter.of(streams=("to_device",))))
    else:
        raw.subscribe(cluster, welcome)

    check(cluster, b, raw, "filtered")


@pytest.mark.parametrize("serial", [6, 500, 4])
def test_bad_ack(serial: int) -> None:
    """More than it was sent, or less than it had: its lease must not move by that."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)
    raw.say(f"ACK 1 {serial} 0")
    cluster.pass_(0.2)

    assert "bad_ack" == raw.refusal()["code"]
    assert raw.is_lost
    lease = a.leases[PINNED]
    assert lease is not None
    assert 5 == lease.serial


def test_version() -> None:
    """Who does not say who it is as daemons do."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = cluster.raw("a")
    raw.say('HELLO {"uuid":"","name":"x","version":3}')

    check(cluster, a, raw, "version")


@pytest.mark.parametrize(("size", "is_refused"), [(0, False), (2, True)])
def test_an_older_replica_of_a_log_with_atomic_appends(size: int, is_refused: bool) -> None:
    """It would store, and after a promotion serve, a part of one."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 1)
    if size:
        facts = [b'[["@a:hs"]]'] * size
        a.log.append_atomic([("push_rules", "w", facts)], key="k")
        cluster.pass_(0.2)
    raw = cluster.raw("a")
    raw.greet(cluster, capabilities=["digests", "ephemeral", "peers", "receipts"])
    raw.say('JOIN {"streams":null,"writers":null}')
    cluster.pass_(0.2)

    if is_refused:
        check(cluster, a, raw, "version")
        assert "has atomic appends" in raw.refusal()["message"]
    else:
        assert raw.lines("JOINING")


@pytest.mark.parametrize("secret", [None, "wrong"])
def test_no_rights(secret: str | None) -> None:
    """Who cannot prove that it knows the secret hears nothing of the log."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    raw = cluster.raw("a")

    assert raw.greet(cluster, secret=secret) is None
    check(cluster, a, raw, "no_rights")
    assert [] == raw.lines("WELCOME")


def test_a_useless_lease_ends_with_the_refusal() -> None:
    """What was kept for a replica that must join anew would be kept for nothing (Tarantool 13209)."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)
    raw.transport.abortConnection()
    cluster.wrote(a, 5)
    assert 5 == a.leases.lowest()
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, 5, "d" * 64))

    check(cluster, a, raw, "fork")
    assert a.leases.lowest() is None


@pytest.mark.parametrize("word", ["JOIN", "SUBSCRIBE"])
def test_too_many(word: str) -> None:
    """Each lease holds back a part of the log: an excess is refused, and who has one keeps it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    for number in range(MAX_LEASES):
        a.leases.make(f"u{number}", f"n{number}", registered=True, serial=0)
    raw, welcome = known(cluster, a)
    if word == "JOIN":
        raw.tell("JOIN", Join())
    else:
        raw.subscribe(cluster, welcome)

    check(cluster, a, raw, "too_many")


@pytest.mark.parametrize("greeting", [{"name": "x\x1b[2J"}, {"name": "x" * 8000}, {"uuid": "two words"}])
@pytest.mark.parametrize("word", ["JOIN", "SUBSCRIBE"])
def test_bad_name(word: str, greeting: dict[str, str]) -> None:
    """It would be shown to operators, and kept."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = cluster.raw("a")
    said = {"uuid": PINNED, "name": "raw"} | greeting
    raw.tell("HELLO", Hello(uuid=said["uuid"], name=said["name"], version=VERSION))
    position = LogPosition(1, 0, a.log.head.digest)
    asked = Join() if word == "JOIN" else Subscribe(history=a.log.history, position=position)
    raw.tell(word, asked)

    check(cluster, a, raw, "bad_name")
    assert [] == a.leases.all()


def test_every_refusal_is_tested_here() -> None:
    """None without its case."""
    here = {name.removeprefix("test_") for name in globals()}

    assert set(REFUSALS) <= here


def test_a_lease_that_ends_while_it_is_served_is_reported() -> None:
    """Or a filtered copy would miss what was trimmed, and never know."""
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=1, lease_bytes=1)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, filter=Filter.of(streams=("events",)))
    raw.transport.pauseProducing()
    relay = a.connected_relays[0]
    relay.pause()
    cluster.wrote(a, 50)
    cluster.pass_(6)
    assert a.leases.lowest() is None
    trim(cluster, a, 40)
    raw.transport.resumeProducing()
    relay.resume()
    cluster.pass_(0.5)

    assert "trimmed" == raw.refusal()["code"]


def test_a_lease_that_ends_in_the_middle_of_a_snapshot_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first half is of another age than its second, and no digest tells."""
    monkeypatch.setattr(pages_module, "PAGE_FACTS", 5)
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40)
    raw, _ = known(cluster, a)
    (relay,) = a.connected_relays
    raw.tell("JOIN", Join())
    for _ in range(1_000):
        if raw.blocks("facts"):
            break
        cluster.clock.advance(0.0001)
    relay.pause()
    assert 1 <= len(raw.blocks("facts")) < 8
    lease = a.leases[PINNED]
    assert lease is not None
    a.leases.end(lease, "too late")
    trim(cluster, a, 30)
    relay.resume()
    cluster.pass_(0.5)

    assert "trimmed" == raw.refusal()["code"]
    assert [] == raw.lines("JOINED")


def test_a_snapshot_beyond_the_log_is_never_a_whole_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filtered copy would miss the facts that cannot be read, and never know."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 10)
    raw, _ = known(cluster, a)
    snapshot = cluster.done(a.log.copies.snapshot())
    position = msgspec.structs.replace(snapshot.position, serial=11)
    ahead = msgspec.structs.replace(snapshot, position=position)
    monkeypatch.setattr(a.log.copies, "snapshot", lambda: succeed(ahead))

    raw.tell("JOIN", Join(filter=Filter.of(streams=("events",))))
    cluster.pass_(0.5)

    assert [] == raw.lines("JOINED")
    assert "trimmed" == raw.refusal()["code"]


@pytest.mark.parametrize("wanted", [Filter(), Filter.of(streams=["events", "receipts"])])
def test_a_key_gets_no_copy_of_streams_that_it_may_not_see(wanted: Filter) -> None:
    """A copy of some streams would hold all."""
    cluster = FakeCluster()
    a = cluster.node("a")
    access = Access(name="k", streams=frozenset({"events"}), is_proven=True)

    replica = Hello(uuid="u", name="n")
    refused = a.registry.join_refusal(replica, wanted, access)

    assert refused is not None
    assert "no_rights" == refused.code
    assert a.registry.join_refusal(replica, Filter.of(streams=["events"]), access) is None


LIMITED = Key(name="raw", secret="of raw", streams=frozenset({"to_device"}))


def limited(cluster: FakeCluster, a: FakeNode) -> tuple[RawReplica, Welcome]:
    """A replica whose key sees one stream, after the handshake."""
    raw = cluster.raw(a.name)
    welcome = raw.greet(cluster, secret="of raw")
    assert welcome is not None
    return raw, welcome


def lossy() -> tuple[FakeCluster, FakeNode]:
    """A primary that has lost facts of a stream, beside others."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.registry.keys.replace(Keyring(None, [LIMITED]))
    cluster.wrote(a, 5)
    fact = a.table["receipts"].canonical_fact([["!r", "m.read", "@a:hs", "$e", None, {}]])
    cluster.done(a.log.append("receipts", "hiddenwriter", [fact], key="hidden-key"))
    cluster.done(Deferred.fromCoroutine(a.log.epochs.begin_next("lost", stream="receipts", token=0)))
    return cluster, a


def test_a_replica_with_a_limited_key_is_told_of_its_streams_alone() -> None:
    """In its copy and after it: no positions, receipts or lost facts of others; and it can come back."""
    cluster, a = lossy()
    raw, welcome = limited(cluster, a)

    raw.tell("JOIN", Join(filter=Filter.of(streams={"to_device"})))
    cluster.pass_(0.5)
    told = b"".join(one.data for kind in ("snapshot", "meta", "facts") for one in raw.blocks(kind))
    assert b"to_device" in told
    for name in (b"receipts", b"hiddenwriter", b"hidden-key"):
        assert name not in told
    epoch_start = a.log.head.epoch_starts[-1].position
    raw.subscribe(cluster, welcome, filter=Filter.of(streams={"to_device"}), epoch_start=epoch_start)

    assert [] == raw.lines("REFUSED")
    assert 1 == len(raw.lines("SUBSCRIBED"))


@pytest.mark.parametrize("query", [Filter(), Filter.of(streams={"receipts"})])
@pytest.mark.parametrize("is_joining", [True, False])
def test_a_replica_with_a_limited_key_gets_no_other_stream(query: Filter, is_joining: bool) -> None:
    """Refused before anything is kept for it."""
    cluster, a = lossy()
    raw, welcome = limited(cluster, a)

    if is_joining:
        raw.tell("JOIN", Join(filter=query))
        cluster.pass_(0.2)
    else:
        raw.subscribe(cluster, welcome, filter=query)

    check(cluster, a, raw, "no_rights")
    assert a.leases[PINNED] is None


def test_commands_of_a_limited_replica_are_those_of_its_streams() -> None:
    """Others are dropped and counted, and those of others are not told to it."""
    cluster, a = lossy()
    raw, welcome = limited(cluster, a)
    raw.subscribe(cluster, welcome, filter=Filter.of(streams={"to_device"}))
    heard = a.publisher.follower_commands.buffer

    raw.say("UP o 1 FEDERATION_ACK ghost 999", "UP o 2 USER_SYNC w @a:hs PHONE start 1")
    cluster.pass_(0.2)
    a.publisher.broadcast(RemoteServerUp(server="example.org"))
    cluster.pass_(0.2)

    assert (0, []) == (heard.head, raw.lines("DOWN"))
    assert not a.publisher.follower_commands.syncing.users()
    assert 1 == a.metrics.commands_dropped.labels("FEDERATION_ACK").value
    assert raw.lines("TAKEN")[-1].split()[:2] == [b"o", b"2"]


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_says_whether_to_retry(code: str) -> None:
    """A replica decides by it."""
    assert REFUSALS[code].retryable is not None
