"""JOIN: cut anywhere, gone on with, begun anew; and never half a copy."""

from dataclasses import replace

import msgspec
import pytest

from synrepl.base.history import LogSnapshot
from synrepl.replicas.relay.block_encoder import facts_block
from synrepl.replicas.relay.relay import Relay
from synrepl.replicas.replica import join as joining_module
from synrepl.replicas.wire import native
from synrepl.replicas.wire.native import Join, Joined
from synrepl.replication.retention import keys_of
from synrepl.replication.serving import text_pages as pages_module
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode

FACTS = 40


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that little has many parts."""
    monkeypatch.setattr(pages_module, "PAGE_FACTS", 5)
    monkeypatch.setattr(joining_module, "COMMIT_FACTS", 5)


class Counting:
    """Counts what passes on its way to a replica, and cuts the link after so many."""

    cluster: FakeCluster

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0
        self.facts = 0
        self.joins: list[Join] = []

    def __call__(self, data: bytes) -> bytes:
        for word in (b"BLOCK ", b"JOINING ", b"JOINED ", b"WELCOME ", b"SUBSCRIBED "):
            self.count += data.count(word)
        self.facts += data.count(b'"prev_token"')
        self.joins += [
            msgspec.json.decode(line[5:], type=Join)
            for line in data.split(b"\n")
            if line.startswith(b"JOIN ")
        ]
        if self.at is not None and self.count >= self.at:
            self.at = None
            for link in self.cluster.network.links_of("b"):
                self.cluster.clock.callLater(0, link.cut)
        return data


def built(
    *, cut_after: int | None = None, **options: object
) -> tuple[FakeCluster, FakeNode, FakeNode, Counting]:
    """A primary with facts, and a replica that is to come."""
    counting = Counting(cut_after)
    cluster = counting.cluster = FakeCluster(corrupt=counting)
    a = cluster.node("a")
    cluster.wrote(a, FACTS // 2, key="one")
    cluster.wrote(a, FACTS // 2, key="two")
    b = cluster.node("b", "a", start=False, **options)
    return cluster, a, b, counting


def is_copy(a: FakeNode, b: FakeNode) -> bool:
    """Whether all that a has is what b has."""
    ours, theirs = a.engine.head(), b.engine.head()
    return (
        a.log.position == b.log.position
        and a.engine.facts == b.engine.facts
        and verify(b.engine.facts, "0" * 64) is None
        and a.engine.receipts_by_key == b.engine.receipts_by_key
        and (ours.positions, ours.epoch_starts, ours.trimmed_upto)
        == (theirs.positions, theirs.epoch_starts, theirs.trimmed_upto)
    )


def steps() -> int:
    cluster, _, b, counting = built()
    cluster.start(b)
    cluster.pass_(3)
    return counting.count


def test_a_replica_becomes_a_copy() -> None:
    """Facts, receipts, positions and the name of the history; its own uuid stays."""
    cluster, a, b, _ = built()
    cluster.start(b)
    uuid = b.log.uuid
    cluster.pass_(3)

    assert is_copy(a, b)
    assert (a.log.history, uuid) == (b.log.history, b.log.uuid)
    assert b.log.uuid != a.log.uuid


@pytest.mark.parametrize("at", range(1, 15))
def test_cut_after_each_word_it_ends_as_if_it_had_not_been(at: int) -> None:
    """And is never taken for whole before it is."""
    cluster, a, b, counting = built(cut_after=at)
    cluster.start(b)
    for _ in range(60):
        cluster.pass_(0.05)
        assert b.replica is not None
        if b.replica.is_whole:
            assert a.log.position == b.log.position
    cluster.pass_(5)

    assert counting.at is None
    assert is_copy(a, b)


def test_the_cuts_are_everywhere() -> None:
    """The case above covers the whole conversation."""
    assert 14 == steps()


def test_what_came_before_a_cut_is_not_sent_again() -> None:
    """It was kept, so that a long JOIN over a bad line ends at all."""
    cluster, a, b, counting = built(cut_after=8)
    cluster.start(b)
    cluster.pass_(8)

    assert is_copy(a, b)
    assert FACTS <= counting.facts < FACTS + 12


def test_what_came_before_a_cut_is_kept_though_it_was_too_little_to_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bad link may never deliver so much at once that it is stored on its way."""
    monkeypatch.setattr(joining_module, "COMMIT_FACTS", 10_000)
    cluster, a, b, counting = built(cut_after=8)
    cluster.start(b)
    cluster.pass_(8)

    assert is_copy(a, b)
    assert FACTS <= counting.facts < FACTS + 3


@pytest.mark.parametrize("at", [4, 7, 10, 12])
def test_killed_in_the_middle_it_goes_on(at: int) -> None:
    """What is staged outlives the process."""
    cluster, a, b, counting = built(cut_after=at)
    cluster.start(b)
    while counting.at is not None:
        cluster.pass_(0.001, step=0.001)
    b.kill()
    cluster.start(b)
    cluster.pass_(5)

    assert is_copy(a, b)
    assert counting.facts < 2 * FACTS


def test_trimmed_between_it_begins_anew() -> None:
    """A copy whose first half is of another age than its second is none."""
    cluster, a, b, counting = built(cut_after=8)
    cluster.start(b)
    while counting.at is not None:
        cluster.pass_(0.001, step=0.001)
    b.kill()
    cluster.wrote(a, 5)
    from twisted.internet.defer import Deferred

    cluster.done(Deferred.fromCoroutine(a.log.trim(20, keys_of(a.table), 1000)))
    before = counting.facts
    cluster.start(b)
    cluster.pass_(5)

    assert a.log.position == b.log.position
    assert a.log.head.trimmed_upto == b.log.head.trimmed_upto
    assert 20 == b.log.head.trimmed_upto.serial
    assert a.engine.facts == b.engine.facts
    assert counting.facts - before >= FACTS - 20


def test_facts_written_during_a_join_are_copied() -> None:
    """There is no seam."""
    cluster, a, b, _ = built()
    cluster.start(b)
    for _ in range(40):
        cluster.append(a, 2)
        cluster.pass_(0.01)
    cluster.pass_(3)

    assert is_copy(a, b)


def test_a_snapshot_right_after_an_epoch_began() -> None:
    """Its place is of the new epoch, its last fact is not."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.wrote(a, 7)
    cluster.pass_(1)
    cluster.promote(b)
    late = cluster.node("late", "b")
    cluster.pass_(3)

    assert b.log.position == late.log.position
    assert 2 == late.log.head.epoch


def test_a_replica_of_a_replica() -> None:
    """It asks again until there is a whole copy to have."""
    cluster = FakeCluster()
    c = cluster.node("c", "b")
    b = cluster.node("b", "a")
    cluster.pass_(1)
    assert c.replica is not None
    a = cluster.node("a")
    cluster.wrote(a, FACTS)
    cluster.pass_(30)

    assert is_copy(a, b)
    assert is_copy(a, c)
    assert "a -" == str(c.roles.primary)


def test_another_filter_is_another_copy_and_the_old_one_is_served_meanwhile() -> None:
    """Nobody is left without an answer while it is made."""
    cluster, a, b, _ = built()
    cluster.start(b)
    cluster.pass_(3)
    b.kill()
    b.settings = replace(b.settings, upstream_streams=("events",))
    started = b.start()
    seen = []
    for _ in range(300):
        cluster.pass_(0.001, step=0.001)
        if started.called and b.replica is not None and b.replica.state in ("snapshot", "meanwhile"):
            seen.append(b.log.head.serial)
    cluster.pass_(3)

    assert {FACTS} == set(seen)
    assert [] == b.engine.facts
    assert a.log.position == b.log.position
    assert Filter.of(streams=("events",)) == b.publisher.read_gate.filter


def test_another_filter_gives_up_no_fact_that_only_this_copy_has() -> None:
    """A former primary, whose last facts nobody received, follows the new one as a copy of some streams."""
    cluster = FakeCluster()
    a = cluster.node("a", listed=["a", "b"])
    b = cluster.node("b", "a", listed=["a", "b"])
    cluster.pass_(3)
    cluster.wrote(a, 3)
    cluster.pass_(1)
    b.kill()
    cluster.wrote(a, 4)
    a.kill()
    cluster.start(b)
    cluster.promote(b, force=True)
    cluster.wrote(b, 9)
    a.upstream = "b"
    a.settings = replace(a.settings, upstream_streams=("push_rules",))
    cluster.start(a)
    cluster.pass_(5)
    assert a.replica is not None
    assert ("stopped", 7) == (a.replica.state, a.log.head.serial)
    assert a.replica.why.startswith("fork: ")

    cluster.resync(a)
    cluster.pass_(5)
    assert [4, 5, 6, 7] == [fact.serial for fact in a.leftover_facts]
    assert [] == a.engine.facts
    assert a.log.position == b.log.position


def test_a_copy_that_was_cut_off_goes_on_under_its_own_filter_only() -> None:
    """Half of another choice is not a half of this one, though the upstream would go on with it."""
    cluster, a, b, counting = built(cut_after=8)
    cluster.start(b)
    while counting.at is not None:
        cluster.pass_(0.001, step=0.001)
    b.kill()
    b.settings = replace(b.settings, upstream_streams=("events",))
    counting.joins.clear()
    cluster.start(b)
    cluster.pass_(5)

    assert [""] == [asked.join for asked in counting.joins]
    assert [] == b.engine.facts
    assert a.log.position == b.log.position


def test_a_copy_that_was_cut_off_is_asked_for_at_its_own_history_only() -> None:
    """The daemon at the upstream's address was replaced; its copy is another one."""
    cluster, _, b, counting = built(cut_after=8)
    other = cluster.node("other")
    cluster.wrote(other, FACTS)
    cluster.start(b)
    while counting.at is not None:
        cluster.pass_(0.001, step=0.001)
    b.kill()
    b.upstream = "other"
    counting.joins.clear()
    cluster.start(b)
    cluster.pass_(5)

    assert [""] == [asked.join for asked in counting.joins]
    assert is_copy(other, b)


def test_a_filtered_copy_has_exactly_what_passes() -> None:
    """Also what came in pieces."""
    cluster = FakeCluster(piece=lambda size: min(size, 300))
    a = cluster.node("a")
    d = cluster.node("d", "a", upstream_streams=("to_device",))
    for number in range(30):
        cluster.append(a, 2)
        a.append("push_rules", [[[f"@p{number}"]]])
        cluster.pass_(0.05)
    cluster.pass_(5)

    assert [fact for fact in a.engine.facts if fact.stream == "to_device"] == d.engine.facts
    assert a.log.position == d.log.position


def test_a_changed_block_is_not_kept() -> None:
    """The connection ends, and what was changed is sent again."""
    flips = [3]

    def corrupt(data: bytes) -> bytes:
        at = data.find(b'"rows":[')
        if at < 0 or not flips[0] or len(data) < at + 14:
            return data
        flips[0] -= 1
        return data[: at + 12] + bytes([data[at + 12] ^ 1]) + data[at + 13 :]

    cluster = FakeCluster(corrupt=corrupt)
    a = cluster.node("a")
    cluster.wrote(a, FACTS)
    b = cluster.node("b", "a")
    cluster.pass_(10)

    assert 0 == flips[0]
    assert is_copy(a, b)


def test_a_snapshot_that_lacks_something_is_not_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong at the other end."""

    async def nothing(relay: Relay, snapshot: LogSnapshot) -> bool:
        return True

    monkeypatch.setattr(Relay, "_send_snapshot_facts", nothing)
    cluster, _, b, _ = built()
    cluster.start(b)
    cluster.pass_(5)

    assert b.replica is not None
    assert not b.replica.is_whole
    assert "disconnected" == b.replica.state


@pytest.mark.parametrize(
    ("serials", "why"),
    [
        ([1, 2, 3, 3], "unordered facts in the copy after serial 3"),
        ([1, 2, 1, 2], "unordered facts in the copy after serial 2"),
        ([*range(1, FACTS + 2)], f"announced up to serial {FACTS}, but serial {FACTS + 1} was sent"),
    ],
    ids=["twice", "again", "beyond"],
)
def test_a_snapshot_without_an_end_is_not_staged(
    monkeypatch: pytest.MonkeyPatch, serials: list[int], why: str
) -> None:
    """It said where it ends, so that what it takes of the disk is bounded; what came of it is dropped."""

    async def lying(relay: Relay, snapshot: LogSnapshot) -> bool:
        facts = [Fact(serial, 1, "to_device", "master", 0, serial, b"[]", 0, "d") for serial in serials]
        for fact in facts:
            relay.connection.write(facts_block("facts", [fact]))
        return True

    monkeypatch.setattr(Relay, "_send_snapshot_facts", lying)
    cluster, _, b, _ = built(upstream_streams=("to_device",))
    cluster.start(b)
    replica = b.replica
    assert replica is not None
    reasons = set()
    for _ in range(50):
        cluster.pass_(0.1)
        reasons.add(replica.why)

    assert any(why in reason for reason in reasons)
    assert "disconnected" == replica.state
    assert b.engine.staged is None
    assert not replica.is_whole


def test_a_copy_that_ends_elsewhere_is_not_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary says where it ends, and there it must."""
    monkeypatch.setattr(native, "Joined", lambda position: Joined(LogPosition(1, 99, position.digest)))
    cluster, _, b, _ = built()
    cluster.start(b)
    cluster.pass_(5)

    assert b.replica is not None
    assert not b.replica.is_whole


def test_a_lease_stands_before_the_snapshot_is_taken() -> None:
    """Or what it refers to could be trimmed in between (synchdb 256)."""
    cluster, a, b, _ = built()
    seen = []
    snapshot = a.log.copies.snapshot

    def looking() -> object:
        seen.append(a.leases.lowest())
        return snapshot()

    a.log.copies.snapshot = looking  # type: ignore[method-assign, assignment]
    cluster.start(b)
    cluster.pass_(3)

    assert [0] == seen
    assert FACTS == a.leases.lowest()


def test_a_copy_that_has_everything_takes_no_more_time() -> None:
    """Of 20 facts at 2 a second; the primary had announced 10, and others came meanwhile."""
    progress = joining_module.Progress(done=20, total=10, began=100.0, began_at=0)

    expected = {"done": 20, "total": 20, "rows_per_second": 2.0, "eta_seconds": 0.0}
    assert expected == progress.describe(110.0)
