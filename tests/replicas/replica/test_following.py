"""What a replica does once it is a copy: takes what comes, says how it does, and stops where it must."""

from typing import Any

import msgspec
from twisted.internet.defer import Deferred

from synrepl.errors import StorageError
from synrepl.replication.retention import keys_of
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode

DISK_FULL = StorageError(op="commit", why="the disk is full", retryable=True)


def pair(**options: Any) -> tuple[FakeCluster, FakeNode, FakeNode]:
    cluster = FakeCluster()
    a = cluster.node("a", **options)
    b = cluster.node("b", "a", **options)
    cluster.pass_(2)
    return cluster, a, b


def state(node: FakeNode) -> str:
    assert node.replica is not None
    return node.replica.state


def test_a_turn_in_the_middle_of_what_it_lacks() -> None:
    """Facts before it are of the old epoch, those behind of the new one."""
    cluster, a, b = pair()
    b.kill()
    cluster.wrote(a, 10)
    cluster.done(Deferred.fromCoroutine(a.log.epochs.begin_next("lost", stream="to_device", token=7)))
    cluster.wrote(a, 10)
    cluster.start(b)
    cluster.pass_(2)

    assert a.log.position == b.log.position
    assert list(a.log.head.epoch_starts) == list(b.log.head.epoch_starts)
    assert a.log.positions("to_device") == b.log.positions("to_device") == {"master": 17}


def test_lag_is_told_while_it_is_away_and_not_afterwards() -> None:
    """It never says that it has everything when it cannot know."""
    cluster, a, b = pair()
    assert b.replica is not None
    assert (0, 0.0) == (b.replica.freshness.lag_rows(), b.replica.lag_seconds())
    a.kill()
    cluster.pass_(20)
    assert 18 < b.replica.lag_seconds() < 22
    cluster.start(a)
    cluster.pass_(12)

    assert "live" == state(b)
    assert 0.0 == b.replica.lag_seconds()


def test_status_gives_the_silence_of_the_upstream_in_milliseconds() -> None:
    """Its other times are rounded in the same way."""
    cluster, a, b = pair()
    replica = b.replica
    assert replica is not None
    a.kill()
    cluster.pass_(1.5)
    cluster.clock.advance(0.0004)

    assert 1.5 < replica.freshness.silence()
    assert round(replica.freshness.silence(), 3) == replica.status()["heard_seconds_ago"]


def test_an_idle_replica_is_listed() -> None:
    """Idle and lost are not the same (devpi 1124)."""
    cluster, a, b = pair()
    cluster.wrote(a, 1)
    cluster.pass_(90, step=0.1)
    assert ["idle"] == [one["state"] for one in a.registry.status()]
    b.kill()
    cluster.pass_(1)

    assert ["lost"] == [one["state"] for one in a.registry.status()]


def test_trimmed_away_it_joins_again_by_itself() -> None:
    """And serves what it had meanwhile."""
    cluster, a, b = pair(lease_seconds=5)
    cluster.wrote(a, 10)
    cluster.pass_(1)
    b.kill()
    cluster.wrote(a, 10)
    cluster.pass_(15)
    assert a.leases.lowest() is None
    cluster.done(Deferred.fromCoroutine(a.log.trim(18, keys_of(a.table), 100)))
    cluster.start(b)
    assert 10 == b.log.head.serial
    cluster.pass_(5)

    assert (a.log.position, a.log.head.trimmed_upto) == (b.log.position, b.log.head.trimmed_upto)
    assert [] == b.leftover_facts


def test_facts_that_the_primary_has_trimmed_are_not_saved_as_leftovers() -> None:
    """The primary no longer has their digests. A file of leftovers would say that only this copy had them."""
    cluster, a, b = pair(lease_seconds=5)
    for serial in range(1, 21):
        cluster.done(a.append("push_rules", [[["@a:hs"]]]))
        if serial == 10:
            cluster.pass_(1)
            b.kill()
    cluster.pass_(15)
    cluster.done(Deferred.fromCoroutine(a.log.trim(18, keys_of(a.table), 100)))
    cluster.start(b)
    assert 10 == b.log.head.serial
    cluster.pass_(5)

    assert (a.log.position, a.log.head.trimmed_upto) == (b.log.position, b.log.head.trimmed_upto)
    assert [] == b.leftover_facts


def test_ahead_of_a_restored_primary_it_stops_until_it_is_reported() -> None:
    """What only it has is named, and then it is a copy again."""
    cluster, a, b = pair()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    backup = a.engine.copy()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    a.kill()
    a.engine = backup
    cluster.start(a)
    cluster.pass_(5)
    assert "stopped" == state(b)
    assert b.replica is not None
    assert b.replica.why.startswith("ahead")
    assert 10 == b.log.head.serial
    cluster.pass_(60, step=0.1)
    assert "stopped" == state(b)
    assert cluster.resync(b)
    cluster.pass_(3)

    assert a.log.position == b.log.position
    assert [6, 7, 8, 9, 10] == [fact.serial for fact in b.leftover_facts]


def test_a_disk_that_fails_is_tried_again() -> None:
    """And nothing is taken twice, whether or not it was kept."""
    cluster, a, b = pair()
    for kept in (False, True):
        for silent in (0, 1, 2):
            b.engine.fail_next(DISK_FULL, kept=kept, silent=silent)
            cluster.wrote(a, 3, key=f"{kept} {silent}")
            cluster.pass_(5)

    assert a.log.position == b.log.position
    assert a.engine.facts == b.engine.facts
    assert a.engine.receipts_by_key == b.engine.receipts_by_key


def test_stopped_while_it_connects_it_connects_no_more() -> None:
    """Or two of them would follow one log."""
    cluster, a, b = pair()
    replica = b.replica
    assert replica is not None
    a.kill()
    cluster.pass_(1)
    while replica.state != "connecting":
        cluster.pass_(0.001, step=0.001)
    replica.stop()
    cluster.start(a)
    cluster.pass_(15)

    assert "off" == replica.state
    assert [] == a.links()


def test_an_upstream_with_another_digest_is_not_followed() -> None:
    """Both stand at the same serial, and are not the same: nothing more is taken from there."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a, 3)
    cluster.pass_(2)
    (relay,) = a.connected_relays
    assert relay._sender is not None
    relay._sender.position = msgspec.structs.replace(relay._sender.position, digest="x" * 64)
    states: list[str] = []
    assert b.replica is not None
    for _ in range(200):
        cluster.pass_(0.01)
        states.append(b.replica.why)

    assert any("the upstream has another digest at serial 3 than" in why for why in states)


def test_an_append_is_on_a_replica_whole_or_not_at_all() -> None:
    """Its receipt too: promoted in the middle, it would be answered with facts that are not there."""
    cluster = FakeCluster(piece=lambda size: min(size, 200))
    a = cluster.node("a")
    b = cluster.node("b", "a")
    cluster.pass_(6)
    cluster.append(a, 12, key="one")
    seen = set()
    for _ in range(400):
        cluster.pass_(0.01)
        seen.add((b.log.head.serial, b.engine.receipts_by_key.get("one") is not None))
    assert {(0, False), (12, True)} == seen
