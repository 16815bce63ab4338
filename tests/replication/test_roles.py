"""Primary, replica or fenced: how daemons become another thing, and that there is one primary in the end."""

from contextlib import suppress
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.errors import StorageError
from synrepl.replication.addresses import Address
from synrepl.replication.roles import HANDOVER_SECONDS, CannotPromote, Claim
from synrepl.testing.replicas import FakeNode
from synrepl.wire.filter import Filter
from tests.replication.worlds import World


def claim(world: World, node: FakeNode, of: FakeNode, epoch: int, *, uuid: str | None = None) -> None:
    """Tell a node that another one is primary."""
    said = Claim(epoch=epoch, uuid=uuid or of.log.uuid, address=f"{of.name} -", history=of.log.history)
    world.done(Deferred.fromCoroutine(node.roles.heard(said)))


def restarted(world: World, node: FakeNode) -> None:
    node.kill()
    world.start(node)


def roles(*nodes: FakeNode) -> list[str]:
    return [node.roles.role for node in nodes]


class Parted:
    """Two sides that cannot reach each other."""

    def __init__(self) -> None:
        self.far: set[str] = set()

    def reaches(self, ours: str, theirs: str) -> bool:
        return (ours in self.far) == (theirs in self.far)

    def world(self) -> tuple[World, FakeNode, FakeNode, FakeNode]:
        world = World(reaches=self.reaches)
        nodes = world.chain(can_reach=self.reaches)
        return world, *nodes

    def part(self, world: World, *names: str) -> None:
        self.far = set(names)
        for link in list(world.network.links):
            if link.is_open and not self.reaches(link.client._name, link.server._name):
                link.cut()


def test_promoted_in_order_nothing_is_left_behind() -> None:
    """The old primary is fenced and knows where to; the others follow the new one."""
    world = World()
    a, b, c = world.chain()
    world.wrote(a, 20)
    world.promote(b)
    world.pass_(3)

    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert (2, 20) == (b.log.epoch, b.log.serial)
    assert "b -" == str(a.roles.primary)
    world.wrote(b, 3)
    world.pass_(0.5)
    assert b.log.place == c.log.place
    with pytest.raises(StorageError, match="another daemon is primary"):
        world.wrote(a)


def test_a_fenced_daemon_told_to_resync_is_a_replica_again() -> None:
    """It had nothing of its own, so that nothing is named."""
    world = World()
    a, b, c = world.chain()
    world.wrote(a, 20)
    world.promote(b)
    world.wrote(b, 5)
    assert world.resync(a)
    world.pass_(3)

    assert ["replica", "primary", "replica"] == roles(a, b, c)
    assert a.log.place == b.log.place
    assert [] == a.only_here


@pytest.mark.parametrize(
    ("wanted", "code"), [(None, "not_a_replica"), (Filter.of(streams=("events",)), "filtered")]
)
def test_who_cannot_be_promoted(wanted: Filter | None, code: str) -> None:
    """A primary, and a copy of some streams."""
    world = World()
    a = world.node("a")
    node = a if wanted is None else world.node("d", "a", wanted=wanted)
    world.pass_(2)

    with pytest.raises(CannotPromote) as caught:
        world.promote(node, force=True)
    assert code == caught.value.code


def test_who_was_never_whole_is_not_promoted() -> None:
    """Not even by force: it would be an empty primary."""
    world = World()
    b = world.node("b", "nowhere")

    with pytest.raises(CannotPromote) as caught:
        world.promote(b, force=True)
    assert "not_whole" == caught.value.code


def test_not_in_order_while_the_primary_is_away() -> None:
    """Force must be said by somebody."""
    world = World()
    a, b, _ = world.chain()
    a.kill()

    with pytest.raises(CannotPromote, match="say force") as caught:
        world.promote(b)
    assert "upstream_away" == caught.value.code
    assert "replica" == b.roles.role


def test_a_primary_whose_last_facts_do_not_come_goes_on() -> None:
    """It is told at once that nobody takes over, and takes facts again."""
    world = World()
    a, b, _ = world.chain()
    for link in a.links():
        link.stall()
    a._network.stop_listening("a")
    world.wrote(a, 5)

    with pytest.raises(CannotPromote) as caught:
        world.promote(b, seconds=40)
    assert "behind" == caught.value.code
    world.pass_(0.2)
    world.wrote(a, 1)
    assert ["primary", "replica"] == roles(a, b)


def test_a_handover_that_nobody_takes_ends() -> None:
    """In a bounded time, without anybody's help."""
    world = World()
    a = world.node("a")
    world.done(a.roles.hand_over(HANDOVER_SECONDS))
    assert a.roles.is_handing_over
    with pytest.raises(StorageError, match="about to become primary"):
        world.wrote(a)
    world.pass_(HANDOVER_SECONDS + 1, step=0.5)

    assert not a.roles.is_handing_over
    world.wrote(a)


def test_a_primary_that_began_anew_while_it_handed_over_is_asked_again() -> None:
    """It has forgotten that it was to take no facts, and may have taken some."""
    world = World()
    a, b, _ = world.chain()
    world.wrote(a, 5)
    for link in a.links():
        link.stall()
    promoting: list[Any] = []
    world.append(a, 2)
    world.pass_(0.05)
    Deferred.fromCoroutine(b.roles.promote()).addBoth(promoting.append)
    world.pass_(0.1)
    restarted(world, a)
    a._network.stop_listening("a")
    assert 7 == a.log.serial
    a._network.listen("a", a._factory)
    with suppress(StorageError):
        world.wrote(a, 1)
    taken = a.log.serial
    world.pass_(40)

    assert promoting
    primary = b if b.roles.role == "primary" else a
    assert "primary" == primary.roles.role
    assert taken == primary.log.serial


def test_by_force_the_old_primary_is_fenced_when_it_is_back() -> None:
    """And what only it has is named, in the end."""
    parted = Parted()
    world, a, b, c = parted.world()
    world.wrote(a, 10)
    world.pass_(1)
    parted.part(world, "a")
    world.wrote(a, 3)
    world.promote(b, force=True)
    world.wrote(b, 2)
    assert ["primary", "primary"] == roles(a, b)
    parted.part(world)
    world.pass_(10)

    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert world.resync(a)
    world.pass_(5)
    assert a.log.place == b.log.place == c.log.place
    assert [11, 12, 13] == [fact.serial for fact in a.only_here]


def test_a_replica_of_a_fenced_daemon_goes_where_the_primary_is() -> None:
    """Also if nobody told it so."""
    world = World()
    a = world.node("a")
    b, d = world.node("b", "a"), world.node("d", "a", wanted=Filter.of(streams=("events",)))
    world.pass_(2)
    d.kill()
    a.leases.drop("d")
    world.promote(b)
    world.pass_(1)
    b.roles.untold.clear()
    world.start(d)
    a.leases.reload()
    world.pass_(5)

    assert "b -" == str(d.roles.primary)
    assert b.log.place == d.log.place


@pytest.mark.parametrize("winner", ["b", "c"])
def test_of_two_promoted_into_one_epoch_one_stays(winner: str) -> None:
    """The one with the higher uuid; the other one is fenced, whoever hears of whom."""
    parted = Parted()
    world = World(reaches=parted.reaches)
    a = world.node("a", can_reach=parted.reaches)
    nodes = {name: world.node(name, "a", start=False, can_reach=parted.reaches) for name in ("b", "c")}
    for name, node in nodes.items():
        node.engine._notes["uuid"] = "z" if name == winner else "y"
        world.start(node)
    world.wrote(a, 4)
    world.pass_(2)
    parted.part(world, "b")
    for node in nodes.values():
        world.promote(node, force=True)
        world.wrote(node, 1)
    assert {2} == {node.log.epoch for node in nodes.values()}
    parted.part(world)
    world.pass_(12)

    loser = nodes["c" if winner == "b" else "b"]
    assert ["primary", "fenced"] == roles(nodes[winner], loser)
    restarted(world, loser)
    world.pass_(1)
    assert "primary" != loser.roles.role


def test_a_claim_of_a_lower_epoch_means_nothing() -> None:
    """And whoever says so is told better."""
    world = World()
    a, b, _ = world.chain()
    world.promote(b)
    world.pass_(1)
    claim(world, b, a, 1)

    assert "primary" == b.roles.role


def test_a_claim_of_another_history_means_nothing() -> None:
    """A stranger's address was typed by mistake."""
    world = World()
    a = world.node("a")
    other = world.node("x")
    claim(world, a, other, 9)

    assert "primary" == a.roles.role


def test_a_daemon_keeps_its_role_through_restarts() -> None:
    """Whatever its settings say: they were written before."""
    world = World()
    a, b, c = world.chain()
    world.wrote(a, 5)
    world.promote(b)
    world.pass_(1)
    for node in (a, b, c):
        restarted(world, node)
    world.pass_(1)
    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert world.resync(a)
    world.pass_(2)
    restarted(world, a)
    world.pass_(2)

    assert "replica" == a.roles.role
    assert a.replica is not None
    assert Address("b") == a.replica.upstream.where


def test_a_promoted_daemon_stays_primary_when_facts_are_lost_later() -> None:
    """That begins an epoch as well."""
    world = World()
    a, b, _ = world.chain()
    world.wrote(a, 5)
    world.promote(b)
    world.done(Deferred.fromCoroutine(b.log.lose("to_device", 3)))
    restarted(world, b)

    assert "primary" == b.roles.role
    assert 3 == b.log.epoch


def test_one_promotion_at_a_time() -> None:
    """An impatient operator changes nothing."""
    world = World()
    a, b, _ = world.chain()
    world.wrote(a, 5)
    first = Deferred.fromCoroutine(b.roles.promote())
    with pytest.raises(CannotPromote) as caught:
        world.promote(b)
    world.done(first)

    assert "promoting" == caught.value.code
    assert "primary" == b.roles.role


def test_two_operators_promote_two_replicas_in_order() -> None:
    """One primary is left, and nothing is lost."""
    world = World()
    a, b, c = world.chain()
    world.wrote(a, 5)
    ends: list[Any] = []
    for node in (b, c):
        Deferred.fromCoroutine(node.roles.promote()).addBoth(ends.append)
    world.pass_(45)

    assert 2 == len(ends)
    assert ["fenced", "primary", "replica"] == sorted(roles(a, b, c)) or 1 == roles(a, b, c).count("primary")


def test_who_was_told_by_somebody_passes_it_on() -> None:
    """The old primary may be known to a daemon that the new one has never heard of."""
    world = World()
    a, b, c = world.chain()
    world.promote(b)
    world.pass_(1)
    world.promote(c)
    world.pass_(1)

    assert "c -" == str(a.roles.primary)
    assert ["fenced", "fenced", "primary"] == roles(a, b, c)


def test_a_daemon_that_waits_to_tell_one_tells_the_others_of_a_new_epoch_at_once() -> None:
    """Or the primary that it deposes would take facts for up to a minute more."""
    parted = Parted()
    world, a, b, c = parted.world()
    parted.part(world, "a")
    world.promote(b, force=True)
    world.pass_(60)
    world.promote(c, force=True)
    world.pass_(1)

    assert ["primary", "fenced", "primary"] == roles(a, b, c)
