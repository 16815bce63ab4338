"""How often a replica asks its upstream again: soon, then later and later, and not where that cannot help."""

from itertools import pairwise
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from synrepl.replicas.replica.conversation import IConversation, IUpstream
from synrepl.replication.addresses import Address
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


class Attempts:
    """An upstream that remembers when it was tried."""

    def __init__(self, upstream: IUpstream, clock: Any) -> None:
        self.where: Address = upstream.where
        self.times: list[float] = []
        self._upstream = upstream
        self._clock = clock

    async def connect(self, uuid: str, name: str) -> IConversation:
        self.times.append(self._clock.seconds())
        return await self._upstream.connect(uuid, name)

    def pauses(self) -> list[float]:
        """The seconds between one attempt and the next."""
        return [round(later - earlier, 1) for earlier, later in pairwise(self.times)]


class Dropping(Protocol):
    """Accepts a connection, and drops it."""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


def followed() -> tuple[FakeCluster, FakeNode, FakeNode, Attempts]:
    """A primary, a replica that follows it, and the replica's attempts from now on."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.pass_(2)
    assert b.replica is not None
    assert "live" == b.replica.state
    attempts = Attempts(b.replica.upstream, cluster.clock)
    b.replica._upstreams.current = attempts
    return cluster, a, b, attempts


def test_the_pauses_grow_and_are_bounded() -> None:
    """A primary that is away for a night is asked some 3,000 times, and found within ten seconds."""
    cluster, a, _, attempts = followed()
    a.kill()
    cluster.pass_(60)

    pauses = attempts.pauses()
    assert [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0] == pauses[:7]
    assert 10.0 == max(pauses)


def test_a_connection_alone_does_not_make_the_pauses_short() -> None:
    """A peer that accepts and drops is not to be hammered."""
    cluster, a, _, attempts = followed()
    a.kill()
    cluster.network.listen("a", Factory.forProtocol(Dropping))
    cluster.pass_(60)

    assert [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0] == attempts.pauses()[:7]


def test_a_subscription_makes_the_pauses_short_again() -> None:
    """A connection that breaks once an hour is back at once each time."""
    cluster, a, b, attempts = followed()
    a.kill()
    cluster.pass_(60)
    cluster.start(a)
    cluster.pass_(15)
    assert b.replica is not None
    assert "live" == b.replica.state
    attempts.times.clear()
    for link in a.links():
        link.cut()
    at = cluster.clock.seconds()
    cluster.pass_(5)

    assert 1 == len(attempts.times)
    assert attempts.times[0] - at < 0.5
    assert "live" == b.replica.state


def test_stopped_in_a_pause_it_asks_no_more() -> None:
    """Another one may follow with this log by then."""
    cluster, a, b, attempts = followed()
    a.kill()
    cluster.pass_(30)
    assert b.replica is not None
    assert "disconnected" == b.replica.state
    tried = len(attempts.times)
    b.replica.stop()
    cluster.pass_(30)

    assert tried == len(attempts.times)
    assert "off" == b.replica.state


def test_a_refusal_that_only_an_operator_can_mend_is_asked_about_seldom() -> None:
    """It was dropped from the list; somebody may take it back."""
    cluster, a, b, attempts = followed()
    assert a.registry.leases.drop(b.log.uuid) is not None
    a.registry.disconnect(b.log.uuid, "dropped")
    cluster.pass_(45)

    assert b.replica is not None
    assert "refused" == b.replica.state
    assert len(attempts.pauses()) >= 3
    assert all(10.0 <= pause <= 10.2 for pause in attempts.pauses())
