"""Ingest: facts that come into the log from Redis, other servers, and the sources of rooms."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.config import Settings
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.fact_source import IFactSource
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.status_parts import NO_INGEST
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.ingest.source_manager import SourceManager


class Ingest:
    """The sources that the settings name. They are open while the daemon is the primary.

    `assigned` are the streams that the sources of rooms bring. `history_lost` is called with the name of a
    stream whose source has lost facts that followers have.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        *,
        table: StreamTable,
        metrics: Metrics,
        credentials: Credentials,
        history_lost: Callable[[str], None],
        assigned: Collection[str] = (),
    ) -> None:
        self.sources: SourceManager | None = None
        self._settings = settings
        self._reactor = reactor
        self._table = table
        self._metrics = metrics
        self._credentials = credentials
        self._history_lost = history_lost
        self._log: Log | None = None
        self._fact_sources: Sequence[IFactSource] = ()
        self._write_policy: WritePolicy | None = None
        if settings.has_channel or settings.follow:
            self._write_policy = WritePolicy(
                settings.channel_writes,
                instance=settings.instance_name,
                table=table,
                tables=assigned,
            )

    def refusal(self, stream: str, writer: str) -> str:
        """Return why the sources forbid posts of this writer to this stream; empty if they allow them."""
        if self._write_policy is None or self._log is None:
            return ""
        return self._write_policy.refusal(self._log, stream, writer)

    def open(
        self,
        log: Log,
        publisher: Publisher,
        refused: RefusedFacts,
        fact_sources: Sequence[IFactSource] = (),
        host: IChannelHost | None = None,
    ) -> None:
        """Open all sources: those of rooms (`fact_sources`) first, then the channel of `host`. Idempotent.

        Raises `ReplicationError` if a source cannot be opened.
        """
        if self._log is not None:
            return
        self._log, self._fact_sources = log, fact_sources
        log.table_streams = frozenset(stream for source in fact_sources for stream in source.whole_streams)
        for source in fact_sources:
            source.open()
        self._open_sources(log, publisher, refused, host)

    async def close(self) -> None:
        """Close all sources. Idempotent."""
        self._log = None
        sources, self.sources = self.sources, None
        fact_sources, self._fact_sources = self._fact_sources, ()
        if sources is not None:
            await sources.stop()
        for source in fact_sources:
            await source.close()

    def _open_sources(
        self, log: Log, publisher: Publisher, refused: RefusedFacts, host: IChannelHost | None
    ) -> None:
        if self._write_policy is None:
            return
        # Imported on use: a daemon without sources need not load followers.
        from synrepl.ingest.source_manager import SourceManager

        self.sources = SourceManager(
            self._settings,
            self._reactor,
            log=log,
            publisher=publisher,
            table=self._table,
            metrics=self._metrics,
            write_policy=self._write_policy,
            fact_sources=self._fact_sources,
            credentials=self._credentials,
            refused=refused,
            lost=self._history_lost,
            host=host,
        )
        self.sources.start()

    def status(self) -> dict[str, Any]:
        """The sources' part of the status."""
        status = dict(NO_INGEST)
        if self.sources is not None:
            status |= self.sources.status()
        return status

    def problems(self) -> list[Problem]:
        """Problems of Redis and the followed servers."""
        return [] if self.sources is None else self.sources.problems()

    def notices(self) -> list[Notice]:
        """What needs attention at Redis and the followed servers."""
        return [] if self.sources is None else self.sources.notices()

    def is_followed(self, stream: str) -> bool:
        """Whether the source of a room brings facts of this stream now."""
        return any(stream in source.streams for source in self._fact_sources)

    def lag_seconds(self) -> float:
        """Seconds since Redis and the followed servers were last caught up; 0 without them."""
        return self.sources.lag_seconds() if self.sources is not None else 0.0

    def lag_rows(self) -> int:
        """The number of tokens known to be missing from Redis or a followed server; 0 without them."""
        return self.sources.lag_rows() if self.sources is not None else 0
