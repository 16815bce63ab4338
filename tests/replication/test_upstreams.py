"""Workers with several addresses: they follow the log, not a machine."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.streams.table import StreamTable
from synrepl.testing.cluster import DirectCatchUp, MemoryPositions
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT
from tests.raw_peer import RawPeer, raw_client
from tests.replication.nodes import FakeNode
from tests.replication.worlds import World

TO_DEVICE = StreamTable.default()["to_device"]


class Worker:
    """A worker that follows the nodes of these names, and remembers what it was given."""

    def __init__(
        self, world: World, *names: str, positions: MemoryPositions | None = None, name: str = "w"
    ) -> None:
        self.given: list[str] = []
        self.events: list[FollowerEvent] = []
        self.positions = positions or MemoryPositions()
        self.tried: list[str] = []
        self._world = world
        self._catch_up = DirectCatchUp(world.nodes[names[-1]], world.clock, lambda: 0.001)  # type: ignore[arg-type]
        self.follower = Follower(
            instance=name,
            clock=world.clock,
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
            clock=world.clock,
            metrics=Metrics(CollectorRegistry()),
            spread=lambda: 1.0,
            on_attempt=self._use,
        )
        self._factory.connect({one: MemoryEndpoint(world.network, name, one) for one in names})

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


def pair(world: World) -> tuple[FakeNode, FakeNode]:
    a, b = world.node("a"), world.node("b", "a")
    world.pass_(3)
    return a, b


def test_a_worker_goes_on_at_the_promoted_replica_when_its_primary_is_killed() -> None:
    """With each fact once, within a second."""
    world = World()
    a, b = pair(world)
    worker = Worker(world, "a", "b")
    world.wrote(a, 5)
    world.pass_(1)
    a.kill()
    world.promote(b, force=True)
    world.pass_(1)
    world.wrote(b, 5)
    world.pass_(1)

    assert users(range(1, 11)) == worker.given
    assert [] == worker.kinds("went_back", "restarted")
    assert ["a", "b"] == worker.tried


def test_a_fenced_primary_tells_its_workers_where_the_primary_is() -> None:
    """Without this they would stay, and hear nothing more."""
    world = World()
    a, b = pair(world)
    c = world.node("c", "a")
    world.pass_(3)
    worker = Worker(world, "a", "c", "b")
    world.wrote(a, 5)
    world.pass_(1)
    world.promote(b)
    world.pass_(2)
    world.wrote(b, 5)
    world.pass_(1)

    (moved,) = worker.kinds("moved")
    assert "a is not to be followed now (fenced): the primary is now at b" == moved.text
    assert ["a", "b"] == worker.tried
    assert users(range(1, 11)) == worker.given
    assert c.is_running


def test_an_address_that_is_not_in_the_list_is_reported_and_never_dialled() -> None:
    """A server must not be able to send workers elsewhere."""
    world = World()
    a, b = pair(world)
    worker = Worker(world, "a")
    world.wrote(a, 5)
    world.pass_(1)
    world.promote(b)
    world.pass_(5)
    world.wrote(b, 5)
    world.pass_(1)

    assert "b, which is not in this worker's list" in worker.kinds("moved")[0].text
    assert {"a"} == set(worker.tried)
    assert users(range(1, 6)) == worker.given


def test_facts_that_the_promoted_copy_never_had_are_reported_as_lost() -> None:
    """And those that have taken their tokens are not missed."""
    world = World()
    a, b = pair(world)
    worker = Worker(world, "a", "b")
    world.wrote(a, 5)
    world.pass_(1)
    b.kill()
    world.wrote(a, 3)
    world.pass_(1)
    a.kill()
    world.start(b)
    world.promote(b, force=True)
    world.wrote(b, 4)
    world.pass_(3)

    (lost,) = worker.kinds("went_back")
    assert ("to_device", "master", 5) == (lost.stream, lost.writer, lost.token)
    assert "are lost" in lost.text
    assert users(range(1, 13)) == worker.given
    assert {"master": 9} == worker.follower.positions()["to_device"]


def test_a_copy_that_lags_may_not_know_a_writer_whose_facts_the_worker_has() -> None:
    """It announces no position of that writer; what it gets later is not taken for rows before a gap."""
    world = World()
    apart: set[tuple[str, str]] = set()
    world.network.reaches = lambda client, address: (client, address) not in apart
    a, _ = pair(world)
    worker = Worker(world, "a", "b")
    world.wrote(a, 2)
    world.pass_(1)

    def part(client: str) -> None:
        apart.add((client, "a"))
        for link in world.network.links_of(client):
            if "a" in (link.client._name, link.server._name):
                link.cut()

    part("b")
    world.done(a.append("to_device", [[["@u3"]], [["@u4"]]], writer="late"))
    world.pass_(1)
    assert users(range(1, 5)) == worker.given
    part("w")
    world.pass_(2)
    assert "b" == worker.tried[-1]
    world.done(a.append("to_device", [[["@u5"]], [["@u6"]]], writer="late"))
    apart.clear()
    world.pass_(15)

    assert users(range(1, 7)) == worker.given
    assert [] == worker.kinds("went_back", "restarted")


def test_lost_facts_are_found_even_if_their_tokens_were_passed_already() -> None:
    """The tokens alone would say that nothing is missing."""
    world = World()
    a, b = pair(world)
    worker = Worker(world, "a", "b")
    world.wrote(a, 5)
    world.pass_(1)
    b.kill()
    world.wrote(a, 3)
    world.pass_(1)
    a.kill()
    worker.stop()
    world.start(b)
    world.promote(b, force=True)
    world.wrote(b, 20)
    restarted = Worker(world, "a", "b", positions=worker.positions)
    world.pass_(3)

    assert [5] == [event.token for event in restarted.kinds("went_back")]
    assert users(range(9, 29)) == restarted.given


def test_a_worker_of_a_later_epoch_is_not_served_by_a_primary_that_does_not_know_it() -> None:
    """It would be sent back to a history that is lost."""
    world = World(reaches=lambda client, address: (client, address) != ("b", "a"))
    a = world.node("a")
    cut = False
    world.network.reaches = lambda client, address: not (cut and {client, address} == {"a", "b"})
    b = world.node("b", "a", can_reach=lambda ours, theirs: not cut)
    world.pass_(3)
    worker = Worker(world, "b", "a")
    world.wrote(a, 5)
    world.pass_(1)
    cut = True
    for link in b.links():
        if "a" in (link.client._name, link.server._name):
            link.cut()
    world.promote(b, force=True)
    world.wrote(b, 2)
    world.pass_(1)
    b.kill()
    world.pass_(3)

    assert "primary" == a.roles.role
    assert any("another daemon was promoted" in event.text for event in worker.kinds("error"))
    assert any("(other_epoch)" in event.text for event in worker.kinds("moved"))
    assert users(range(1, 8)) == worker.given


def test_an_accepting_but_silent_server_is_left_for_the_next_one() -> None:
    """A stopped process still accepts connections."""
    world = World()
    a, _ = pair(world)
    world.wrote(a, 2)
    world.network.listen("silent", _silent())
    worker = Worker(world, "silent", "a")
    world.pass_(5)

    assert ["silent", "a"] == worker.tried
    assert users([1, 2]) == worker.given


def _silent() -> Any:
    from twisted.internet.protocol import Factory, Protocol

    return Factory.forProtocol(Protocol)


def follower(world: World, node: str, *lines: str) -> RawPeer:
    """A Synapse worker, or whoever says these lines."""
    peer = raw_client(world.network, node)
    world.pass_(0.1)
    peer.says(*lines)
    world.pass_(0.2)
    return peer


def test_synapse_is_only_sent_lines_that_it_knows() -> None:
    """An unknown one would end its connection with an error in its log."""
    world = World()
    a, b = pair(world)
    world.wrote(a, 2)
    theirs = follower(world, "a", "NAME worker1", "REPLICATE ")
    ours = follower(world, "a", "NAME worker1 synrepl/1", "REPLICATE ")
    world.promote(b)
    world.pass_(2)

    words = [{line.split()[0] for line in peer.hears()} for peer in (theirs, ours)]
    assert {"SERVER", "POSITION", "ERROR"} <= words[0]
    assert not {"EPOCH", "REWIND", "MOVED"} & words[0]
    assert {"EPOCH", "MOVED"} <= words[1]
    assert not theirs.is_connected


def test_a_fenced_daemon_refuses_synapse() -> None:
    """So that it connects again, through its proxy."""
    world = World()
    _, b = pair(world)
    world.promote(b)
    world.pass_(2)
    peer = follower(world, "a", "NAME worker1", "REPLICATE ")

    assert any(line.startswith("ERROR this daemon is fenced") for line in peer.hears())
    assert not peer.is_connected
