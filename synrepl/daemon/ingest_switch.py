"""Starts ingest on a primary, and stops it on any other daemon."""

from collections.abc import Callable, Sequence

from twisted.logger import Logger

from synrepl.base.tasks import Tasks
from synrepl.daemon.ingest import Ingest
from synrepl.errors import ConfigError, ReplicationError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.fact_source import IFactSource
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import IRole
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.declaration import Declaration


class IngestSwitch:
    """Opens the sources and declares the configured `streams` while `role` is that of a primary.

    `fact_sources` of rooms and the channel of `host` are sources too.
    `on_failure` is called with the reason if the sources can no longer be opened or closed.
    """

    _logger = Logger()

    def __init__(
        self,
        ingest: Ingest,
        log: Log,
        publisher: Publisher,
        refused: RefusedFacts,
        declared: DeclaredStreams,
        role: IRole,
        *,
        fact_sources: Sequence[IFactSource],
        host: IChannelHost | None,
        streams: Sequence[Declaration],
        on_failure: Callable[[str], object],
    ) -> None:
        self._ingest = ingest
        self._log = log
        self._publisher = publisher
        self._refused = refused
        self._declared = declared
        self._role = role
        self._fact_sources = fact_sources
        self._host = host
        self._streams = streams
        self._on_failure = on_failure
        self._tasks = Tasks(self._logger, "ingest")
        self._is_started = False

    async def start(self) -> None:
        """Do what the role says now. Raises `ReplicationError` if a source cannot be opened."""
        if self._role.is_primary:
            self._open()
            await self._declare()
        self._is_started = True
        if not self._role.is_primary:
            await self._ingest.close()

    def stop(self) -> None:
        """Open and close nothing any more."""
        self._is_started = False
        self._tasks.stop()

    def role_changed(self) -> None:
        """Do what the role says from now on."""
        if self._is_started:
            self._tasks.start(self._adjust(), "starting or stopping ingest")

    def _open(self) -> None:
        self._ingest.open(self._log, self._publisher, self._refused, self._fact_sources, self._host)

    async def _adjust(self) -> None:
        try:
            if not self._role.is_primary:
                await self._ingest.close()
                return
            self._open()
            try:
                await self._declare()
            except ReplicationError as error:
                # Such as a declaration unlike that of the former primary, on which followers rely.
                self._logger.error("{why}", why=error)
        except ReplicationError as error:
            self._on_failure(str(error))

    async def _declare(self) -> None:
        for one in self._streams:
            try:
                await self._declared.declare(one)
            except ConfigError as error:
                raise ConfigError(f"cannot declare the configured streams: {error}") from error
