"""Whether a replica may be read as current."""

import json

import pytest

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.wire.native import Heartbeat
from tests.memory_engine import FaultyEngine
from tests.raw_peer import raw_server
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode
from tests.replicas.replica.test_hostile import WELCOME

NOT_COMPARED = "this copy was not compared with its upstream since the start"


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


def test_a_copy_that_is_joined_again_is_not_current() -> None:
    """It was current; then its upstream showed that it has lost what this copy has."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a, 3)
    lost = a.engine.copy()
    cluster.wrote(a, 3)
    cluster.pass_(2)
    a.kill()
    a.engine = lost
    cluster.start(a)
    cluster.wrote(a)
    cluster.pass_(2)
    assert b.replica is not None
    assert "stopped" == b.replica.state
    assert cluster.resync(b)
    told = []
    while b.log.position != a.log.position:
        told.append(staleness(b))
        cluster.pass_(0.01)
    cluster.pass_(2)

    assert all(one.startswith(NOT_COMPARED) for one in told)
    assert "" == staleness(b)


@pytest.mark.parametrize("a_returns", ["lost", "kept"])
def test_a_copy_of_a_copy_is_current_once_both_are_compared(a_returns: str) -> None:
    """The replica between them knows as little as this one while it does not reach the primary."""
    cluster = FakeCluster()
    a, b, c = cluster.chain(listed=[])
    cluster.wrote(a, 3)
    lost = a.engine.copy()
    cluster.wrote(a, 3)
    cluster.pass_(2)
    for node in (c, b, a):
        node.kill()
    cluster.start(b)
    cluster.start(c)
    cluster.pass_(3)
    assert c.replica is not None
    before = (c.replica.state, staleness(c))
    a.engine = lost if a_returns == "lost" else a.engine
    cluster.start(a)
    told = set()
    for _ in range(2_000):
        cluster.pass_(0.01)
        told.add(staleness(c))

    assert ("live", f"{NOT_COMPARED}: the upstream does not reach the primary") == before
    assert ("" in told) is (a_returns == "kept")


def test_an_upstream_that_is_away_is_named_in_the_reason() -> None:
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a)
    cluster.pass_(2)
    b.kill()
    a.kill()
    b.start()
    while not b.is_running:
        cluster.pass_(0.001, step=0.001)
    before = b.roles.is_settled, staleness(b)
    cluster.pass_(2)

    assert (False, NOT_COMPARED) == before
    assert b.roles.is_settled
    assert staleness(b).startswith(f"{NOT_COMPARED}: a cannot be reached: ")


def test_only_who_has_accepted_the_position_certifies_the_copy() -> None:
    """LINKED before SUBSCRIBED says nothing of this copy."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a)
    cluster.pass_(2)
    a.kill()
    b.kill()
    welcome = WELCOME | {"history": a.log.history, "uuid": a.log.uuid}
    peers = raw_server(cluster.network, "a")
    cluster.start(b)
    (peer,) = peers
    peer.says("WELCOME " + json.dumps(welcome), "LINKED 1")
    cluster.pass_(0.1)

    assert "unexpected Linked" in staleness(b)


def test_another_digest_at_the_same_serial_ends_the_certificate() -> None:
    """The heartbeats of an upstream tell where it is."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.wrote(a)
    cluster.pass_(2)
    assert b.replica is not None
    freshness, position = b.replica.freshness, b.log.position
    before = freshness.is_compared
    beat = Heartbeat(
        epoch=1, serial=position.serial, digest="ff" * 32, head=position.serial, at_ms=1, check=""
    )
    with pytest.raises(RemoteProtocolError, match="the histories differ"):
        freshness.committed(beat)

    assert (True, False) == (before, freshness.is_compared)
