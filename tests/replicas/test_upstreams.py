"""Workers with several addresses: they follow the log, not a machine."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.streams.table import StreamTable
from synrepl.testing.cluster import DirectCatchUp, MemoryPositions
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT
from tests.raw_peer import RawPeer, raw_client
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode

TO_DEVICE = StreamTable.default()["to_device"]


class Worker:
    """A worker that follows the nodes of these names, and remembers what it was given."""

    def __init__(
        self, cluster: FakeCluster, *names: str, positions: MemoryPositions | None = None, name: str = "w"
    ) -> None:
        self.given: list[str] = []
        self.events: list[FollowerEvent] = []
        self.positions = positions or MemoryPositions()
        self.tried: list[str] = []
        self._world = cluster
        self._catch_up = DirectCatchUp(cluster.nodes[names[-1]], cluster.clock, lambda: 0.001)  # type: ignore[arg-type]
        self.follower = Follower(
            instance=name,
            clock=cluster.clock,
            positions=self.positions,
            catch_up=self._catch_up,
            start="earliest",
        )
        self.follower.on(TO_DEVICE)(self._apply)
        self.follower.on_event(self.events.append)
        self._factory = FollowerFactory(
            self.follower,
            dialect=CURRENT,
            expected_server="hs",
            clock=cluster.clock,
            metrics=Metrics(CollectorRegistry()),
            on_attempt=self._use,
        )
        self._factory.jitter = 0.0
        self._factory.connect({one: MemoryEndpoint(cluster.network, name, one) for one in names})

    def _use(self, address: str) -> None:
        self.tried.append(address)
        if address in self._world.nodes:
            self._catch_up.daemon = self._world.nodes[address]  # type: ignore[assignment]

    def _apply(self, updates: Updates[Any]) -> None:
        self.given += [row.entity for row in updates.rows]

    def kinds(self, *kinds: str) -> list[FollowerEvent]:
        return [event for event in self.events if event.kind in kinds]

    def stop(self) -> None:
        self._factory.stop()
        self.follower.stop()


def users(numbers: Sequence[int]) -> list[str]:
    return [f"@u{number}" for number in numbers]


def pair(cluster: FakeCluster) -> tuple[FakeNode, FakeNode]:
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.pass_(3)
    return a, b


def lose_the_last(cluster: FakeCluster, a: FakeNode, b: FakeNode, count: int) -> None:
    """The primary `a` is lost, with so many facts that `b` never had; `b` is promoted."""
    b.kill()
    cluster.wrote(a, count)
    cluster.pass_(1)
    a.kill()
    cluster.start(b)
    cluster.promote(b, force=True)


def test_a_worker_goes_on_at_the_promoted_replica_when_its_primary_is_killed() -> None:
    """With each fact once, within a second."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    worker = Worker(cluster, "a", "b")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    a.kill()
    cluster.promote(b, force=True)
    cluster.pass_(1)
    cluster.wrote(b, 5)
    cluster.pass_(1)

    assert users(range(1, 11)) == worker.given
    assert [] == worker.kinds("went_back", "restarted")
    assert ["a", "b"] == worker.tried


def test_a_fenced_primary_tells_its_workers_where_the_primary_is() -> None:
    """Without this they would stay, and hear nothing more."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    c = cluster.node("c", "a")
    cluster.pass_(3)
    worker = Worker(cluster, "a", "c", "b")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    cluster.promote(b)
    cluster.pass_(2)
    cluster.wrote(b, 5)
    cluster.pass_(1)

    (moved,) = worker.kinds("moved")
    assert "a is not to be followed now (fenced): the primary is now at b" == moved.text
    assert ["a", "b"] == worker.tried
    assert users(range(1, 11)) == worker.given
    assert c.is_running


def test_an_address_that_is_not_in_the_list_is_reported_and_never_dialled() -> None:
    """A server must not be able to send workers elsewhere."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    worker = Worker(cluster, "a")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    cluster.promote(b)
    cluster.pass_(5)
    cluster.wrote(b, 5)
    cluster.pass_(1)

    assert "b, which is not in this worker's list" in worker.kinds("moved")[0].text
    assert {"a"} == set(worker.tried)
    assert users(range(1, 6)) == worker.given


def test_facts_that_the_promoted_copy_never_had_are_reported_as_lost() -> None:
    """And those that have taken their tokens are not missed."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    worker = Worker(cluster, "a", "b")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    lose_the_last(cluster, a, b, 3)
    cluster.wrote(b, 4)
    cluster.pass_(3)

    (lost,) = worker.kinds("went_back")
    assert ("to_device", "master", 5) == (lost.stream, lost.writer, lost.token)
    assert "are lost" in lost.text
    assert users(range(1, 13)) == worker.given
    assert {"master": 9} == worker.follower.positions()["to_device"]


def test_a_promoted_copy_without_any_fact_takes_all_facts_back() -> None:
    """It has no writer to name. Upstreams 10: the worker kept facts that no log had any more."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    worker = Worker(cluster, "a", "b")
    cluster.pass_(1)
    lose_the_last(cluster, a, b, 3)
    cluster.pass_(3)

    (lost,) = worker.kinds("went_back")
    assert ("to_device", "master", 0) == (lost.stream, lost.writer, lost.token)
    cluster.wrote(b, 2)
    cluster.pass_(1)
    assert users(range(1, 6)) == worker.given


def test_a_copy_that_lags_may_not_know_a_writer_whose_facts_the_worker_has() -> None:
    """It announces no position of that writer; what it gets later is not taken for rows before a gap."""
    cluster = FakeCluster()
    apart: set[tuple[str, str]] = set()
    cluster.network.reaches = lambda client, address: (client, address) not in apart
    a, _ = pair(cluster)
    worker = Worker(cluster, "a", "b")
    cluster.wrote(a, 2)
    cluster.pass_(1)

    def part(client: str) -> None:
        apart.add((client, "a"))
        for link in cluster.network.links_of(client):
            if "a" in (link.client._name, link.server._name):
                link.cut()

    part("b")
    cluster.done(a.append("to_device", [[["@u3"]], [["@u4"]]], writer="late"))
    cluster.pass_(1)
    assert users(range(1, 5)) == worker.given
    part("w")
    cluster.pass_(2)
    assert "b" == worker.tried[-1]
    cluster.done(a.append("to_device", [[["@u5"]], [["@u6"]]], writer="late"))
    apart.clear()
    cluster.pass_(15)

    assert users(range(1, 7)) == worker.given
    assert [] == worker.kinds("went_back", "restarted")


def test_lost_facts_are_found_even_if_their_tokens_were_passed_already() -> None:
    """The tokens alone would say that nothing is missing."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    worker = Worker(cluster, "a", "b")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    b.kill()
    cluster.wrote(a, 3)
    cluster.pass_(1)
    a.kill()
    worker.stop()
    cluster.start(b)
    cluster.promote(b, force=True)
    cluster.wrote(b, 20)
    restarted = Worker(cluster, "a", "b", positions=worker.positions)
    cluster.pass_(3)

    assert [5] == [event.token for event in restarted.kinds("went_back")]
    assert users(range(9, 29)) == restarted.given


def test_a_worker_of_a_later_epoch_is_not_served_by_a_primary_that_does_not_know_it() -> None:
    """It would be sent back to a history that is lost."""
    cluster = FakeCluster(reaches=lambda client, address: (client, address) != ("b", "a"))
    a = cluster.node("a")
    cut = False
    cluster.network.reaches = lambda client, address: not (cut and {client, address} == {"a", "b"})
    b = cluster.node("b", "a", can_reach=lambda ours, theirs: not cut)
    cluster.pass_(3)
    worker = Worker(cluster, "b", "a")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    cut = True
    for link in b.links():
        if "a" in (link.client._name, link.server._name):
            link.cut()
    cluster.promote(b, force=True)
    cluster.wrote(b, 2)
    cluster.pass_(1)
    b.kill()
    cluster.pass_(3)

    assert "primary" == a.roles.role
    assert any("another daemon was promoted" in event.text for event in worker.kinds("error"))
    assert any("(other_epoch)" in event.text for event in worker.kinds("moved"))
    assert users(range(1, 8)) == worker.given


def test_an_accepting_but_silent_server_is_left_for_the_next_one() -> None:
    """A stopped process still accepts connections."""
    cluster = FakeCluster()
    a, _ = pair(cluster)
    cluster.wrote(a, 2)
    cluster.network.listen("silent", _silent())
    worker = Worker(cluster, "silent", "a")
    cluster.pass_(5)

    assert ["silent", "a"] == worker.tried
    assert users([1, 2]) == worker.given


def _silent() -> Any:
    from twisted.internet.protocol import Factory, Protocol

    return Factory.forProtocol(Protocol)


def follower(cluster: FakeCluster, node: str, *lines: str) -> RawPeer:
    """A Synapse worker, or whoever says these lines."""
    peer = raw_client(cluster.network, node)
    cluster.pass_(0.1)
    peer.says(*lines)
    cluster.pass_(0.2)
    return peer


def test_synapse_is_only_sent_lines_that_it_knows() -> None:
    """An unknown one would end its connection with an error in its log."""
    cluster = FakeCluster()
    a, b = pair(cluster)
    cluster.wrote(a, 2)
    theirs = follower(cluster, "a", "NAME worker1", "REPLICATE ")
    ours = follower(cluster, "a", "NAME worker1 synrepl/1", "REPLICATE ")
    cluster.promote(b)
    cluster.pass_(2)

    words = [{line.split()[0] for line in peer.hears()} for peer in (theirs, ours)]
    assert {"SERVER", "POSITION", "ERROR"} <= words[0]
    assert not {"EPOCH", "REWIND", "MOVED"} & words[0]
    assert {"EPOCH", "MOVED"} <= words[1]
    assert not theirs.is_connected


def test_a_fenced_daemon_refuses_synapse() -> None:
    """So that it connects again, through its proxy."""
    cluster = FakeCluster()
    _, b = pair(cluster)
    cluster.promote(b)
    cluster.pass_(2)
    peer = follower(cluster, "a", "NAME worker1", "REPLICATE ")

    assert any(line.startswith("ERROR this daemon is fenced") for line in peer.hears())
    assert not peer.is_connected
