"""What a replica does once it is a copy: takes what comes, says how it does, and stops where it must."""

from typing import Any

import msgspec
from twisted.internet.defer import Deferred

from synrepl.errors import StorageError
from synrepl.replication.retention import keys_of
from tests.replication.nodes import FakeNode
from tests.replication.worlds import World

DISK_FULL = StorageError(op="commit", why="the disk is full", retryable=True)


def pair(**options: Any) -> tuple[World, FakeNode, FakeNode]:
    world = World()
    a = world.node("a", **options)
    b = world.node("b", "a", **options)
    world.pass_(2)
    return world, a, b


def state(node: FakeNode) -> str:
    assert node.replica is not None
    return node.replica.state


def test_a_turn_in_the_middle_of_what_it_lacks() -> None:
    """Facts before it are of the old epoch, those behind of the new one."""
    world, a, b = pair()
    b.kill()
    world.wrote(a, 10)
    world.done(Deferred.fromCoroutine(a.log.next_epoch("lost", stream="to_device", token=7)))
    world.wrote(a, 10)
    world.start(b)
    world.pass_(2)

    assert a.log.position == b.log.position
    assert list(a.log.head.epoch_starts) == list(b.log.head.epoch_starts)
    assert a.log.positions("to_device") == b.log.positions("to_device") == {"master": 17}


def test_lag_is_told_while_it_is_away_and_not_afterwards() -> None:
    """It never says that it has everything when it cannot know."""
    world, a, b = pair()
    assert b.replica is not None
    assert (0, 0.0) == (b.replica.freshness.lag_rows(), b.replica.lag_seconds())
    a.kill()
    world.pass_(20)
    assert 18 < b.replica.lag_seconds() < 22
    world.start(a)
    world.pass_(12)

    assert "live" == state(b)
    assert 0.0 == b.replica.lag_seconds()


def test_status_gives_the_silence_of_the_upstream_in_milliseconds() -> None:
    """Its other times are rounded in the same way."""
    world, a, b = pair()
    replica = b.replica
    assert replica is not None
    a.kill()
    world.pass_(1.5)
    world.clock.advance(0.0004)

    assert 1.5 < replica.freshness.silence()
    assert round(replica.freshness.silence(), 3) == replica.status()["heard_seconds_ago"]


def test_an_idle_replica_is_listed() -> None:
    """Idle and lost are not the same (devpi 1124)."""
    world, a, b = pair()
    world.wrote(a, 1)
    world.pass_(90, step=0.1)
    assert ["idle"] == [one["state"] for one in a.relays.status()]
    b.kill()
    world.pass_(1)

    assert ["lost"] == [one["state"] for one in a.relays.status()]


def test_trimmed_away_it_joins_again_by_itself() -> None:
    """And serves what it had meanwhile."""
    world, a, b = pair(lease_seconds=5)
    world.wrote(a, 10)
    world.pass_(1)
    b.kill()
    world.wrote(a, 10)
    world.pass_(15)
    assert a.leases.lowest() is None
    world.done(Deferred.fromCoroutine(a.log.trim(18, keys_of(a.table), 100)))
    world.start(b)
    assert 10 == b.log.head.serial
    world.pass_(5)

    assert (a.log.position, a.log.head.trimmed_upto) == (b.log.position, b.log.head.trimmed_upto)
    assert [] == b.leftover_facts


def test_facts_that_the_primary_has_trimmed_are_not_saved_as_leftovers() -> None:
    """The primary no longer has their digests. A file of leftovers would say that only this copy had them."""
    world, a, b = pair(lease_seconds=5)
    for serial in range(1, 21):
        world.done(a.append("push_rules", [[["@a:hs"]]]))
        if serial == 10:
            world.pass_(1)
            b.kill()
    world.pass_(15)
    world.done(Deferred.fromCoroutine(a.log.trim(18, keys_of(a.table), 100)))
    world.start(b)
    assert 10 == b.log.head.serial
    world.pass_(5)

    assert (a.log.position, a.log.head.trimmed_upto) == (b.log.position, b.log.head.trimmed_upto)
    assert [] == b.leftover_facts


def test_ahead_of_a_restored_primary_it_stops_until_it_is_told() -> None:
    """What only it has is named, and then it is a copy again."""
    world, a, b = pair()
    world.wrote(a, 5)
    world.pass_(1)
    backup = a.engine.copy()
    world.wrote(a, 5)
    world.pass_(1)
    a.kill()
    a.engine = backup
    world.start(a)
    world.pass_(5)
    assert "stopped" == state(b)
    assert b.replica is not None
    assert b.replica.why.startswith("ahead")
    assert 10 == b.log.head.serial
    world.pass_(60, step=0.1)
    assert "stopped" == state(b)
    assert world.resync(b)
    world.pass_(3)

    assert a.log.position == b.log.position
    assert [6, 7, 8, 9, 10] == [fact.serial for fact in b.leftover_facts]


def test_a_disk_that_fails_is_tried_again() -> None:
    """And nothing is taken twice, whether or not it was kept."""
    world, a, b = pair()
    for kept in (False, True):
        for silent in (0, 1, 2):
            b.engine.fail_next(DISK_FULL, kept=kept, silent=silent)
            world.wrote(a, 3, key=f"{kept} {silent}")
            world.pass_(5)

    assert a.log.position == b.log.position
    assert a.engine.facts == b.engine.facts
    assert a.engine.receipts == b.engine.receipts


def test_stopped_while_it_connects_it_connects_no_more() -> None:
    """Or two of them would follow one log."""
    world, a, b = pair()
    replica = b.replica
    assert replica is not None
    a.kill()
    world.pass_(1)
    while replica.state != "connecting":
        world.pass_(0.001, step=0.001)
    replica.stop()
    world.start(a)
    world.pass_(15)

    assert "off" == replica.state
    assert [] == a.links()


def test_an_upstream_with_another_digest_is_not_followed() -> None:
    """Both stand at the same serial, and are not the same: nothing more is taken from there."""
    world = World()
    a, b = world.node("a"), world.node("b", "a")
    world.wrote(a, 3)
    world.pass_(2)
    (relay,) = a.connected_relays
    assert relay._sender is not None
    relay._sender.position = msgspec.structs.replace(relay._sender.position, digest="x" * 64)
    states: list[str] = []
    assert b.replica is not None
    for _ in range(200):
        world.pass_(0.01)
        states.append(b.replica.why)

    assert any("the upstream has another digest at serial 3 than" in why for why in states)


def test_an_append_is_on_a_replica_whole_or_not_at_all() -> None:
    """Its receipt too: promoted in the middle, it would be answered with facts that are not there."""
    world = World(piece=lambda size: min(size, 200))
    a = world.node("a")
    b = world.node("b", "a")
    world.pass_(6)
    world.append(a, 12, key="one")
    seen = set()
    for _ in range(400):
        world.pass_(0.01)
        seen.add((b.log.head.serial, b.engine.receipts.get("one") is not None))
    assert {(0, False), (12, True)} == seen
