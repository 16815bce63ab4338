"""A `FakeDaemon` on a Redis channel, built from the real parts.

Importing this installs a reactor, because importing txredisapi does.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.defer import ensureDeferred

from synrepl.errors import NotConnected
from synrepl.ingest.ingester import Ingester, LoggedPositions
from synrepl.ingest.write_policy import StreamWrite, WritePolicy
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, ICatchUp, MissedFacts, NowhereToFetch
from synrepl.replication.membership.daemon_member import DaemonMember
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.streams.table import StreamTable
from synrepl.testing import FakeDaemon, Network
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.link import RedisLink
from synrepl.wire.dialect import NEWEST
from tests.memory_engine import FaultyEngine
from tests.redis.fake_redis import FakeRedis

__all__ = ["RedisDaemon", "link_to"]

FETCH_SECONDS: Final = 2.0


def link_to(
    redis: FakeRedis, member: Any, *, instance: str, chance: random.Random, metrics: Any
) -> RedisLink:
    """The real link of the process called `instance` to this Redis."""
    return RedisLink(
        redis.network.clock,
        RedisAddress.parse("redis://redis"),
        member,
        server_name="hs",
        instance=instance,
        metrics=metrics,
        hears=("",),
        endpoint=lambda host, port: redis.endpoint(instance),
        chance=chance,
    )


class PeersCatchUp:
    """Fetches missing rows from the process that writes them, by the writer's name."""

    def __init__(self, peers: Mapping[str, ICatchUp], clock: Any) -> None:
        self.is_broken = False
        self.asked: list[tuple[str, str, int, int]] = []
        self._peers = peers
        self._clock = clock

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """One page, from this writer, unless that takes too long: a process may end in the middle of it."""
        self.asked.append((stream, writer, after, upto))
        if self.is_broken:
            raise NotConnected("connection refused")
        if writer not in self._peers:
            raise NowhereToFetch(f"nobody is called {writer}")
        fetching = self._peers[writer].fetch(stream=stream, writer=writer, after=after, upto=upto)
        try:
            missed = await ensureDeferred(fetching).addTimeout(FETCH_SECONDS, self._clock)
        except TimedOut:
            raise NotConnected("no answer") from None
        if self.is_broken:
            raise NotConnected("connection lost")
        return missed


class RedisDaemon(FakeDaemon):
    """A `FakeDaemon` that joins a channel as the process `name`.

    It publishes the streams of `writes`, stores all other streams in its log, and fetches missing facts from
    `peers`, by the name of their writer. `redis_side` holds its Redis parts until the next `kill`.
    """

    engine: FaultyEngine

    def __init__(
        self,
        network: Network,
        redis: FakeRedis,
        *,
        name: str,
        writes: Sequence[str],
        peers: Mapping[str, ICatchUp],
        chance: random.Random,
        **options: Any,
    ) -> None:
        super().__init__(network, name=name, instance=name, engine=FaultyEngine(), **options)
        self.log_options = {
            "unordered": [stream.name for stream in self.table if not stream.ordered],
            "any_writer": [stream.name for stream in self.table if stream.any_writer],
            "append_refusal": self._refuses,
        }
        self.writes = tuple(writes)
        self.peers = peers
        self.chance = chance
        self.redis_side: OnFakeRedis | None = None
        self._redis = redis

    async def _start(self) -> None:
        await super()._start()
        self.redis_side = self.make_side(self._redis)
        self.redis_side.start()

    def make_side(self, redis: Any) -> "OnFakeRedis":
        """Make its part on the channel."""
        return OnFakeRedis(self, redis)

    def history_lost(self, stream: str) -> None:
        """Disconnect followers: they hold facts that the log has discarded."""
        for factory in self._factories:
            factory.close(f"history of {stream} was lost, a new epoch has begun")

    def _refuses(self, stream: str, writer: str) -> str:
        return "" if self.redis_side is None else self.redis_side.refusal(stream, writer)

    def kill(self) -> None:
        if self.redis_side is not None:
            self.redis_side.kill()
            self.redis_side = None
        super().kill()


class OnFakeRedis:
    """A daemon on a channel, from its start to its kill, wired as `SourceManager` and `RedisSource` do it.

    `events` are those of its follower, without positions.
    """

    def __init__(self, daemon: RedisDaemon, redis: FakeRedis) -> None:
        self.daemon = daemon
        self.redis = redis
        self.lost: list[str] = []
        self.events: list[FollowerEvent] = []
        self.catch_up = PeersCatchUp(daemon.peers, daemon.clock)
        self.writing = WritePolicy(
            [StreamWrite(stream=stream) for stream in daemon.writes],
            instance=daemon.instance,
            table=daemon.table,
        )
        self.ingester = Ingester(
            daemon.log,
            daemon.table,
            daemon.clock,
            refused=RefusedFacts(daemon.log, daemon.table, daemon.metrics, instance="us"),
            history_lost=self._lost,
        )
        self.follower = Follower(
            instance=daemon.instance,
            clock=daemon.clock,
            streams=StreamTable(daemon.table.known_to(NEWEST)),
            positions=LoggedPositions(daemon.log, self.writing.own),
            catch_up=self.catch_up,
            metrics=daemon.metrics,
            canonical=True,
            external_position=self.ingester.durable_position,
        )
        self.ingester.attach(self.follower, confirms=True)
        self.follower.on_event(self._happened)
        self.member = DaemonMember(
            clock=daemon.clock,
            follower=self.follower,
            publisher=daemon.publisher,
            writes=self.writing.own,
            exclusive=self.writing.exclusive,
            rng=daemon.chance,
        )
        self.link: Any = self.make_link()
        self.member.use(self.link)

    def make_link(self) -> Any:
        """Make the link of its member to the channel."""
        daemon = self.daemon
        return link_to(
            self.redis, self.member, instance=daemon.instance, chance=daemon.chance, metrics=daemon.metrics
        )

    def start(self) -> None:
        """Connect."""
        self.link.start()

    def kill(self) -> None:
        """Kill: data in flight is lost."""
        for connection in self.redis.network.links_of(self.daemon.instance):
            connection.cut()
        self.link.stop()
        self.member.stop()
        self.follower.stop()
        self.ingester.stop()

    def refusal(self, stream: str, writer: str) -> str:
        """Why an append would be refused now; empty if it would not."""
        return self.writing.refusal(self.daemon.log, stream, writer)

    def _lost(self, stream: str) -> None:
        self.lost.append(stream)
        self.daemon.history_lost(stream)

    def _happened(self, event: FollowerEvent) -> None:
        if event.kind != "position":
            self.events.append(event)
