"""Ingest: facts that come into the log of a primary from Redis, other servers, and the sources of rooms."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.base.tasks import Tasks
from synrepl.config import Settings
from synrepl.errors import ConfigError, ReplicationError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.fact_source import IFactSource
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import IRole
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.status_parts import NO_INGEST
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.ingest.source_manager import SourceManager


@dataclass(eq=False, repr=False)
class Ingest:
    """Opens the sources and declares the configured streams while `role` is that of a primary.

    The sources are those of rooms (`fact_sources`), the channel of `host` or of Redis, and the followed
    servers. Without a `write_policy` there are none but those of rooms.

    `history_lost` is called with the name of a stream whose source has lost facts that followers have, and
    `on_failure` with the reason if the sources can no longer be opened or closed.
    """

    _logger = Logger()

    settings: Settings
    reactor: Any
    _: KW_ONLY
    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    credentials: Credentials
    declared: DeclaredStreams
    refused: RefusedFacts
    role: IRole
    history_lost: Callable[[str], None]
    on_failure: Callable[[str], object]
    write_policy: WritePolicy | None = None
    fact_sources: Sequence[IFactSource] = ()
    host: IChannelHost | None = None

    def __post_init__(self) -> None:
        self.sources: SourceManager | None = None
        self._is_open = False
        self._is_started = False
        self._tasks = Tasks(self._logger, "ingest")

    async def start(self) -> None:
        """Do what the role says now. Raises `ReplicationError` if a source cannot be opened."""
        if self.role.is_primary:
            self._open()
            await self._declare()
        self._is_started = True
        if not self.role.is_primary:
            await self._close()

    async def stop(self) -> None:
        """Close all sources, and open none any more."""
        self._is_started = False
        self._tasks.stop()
        await self._close()

    def role_changed(self) -> None:
        """Do what the role says from now on."""
        if self._is_started:
            self._tasks.start(self._adjust(), "starting or stopping ingest")

    async def _adjust(self) -> None:
        try:
            if not self.role.is_primary:
                await self._close()
                return
            self._open()
            try:
                await self._declare()
            except ReplicationError as error:
                # Such as a declaration unlike that of the former primary, on which followers rely.
                self._logger.error("{why}", why=error)
        except ReplicationError as error:
            self.on_failure(str(error))

    async def _declare(self) -> None:
        for one in self.settings.streams:
            try:
                await self.declared.declare(one)
            except ConfigError as error:
                raise ConfigError(f"cannot declare the configured streams: {error}") from error

    def _open(self) -> None:
        """Open all sources, those of rooms first. Idempotent."""
        if self._is_open:
            return
        self._is_open = True
        whole = (stream for source in self.fact_sources for stream in source.whole_streams)
        self.log.table_streams = frozenset(whole)
        for source in self.fact_sources:
            source.open()
        if self.write_policy is None:
            return
        # Imported on use: a daemon without sources need not load followers.
        from synrepl.ingest.source_manager import SourceManager

        self.sources = SourceManager(
            self.settings,
            self.reactor,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            write_policy=self.write_policy,
            fact_sources=self.fact_sources,
            credentials=self.credentials,
            refused=self.refused,
            history_lost=self.history_lost,
            host=self.host,
        )
        self.sources.start()

    async def _close(self) -> None:
        """Close all sources. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        sources, self.sources = self.sources, None
        if sources is not None:
            await sources.stop()
        for source in self.fact_sources:
            await source.close()

    def refusal(self, stream: str, writer: str) -> str:
        """Return why the sources forbid posts of this writer to this stream; empty if they allow them."""
        if self.write_policy is None or not self._is_open:
            return ""
        return self.write_policy.refusal(self.log, stream, writer)

    def is_followed(self, stream: str) -> bool:
        """Whether the source of a room brings facts of this stream now."""
        return self._is_open and any(stream in source.streams for source in self.fact_sources)

    def status(self) -> dict[str, Any]:
        """The sources' part of the status."""
        return NO_INGEST | ({} if self.sources is None else self.sources.status())

    def problems(self) -> list[Problem]:
        """Problems of Redis and the followed servers."""
        return [] if self.sources is None else self.sources.problems()

    def notices(self) -> list[Notice]:
        """What needs attention at Redis and the followed servers."""
        return [] if self.sources is None else self.sources.notices()

    def lag_seconds(self) -> float:
        """Seconds since Redis and the followed servers were last caught up; 0 without them."""
        return self.sources.lag_seconds() if self.sources is not None else 0.0

    def lag_rows(self) -> int:
        """The number of tokens known to be missing from Redis or a followed server; 0 without them."""
        return self.sources.lag_rows() if self.sources is not None else 0
