"""Primary, replica or fenced: how daemons become another thing, and that there is one primary in the end."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.logger import formatEvent, globalLogPublisher

from synrepl.base.history import EpochStart
from synrepl.errors import NotConnected, StorageError
from synrepl.replicas.replica.replica import RESYNC, WAYS_OUT
from synrepl.replicas.roles.handover import HANDOVER_SECONDS
from synrepl.replicas.roles.messages import (
    CannotPromote,
    Claim,
    ClaimRefused,
    HandOver,
    PeerStatus,
    parse_peer_address,
)
from synrepl.replicas.roles.record import RoleRecord
from synrepl.replicas.roles.rivals import INQUIRY_INTERVAL
from synrepl.replication.addresses import Address
from synrepl.storage.append_errors import ReadOnlyHere
from synrepl.wire.position import LogPosition
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


def claim(cluster: FakeCluster, node: FakeNode, of: FakeNode, epoch: int, *, uuid: str | None = None) -> None:
    """Tell a node that another one is primary."""
    said = Claim(epoch=epoch, uuid=uuid or of.log.uuid, address=f"{of.name} -", history=of.log.history)
    cluster.done(Deferred.fromCoroutine(node.roles.claims.handle(said)))


def restarted(cluster: FakeCluster, node: FakeNode) -> None:
    node.kill()
    cluster.start(node)


def roles(*nodes: FakeNode) -> list[str]:
    return [node.roles.role for node in nodes]


class Parted:
    """Two sides that cannot reach each other."""

    def __init__(self) -> None:
        self.far: set[str] = set()

    def reaches(self, ours: str, theirs: str) -> bool:
        return (ours in self.far) == (theirs in self.far)

    def cluster(self) -> tuple[FakeCluster, FakeNode, FakeNode, FakeNode]:
        cluster = FakeCluster(reaches=self.reaches)
        nodes = cluster.chain(can_reach=self.reaches)
        return cluster, *nodes

    def part(self, cluster: FakeCluster, *names: str) -> None:
        self.far = set(names)
        for link in list(cluster.network.links):
            if link.is_open and not self.reaches(link.client._name, link.server._name):
                link.cut()


def test_promoted_in_order_nothing_is_left_behind() -> None:
    """The old primary is fenced and knows where to; the others follow the new one."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 20)
    cluster.promote(b)
    cluster.pass_(3)

    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert (2, 20) == (b.log.head.epoch, b.log.head.serial)
    assert "b -" == str(a.roles.primary)
    cluster.wrote(b, 3)
    cluster.pass_(0.5)
    assert b.log.position == c.log.position
    with pytest.raises(StorageError, match="another daemon is primary"):
        cluster.wrote(a)


def test_a_copy_without_its_upstream_is_no_primary() -> None:
    """Its folder was started by itself: as a primary it would write serials that the primary has too."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 3)
    cluster.pass_(0.5)
    cluster.done(Deferred.fromCoroutine(b.log.note(upstream_at="a -", primary_at="a -")))
    b.kill()
    b.upstream = None
    cluster.start(b)

    assert ["primary", "fenced"] == roles(a, b)
    assert "another daemon is primary since epoch 1: a -" == b.roles.why
    with pytest.raises(StorageError, match="another daemon is primary"):
        cluster.wrote(b)
    cluster.promote(b, force=True)
    restarted(cluster, b)
    assert ["fenced", "primary"] == roles(a, b)
    assert 2 == b.log.head.epoch


def test_a_fenced_daemon_told_to_resync_is_a_replica_again() -> None:
    """It had nothing of its own, so that nothing is named."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 20)
    cluster.promote(b)
    cluster.wrote(b, 5)
    cluster.pass_(0.1)
    assert cluster.resync(a)
    cluster.pass_(3)

    assert ["replica", "primary", "replica"] == roles(a, b, c)
    assert a.log.position == b.log.position
    assert [] == a.leftover_facts


def test_a_former_primary_with_an_empty_log_is_whole() -> None:
    """It need not join: its log is a copy already. It said for ever that it has none."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.promote(b)
    cluster.pass_(3)
    assert cluster.resync(a)
    cluster.pass_(3)

    assert a.roles.is_whole
    assert a.replica is not None
    assert "live" == a.replica.state


def test_replicas_that_follow_the_new_primary_are_not_lost() -> None:
    """The former primary lists them as moved: the new one, and those that the new one has told it of."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 20)
    other = cluster.node("other", "a")
    cluster.pass_(3)
    assert {"live", "idle"} >= {one["state"] for one in a.registry.status()}
    cluster.promote(b)
    cluster.pass_(10)
    assert cluster.resync(a)
    cluster.pass_(10)
    assert ["replica", "primary", "replica"] == roles(a, b, other)

    assert {"moved"} == {one["state"] for one in a.registry.status()}


@pytest.mark.parametrize(("wanted", "code"), [(None, "not_a_replica"), (("events",), "filtered")])
def test_a_primary_and_a_filtered_copy_cannot_be_promoted(wanted: tuple[str, ...] | None, code: str) -> None:
    """A primary, and a copy of some streams."""
    cluster = FakeCluster()
    a = cluster.node("a")
    node = a if wanted is None else cluster.node("d", "a", upstream_streams=wanted)
    cluster.pass_(2)

    with pytest.raises(CannotPromote) as caught:
        cluster.promote(node, force=True)
    assert code == caught.value.code


def test_who_was_never_whole_is_not_promoted() -> None:
    """Not even by force: it would be an empty primary."""
    cluster = FakeCluster()
    b = cluster.node("b", "nowhere")

    with pytest.raises(CannotPromote) as caught:
        cluster.promote(b, force=True)
    assert "not_whole" == caught.value.code


@pytest.mark.parametrize("knows_upstream", [False, True])
def test_a_filtered_copy_without_its_upstream_is_not_promoted(knows_upstream: bool) -> None:
    """Its readers by token would never get the facts that it lacks. Early releases noted no upstream."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a", upstream_streams=("to_device",))
    cluster.wrote(a, 3)
    cluster.wrote(a, 4, stream="push_rules")
    cluster.pass_(2)
    if not knows_upstream:
        cluster.done(Deferred.fromCoroutine(b.log.note(primary_at=None)))
    b.kill()
    b.upstream = None
    cluster.start(b)

    assert "fenced" == b.roles.role
    with pytest.raises(ReadOnlyHere) as refused:
        cluster.wrote(b)
    assert "promote --force" not in str(refused.value)
    with pytest.raises(CannotPromote) as caught:
        cluster.promote(b, force=True)
    assert "filtered" == caught.value.code
    assert ("fenced", 1, 7) == (b.roles.role, b.log.head.epoch, b.log.head.serial)


def test_a_copy_that_began_to_join_is_not_promoted_without_its_upstream() -> None:
    """Not even by force: it would be an empty primary."""
    cluster = FakeCluster()
    b = cluster.node("b", start=False)
    b.engine.write_notes(primary_at="a -")
    cluster.start(b)

    assert "fenced" == b.roles.role
    with pytest.raises(CannotPromote) as caught:
        cluster.promote(b, force=True)
    assert "not_whole" == caught.value.code


def test_not_in_order_while_the_primary_is_away() -> None:
    """Force must be said by somebody."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    a.kill()

    with pytest.raises(CannotPromote, match="use force") as caught:
        cluster.promote(b)
    assert "upstream_away" == caught.value.code
    assert "replica" == b.roles.role


def test_a_primary_whose_last_facts_do_not_come_goes_on() -> None:
    """It is told at once that nobody takes over, and takes facts again."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    for link in a.links():
        link.stall()
    a._network.stop_listening("a")
    cluster.wrote(a, 5)

    with pytest.raises(CannotPromote) as caught:
        cluster.promote(b, seconds=40)
    assert "behind" == caught.value.code
    cluster.pass_(0.2)
    cluster.wrote(a, 1)
    assert ["primary", "replica"] == roles(a, b)


def test_a_handover_of_an_earlier_version_is_over() -> None:
    """It was stored as two words, and is never read again by the daemon that stored it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.done(Deferred.fromCoroutine(a.log.note(handover="1764220000.000 some-uuid")))
    a.kill()
    cluster.start(a)

    assert not a.roles.handover.is_active
    cluster.wrote(a)


def test_a_handover_that_nobody_takes_ends() -> None:
    """In a bounded time, without anybody's help."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.done(
        Deferred.fromCoroutine(a.roles.handover.handle(HandOver(seconds=HANDOVER_SECONDS), trusted=True))
    )
    assert a.roles.handover.is_active
    with pytest.raises(StorageError, match="about to become primary"):
        cluster.wrote(a)
    cluster.pass_(HANDOVER_SECONDS + 1, step=0.5)

    assert not a.roles.handover.is_active
    cluster.wrote(a)


def test_a_primary_that_began_anew_while_it_handed_over_is_asked_again() -> None:
    """It has forgotten that it was to take no facts, and may have taken some."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    for link in a.links():
        link.stall()
    promoting: list[Any] = []
    cluster.append(a, 2)
    cluster.pass_(0.05)
    Deferred.fromCoroutine(b.promotion.promote()).addBoth(promoting.append)
    cluster.pass_(0.1)
    restarted(cluster, a)
    a._network.stop_listening("a")
    assert 7 == a.log.head.serial
    a._network.listen("a", a._factory)
    with suppress(StorageError):
        cluster.wrote(a, 1)
    taken = a.log.head.serial
    cluster.pass_(40)

    assert promoting
    primary = b if b.roles.role == "primary" else a
    assert "primary" == primary.roles.role
    assert taken == primary.log.head.serial


class HeldUp:
    """B is promoted in order, and its disk takes so many seconds for each of the commits of that."""

    def __init__(self, *seconds: float, secret: str | None = None) -> None:
        self.stalls = list(seconds)
        self.is_cut = False
        self.cluster = FakeCluster()
        options: dict[str, Any] = {"listed": ["a", "b"], "can_reach": self.reaches, "secret": secret}
        self.a = self.cluster.node("a", **options)
        self.b = self.cluster.node("b", "a", disk_delay=self.delay, **options)
        self.cluster.pass_(3)
        self.cluster.wrote(self.a, 3)
        self.cluster.pass_(1)
        self.ended: list[Any] = []

    def reaches(self, ours: str, theirs: str) -> bool:
        return not self.is_cut

    def delay(self) -> float:
        is_beginning = hasattr(self, "b") and self.b.roles.replica is None and not self.b.roles.is_primary
        return self.stalls.pop(0) if self.stalls and is_beginning else 0.0005

    def promote(self) -> None:
        Deferred.fromCoroutine(self.b.promotion.promote()).addBoth(self.ended.append)
        for _ in range(300):
            if self.b.roles.replica is None:
                return
            self.cluster.pass_(0.01)
        raise AssertionError("no epoch was about to begin")

    def append(self) -> bool:
        """Whether A accepts a fact."""
        try:
            self.cluster.wrote(self.a)
        except ReadOnlyHere:
            return False
        return True

    def refused(self) -> CannotPromote:
        assert isinstance(self.ended[0].value, CannotPromote)
        return self.ended[0].value


@pytest.mark.parametrize("secret", [None, "secret"])
@pytest.mark.parametrize("stalls", [(9.0, 9.0, 9.0), (0.0, 25.0)])
def test_a_primary_accepts_no_fact_while_an_epoch_is_committed_slowly(
    stalls: tuple[float, ...], secret: str | None
) -> None:
    """Fact 4 was acknowledged after 15 seconds, and was in the log of the fenced daemon alone."""
    held = HeldUp(*stalls, secret=secret)
    held.promote()
    while not held.ended:
        assert not held.append()
        held.cluster.pass_(0.5, step=0.05)
    held.cluster.pass_(3)

    assert (2, 3) == (held.ended[0].epoch, held.ended[0].serial)
    assert ["fenced", "primary"] == roles(held.a, held.b)
    assert 3 == held.a.log.head.serial


def test_a_candidate_that_cannot_renew_its_hand_over_begins_no_epoch() -> None:
    """Its disk is slow, and it is cut off from the primary, which goes on."""
    held = HeldUp(12.0)
    held.promote()
    held.is_cut = True
    held.cluster.pass_(16, step=0.05)

    assert "behind" == held.refused().code
    assert "was held up for 12 seconds" in str(held.refused())
    assert held.append()
    held.is_cut = False
    held.cluster.pass_(10)
    assert ["primary", "replica"] == roles(held.a, held.b)
    assert held.a.log.position == held.b.log.position
    assert 1 == held.b.log.head.epoch


def test_a_candidate_that_was_paused_begins_no_epoch_and_hands_back() -> None:
    """Its timers do not know that: the machine was suspended, or the process stopped."""
    held = HeldUp(0.5)
    held.promote()
    held.b.paused_seconds = 20.0
    held.cluster.pass_(1)

    assert "behind" == held.refused().code
    assert held.append()
    held.cluster.pass_(3)
    assert ["primary", "replica"] == roles(held.a, held.b)
    assert held.a.log.position == held.b.log.position


def test_a_candidate_looks_at_the_time_once_it_may_change_its_role() -> None:
    """A claim was being saved meanwhile."""
    held = HeldUp()
    lock = held.b.roles.changing.acquire()
    Deferred.fromCoroutine(held.b.promotion.promote()).addBoth(held.ended.append)
    held.cluster.pass_(3)
    held.b.paused_seconds = 20.0
    held.cluster.done(lock).release()
    held.cluster.pass_(0.5)

    assert "behind" == held.refused().code
    assert held.append()


def test_no_epoch_begins_once_the_primary_has_accepted_facts() -> None:
    """Somebody with a key has ended the hand-over. The next request shows it."""
    held = HeldUp(9.0)
    held.promote()
    end = held.a.roles.handover.handle(HandOver(0, held.b.log.uuid), trusted=True)
    held.cluster.done(Deferred.fromCoroutine(end))
    assert held.append()
    held.cluster.pass_(10)

    assert "the primary has accepted facts" in str(held.refused())
    held.cluster.pass_(10)
    assert held.append()
    assert ["primary", "replica"] == roles(held.a, held.b)


def test_a_hand_over_that_ran_out_while_the_epoch_was_committed_is_told() -> None:
    """Nothing stops a commit that has begun: what the primary accepts then is not hidden, at least."""
    held = HeldUp(0.0, 20.0)
    logged: list[str] = []

    def observe(event: Any) -> None:
        logged.append(formatEvent(event) or "")

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    try:
        held.promote()
        held.cluster.pass_(0.1)
        held.is_cut = True
        held.cluster.pass_(25, step=0.05)
    finally:
        globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]

    assert 2 == held.ended[0].epoch
    assert any("the hand-over ran out while the epoch was committed" in line for line in logged)


def test_by_force_the_old_primary_is_fenced_when_it_is_back() -> None:
    """And what only it has is named, in the end."""
    parted = Parted()
    cluster, a, b, c = parted.cluster()
    cluster.wrote(a, 10)
    cluster.pass_(1)
    parted.part(cluster, "a")
    cluster.wrote(a, 3)
    cluster.promote(b, force=True)
    cluster.wrote(b, 2)
    assert ["primary", "primary"] == roles(a, b)
    parted.part(cluster)
    cluster.pass_(10)

    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert cluster.resync(a)
    cluster.pass_(5)
    assert a.log.position == b.log.position == c.log.position
    assert [11, 12, 13] == [fact.serial for fact in a.leftover_facts]


def test_a_replica_of_a_fenced_daemon_goes_where_the_primary_is() -> None:
    """Also if nobody told it so."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b, d = cluster.node("b", "a"), cluster.node("d", "a", upstream_streams=("events",))
    cluster.pass_(2)
    d.kill()
    a.leases.drop("d")
    cluster.promote(b)
    cluster.pass_(1)
    b.roles.notifier.unnotified.clear()
    cluster.start(d)
    a.leases.reload()
    cluster.pass_(5)

    assert "b -" == str(d.roles.primary)
    assert b.log.position == d.log.position


@pytest.mark.parametrize("winner", ["b", "c"])
def test_of_two_promoted_into_one_epoch_one_stays(winner: str) -> None:
    """The one with the higher uuid; the other one is fenced, whoever hears of whom."""
    parted = Parted()
    cluster = FakeCluster(reaches=parted.reaches)
    a = cluster.node("a", can_reach=parted.reaches)
    nodes = {
        name: cluster.node(name, "a", start=False, can_reach=parted.reaches, listed=["b", "c"])
        for name in ("b", "c")
    }
    for name, node in nodes.items():
        node.engine.write_notes(uuid="z" if name == winner else "y")
        cluster.start(node)
    cluster.wrote(a, 4)
    cluster.pass_(2)
    parted.part(cluster, "b")
    for node in nodes.values():
        cluster.promote(node, force=True)
        cluster.wrote(node, 1)
    assert {2} == {node.log.head.epoch for node in nodes.values()}
    parted.part(cluster)
    cluster.pass_(12)

    loser = nodes["c" if winner == "b" else "b"]
    assert ["primary", "fenced"] == roles(nodes[winner], loser)
    restarted(cluster, loser)
    cluster.pass_(1)
    assert "primary" != loser.roles.role


@pytest.mark.parametrize("winner", ["a", "b"])
def test_an_epoch_that_began_with_a_loss_is_another_one(winner: str) -> None:
    """A lost facts of a stream while B was promoted: both epochs begin after the same fact, and the writers
    stand elsewhere."""
    parted = Parted()
    cluster = FakeCluster(reaches=parted.reaches)
    nodes = {
        name: cluster.node(name, upstream, start=False, can_reach=parted.reaches, listed=["a", "b"])
        for name, upstream in (("a", None), ("b", "a"))
    }
    for name, node in nodes.items():
        node.engine.write_notes(uuid="z" if name == winner else "y")
        cluster.start(node)
    a, b = nodes.values()
    cluster.wrote(a, 5)
    cluster.pass_(2)
    parted.part(cluster, "a")
    cluster.done(Deferred.fromCoroutine(a.log.epochs.begin_next("lost", stream="to_device", token=3)))
    cluster.promote(b, force=True)
    assert a.log.position == b.log.position
    parted.part(cluster)
    cluster.pass_(12)
    loser = nodes["b" if winner == "a" else "a"]
    assert "fenced" == loser.roles.role
    assert cluster.resync(loser)
    cluster.pass_(5)

    assert a.log.positions_by_stream() == b.log.positions_by_stream()
    assert a.log.position == b.log.position


def two_primaries(uuids: str, listed: str = "") -> tuple[FakeCluster, Parted, FakeNode, FakeNode, FakeNode]:
    """B and C were promoted into one epoch, parted from each other; D follows B. `uuids` are theirs.

    All list A and the `listed` ones.
    """
    parted = Parted()
    cluster = FakeCluster(reaches=parted.reaches)
    a = cluster.node("a", can_reach=parted.reaches)
    b, c, d = (
        cluster.node(name, "a", start=False, can_reach=parted.reaches, listed=list(listed)) for name in "bcd"
    )
    for node, uuid in zip((b, c, d), uuids, strict=True):
        node.engine.write_notes(uuid=uuid)
        cluster.start(node)
    cluster.wrote(a, 4)
    cluster.pass_(2)
    parted.part(cluster, "c")
    cluster.promote(b, force=True)
    cluster.pass_(1)
    a.kill()
    cluster.promote(c, force=True)
    cluster.pass_(5)
    assert ["primary", "primary", "replica"] == roles(b, c, d)
    return cluster, parted, b, c, d


def test_two_primaries_that_list_nobody_are_problems_of_each_other() -> None:
    """Two primaries of one epoch never heard of each other. A replica that knows a later one than its own
    says so; without a key it fences nobody."""
    cluster, parted, b, c, d = two_primaries("zyx", listed="b")
    c.listed = []
    b.roles.notifier.unnotified.clear()
    c.roles.notifier.unnotified[:] = [Address("d"), Address("b")]
    parted.part(cluster)
    with pytest.raises(ClaimRefused) as caught:
        claim(cluster, d, c, 2)
    assert "superseded" == caught.value.code
    cluster.pass_(90)

    assert ["primary", "primary", "replica"] == roles(b, c, d)
    for node, other in ((b, f"{c.log.uuid} at c - claims it in epoch 2"), (c, "d - refuses this one")):
        assert any(other in text for text, *_ in node.roles.rivals.problems)


@pytest.mark.parametrize("winner", ["b", "c"])
@pytest.mark.parametrize("who", ["b", "c", "bc"])
def test_two_primaries_meet_if_one_of_them_lists_the_other(winner: str, who: str) -> None:
    """Replicas 200784: no daemon knows both. It is asked at the next inquiry."""
    cluster, parted, b, c, _ = two_primaries("zyx" if winner == "b" else "yzx", listed="bc")
    for node in (b, c):
        record = RoleRecord(node.roles.role, node.log.head.epoch, node.log.uuid)
        cluster.done(Deferred.fromCoroutine(node.roles.store.save(record)))
        node.roles.notifier.unnotified.clear()
        node.roles.store.local = list
    first, second = (b, c) if winner == "b" else (c, b)
    first.listed = ["b", "c"] if first.name in who else []
    second.listed = ["b", "c"] if second.name in who else []
    parted.part(cluster)
    cluster.pass_(10)
    assert ["primary", "primary"] == roles(b, c)
    cluster.pass_(INQUIRY_INTERVAL + 10)

    is_believed = second.name in who
    assert ["primary", "fenced" if is_believed else "primary"] == roles(first, second)
    assert is_believed or any(first.log.uuid in text for text, *_ in second.roles.rivals.problems)


def test_a_fenced_primary_notifies_its_replicas() -> None:
    """One that joined just before the promotion is unknown to the new primary."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b, c = cluster.node("b", "a"), cluster.node("c", "a", listed=["b"])
    cluster.pass_(3)
    cluster.wrote(a, 5)
    b.roles.store.local = list
    record = RoleRecord("replica", 1, a.log.uuid, "a -")
    cluster.done(Deferred.fromCoroutine(b.roles.store.save(record)))
    cluster.promote(b)
    cluster.pass_(5)

    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert "b -" == str(c.roles.primary)
    assert a.roles.notifier.unnotified == []


def test_a_resync_waits_for_the_fencing_that_is_being_saved() -> None:
    """Replicas 303682: the record still named the fenced daemon itself, and after a restart it followed the
    upstream of its settings, which followed it."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    a.kill()
    cluster.promote(b, force=True)
    cluster.start(a)
    claimed = Claim(epoch=2, uuid=b.log.uuid, address="b -", history=a.log.history)
    cluster.done(Deferred.fromCoroutine(a.roles.store.save(RoleRecord("primary", 1, a.log.uuid))))
    fencing = Deferred.fromCoroutine(a.roles.claims.handle(claimed, trusted=True))
    for _ in range(500):
        if "fenced" == a.roles.role:
            break
        cluster.pass_(0.01)
    resync = Deferred.fromCoroutine(a.roles.resync())
    cluster.done(fencing)
    cluster.done(resync)

    record = a.roles.store.load()
    assert record is not None
    assert ("replica", 2, "b -") == (record.role, record.epoch, record.address)


def test_a_daemon_that_lost_its_notification_is_notified_again() -> None:
    """It had acknowledged the epoch, and follows a daemon that is no primary."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    cluster.promote(b)
    cluster.pass_(5)
    assert "fenced" == a.roles.role
    lost = RoleRecord("replica", 1, a.log.uuid, "x -")
    cluster.done(Deferred.fromCoroutine(a.roles.store.save(lost)))
    restarted(cluster, a)
    b.roles.notifier.unnotified.clear()
    cluster.pass_(INQUIRY_INTERVAL + 10)

    assert ["replica", "primary", "replica"] == roles(a, b, c)
    assert "b -" == str(a.roles.primary)


def test_a_primary_that_is_superseded_says_so() -> None:
    """As long as it cannot ask the other primary."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    cluster.promote(b)
    cluster.pass_(2)
    cluster.resync(a)
    cluster.pass_(2)
    b.kill()
    cluster.promote(c, force=True)
    noted = RoleRecord("replica", 4, "zz", "b -", (), ())  # b is away, and so is asked in vain
    cluster.done(Deferred.fromCoroutine(a.roles.store.save(noted)))
    cluster.pass_(90)

    assert "primary" == c.roles.role
    assert any("another daemon may be primary: a" in text for text, *_ in c.roles.rivals.problems)


def test_a_claim_of_a_lower_epoch_means_nothing() -> None:
    """It was told late: the daemon that it names is fenced meanwhile."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.promote(b)
    cluster.pass_(1)
    with pytest.raises(ClaimRefused) as caught:
        claim(cluster, b, a, 1)

    assert "superseded" == caught.value.code
    assert "primary" == b.roles.role


def test_a_claim_of_another_history_means_nothing() -> None:
    """A stranger's address was typed by mistake."""
    cluster = FakeCluster()
    a = cluster.node("a")
    other = cluster.node("x")
    with pytest.raises(ClaimRefused) as caught:
        claim(cluster, a, other, 9)

    assert "other_history" == caught.value.code
    assert "primary" == a.roles.role


def test_a_daemon_keeps_its_role_through_restarts() -> None:
    """Whatever its settings say: they were written before."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    cluster.promote(b)
    cluster.pass_(1)
    for node in (a, b, c):
        restarted(cluster, node)
    cluster.pass_(1)
    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    assert cluster.resync(a)
    cluster.pass_(2)
    restarted(cluster, a)
    cluster.pass_(2)

    assert "replica" == a.roles.role
    assert a.replica is not None
    assert Address("b") == a.replica.upstream.where


def test_a_promoted_daemon_stays_primary_when_facts_are_lost_later() -> None:
    """That begins an epoch as well."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    cluster.promote(b)
    cluster.done(Deferred.fromCoroutine(b.log.epochs.begin_next("lost", stream="to_device", token=3)))
    restarted(cluster, b)

    assert "primary" == b.roles.role
    assert 3 == b.log.head.epoch


def test_a_promotion_whose_epoch_has_begun_is_not_answered_as_failed() -> None:
    """Its record could not be saved: the old primary went on, and was fenced when B was started again."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 3)
    store = b.log.note

    async def note(**notes: Any) -> None:
        if "role" in notes:
            raise StorageError(op="note", why="the disk is full", retryable=True)
        await store(**notes)

    b.log.note = note  # type: ignore[method-assign]
    cluster.promote(b)
    cluster.pass_(3)
    assert ["fenced", "primary"] == roles(a, b)
    record = b.roles.store.load()
    assert record is not None
    assert ("primary", 2) == (record.role, record.epoch)
    assert b.log.notes.get("role") is None
    cluster.done(Deferred.fromCoroutine(b.log.epochs.begin_next("lost", stream="to_device", token=3)))
    restarted(cluster, b)
    cluster.pass_(3)

    assert ["fenced", "primary"] == roles(a, b)
    assert "promoting" not in b.log.notes


def test_one_promotion_at_a_time() -> None:
    """An impatient operator changes nothing."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    first = Deferred.fromCoroutine(b.promotion.promote())
    with pytest.raises(CannotPromote) as caught:
        cluster.promote(b)
    cluster.done(first)

    assert "promoting" == caught.value.code
    assert "primary" == b.roles.role


def test_two_operators_promote_two_replicas_in_order() -> None:
    """One primary is left, and nothing is lost."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    ends: list[Any] = []
    for node in (b, c):
        Deferred.fromCoroutine(node.promotion.promote()).addBoth(ends.append)
    cluster.pass_(45)

    assert 2 == len(ends)
    assert ["fenced", "primary", "replica"] == sorted(roles(a, b, c)) or 1 == roles(a, b, c).count("primary")


def test_who_was_told_by_somebody_passes_it_on() -> None:
    """The old primary may be known to a daemon that the new one has never heard of."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.promote(b)
    cluster.pass_(1)
    cluster.promote(c)
    cluster.pass_(1)

    assert "c -" == str(a.roles.primary)
    assert ["fenced", "fenced", "primary"] == roles(a, b, c)


def test_a_daemon_that_waits_to_tell_one_tells_the_others_of_a_new_epoch_at_once() -> None:
    """Or the primary that it deposes would take facts for up to a minute more."""
    parted = Parted()
    cluster, a, b, c = parted.cluster()
    parted.part(cluster, "a")
    cluster.promote(b, force=True)
    cluster.pass_(60)
    cluster.promote(c, force=True)
    cluster.pass_(1)

    assert ["primary", "fenced", "primary"] == roles(a, b, c)


# -- claims that are believed ------------------------------------------------------------------------------


def test_a_daemon_that_is_two_epochs_behind_believes_the_primary_itself() -> None:
    """C was promoted after B while A was away: its claim is two steps ahead, and it answers for it."""
    parted = Parted()
    cluster, a, b, c = parted.cluster()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    parted.part(cluster, "a")
    cluster.promote(b, force=True)
    cluster.pass_(1)
    cluster.promote(c, force=True)
    cluster.pass_(1)
    assert ["primary", "fenced", "primary"] == roles(a, b, c)
    parted.part(cluster)
    cluster.pass_(12)

    assert ["fenced", "fenced", "primary"] == roles(a, b, c)
    assert "c -" == str(a.roles.primary)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("epoch", [2, 3])
@pytest.mark.parametrize("address", ["away -", "told -", ""])
def test_a_proven_claim_is_believed_without_a_question(trusted: bool, epoch: int, address: str) -> None:
    """From whoever has a key that may administer, one step ahead; nobody else, whom nobody asks."""
    cluster = FakeCluster()
    a = cluster.node("a")
    position = LogPosition(epoch, 1, a.log.position.digest)
    told = PeerStatus(history=a.log.history, uuid="stranger", role="primary", position=position)
    a._strangers = {"told": told}
    made = Claim(epoch=epoch, uuid="stranger", address=address, history=a.log.history)
    code = ""
    try:
        cluster.done(Deferred.fromCoroutine(a.roles.claims.handle(made, trusted=trusted)))
    except ClaimRefused as error:
        code = error.code
    cluster.pass_(INQUIRY_INTERVAL + 1)

    is_believed = trusted and epoch == 2
    assert ("" if is_believed else "epoch_too_far" if trusted else "not_verified") == code
    assert ("fenced" if is_believed else "primary") == a.roles.role
    assert [] == a.peers.asked
    assert is_believed or any("stranger" in text for text, *_ in a.roles.rivals.problems)


@pytest.mark.parametrize(
    ("said", "is_believed"),
    [
        ({}, True),
        ({"position": LogPosition(999, 1, "other")}, True),
        ({"uuid": "another"}, True),
        ({"role": "replica"}, False),
        ({"role": "fenced"}, False),
        ({"history": "other"}, False),
        ({"position": LogPosition(2**53 + 1, 1, "d")}, False),
        ({"position": LogPosition(0, 1, "d")}, False),
        ({"position": LogPosition(1, 1, "d")}, True),
    ],
)
def test_a_listed_daemon_is_believed_what_it_says_of_itself(said: dict[str, Any], is_believed: bool) -> None:
    """A claim without a key makes this daemon ask it; whatever the claim says, its answer counts."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.listed = ["told"]
    cluster.wrote(a)
    told: dict[str, Any] = {"history": a.log.history, "uuid": "zz", "role": "primary"}
    told["position"] = LogPosition(2, 9, "d")
    a._strangers = {"told": PeerStatus(**(told | said))}
    made = Claim(epoch=2, uuid="zz", address="anywhere -", history=a.log.history)
    with suppress(ClaimRefused):
        cluster.done(Deferred.fromCoroutine(a.roles.claims.handle(made)))

    assert ("fenced" if is_believed else "primary") == a.roles.role
    assert ["told"] == a.peers.asked
    assert not is_believed or "told -" == str(a.roles.primary)


def test_a_replica_follows_a_listed_daemon_that_is_claimed_to_be_primary() -> None:
    """Without a key; another one that is listed, and of which nobody spoke, it does not."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a", listed=["told", "other"])
    cluster.pass_(3)
    cluster.wrote(a)
    cluster.pass_(1)
    position = LogPosition(2, 0, a.log.position.digest)
    told = PeerStatus(history=a.log.history, uuid="zz", role="primary", position=position)
    b._strangers = {"told": told, "other": replace(told, uuid="yy", position=LogPosition(3, 0, ""))}
    made = Claim(epoch=2, uuid="zz", address="x -", history=a.log.history)
    cluster.done(Deferred.fromCoroutine(b.roles.claims.handle(made)))

    assert b.replica is not None
    assert Address("told") == b.replica.upstream.where


def test_one_question_at_a_time_is_under_way() -> None:
    """Whoever sends signs in numbers makes this daemon ask whom it lists, and not in numbers."""
    cluster = FakeCluster()
    a = cluster.node("a", request_delay=lambda: 1.0)
    a.listed = ["told"]
    a._strangers = {
        "told": PeerStatus(history=a.log.history, uuid="u", role="replica", position=a.log.position)
    }
    codes: list[str] = []

    def refused(failure: Any) -> None:
        codes.append(failure.value.code)

    for number in range(12):
        a.roles.rivals.on_higher_epoch(2, f"r{number}", f"s{number} -")
        made = Claim(epoch=2, uuid="stranger", address=f"s{number} -", history=a.log.history)
        Deferred.fromCoroutine(a.roles.claims.handle(made)).addErrback(refused)
    cluster.pass_(3)

    assert ["told"] == a.peers.asked
    assert ["not_verified"] * 12 == codes


def test_of_two_logs_that_differ_the_later_primary_stays() -> None:
    """A primary that came back from a backup has other facts in its epoch; a resync keeps them in a file."""
    parted = Parted()
    cluster, a, b, _ = parted.cluster()
    cluster.wrote(a, 3)
    backup = a.engine.copy()
    cluster.wrote(a, 2)
    cluster.pass_(1)
    parted.part(cluster, "a")
    a.kill()
    a.engine = backup
    cluster.start(a)
    cluster.pass_(4)
    cluster.wrote(a, 4)
    cluster.promote(b, force=True)
    parted.part(cluster)
    cluster.pass_(12)
    assert ["fenced", "primary"] == roles(a, b)
    assert cluster.resync(a)
    cluster.pass_(5)

    assert a.log.position == b.log.position
    assert 4 == len(a.leftover_facts)


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("tcp:berlin:9092 http://berlin:9093", True),
        ("- https://berlin.example.org/synrepl", True),
        ("tcp:berlin:9092 -", True),
        ("", True),
        ("- ftp://berlin", False),
        ("- http://", False),
        ("- http://[x", False),
        ("- http://berlin:99999", False),
        ("- http://a b", False),
        ("tcp:\x1b[2J:1 -", False),
        ("x" * 1001, False),
    ],
)
def test_addresses_of_peers_are_checked(text: str, is_good: bool) -> None:
    """Before anything is done with them."""
    if is_good:
        assert Address.parse(text) == parse_peer_address(text)
    else:
        with pytest.raises(ClaimRefused) as caught:
            parse_peer_address(text)
        assert "bad_request" == caught.value.code


# -- replicas that know a later epoch ----------------------------------------------------------------------


def test_a_replica_of_a_later_epoch_is_a_sign_and_no_fence() -> None:
    """It is reported for some minutes, and forgotten at the next promotion."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.roles.rivals.on_higher_epoch(7, "paris", "nowhere -")
    cluster.pass_(1)

    assert "primary" == a.roles.role
    ((text, *_),) = a.roles.rivals.problems
    assert text.startswith("paris at nowhere - knows epoch 7, but this primary is in epoch 1: ")
    a.roles.rivals.on_higher_epoch(8, "paris\x1b[2J", "")
    assert all(one.isprintable() for one, *_ in a.roles.rivals.problems)
    for number in range(50):
        a.roles.rivals.on_higher_epoch(8, f"r{number}", "")
    assert 20 == len(a.roles.rivals.problems)
    cluster.pass_(301, step=1)
    assert [] == a.roles.rivals.problems
    cluster.wrote(a, 1)


def test_a_replica_of_a_later_epoch_makes_the_primary_ask_whom_it_lists() -> None:
    """It is fenced at once, not at the next inquiry; the replica is asked nothing."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.listed = ["told"]
    position = LogPosition(2, 0, a.log.position.digest)
    told = PeerStatus(history=a.log.history, uuid="zz", role="primary", position=position)
    a._strangers = {"told": told, "c": told}
    cluster.pass_(1)
    assert "primary" == a.roles.role
    a.roles.rivals.on_higher_epoch(2, "c", "c -")
    cluster.pass_(0.1)

    assert "fenced" == a.roles.role
    assert "told -" == str(a.roles.primary)
    assert ["told"] == a.peers.asked


# -- the way out -------------------------------------------------------------------------------------------


def fenced_by_note(cluster: FakeCluster, **noted: Any) -> FakeNode:
    """A daemon that an earlier release fenced, as its disk says."""
    a = cluster.node("a")
    cluster.wrote(a, 3)
    a.kill()
    a.engine.write_notes(role=msgspec.json.encode({"role": "fenced"} | noted).decode())
    cluster.start(a)
    assert "fenced" == a.roles.role
    return a


@pytest.mark.parametrize(("noted", "epoch"), [(999_999, 1_000_000), (2**70, 2), (2, 3)])
def test_a_fenced_daemon_that_should_not_be_is_promoted_by_force(noted: int, epoch: int) -> None:
    """In an epoch over all that can be, and through a restart; also one with the note of an old attack."""
    cluster = FakeCluster()
    a = fenced_by_note(cluster, epoch=noted)
    with pytest.raises(StorageError, match="synrepl promote --force makes this one primary again"):
        cluster.wrote(a)
    with pytest.raises(CannotPromote, match=r"synrepl resync .* synrepl promote --force") as caught:
        cluster.promote(a)
    assert "fenced" == caught.value.code
    cluster.promote(a, force=True)

    assert ("primary", epoch) == (a.roles.role, a.log.head.epoch)
    cluster.wrote(a)
    restarted(cluster, a)
    assert "primary" == a.roles.role
    cluster.wrote(a)
    with pytest.raises(CannotPromote, match="only a replica can be promoted"):
        cluster.promote(a, force=True)


def test_a_fence_with_an_epoch_that_cannot_be_is_replaced_by_a_real_claim() -> None:
    """Otherwise no promotion could lead such a daemon."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    a.kill()
    cluster.promote(b, force=True)
    cluster.pass_(1)
    noted = {"role": "fenced", "epoch": 2**70, "uuid": "z", "address": "stranger -"}
    a.engine.write_notes(role=msgspec.json.encode(noted).decode())
    cluster.start(a)
    assert "stranger -" == str(a.roles.primary)
    cluster.pass_(10)

    assert "b -" == str(a.roles.primary)
    assert cluster.resync(a)


def test_a_fenced_daemon_promoted_by_force_fences_the_other_one() -> None:
    """The operator says that the other is not primary; if it is, it hears of this."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    cluster.promote(b)
    cluster.pass_(1)
    assert ["fenced", "primary", "replica"] == roles(a, b, c)
    cluster.promote(a, force=True)
    cluster.pass_(2)

    assert ["primary", "fenced"] == roles(a, b)
    assert 3 == a.log.head.epoch


# -- hand-overs --------------------------------------------------------------------------------------------


def hand_over(cluster: FakeCluster, node: FakeNode, to: FakeNode, seconds: float) -> LogPosition:
    """Ask a primary to hand over to a replica."""
    asked = HandOver(seconds=seconds, uuid=to.log.uuid, address=f"{to.name} -")
    return cluster.done(Deferred.fromCoroutine(node.roles.handover.handle(asked)))


def test_a_hand_over_tells_the_position_after_all_queued_appends() -> None:
    """A lower one would leave acknowledged facts out of the next epoch."""
    cluster = FakeCluster()
    delay = [0.0005]
    a = cluster.node("a", disk_delay=lambda: delay[0])
    b = cluster.node("b", "a")
    cluster.pass_(1)
    b.promotion.candidate.is_requesting = True
    delay[0] = 0.05
    appends = [a.append("to_device", [[[f"@u{n}:hs"]]]) for n in range(3)]

    position = hand_over(cluster, a, b, 15)
    cluster.pass_(1)

    assert [True] * 3 == [append.called for append in appends]
    assert (3, a.log.position) == (position.serial, position)


def test_only_a_replica_that_is_being_promoted_stops_the_writes() -> None:
    """The primary asks it."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    for node in (b, c):
        with pytest.raises(ClaimRefused) as caught:
            hand_over(cluster, a, node, 15)
        assert "not_verified" == caught.value.code
        cluster.wrote(a)
    b.promotion.candidate.is_requesting = True
    assert a.log.position == hand_over(cluster, a, b, 15)
    with pytest.raises(StorageError, match="about to become primary"):
        cluster.wrote(a)


def test_a_hand_over_to_an_unknown_daemon_is_refused() -> None:
    """It would say that it is a replica that is being promoted; without a lease here it is asked nothing."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    told = PeerStatus(
        history=a.log.history, uuid="x", role="replica", position=a.log.position, promoting=True
    )
    a._strangers = {"s": told}
    for uuid, code in (("x", "unknown_replica"), (b.log.uuid, "not_verified")):
        with pytest.raises(ClaimRefused) as caught:
            cluster.done(
                Deferred.fromCoroutine(a.roles.handover.handle(HandOver(seconds=5, uuid=uuid, address="s -")))
            )
        assert code == caught.value.code
    assert "s" not in a.peers.asked
    cluster.wrote(a)


def test_a_candidate_is_believed_where_it_confirmed_the_hand_over() -> None:
    """Also after a restart, and after the hand-over was over; a stranger who takes its name is not."""
    parted = Parted()
    cluster = FakeCluster(reaches=parted.reaches)
    a, b = cluster.node("a", can_reach=parted.reaches), cluster.node("b", "a", can_reach=parted.reaches)
    cluster.pass_(3)
    b.promotion.candidate.is_requesting = True
    hand_over(cluster, a, b, 15)
    for _ in range(2):
        with pytest.raises(ClaimRefused) as caught:
            claim(cluster, a, b, 2)
        assert "not_verified" == caught.value.code
        restarted(cluster, a)
    b.promotion.candidate.is_requesting = False
    cluster.promote(b)
    parted.part(cluster, "a")
    cluster.pass_(20)
    assert ["primary", "primary"] == roles(a, b)
    restarted(cluster, a)
    cluster.wrote(a)
    parted.part(cluster)
    cluster.pass_(30)

    assert ["fenced", "primary"] == roles(a, b)


def test_a_candidate_is_believed_about_the_primary_that_it_follows_since() -> None:
    """The old primary knows nobody else: the next one has no lease of it, and does not know it."""
    parted = Parted()
    cluster = FakeCluster(reaches=parted.reaches)
    a, b, c = (
        cluster.node(name, *upstream, can_reach=parted.reaches)
        for name, *upstream in (("a",), ("b", "a"), ("c", "b"))
    )
    cluster.pass_(3)
    b.promotion.candidate.is_requesting = True
    hand_over(cluster, a, b, 15)
    b.promotion.candidate.is_requesting = False
    cluster.promote(b)
    parted.part(cluster, "a")
    cluster.pass_(20)
    cluster.promote(c)
    cluster.pass_(5)
    cluster.done(Deferred.fromCoroutine(b.roles.resync()))
    cluster.pass_(5)
    assert ["primary", "replica", "primary"] == roles(a, b, c)
    forged = Claim(epoch=3, uuid="forged", address="c -", history=a.log.history)
    parted.part(cluster)
    with pytest.raises(ClaimRefused, match="without a key"):
        cluster.done(Deferred.fromCoroutine(a.roles.claims.handle(forged)))
    cluster.pass_(70)

    assert ["fenced", "replica", "primary"] == roles(a, b, c)
    record = a.roles.store.load()
    assert record is not None
    assert (3, c.log.uuid) == (record.epoch, record.uuid)


def test_a_replica_that_is_killed_as_its_epoch_begins_is_primary_of_it() -> None:
    """Otherwise the epoch would have none: the old primary is told of it, and gives way."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    begin = b.log.epochs.begin_next

    async def next_epoch(*arguments: Any, **named: Any) -> EpochStart:
        epoch_start = await begin(*arguments, **named)
        b.kill()
        await Deferred()
        return epoch_start

    b.log.epochs.begin_next = next_epoch  # type: ignore[method-assign]
    Deferred.fromCoroutine(b.promotion.promote()).addErrback(lambda failure: None)
    cluster.pass_(2)
    assert not b.is_running
    cluster.start(b)
    cluster.pass_(30)

    assert (2, "primary") == (b.log.head.epoch, b.roles.role)
    assert "fenced" == a.roles.role


def test_facts_that_the_primary_took_at_the_last_moment_are_waited_for() -> None:
    """It had forgotten that it was to take none, while the new one looked for its files."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    forgot: list[int] = []

    async def missing(serial: int) -> list[Any]:
        if not forgot:
            forgot.append(serial)
            a.roles.handover._end()
            a.roles.handover._not_before = 0.0  # as after a restart
            await cluster.append(a, 2)
        return []

    b.promotion.candidate.missing_files = missing
    cluster.promote(b, seconds=30)

    assert [5] == forgot
    assert 7 == b.log.head.serial


def test_a_replica_of_a_replica_is_promoted_in_order() -> None:
    """The primary has no lease of it, but lists it."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    cluster.promote(c)
    cluster.pass_(5)

    assert ["fenced", "replica", "primary"] == roles(a, b, c)
    assert 5 == c.log.head.serial


def test_only_the_replica_itself_ends_a_hand_over() -> None:
    """To take facts while it begins its epoch would lose them. One that was killed may end it later."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    b.promotion.candidate.is_requesting = True
    hand_over(cluster, a, b, 15)
    with pytest.raises(ClaimRefused, match="still being promoted"):
        hand_over(cluster, a, b, 0)
    stranger = HandOver(seconds=0, uuid="stranger", address="s -")
    with pytest.raises(CannotPromote) as caught:
        cluster.done(Deferred.fromCoroutine(a.roles.handover.handle(stranger)))
    assert "handing_over" == caught.value.code
    restarted(cluster, a)
    assert a.roles.handover.is_active
    with pytest.raises(CannotPromote):
        cluster.done(Deferred.fromCoroutine(a.roles.handover.handle(stranger)))
    restarted(cluster, b)
    cluster.pass_(2)
    hand_over(cluster, a, b, 0)

    assert not a.roles.handover.is_active
    cluster.wrote(a)


def test_a_hand_over_cannot_be_ended_while_the_epoch_begins() -> None:
    """What the old primary takes then would be left behind, although nobody promoted by force."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    seen: list[Any] = []
    begin = b.log.epochs.begin_next

    async def next_epoch(*arguments: Any, **named: Any) -> EpochStart:
        asked = HandOver(seconds=0, uuid=b.log.uuid, address="b -")
        try:
            await a.roles.handover.handle(asked)
        except ClaimRefused as error:
            seen.append(str(error))
        return await begin(*arguments, **named)

    b.log.epochs.begin_next = next_epoch  # type: ignore[method-assign]
    cluster.promote(b)

    assert ["the replica does not confirm the hand-over: b - is still being promoted"] == seen
    assert not b.promotion.candidate.is_requesting


def test_hand_overs_stop_writes_for_a_quarter_of_the_time_at_most() -> None:
    """A replica that is promoted for ever must not stop the writes for ever."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    b.promotion.candidate.is_requesting = True
    sealed = 0
    for _ in range(300):
        with suppress(CannotPromote):
            hand_over(cluster, a, b, 15)
        cluster.pass_(1, step=0.1)
        sealed += a.roles.handover.is_active

    assert 60 <= sealed <= 150
    b.promotion.candidate.is_requesting = False
    cluster.pass_(200, step=0.5)
    cluster.promote(b)
    assert "primary" == b.roles.role


def test_a_second_promotion_waits_for_the_first() -> None:
    """Or both would begin their epochs at one place."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b, d = cluster.node("b", "a"), cluster.node("d", "a")
    cluster.pass_(3)
    b.promotion.candidate.is_requesting = True
    hand_over(cluster, a, b, 15)

    with pytest.raises(CannotPromote) as caught:
        cluster.promote(d)
    assert "handing_over" == caught.value.code


def test_replicas_are_led_by_verified_claims_only() -> None:
    """One that follows a stranger would serve its facts."""
    cluster = FakeCluster()
    a, b, c = cluster.chain()
    for address in ("stranger -", "b -", ""):
        made = Claim(epoch=9, uuid="stranger", address=address, history=a.log.history)
        with pytest.raises(ClaimRefused):
            cluster.done(Deferred.fromCoroutine(c.roles.claims.handle(made)))

    assert c.replica is not None
    assert Address("b") == c.replica.upstream.where
    cluster.pass_(1)
    assert ["primary", "replica", "replica"] == roles(a, b, c)


def test_refused_claims_are_counted_and_seldom_logged() -> None:
    """A stranger can send them at will."""
    cluster = FakeCluster()
    a = cluster.node("a")
    texts: list[str] = []

    def observe(event: Any) -> None:
        text = formatEvent(event)
        if text is not None and "claim refused" in text:
            texts.append(text)

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    try:
        for _ in range(2):
            for history in (a.log.history, "other\x1b[2J"):
                made = Claim(epoch=2, uuid="z", address="", history=history)
                for _ in range(5):
                    with pytest.raises(ClaimRefused):
                        cluster.done(Deferred.fromCoroutine(a.roles.claims.handle(made)))
            cluster.pass_(61, step=1)
    finally:
        globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]

    counted = a.roles.metrics.claims_refused
    assert [10, 10] == [counted.labels(code).read() for code in ("not_verified", "other_history")]
    assert 4 == len(texts)
    assert all(text.isprintable() for text in texts)


def test_an_old_primary_that_has_stopped_names_the_command_that_mends_it() -> None:
    """It was fenced with facts of its own, and started again as a replica: what now?"""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    b.kill()
    cluster.wrote(a, 3)
    a.kill()
    cluster.start(b)
    cluster.promote(b, force=True)
    cluster.wrote(b, 1)
    logged: list[str] = []

    def observe(event: Any) -> None:
        logged.append(formatEvent(event) or "")

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    try:
        cluster.start(a)
        cluster.pass_(30, step=0.1)
        assert "fenced" == a.roles.role
        a.kill()
        a.upstream = "b"
        cluster.start(a)
        cluster.pass_(5)
    finally:
        globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]

    assert a.replica is not None
    assert "stopped" == a.replica.state
    assert a.replica.why.startswith("fork: ")
    assert a.replica.why.endswith(RESYNC)
    assert any(line.startswith("this replica has stopped: fork: ") and RESYNC in line for line in logged)
    with pytest.raises(ReadOnlyHere, match=RESYNC) as caught:
        cluster.wrote(a)
    assert ("stopped", False, "b -") == (caught.value.code, caught.value.retryable, caught.value.moved_to)
    assert cluster.resync(a)
    cluster.pass_(3)
    assert a.roles.forwarding_refusal("to_device") is None
    assert 3 == len(a.leftover_facts)


@pytest.mark.parametrize("code", ["ahead", "fork", "other_history"])
def test_every_stop_names_the_command_that_mends_it(code: str) -> None:
    """Whatever stopped it."""
    assert RESYNC in WAYS_OUT[code]


class TestStart:
    """A primary that was away asks the daemons that it lists before it takes facts."""

    def restart(self, cluster: FakeCluster, node: FakeNode) -> "Deferred[Any]":
        """Start a node, and post a fact at once."""
        done = node.start()
        while not done.called:
            cluster.clock.advance(0.0005)
        return cluster.append(node)

    def test_an_old_primary_takes_no_fact_after_another_was_promoted(self) -> None:
        """What it acknowledged would be on no other daemon, and given up later."""
        cluster = FakeCluster()
        a, b, c = cluster.chain()
        a.kill()
        cluster.promote(b, force=True)
        cluster.pass_(0.5)

        refused = self.restart(cluster, a)
        with pytest.raises(ReadOnlyHere, match="asks the daemons in --upstream") as caught:
            cluster.done(refused)
        cluster.pass_(1)

        assert ("starting", True) == (caught.value.code, caught.value.retryable)
        assert ["fenced", "primary", "replica"] == roles(a, b, c)
        assert 0 == a.log.head.serial

    def test_a_primary_goes_on_once_all_have_answered(self) -> None:
        """The usual restart costs one question."""
        cluster = FakeCluster()
        a, b, c = cluster.chain()
        a.kill()
        self.restart(cluster, a).addErrback(lambda _: None)
        cluster.pass_(0.1)
        cluster.wrote(a)
        cluster.pass_(5)

        assert ["primary", "replica", "replica"] == roles(a, b, c)
        assert 1 == c.log.head.serial

    def test_who_does_not_answer_is_waited_for_three_seconds(self) -> None:
        """Whoever is dead must not keep the primary from its work."""
        delay = [0.01]
        cluster = FakeCluster()
        a = cluster.node("a", request_delay=lambda: delay[0], listed=["b"])
        b = cluster.node("b", "a")
        cluster.pass_(3)
        a.kill()
        b.kill()
        delay[0] = 60.0

        refused = self.restart(cluster, a)
        with pytest.raises(ReadOnlyHere):
            cluster.done(refused)
        cluster.pass_(2.8)
        still = cluster.append(a)
        with pytest.raises(ReadOnlyHere):
            cluster.done(still)
        cluster.pass_(0.3)

        cluster.wrote(a)
        assert 1 == a.log.head.serial

    def test_a_primary_that_lists_nobody_starts_at_once(self) -> None:
        """There is nobody to ask: what peers have told is not asked."""
        cluster = FakeCluster()
        a, _ = cluster.node("a"), cluster.node("b", "a")
        cluster.pass_(3)
        a.kill()
        kept = self.restart(cluster, a)

        cluster.done(kept)
        assert 1 == a.log.head.serial

    def test_a_later_epoch_that_nobody_confirms_fences_nobody(self) -> None:
        """A replica alone is a sign, as when it asks to be served."""
        cluster = FakeCluster()
        a, b, c = cluster.chain()
        a.kill()
        cluster.promote(b, force=True)
        cluster.pass_(5)
        b.kill()
        cluster.start(a)
        a.kill()
        a.listed = ["c"]
        cluster.start(a)
        cluster.pass_(4)

        assert "primary" == a.roles.role
        assert any("knows epoch 2" in text for text, *_ in a.roles.rivals.problems)
        assert 2 == c.log.head.epoch


class OverHttp:
    """`roles.IPeerClient` that reaches a daemon by the HTTP part of its address alone."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell

    async def claim(self, address: Address, claim: Claim) -> None:
        if not address.http:
            raise NotConnected(f"nobody knows the HTTP address of {address}")
        await self._tell.claim(Address(address.native), claim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tell, name)


@pytest.mark.parametrize("is_known_later", [False, True])
def test_a_daemon_of_which_half_the_address_is_known_is_told_once(is_known_later: bool) -> None:
    """The replica follows it natively; its HTTP address comes from its lease. It was never notified."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    known: list[Address] = []
    whole = [Address("a", "http://a:9093"), Address("c", "http://c:9093")]
    known += [] if is_known_later else whole
    b.roles.store.local = lambda: known
    b.roles.notifier.peers = OverHttp(b.roles.notifier.peers)
    cluster.promote(b)
    cluster.pass_(1)
    known[:] = whole
    cluster.pass_(60, step=0.1)

    assert "fenced" == a.roles.role
    assert [] == b.roles.notifier.unnotified


def test_a_replica_that_forgot_its_primary_does_not_become_one() -> None:
    """Its copy may lack what the primary has accepted since."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    cluster.pass_(1)
    a.kill()
    record = RoleRecord("replica", 1)
    a.engine.write_notes(role=msgspec.json.encode(record).decode())
    cluster.start(a)
    cluster.pass_(5)

    assert a.roles.role == "fenced"
    assert "its address is unknown" in a.roles.why


def test_errors_of_roles_take_whether_to_retry_from_the_table() -> None:
    """Unless they say otherwise."""
    assert CannotPromote("behind", "why").retryable
    assert not CannotPromote("files_missing", "why").retryable
    assert ClaimRefused("not_verified", "why").retryable
    assert CannotPromote("upstream_away", "why", retryable=True).retryable
