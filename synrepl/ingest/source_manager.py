"""The Redis and the servers that a daemon follows, and the ingester that writes their facts to its log."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.errors import ConfigError
from synrepl.extras import install
from synrepl.ingest.channel_source import ChannelSource
from synrepl.ingest.fact_source import IFactSource
from synrepl.ingest.ingester import Ingester, LoggedPositions
from synrepl.ingest.settings import IngestSettings
from synrepl.ingest.source import ServerSource, Source
from synrepl.ingest.stalled_writers import StalledWriters
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import ICatchUp, MissedFacts
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.catch_up import HttpCatchUp
from synrepl.transports.http.http_client import HttpClient

if TYPE_CHECKING:
    from synrepl.ingest.channel_host import IChannelHost


@dataclass(eq=False, repr=False)
class SourceManager:
    """Runs the sources other than those of rooms: the channel on Redis or that of `host`, then the servers.

    Ephemeral streams, whose tokens may restart, come from the first source only. Kept streams come from all
    sources: the token tells whether the log has a fact already. Declared streams come from none, nor do
    those that one of `fact_sources` brings whole. `history_lost` is called with a stream
    whose writer has lost history, after the log has begun a new epoch.
    """

    settings: IngestSettings
    clock: Any
    _: KW_ONLY
    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    write_policy: WritePolicy
    credentials: Credentials
    refused: RefusedFacts
    history_lost: Callable[[str], None]
    fact_sources: Sequence[IFactSource] = ()
    host: "IChannelHost | None" = None

    def __post_init__(self) -> None:
        settings, clock = self.settings, self.clock
        self._http = HttpClient(clock, secret=self.credentials, is_homeserver=True)
        self._catch_up = _CatchUp(self.fact_sources, HttpCatchUp(self._http, settings.instance_map))
        self._brought = frozenset(stream for one in self.fact_sources for stream in one.whole_streams)
        self.ingester = Ingester(
            self.log, self.table, clock, refused=self.refused, history_lost=self.history_lost
        )
        self.stalled_writers = StalledWriters(self.log, self.table, clock)
        self._server_name = settings.server_name_of(self.log.notes)
        self.servers: list[ServerSource] = []
        self.channel = self._open_channel()
        self._all: list[Source] = [] if self.channel is None else [self.channel]
        for endpoint in settings.follow:
            is_first = not self._all and not self.servers
            server = ServerSource(
                settings=settings,
                clock=clock,
                follower=self._follower(partial(_at, endpoint), is_first=is_first),
                endpoint=endpoint,
                metrics=self.metrics,
                server_name=self._server_name,
                # Commands are forwarded once: to Redis, or without Redis to the first server.
                publisher=self.publisher if is_first else None,
            )
            self.servers.append(server)
        self._all += self.servers

    def start(self) -> None:
        """Start all sources."""
        self.stalled_writers.start()
        for source in self._all:
            source.start()

    async def stop(self) -> None:
        """Stop all sources."""
        for source in self._all:
            await source.stop()
        self.ingester.stop()
        self.stalled_writers.stop()
        await self._http.stop()

    def problems(self) -> list[Problem]:
        """The problems of all sources, first those that make the daemon not ready."""
        now = self.clock.seconds()
        found = [problem for source in self._all for problem in source.problems()]
        if self.ingester.error:
            why = f"cannot store received facts: {self.ingester.error}"
            found.append(Problem(why, now, not_ready=True))
        found += [
            Problem(
                f"writer {one.writer} of {one.stream} stopped at {one.token}, {one.behind} tokens behind",
                now - one.seconds,
            )
            for one in self.stalled_writers.stalled()
        ]
        return sorted(found, key=lambda problem: not problem.not_ready)

    def notices(self) -> list[Notice]:
        """What needs attention elsewhere, as the sources see it."""
        return [notice for source in self._all for notice in source.notices()]

    def lag_seconds(self) -> float:
        """Seconds since the source that is furthest behind was last caught up."""
        return max(source.lag_seconds() for source in self._all)

    def lag_rows(self) -> int:
        """The number of tokens known to be missing, of the source that lacks most."""
        return max(source.follower.lag_rows() for source in self._all)

    def status(self) -> dict[str, Any]:
        """The fields of all sources in the status of the daemon."""
        return {
            **({} if self.channel is None else self.channel.sections()),
            "following": [server.status() for server in self.servers],
            "stuck": [msgspec.to_builtins(one) for one in self.stalled_writers.stalled()],
        }

    def _open_channel(self) -> ChannelSource | None:
        make: Callable[..., ChannelSource]
        if self.host is not None:
            make = self.host.make_source
        elif self.settings.redis is not None:
            make = _make_redis_source
        else:
            return None
        try:
            return self._channel_source(make)
        except ImportError as error:
            raise ConfigError(f"--redis needs more libraries ({error}): run {install('redis')}") from error

    def _channel_source(self, make: Callable[..., ChannelSource]) -> ChannelSource:
        return make(
            settings=self.settings,
            clock=self.clock,
            follower=self._follower(self._channel_sender, is_first=True),
            publisher=self.publisher,
            metrics=self.metrics,
            write_policy=self.write_policy,
            server_name=self._server_name,
        )

    def _channel_sender(self, stream: str, writer: str) -> str:
        """Who sends a stream of a writer on the channel: the name of a key, or the channel."""
        return "Redis" if self.host is None else self.host.sender_of(stream, writer)

    def _follower(self, sender: Callable[[str, str], str], *, is_first: bool) -> Follower:
        # A channel has processes of whatever release, since 1.13 in one form of lines.
        dialect = None if self.settings.has_channel else self.settings.dialect
        streams = self.table.known_to(dialect) if dialect is not None else list(self.table)
        follower = Follower(
            instance=self.settings.instance_name,
            clock=self.clock,
            streams=StreamTable(
                stream
                for stream in streams
                if stream.name not in self._brought
                and (is_first or not stream.ephemeral)
                and not stream.on_request
            ),
            positions=LoggedPositions(self.log, self.write_policy.own),
            catch_up=self._catch_up,
            metrics=self.metrics,
            canonical=True,
            external_position=self.ingester.durable_position,
        )
        on_channel = is_first and self.settings.has_channel
        self.ingester.attach(follower, sender=sender, knows_history=is_first, confirms=on_channel)
        return follower


def _make_redis_source(**parts: Any) -> ChannelSource:
    # Imported on use: Redis is an extra.
    from synrepl.ingest.redis import RedisSource

    return RedisSource(**parts)


def _at(endpoint: str, stream: str, writer: str) -> str:
    return endpoint


class _CatchUp:
    """An `ICatchUp` that asks the sources of rooms for the streams that they read missing facts of, and
    `others` for all other streams."""

    def __init__(self, fact_sources: Sequence[IFactSource], others: ICatchUp) -> None:
        self._by_stream: dict[str, ICatchUp] = {
            stream: source for source in fact_sources for stream in source.missed_streams
        }
        self._others = others

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """See `ICatchUp`."""
        catch_up = self._by_stream.get(stream, self._others)
        return await catch_up.fetch(stream=stream, writer=writer, after=after, upto=upto)
