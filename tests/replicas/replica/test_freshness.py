"""Whether a replica may be read as current."""

from tests.memory_engine import FaultyEngine
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


def staleness(node: FakeNode) -> str:
    """Why its copy may not be what the primary has."""
    assert node.replica is not None
    assert node.replica.is_whole
    return node.replica.staleness(60.0)


def test_a_copy_is_current_once_its_upstream_has_accepted_it() -> None:
    """Before that it may have facts that the primary has lost."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a)
    cluster.pass_(2)
    assert "" == staleness(b)
    b.kill()
    a.kill()
    cluster.start(b)
    cluster.pass_(2)
    before = staleness(b)
    cluster.start(a)
    cluster.pass_(12)

    assert "not compared with its upstream" in before
    assert "" == staleness(b)


def test_a_copy_of_a_lost_history_is_never_current() -> None:
    """The primary has another log in the place of the one that was copied."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a, 3)
    cluster.pass_(2)
    b.kill()
    a.kill()
    a.engine = FaultyEngine()
    cluster.start(a)
    cluster.wrote(a, 5)
    started = b.start()
    told = set()
    for _ in range(300):
        cluster.pass_(0.01)
        if started.called:
            told.add(staleness(b))

    assert all(told)
    assert b.replica is not None
    assert "stopped" == b.replica.state
