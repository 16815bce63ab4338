"""Ingest: facts that come into the log from tables, Redis and other servers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from synrepl.config import Settings
from synrepl.errors import ConfigError, ReplicationError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ports.metrics import Metrics
from synrepl.ports.problems import Problem
from synrepl.replication.publisher import Publisher
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.status import NO_INGEST
from synrepl.replication.write_policy import WritePolicy
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.homeserver.tables.layout import TableStream
    from synrepl.homeserver.tables.source import TableSource
    from synrepl.ids.writers import WriterState
    from synrepl.ingest.source_manager import SourceManager
    from synrepl.storage.wakeups import Wakeups


class IngestServices:
    """The sources that the settings name. They are open while the daemon is the primary.

    `history_lost` is called with the name of a stream whose source has lost facts that followers have.
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
    ) -> None:
        self.tables: TableSource | None = None
        self.sources: SourceManager | None = None
        self._settings = settings
        self._reactor = reactor
        self._table = table
        self._metrics = metrics
        self._credentials = credentials
        self._history_lost = history_lost
        self._host: IChannelHost | None = None
        self._log: Log | None = None
        self._wakeups: Wakeups | None = None
        self._write_policy: WritePolicy | None = None
        if settings.has_channel or settings.follow:
            self._write_policy = WritePolicy(
                settings.redis_writes,
                instance=settings.instance_name,
                table=table,
                tables=self.followed_streams,
            )

    @property
    def followed_streams(self) -> list[str]:
        """The streams whose live facts are read from tables."""
        return [one.stream for one in self._followed_tables()]

    def refusal(self, stream: str, writer: str) -> str:
        """Return why the sources forbid posts of this writer to this stream; empty if they allow them."""
        if self._write_policy is None or self._log is None:
            return ""
        return self._write_policy.refusal(self._log, stream, writer)

    def open(
        self, log: Log, publisher: Publisher, refused: RefusedFacts, host: IChannelHost | None = None
    ) -> None:
        """Open all sources, the channel of `host` too. Idempotent.

        Raises `ReplicationError` if a source cannot be opened.
        """
        if self._log is None:
            self._log, self._host = log, host
            self._open_tables(log)
            self._open_sources(log, publisher, refused)

    async def close(self) -> None:
        """Close all sources. Idempotent."""
        self._log = None
        parts = [part for part in (self._wakeups, self.sources, self.tables) if part is not None]
        self._wakeups = self.sources = self.tables = None
        for part in parts:
            await part.stop()

    def _followed_tables(self) -> "list[TableStream]":
        """Return the tables to read live facts from, without those that only fill gaps.

        On a channel, a stream that this daemon publishes is read for the published writers only. Facts of
        other writers come from the channel: for some streams these writers store no position in the database.
        """
        followed = [one for one in self._settings.table_streams if not one.for_catch_up]
        if not self._settings.has_channel:
            return followed
        published: dict[str, tuple[str, ...]] = {}
        for one in self._settings.redis_writes:
            writer = one.writer or self._settings.instance_name
            published[one.stream] = (*published.get(one.stream, ()), writer)
        return [msgspec.structs.replace(one, only=published.get(one.stream, ())) for one in followed]

    def _open_tables(self, log: Log) -> None:
        settings = self._settings
        followed = self._followed_tables()
        log.table_streams = frozenset(one.stream for one in followed if not one.only)
        if not followed:
            return
        # Imported on use: a daemon without tables need not load it.
        from synrepl.homeserver.tables.source import POLL_SECONDS, TableSource
        from synrepl.ids.generator import CHANNEL
        from synrepl.storage.databases import Database
        from synrepl.storage.wakeups import Wakeups

        for one in followed:
            if one.stream not in self._table or self._table[one.stream].ephemeral:
                raise ConfigError(f"table_streams: {one.stream} is unknown or ephemeral; name a kept stream")
        url = settings.tables_database or settings.database
        try:
            database = Database(url, what="synrepl-tables")
        except ReplicationError as error:
            raise ConfigError(f"cannot use the database of table_streams: {error}") from error
        self.tables = TableSource(
            database.connect,
            followed,
            flavor=database.flavor,
            log=log,
            table=self._table,
            clock=self._reactor,
            thread=ReactorThread(self._reactor, "tables"),
            on_writer_status=self._writers_told,
            on_lost=self._history_lost,
        )
        self.tables.start()
        if database.flavor == "postgresql":
            self._wakeups = Wakeups(self._reactor, url, CHANNEL, self.tables.wake, POLL_SECONDS)
            self._wakeups.start()

    def _open_sources(self, log: Log, publisher: Publisher, refused: RefusedFacts) -> None:
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
            tables=[one.stream for one in self._followed_tables() if not one.only],
            credentials=self._credentials,
            refused=refused,
            lost=self._history_lost,
            host=self._host,
        )
        self.sources.start()

    def _writers_told(self, states: "Sequence[WriterState]") -> None:
        now = self._reactor.seconds()
        for state in states:
            age = 0.0 if state.oldest_since is None else max(0.0, now - state.oldest_since)
            self._metrics.oldest_unfinished_id_age.labels(state.stream, state.writer).set(age)

    @property
    def _parts(self) -> "list[TableSource | SourceManager]":
        return [part for part in (self.tables, self.sources) if part is not None]

    def status(self) -> dict[str, Any]:
        """The sources' part of the status."""
        status = dict(NO_INGEST)
        for part in self._parts:
            status |= part.status()
        return status

    def problems(self) -> list[Problem]:
        """Problems of the tables and the sources."""
        return [problem for part in self._parts for problem in part.problems()]

    def is_followed(self, stream: str) -> bool:
        """Whether this daemon reads the live facts of this stream from a table now."""
        return self.tables is not None and self.tables.is_followed(stream)

    def lag_seconds(self) -> float:
        """Seconds since Redis and the followed servers were last caught up; 0 without them."""
        return self.sources.lag_seconds() if self.sources is not None else 0.0

    def lag_rows(self) -> int:
        """The number of tokens known to be missing from Redis or a followed server; 0 without them."""
        return self.sources.lag_rows() if self.sources is not None else 0
