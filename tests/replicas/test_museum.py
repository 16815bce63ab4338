"""Bugs of copies of a log: leases, snapshots, tails, bodies that pass through."""

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.errors import StorageError
from synrepl.replicas.native_client import MAX_QUEUED_BYTES, NativeConversation
from synrepl.replicas.wire.blocks import Payload
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.http.builders import receipt
from tests.memory_engine import FaultyEngine
from tests.replicas.clusters import FakeCluster
from tests.replicas.http.test_write_forwarder import RelayCase
from tests.replicas.nodes import FakeNode
from tests.replicas.relay.test_refusals import PINNED, known, trim
from tests.replicas.relay.test_sending import MOST
from tests.storage.builders import DISK_FULL, LogCase, rows


def test_a_lease_that_was_created_again_hides_no_gap() -> None:
    """Case 25, Debezium DBZ-5739: a slot was dropped and created again. The reader skipped facts without an
    error.

    Here: a reader states its position. If its facts are gone, it is refused, even if a lease of its name
    exists.
    """
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 10)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)
    raw.transport.abortConnection()
    cluster.wrote(a, 10)
    digest = cluster.done(Deferred.fromCoroutine(_digest(a, 10)))

    assert a.leases.drop("raw") is not None
    a.leases.add(PINNED, "raw")
    trim(cluster, a, 15)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, 10, digest))

    assert "trimmed" == raw.refusal()["code"]
    assert [] == raw.blocks("facts")


async def _digest(node: FakeNode, serial: int) -> str:
    found = await node.log.reads.digest(serial)
    assert found is not None
    return found


def test_nothing_is_lost_between_snapshot_and_tail() -> None:
    """Case 26, synchdb #256: the slot was created after the snapshot. Facts committed in between were lost.

    Here: the lease is created before the snapshot is taken. Facts written and trimmed meanwhile are in the
    copy.
    """
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40)
    b = cluster.node("b", "a", start=False)
    leases = []
    snapshot = a.log.copies.snapshot

    def snapshot_with_a_writer_beside() -> object:
        leases.append(a.leases.lowest())
        taken = snapshot()
        cluster.append(a, 10)
        return taken

    a.log.copies.snapshot = snapshot_with_a_writer_beside  # type: ignore[method-assign, assignment]
    cluster.start(b)
    cluster.pass_(3)

    assert [0] == leases
    assert 50 == b.log.head.serial
    assert a.engine.facts == b.engine.facts


def test_a_useless_position_pins_no_facts() -> None:
    """Case 27, Tarantool #13209: a replica named a position that no log had. It kept all logs from being
    trimmed from then on.

    Here: a reader that is refused and must join again loses its lease.
    """
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 5)
    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome)
    raw.transport.abortConnection()
    cluster.wrote(a, 5)
    pinned = a.leases.lowest()

    raw, welcome = known(cluster, a)
    raw.subscribe(cluster, welcome, LogPosition(1, 5, "d" * 64))

    assert (5, "fork") == (pinned, raw.refusal()["code"])
    assert a.leases.lowest() is None


def test_a_join_slower_than_the_writes_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 28, Tarantool #5536: a replica read faster than its disk could write, and ran out of memory.

    Here: the memory for received facts is bounded, at the replica and at the primary. The replica catches up
    once writes slow down.
    """
    cluster = FakeCluster()
    a = cluster.node("a", ring_bytes=10_000)
    cluster.wrote(a, 20_000)
    slow = [0.0005]
    b = cluster.node("b", "a", start=False, disk_delay=lambda: slow[0])
    held: list[int] = []
    block = NativeConversation.block

    def watched(conversation: NativeConversation, payload: Payload) -> None:
        block(conversation, payload)
        held.append(conversation.size)

    monkeypatch.setattr(NativeConversation, "block", watched)
    cluster.start(b)
    slow[0] = 0.3
    for _ in range(40):
        cluster.wrote(a, 2_000)
        cluster.pass_(0.1)
    behind = a.log.head.serial - b.log.head.serial
    slow[0] = 0.0005
    cluster.pass_(30)

    assert a.log.position == b.log.position
    assert behind > 10_000
    assert max(held) < 1.25 * MAX_QUEUED_BYTES
    assert max(link.server.most_buffered for link in b.links()) < MOST


class TailTests(LogCase):
    """The end of the log, when a write of it fails."""

    def test_a_reader_is_not_stuck_behind_a_failed_write(self) -> None:
        """Case 29, Tarantool #3830: a failed write cut off the tail of the log. Readers waited behind it.

        Here: a failed group leaves no hole, the next one takes its serials, and readers go on.
        """
        engine = FaultyEngine()
        log = self.started(engine, delay=lambda: 0.1)
        seen: list[Fact] = []
        log.subscribe(seen.extend)
        self.append(log, "events", "w1", rows("a"))

        for kept in (False, True):
            engine.fail_next(DISK_FULL, kept=kept)
            failed: Deferred[Any] = log.append("events", "w1", [rows("b"), rows("c")])
            following = log.append("events", "w2", [rows("d")])
            self.clock.pump([0.1] * 10)
            self.failureResultOf(failed, StorageError)
            self.successResultOf(following)

        read, upto = self.wait(log.reads.facts(after=0, upto=log.head.serial, limit=100))
        self.assertEqual([1, 2, 3, 4, 5], [fact.serial for fact in seen])
        self.assertEqual((seen, 5), (list(read), upto))
        self.assertIsNone(verify(engine.facts, EMPTY))


def test_an_idle_replica_is_listed() -> None:
    """Case 30, devpi #1124: a fully caught-up replica disappeared from the status page.

    Here: it is listed as idle, and as lost once it is gone.
    """
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a")
    cluster.pass_(2)
    cluster.wrote(a, 1)

    cluster.pass_(90, step=0.1)
    idle = [one["state"] for one in a.registry.status()]
    b.kill()
    cluster.pass_(1)

    assert (["idle"], ["lost"]) == (idle, [one["state"] for one in a.registry.status()])


class BodyTests(RelayCase):
    """A writer whose daemon is a replica."""

    def test_a_large_body_passes_through_a_replica_whole(self) -> None:
        """Case 32, devpi #1102: after a change of the client library, a relayed body was cut off at 64 KB.

        Here: every byte of it reaches the primary, however it is split in transit.
        """
        facts: list[list[Any]] = [[receipt(f"@{'u' * 900}{number}:hs")] for number in range(300)]
        body = json.dumps({"facts": facts}).encode()
        whole = self.request("POST", "/v1/streams/receipts/facts", body)
        talk = self.talk()

        for start in range(0, len(whole), 1_000):
            talk.say(whole[start : start + 1_000])
        self.clock.advance(0)  # a large body is validated in a turn of its own
        self.feed()

        self.assertGreater(len(body), 4 * 65_536)
        self.assertEqual(200, talk.answer().status)
        ((relayed, _),) = self.primary.asked
        self.assertEqual(facts, json.loads(relayed)["facts"])
        self.assertEqual(
            [self.table["receipts"].canonical_fact(fact) for fact in facts],
            [fact.rows for fact in self.primary_engine.facts],
        )
