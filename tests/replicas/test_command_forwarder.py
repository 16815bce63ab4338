"""What followers of a replica send up reaches the primary, once; what is for all comes down to everybody."""

from typing import Any

import pytest
from prometheus_client import generate_latest

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.command_forwarder import MAX_QUEUED, WINDOW, command_of
from synrepl.replicas.wire.native import VERSION, Hello
from synrepl.replication.serving.command_lines import line_of
from synrepl.replication.serving.federation_acks import PRESENT_SECONDS
from synrepl.wire.commands import (
    ClearUserSync,
    FederationAck,
    LockReleased,
    RemoteServerUp,
    RemovePusher,
    UserIp,
    UserSync,
)
from tests.replicas.clusters import FakeCluster, RawReplica
from tests.replicas.nodes import FakeNode

KINDS = (UserSync, ClearUserSync, FederationAck, RemovePusher, RemoteServerUp, UserIp, LockReleased)


def heard_at(node: FakeNode) -> list[Any]:
    """Every command that a follower, or a replica for one, says there from now on."""
    heard: list[Any] = []
    for kind in KINDS:
        node.publisher.follower_commands.subscribers[kind].append(heard.append)
    return heard


def worker(cluster: FakeCluster, node: FakeNode, *lines: str) -> RawReplica:
    """A current worker that follows this node, and says these lines."""
    made = cluster.raw(node.name)
    made.say("REPLICATE", *lines)
    cluster.pass_(0.5)
    return made


SAID = (
    "USER_SYNC xyzzy @ada:hs start 17",
    "USER_SYNC xyzzy @bob:hs start 18",
    "USER_SYNC xyzzy @bob:hs end 19",
    "FEDERATION_ACK sender1 177",
    "REMOVE_PUSHER app.id push key 0 @ada:hs",
    "REMOTE_SERVER_UP far.example.org",
    'USER_IP @ada:hs ["secret","127.0.0.1","curl","PHONE",20]',
    "CLEAR_USER_SYNC xyzzy",
)


@pytest.mark.parametrize("position", ["b", "c"])
def test_what_a_worker_of_a_replica_sends_up_reaches_the_primary_once(position: str) -> None:
    """The manual tells people to put workers at a replica next to them."""
    cluster = FakeCluster()
    nodes = {node.name: node for node in cluster.chain()}
    heard = heard_at(nodes["a"])

    worker(cluster, nodes[position], *SAID)
    cluster.pass_(130, step=0.1)

    received = nodes["a"].metrics.commands
    assert 3 == received.labels("USER_SYNC").value
    assert 1 == received.labels("FEDERATION_ACK").value
    assert [
        UserSync(instance_id="xyzzy", user_id="@ada:hs", is_syncing=True, last_sync_ms=17),
        UserSync(instance_id="xyzzy", user_id="@bob:hs", is_syncing=True, last_sync_ms=18),
        UserSync(instance_id="xyzzy", user_id="@bob:hs", is_syncing=False, last_sync_ms=19),
        FederationAck(instance="sender1", token=177),
        RemovePusher(app_id="app.id", push_key="push key 0", user_id="@ada:hs"),
        RemoteServerUp(server="far.example.org"),
        UserIp(user_id="@ada:hs", seen=["secret", "127.0.0.1", "curl", "PHONE", 20]),
        ClearUserSync(instance_id="xyzzy"),
    ] == heard


def test_a_server_that_is_up_is_told_everywhere_but_to_who_said_it() -> None:
    """Each process has its own list of servers that it gave up on."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    followers = {node.name: worker(cluster, node) for node in (a, b, c)}
    other = worker(cluster, b)
    followers["b"].say("REMOTE_SERVER_UP far.example.org")
    cluster.pass_(2)

    said = {name: one.lines("REMOTE_SERVER_UP") for name, one in followers.items()}
    assert {"a": [b"far.example.org"], "b": [], "c": [b"far.example.org"]} == said
    assert [b"far.example.org"] == other.lines("REMOTE_SERVER_UP")


def test_what_a_replica_without_room_misses_is_counted() -> None:
    """Nothing is held for it in memory."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.node("b", "a")
    cluster.pass_(3)
    [relay] = a.connected_relays
    relay.pause()
    a.publisher.broadcast(RemoteServerUp(server="far.example.org"))

    assert 1 == a.metrics.commands_dropped.labels("REMOTE_SERVER_UP").value


def test_the_end_of_a_workers_connection_is_the_end_of_its_users() -> None:
    """The primary has no connection whose loss could tell it."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    current = worker(cluster, b, "USER_SYNC xyzzy @ada:hs start 17")
    legacy = cluster.raw("b")
    legacy.say("REPLICATE to_device NOW", "USER_SYNC @bob:hs start 18")
    cluster.pass_(1)
    assert {"@ada:hs", "@bob:hs"} == a.publisher.follower_commands.syncing.users()

    current.transport.loseConnection()
    legacy.transport.loseConnection()
    cluster.pass_(1)

    assert set() == a.publisher.follower_commands.syncing.users()


def test_who_is_syncing_stays_so_while_the_replica_is_there() -> None:
    """Quiet users are not gone ones, and a replica that died takes its users with it."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    staying = worker(cluster, b, "USER_SYNC xyzzy @ada:hs start 17")
    for _ in range(500):
        staying.say("PING")
        cluster.pass_(2, step=0.5)
    assert {"@ada:hs"} == a.publisher.follower_commands.syncing.users()

    b.kill()
    cluster.pass_(400, step=0.5)

    assert set() == a.publisher.follower_commands.syncing.users()


def federation(cluster: FakeCluster, node: FakeNode) -> None:
    """Five facts for other servers."""
    cluster.done(node.append("federation", [[["p", {"n": number}]] for number in range(5)]))
    cluster.pass_(1)


def held(node: FakeNode) -> list[int]:
    """What this node still has for federation senders."""
    return [fact.token for fact in node.log.ephemeral.after("federation", 0)]


def stay(cluster: FakeCluster, seconds: int, *workers: RawReplica) -> None:
    """Let time pass; these workers stay."""
    for _ in range(seconds // 2):
        for one in workers:
            one.say("PING")
        cluster.pass_(2, step=0.5)


@pytest.mark.parametrize(("position", "hops"), [("b", 1), ("c", 2)])
def test_a_sender_that_was_retired_behind_a_living_replica_holds_nothing_back(
    position: str, hops: int
) -> None:
    """The primary has no connection whose loss could tell it, and the replica lives for months."""
    cluster = FakeCluster()
    nodes = {node.name: node for node in cluster.chain()}
    federation(cluster, nodes["a"])
    retired = worker(cluster, nodes[position], "FEDERATION_ACK sender1 2")
    other = worker(cluster, nodes["a"], "FEDERATION_ACK sender2 5")

    stay(cluster, 700, retired, other)
    assert [3, 4, 5] == held(nodes["a"])
    retired.transport.loseConnection()
    stay(cluster, 290, other)
    other.say("FEDERATION_ACK sender2 5")
    cluster.pass_(1)
    assert [3, 4, 5] == held(nodes["a"])

    stay(cluster, 10 + int(hops * PRESENT_SECONDS), other)
    other.say("FEDERATION_ACK sender2 5")
    cluster.pass_(1)

    assert [] == held(nodes["a"])


@pytest.mark.parametrize("position", ["b", "c"])
def test_a_sender_that_has_nothing_to_say_counts_as_long_as_it_is_there(position: str) -> None:
    """It may be stuck behind a server that is down, and asks for the rest when it reconnects."""
    cluster = FakeCluster()
    nodes = {node.name: node for node in cluster.chain()}
    federation(cluster, nodes["a"])
    heard = heard_at(nodes["a"])
    staying = worker(cluster, nodes[position], "FEDERATION_ACK sender1 2")
    other = worker(cluster, nodes["a"], "FEDERATION_ACK sender2 5")
    stay(cluster, 1_000, staying, other)
    other.say("FEDERATION_ACK sender2 5")
    cluster.pass_(1)

    assert [3, 4, 5] == held(nodes["a"])
    assert 1 == heard.count(FederationAck(instance="sender1", token=2))


def test_what_was_said_while_the_primary_was_away_is_told_when_it_is_back() -> None:
    """And who was syncing before, which the primary has forgotten."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    worker(cluster, b, "USER_SYNC xyzzy @ada:hs start 17", "FEDERATION_ACK sender1 3")
    a.kill()
    worker(cluster, b, "USER_SYNC other @bob:hs start 18")
    cluster.start(a)
    heard = heard_at(a)
    cluster.pass_(20)

    assert {"@ada:hs", "@bob:hs"} == a.publisher.follower_commands.syncing.users()
    assert 1 == heard.count(ClearUserSync(instance_id="xyzzy")) + sum(
        one.user_id == "@ada:hs" for one in heard if isinstance(one, UserSync)
    )


def test_lost_connections_make_no_command_come_twice() -> None:
    """They are numbered, and said again until they are taken."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    heard = heard_at(a)
    said = worker(cluster, b)
    for number in range(200):
        said.say(f"FEDERATION_ACK sender1 {number}")
        cluster.pass_(0.05)
        if number % 20 == 7:
            for link in a.links():
                link.cut()
            said = worker(cluster, b)
    cluster.pass_(40)

    assert [FederationAck(instance="sender1", token=number) for number in range(200)] == heard


def test_what_has_no_room_is_dropped_and_counted() -> None:
    """A primary that is away for a day must not fill the memory of its replicas."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    a.kill()
    cluster.pass_(10)
    for number in range(MAX_QUEUED + 5):
        b.commands.forward(FederationAck(instance="sender1", token=number))
    cluster.start(a)
    heard = heard_at(a)
    cluster.pass_(40)

    assert 5 == b.metrics.commands_dropped.labels("FEDERATION_ACK").value
    assert MAX_QUEUED == len(heard)
    assert 5 == heard[0].token
    assert MAX_QUEUED > 4 * WINDOW


def test_a_primary_keeps_what_is_said_to_it() -> None:
    """There is nobody above it, so that nothing is passed on or dropped."""
    cluster = FakeCluster()
    a = cluster.node("a")
    worker(cluster, a, *SAID)

    assert not a.commands.is_active
    assert "commands_dropped_total{" not in generate_latest(a.metrics.registry).decode()


def test_a_promoted_replica_is_told_by_the_others_who_is_syncing() -> None:
    """It has never heard of them."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), None
    b = cluster.node("b", "a")
    c = cluster.node("c", "a")
    cluster.pass_(3)
    worker(cluster, c, "USER_SYNC xyzzy @ada:hs start 17")
    a.kill()
    cluster.promote(b, force=True)
    c.roles.on_primary_moved("b")
    cluster.pass_(30)

    assert {"@ada:hs"} == b.publisher.follower_commands.syncing.users()


def test_a_promoted_replica_offers_what_its_upstream_has_not_taken() -> None:
    """It is the one that the homeserver reads from now; the old primary may never have heard of it."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.pass_(3)
    a.kill()
    cluster.pass_(10)
    worker(cluster, b, "REMOVE_PUSHER app.id push key @ada:hs")
    assert 0 == b.publisher.follower_commands.buffer.head
    cluster.promote(b, force=True)

    assert ["REMOVE_PUSHER"] == [one.command for one in b.publisher.follower_commands.buffer.after(0, 10)]


def test_an_upstream_that_takes_no_commands_is_not_sent_any() -> None:
    """A release of ours from before them would close the connection."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.pass_(1)
    old = cluster.raw("a")
    old.tell("HELLO", Hello(uuid="u", name="old", version=VERSION))
    cluster.pass_(1)
    a.publisher.broadcast(RemoteServerUp(server="far.example.org"))
    cluster.pass_(1)

    assert [] == old.lines("DOWN")
    assert not old.is_lost


def test_what_is_no_command_of_a_follower_is_not_forwarded() -> None:
    """A replica speaks for followers only."""
    with pytest.raises(RemoteProtocolError, match="REPLICATE is not a command that replicas forward"):
        command_of(b"REPLICATE")
    with pytest.raises(RemoteProtocolError, match="invalid command"):
        command_of(b"POSITION events master 1 2")


def test_a_bad_command_of_a_replica_is_dropped_and_counted() -> None:
    """Its replication goes on: the fault is its follower's."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    heard = heard_at(a)
    b.commands._add(b"RDATA to_device x 1 []")
    b.commands.forward(FederationAck(instance="sender1", token=7))
    cluster.pass_(1)

    assert [FederationAck(instance="sender1", token=7)] == heard
    assert 1 == a.metrics.commands_dropped.labels("?").value


@pytest.mark.parametrize(
    "line", [b"USER_SYNC xyzzy @ada:hs PHONE start 17", *(line.encode() for line in SAID[3:])]
)
def test_a_line_is_read_as_it_was_said(line: bytes) -> None:
    """Whatever release knows the command."""
    command = command_of(line)

    assert command == command_of(line_of(command))
