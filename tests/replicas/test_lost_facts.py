"""A fact that the primary could not get, at its replicas."""

from synrepl.streams.facts import LOST
from tests.ingest.test_lost_facts import row
from tests.replicas.clusters import FakeCluster


def test_a_replica_has_the_hole() -> None:
    """It is in the log, as any other fact; joined, and live."""
    cluster = FakeCluster()
    a = cluster.node("a")
    early = cluster.node("b", "a")
    cluster.pass_(3)
    cluster.done(a.log.append_assigned("account_data", [("w5", 1, b"[%b]" % row("one")), ("w5", 3, LOST)]))
    late = cluster.node("c", "a")
    cluster.pass_(3)

    for node in (a, early, late):
        found = [(one.prev_token, one.token) for one in node.engine.facts if one.stream == "account_data"]
        assert [(0, 1), (3, 3)] == found
        assert 3 == node.log.positions("account_data")["w5"]
        assert a.log.position == node.log.position
