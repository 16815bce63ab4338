"""All sources of a daemon, and the one way from them into its log."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred

from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.ingest.database_catchup import DatabaseCatchUp
from synrepl.ingest.server import ServerSource
from synrepl.ingest.source import Trouble
from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.ingester import Ingester, LogPositions
from synrepl.replication.publisher import Publisher
from synrepl.replication.stalled_writers import StalledWriters
from synrepl.replication.write_policy import WritePolicy
from synrepl.storage import Log, ReactorThread
from synrepl.storage.databases import Database
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.client import HttpCatchUp
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from synrepl.ingest.redis import RedisSource

__all__ = ["SourceManager"]


class SourceManager:
    """Redis, if there is one, and then the servers: the first of them brings the streams that may go back.

    The others bring what is kept: there a token says whether a fact is here already. The streams in `tables`
    are not heard at all. `lost` hears of which stream history was lost: the log is in a new epoch then.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        *,
        log: Log,
        publisher: Publisher,
        table: StreamTable,
        metrics: Metrics,
        writing: WritePolicy,
        tables: Collection[str],
        credentials: Credentials,
        lost: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = reactor
        self._log = log
        self._table = table
        self._metrics = metrics
        self._writing = writing
        # All facts of these come from there in the order of ids, which nobody must get ahead of.
        self._tables = frozenset(tables)
        self._http = HttpCatchUp(reactor, None, secret=credentials, instance_map=settings.instance_map)
        self._database = self._from_database()
        self.intake = Ingester(log, table, reactor, lost=lost)
        self.stalls = StalledWriters(log, table, reactor)
        self.redis: RedisSource | None = None
        self.servers: list[ServerSource] = []
        if settings.redis is not None:
            self.redis = self._on_redis(publisher, writing)
        for endpoint in settings.follow:
            is_first = self.redis is None and not self.servers
            follower = self._follower(is_first=is_first)
            server = ServerSource(
                settings,
                reactor,
                follower,
                endpoint=endpoint,
                metrics=metrics,
                # Once: those on Redis hear all that followers send up, as does the first server without it.
                publisher=publisher if is_first else None,
            )
            self.servers.append(server)

    def start(self) -> None:
        """Begin to hear."""
        self.stalls.start()
        for source in self._all:
            source.start()

    def stop(self) -> "Deferred[None]":
        """Hear nothing more."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for source in self._all:
            await source.stop()
        self.intake.stop()
        self.stalls.stop()
        if self._database is not None:
            await self._database.stop()
        await self._http.stop()

    def troubles(self) -> list[Trouble]:
        """What is wrong, the worst first."""
        found = self.reasons()
        for source in self._all:
            found += source.troubles()
        now = self._clock.seconds()
        found += [
            (
                f"writer {one.writer} of {one.stream} stands at {one.token}, {one.behind} behind the others",
                now - one.seconds,
            )
            for one in self.stalls.found()
        ]
        return found

    def reasons(self) -> list[Trouble]:
        """Of these, why what is here is not all there is."""
        found = [reason for source in self._all for reason in source.reasons()]
        if self.intake.trouble:
            found.append((f"what is heard cannot be kept: {self.intake.trouble}", self._clock.seconds()))
        return found

    def refusal(self, stream: str, writer: str) -> str:
        """Why this process must not write a stream under this name now; empty if it may."""
        clash = self.redis.peer.clash if self.redis is not None else None
        return str(clash) if clash is not None and (clash.stream, clash.writer) == (stream, writer) else ""

    def lag_seconds(self) -> float:
        """How long ago the one furthest behind had all that was told."""
        return max(source.lag_seconds() for source in self._all)

    def lag_rows(self) -> int:
        """How many tokens are known to be missing."""
        return max(source.follower.lag_rows() for source in self._all)

    def describe(self) -> dict[str, Any]:
        """How they are doing, as the status has it."""
        return {
            "redis": None if self.redis is None else self.redis.describe(),
            "following": [server.describe() for server in self.servers],
            "stuck": [msgspec.to_builtins(one) for one in self.stalls.found()],
        }

    @property
    def _all(self) -> "list[RedisSource | ServerSource]":
        return [*([self.redis] if self.redis is not None else []), *self.servers]

    def _from_database(self) -> DatabaseCatchUp | None:
        streams = [one for one in self._settings.table_streams if one.for_catch_up]
        if not streams:
            return None
        url = self._settings.tables_database or self._settings.database
        return DatabaseCatchUp(
            Database(url, what="synrepl-missed"),
            streams,
            table=self._table,
            thread=ReactorThread(self._clock, "missed"),
            others=self._http,
        )

    def _on_redis(self, publisher: Publisher, writing: WritePolicy) -> "RedisSource":
        try:
            from synrepl.ingest.redis import RedisSource
        except ImportError as error:
            raise ConfigError(
                f"--redis needs more libraries: pip install 'synrepl[redis]' ({error})"
            ) from error

        return RedisSource(
            self._settings,
            self._clock,
            self._follower(is_first=True),
            publisher=publisher,
            metrics=self._metrics,
            writing=writing,
        )

    def _follower(self, *, is_first: bool) -> Follower:
        """One that goes on where the log stands, and gives it all it hears."""
        dialect = NEWEST if self._settings.redis is not None else self._settings.dialect
        streams = self._table.known_to(dialect) if dialect is not None else list(self._table)
        follower = Follower(
            instance=self._settings.instance_name,
            clock=self._clock,
            streams=StreamTable(
                stream
                for stream in streams
                if stream.name not in self._tables and (is_first or not stream.ephemeral)
            ),
            positions=LogPositions(self._log, self._writing.own),
            catch_up=self._database or self._http,
            metrics=self._metrics,
            canonical=True,
            reached=self.intake.reached,
        )
        on_redis = is_first and self._settings.redis is not None
        self.intake.follow(follower, knows_history=is_first, confirms=on_redis)
        return follower
