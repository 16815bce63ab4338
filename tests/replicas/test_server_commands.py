"""A daemon that follows a server: what its own followers send up reaches that server."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.errors import NotConnected
from synrepl.ingest.source import MAX_WAITING, ServerCommands
from synrepl.replication.follower.follower import Follower
from synrepl.replication.hooks import StoredHere
from synrepl.replication.serving.follower_sender import MAX_COMMANDS
from synrepl.streams.table import StreamTable
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.commands import FederationAck, InvalidateCache, RemoteServerUp, UserSync
from synrepl.wire.dialect import CURRENT, LEGACY, Dialect
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode
from tests.replicas.test_command_forwarder import heard_at, worker


class Pair:
    """A server, a daemon that follows it, and what the server heard from that daemon."""

    def __init__(self, dialect: Dialect) -> None:
        self.cluster = FakeCluster()
        self.server = self.cluster.node("server")
        self.daemon = self.cluster.node("daemon")
        self.heard = heard_at(self.server)
        self.follower = Follower(instance="daemon", clock=self.cluster.clock, streams=StreamTable.default())
        self.commands = ServerCommands(
            self.follower,
            self.daemon.publisher,
            dialect=dialect,
            clock=self.cluster.clock,
            metrics=self.daemon.metrics,
        )
        self.factory = FollowerFactory(
            self.follower,
            dialect=dialect,
            expected_server="hs",
            clock=self.cluster.clock,
            metrics=self.daemon.metrics,
        )
        self.factory.jitter = 0.0
        self.factory.connect(MemoryEndpoint(self.cluster.network, "daemon", "server"))
        self.cluster.pass_(2)
        assert self.follower.is_connected

    def dropped(self, name: str) -> float:
        """How many of these were dropped."""
        count: float = self.daemon.metrics.commands_dropped.labels(name).value
        return count


def syncs(heard: list[Any]) -> list[tuple[str, bool]]:
    return [(one.user_id, one.is_syncing) for one in heard if isinstance(one, UserSync)]


def test_a_current_server_hears_what_the_workers_of_a_daemon_say() -> None:
    """The daemon stands between them, and both are to notice nothing of it."""
    pair = Pair(CURRENT)
    said = worker(
        pair.cluster,
        pair.daemon,
        "USER_SYNC xyzzy @ada:hs start 17",
        "FEDERATION_ACK sender1 177",
        "REMOTE_SERVER_UP far.example.org",
        'USER_IP @ada:hs ["secret","127.0.0.1","curl","PHONE",20]',
    )
    pair.cluster.pass_(1)
    assert 4 == len(pair.heard)
    assert "xyzzy" == pair.heard[0].instance_id
    assert FederationAck(instance="sender1", token=177) == pair.heard[1]

    said.transport.loseConnection()
    pair.cluster.pass_(1)

    assert 5 == len(pair.heard)
    assert "CLEAR_USER_SYNC" == pair.heard[4].NAME
    assert "xyzzy" == pair.heard[4].instance_id


def test_a_legacy_server_hears_of_each_user_once() -> None:
    """There a connection is the worker: a user of two workers goes on syncing when one of them stops."""
    pair = Pair(LEGACY)
    first = worker(pair.cluster, pair.daemon, "USER_SYNC one @ada:hs start 17")
    second = worker(
        pair.cluster, pair.daemon, "USER_SYNC two @ada:hs start 18", "REMOVE_PUSHER app.id push key @ada:hs"
    )
    first.say("USER_SYNC one @ada:hs end 19")
    pair.cluster.pass_(1)
    assert [("@ada:hs", True)] == syncs(pair.heard)

    second.say("USER_SYNC two @ada:hs end 20")
    pair.cluster.pass_(1)

    assert [("@ada:hs", True), ("@ada:hs", False)] == syncs(pair.heard)
    assert "push key" == pair.heard[1].push_key


@pytest.mark.parametrize("dialect", [LEGACY, CURRENT], ids=str)
def test_a_server_that_comes_back_is_told_who_is_syncing(dialect: Dialect) -> None:
    """It may have forgotten; what was said meanwhile waited."""
    pair = Pair(dialect)
    worker(pair.cluster, pair.daemon, "USER_SYNC one @ada:hs start 17")
    pair.server.kill()
    worker(pair.cluster, pair.daemon, "USER_SYNC two @bob:hs start 18", "FEDERATION_ACK sender1 3")
    pair.cluster.start(pair.server)
    pair.cluster.done(pair.server.append("federation", [[["p", {"n": number}]] for number in range(4)]))
    pair.cluster.pass_(15)

    # The follower may be back before a subscriber could be: so what the server knows is looked at.
    upstream = pair.server.publisher.follower_commands
    assert {"@ada:hs", "@bob:hs"} == upstream.syncing.users()
    assert 3 == upstream.acks.lowest()


def test_what_the_server_tells_all_comes_down() -> None:
    """To the followers of the daemon; not back to the one that said it."""
    pair = Pair(CURRENT)
    one, other = worker(pair.cluster, pair.daemon), worker(pair.cluster, pair.daemon)
    pair.server.publisher.broadcast(RemoteServerUp(server="far.example.org"))
    one.say("REMOTE_SERVER_UP near.example.org")
    pair.cluster.pass_(1)

    assert [b"far.example.org"] == one.lines("REMOTE_SERVER_UP")
    assert [b"far.example.org", b"near.example.org"] == other.lines("REMOTE_SERVER_UP")


def test_commands_that_a_paused_follower_loses_are_counted() -> None:
    """The oldest ones make room for the newest."""
    pair = Pair(CURRENT)
    worker(pair.cluster, pair.daemon)
    (follower,) = pair.daemon.publisher.followers
    assert follower.sender is not None
    follower.sender.pause()
    for number in range(MAX_COMMANDS + 3):
        follower.sender.send_command(RemoteServerUp(server=f"{number}.example.org"))

    dropped = pair.daemon.metrics.commands_dropped.labels("REMOTE_SERVER_UP")
    assert 3 == dropped.value


def test_an_invalidation_goes_to_the_server_whose_stream_it_is() -> None:
    """Facts of ``caches`` are not added here: they come from the server, this one too."""
    pair = Pair(LEGACY)
    invalidations: list[InvalidateCache] = []
    pair.server.publisher.follower_commands.subscribers[InvalidateCache].append(invalidations.append)

    class Refusing(StoredHere):
        def is_active(self) -> bool:
            return True

        async def append(self, stream: str, facts: Any) -> None:
            raise NotConnected("its facts are heard from others")

    pair.daemon.publisher.follower_commands.use(Refusing())
    worker(pair.cluster, pair.daemon).say('INVALIDATE_CACHE get_user_by_id ["@ada:hs"]')
    pair.cluster.pass_(1)

    assert [InvalidateCache(cache="get_user_by_id", keys=["@ada:hs"])] == invalidations
    facts, _ = pair.cluster.done(Deferred.fromCoroutine(_read(pair.server)))
    assert ["caches"] == [fact.stream for fact in facts]


async def _read(node: FakeNode) -> Any:
    return await node.log.reads.facts(after=0, upto=99, limit=99)


def test_what_the_server_has_no_word_for_is_counted() -> None:
    """As what has no room while it is away."""
    pair = Pair(CURRENT)
    worker(pair.cluster, pair.daemon, "REMOVE_PUSHER app.id push key @ada:hs")
    pair.server.kill()
    pair.cluster.pass_(1)
    for number in range(MAX_WAITING + 3):
        pair.commands.forward(FederationAck(instance="sender1", token=number))

    assert (1, 3) == (pair.dropped("REMOVE_PUSHER"), pair.dropped("FEDERATION_ACK"))


def test_a_daemon_that_stops_following_passes_nothing_on() -> None:
    """It is a replica now, or shuts down."""
    pair = Pair(CURRENT)
    pair.commands.stop()
    worker(pair.cluster, pair.daemon, "FEDERATION_ACK sender1 3")
    pair.cluster.pass_(1)

    assert [] == pair.heard
    assert 0 == pair.dropped("FEDERATION_ACK")
