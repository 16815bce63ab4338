"""Writes that are posted to a replica: passed on to its primary, unless it has stopped."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from synrepl.replicas.http.peer_clients import PeerHttp
from synrepl.replicas.part import make_write_forwarder
from synrepl.replicas.replica.replica import RESYNC
from synrepl.replicas.write_forwarder import WriteForwarder
from synrepl.replication.hooks import Posted, PostedPart
from synrepl.storage.append_errors import ReadOnlyHere
from tests.replicas.addresses import open_addresses
from tests.replicas.clusters import FakeCluster


def stopped() -> WriteForwarder:
    """Of a replica with another log than its upstream's."""
    cluster = FakeCluster()
    cluster.wrote(cluster.node("a"), 1)
    node = cluster.node("b")
    cluster.wrote(node, 1)
    node.kill()
    node.upstream = "a"
    cluster.start(node)
    cluster.pass_(3)
    return make_write_forwarder(node.log, node.roles, None, PeerHttp(Clock(), open_addresses()))


def failure_of(asked: Any) -> BaseException | None:
    """Why this was refused at once."""
    failures: list[Failure] = []
    Deferred.fromCoroutine(asked).addErrback(failures.append)
    return failures[0].value


def test_a_write_to_a_stopped_replica_is_refused_at_once() -> None:
    """It would be stored at a primary of another history, and waited for here in vain."""
    passing = stopped()

    answered = failure_of(passing.forward(Posted(parts=[PostedPart("to_device", [])]), None))  # type: ignore[arg-type]
    told = failure_of(passing.append("caches", [b"[]"]))

    assert isinstance(answered, ReadOnlyHere)
    assert ("stopped", False) == (answered.code, answered.retryable)
    assert isinstance(told, ReadOnlyHere)
    for error in (answered, told):
        assert "nothing was stored" in str(error)
        assert RESYNC in str(error)
