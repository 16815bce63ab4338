"""Replicas of replicas with several upstreams: the first that has the log and answers, and never a circle."""

from typing import Any

import pytest

from tests.memory_engine import FaultyEngine
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


class Disk:
    """A disk that is slow for as long as a test wants."""

    def __init__(self) -> None:
        self.delay = 0.0005

    def __call__(self) -> float:
        return self.delay


def siblings(cluster: FakeCluster, **options: Any) -> tuple[FakeNode, FakeNode, FakeNode, FakeNode]:
    """a, its replicas b1 and b2, and c, which follows these in this order."""
    a = cluster.node("a")
    b1 = cluster.node("b1", "a")
    b2 = cluster.node("b2", "a", **options)
    c = cluster.node("c", ["b1", "b2"])  # type: ignore[arg-type]
    cluster.pass_(3)
    return a, b1, b2, c


def pair(cluster: FakeCluster) -> tuple[FakeNode, FakeNode]:
    """a with some facts, and its replica c, which has them."""
    a, c = cluster.node("a"), cluster.node("c", "a")
    cluster.wrote(a, 5)
    cluster.pass_(3)
    return a, c


def restarted(cluster: FakeCluster, node: FakeNode, *upstreams: str) -> None:
    """Kill it, and start it with these upstreams."""
    node.kill()
    node.upstream = upstreams
    cluster.start(node)


def state(node: FakeNode) -> str:
    """What it does as a replica."""
    assert node.replica is not None
    return str(node.replica.state)


def test_the_next_one_goes_on_where_the_first_ended() -> None:
    """And nothing is copied again."""
    cluster = FakeCluster()
    a, b1, b2, c = siblings(cluster)
    cluster.wrote(a, 5)
    cluster.pass_(1)
    joined = c.log.boots
    b1.kill()
    cluster.wrote(a, 5)
    cluster.pass_(5)

    assert (10, "live", "b2") == (c.log.head.serial, state(c), c.replica.upstream.where.native)  # type: ignore[union-attr]
    assert joined == c.log.boots
    assert [b2] == [node for node in (a, b2) if node.registry.is_followed_by(c.log.uuid)]


def test_one_that_lags_is_waited_for() -> None:
    """It looked as if this copy had facts that nobody has: it stopped for ever."""
    cluster, disk = FakeCluster(), Disk()
    a, b1, b2, c = siblings(cluster, disk_delay=disk)
    b2.registry.leases.add(c.log.uuid, "c")
    disk.delay = 4.0
    cluster.wrote(a, 5)
    cluster.pass_(0.5)
    assert [5, 5, 0, 5] == [node.log.head.serial for node in (a, b1, b2, c)]
    b1.kill()
    refused: list[str] = []
    for _ in range(100):
        cluster.pass_(0.05)
        assert c.replica is not None
        if c.replica.refusal is not None:
            refused.append(c.replica.refusal.code)
            assert [None] == [one.ended_ms for one in b2.leases.all()]
    assert {"ahead"} == set(refused)
    disk.delay = 0.0005

    cluster.pass_(10)
    cluster.wrote(a)
    cluster.pass_(1)

    assert (6, "live") == (c.log.head.serial, state(c))


def test_one_that_has_everything_is_believed() -> None:
    """The primary was restored from an older copy: what c has is nowhere else."""
    cluster = FakeCluster()
    a, b1, b2, c = siblings(cluster)
    cluster.wrote(a, 5)
    cluster.pass_(1)
    older = a.engine.copy()
    cluster.wrote(a, 5)
    cluster.pass_(1)
    for node in (a, b1, b2):
        node.kill()
    a.engine, b2.engine = older, FaultyEngine()
    for node in (a, b2):
        cluster.start(node)
    cluster.pass_(10)

    assert (5, 10, "stopped") == (b2.log.head.serial, c.log.head.serial, state(c))
    assert c.replica is not None
    assert "ahead" in c.replica.why


def test_one_with_another_log_is_passed_over() -> None:
    """The list is there to find the log."""
    cluster = FakeCluster()
    cluster.wrote(cluster.node("other"))
    a, c = pair(cluster)
    restarted(cluster, c, "other", "a")
    cluster.wrote(a)
    cluster.pass_(5)

    assert (6, "live") == (c.log.head.serial, state(c))


def test_a_list_of_other_logs_stops_it() -> None:
    """Then an operator must look."""
    cluster = FakeCluster()
    for name in ("other1", "other2"):
        cluster.wrote(cluster.node(name))
    _, c = pair(cluster)
    restarted(cluster, c, "other1", "other2")
    cluster.pass_(5)

    assert "stopped" == state(c)
    assert c.replica is not None
    assert "other_history" in c.replica.why


@pytest.mark.parametrize(
    ("upstream", "whys"),
    [
        ("b", ["b is this daemon itself, or has a copy of its log"]),
        ("c", ["c follows this daemon:", "b follows this daemon:"]),
        ("d", [f"{name} follows this daemon, through 1 other daemon" for name in "bd"]),
    ],
)
def test_a_circle_is_refused_by_name(upstream: str, whys: list[str]) -> None:
    """All in it would wait for each other, and call themselves up to date."""
    cluster = FakeCluster()
    a, b, _ = cluster.chain()
    cluster.node("d", "c")
    cluster.wrote(a, 5)
    cluster.pass_(3)
    restarted(cluster, b, upstream)
    cluster.pass_(3)

    # Whoever closes the circle is refused: b itself, or one that comes back after b has found it.
    nodes = [cluster.nodes[name] for name in "bcd"]
    refusals = [node.replica.refusal.message for node in nodes if node.replica and node.replica.refusal]
    assert any(why in refusal for why in whys for refusal in refusals), refusals
    assert ["live"] * 3 != [state(node) for node in nodes]


def test_a_list_with_a_circle_goes_on_to_the_next() -> None:
    """An operator has named all daemons at each."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", ["c", "a"])  # type: ignore[arg-type]
    c = cluster.node("c", ["b", "a"])  # type: ignore[arg-type]
    cluster.wrote(a, 5)
    cluster.pass_(10)

    assert [5, 5] == [node.log.head.serial for node in (b, c)]
    assert ["live", "live"] == [state(node) for node in (b, c)]
    followed = {node.name: node.replica.upstream.where.native for node in (b, c) if node.replica is not None}
    assert followed != {"b": "c", "c": "b"}
