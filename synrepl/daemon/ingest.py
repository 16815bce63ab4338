"""What brings facts into the log beside those who post them: tables, Redis, other servers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synrepl.config import Settings
from synrepl.errors import ConfigError, ReplicationError
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log, ReactorThread
from synrepl.streams.table import StreamTable
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.ingest import SourceManager
    from synrepl.replication.write_policy import WritePolicy
    from synrepl.storage.ids.writers import WriterState
    from synrepl.storage.tables.layout import TableStream
    from synrepl.storage.tables.source import TableSource
    from synrepl.storage.wakeups import Wakeups

__all__ = ["IngestServices"]

POLL_SECONDS: Final = 1.0
"""How often tables are looked at although nobody said that they changed."""


class IngestServices:
    """What the settings name of these, open while this daemon is the primary.

    `lost` is told of a stream of which facts were lost where they came from.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        *,
        table: StreamTable,
        metrics: Metrics,
        credentials: Credentials,
        lost: Callable[[str], None],
    ) -> None:
        self.tables: TableSource | None = None
        self.sources: SourceManager | None = None
        self._settings = settings
        self._reactor = reactor
        self._table = table
        self._metrics = metrics
        self._credentials = credentials
        self._lost = lost
        self._log: Log | None = None
        self._wakeups: Wakeups | None = None
        self._writing = self._make_writing()

    def _make_writing(self) -> "WritePolicy | None":
        settings = self._settings
        if settings.redis is None and not settings.follow:
            return None
        # Here, so that a daemon that hears nobody need not have all of this in memory.
        from synrepl.replication.write_policy import WritePolicy

        return WritePolicy(
            settings.redis_writes,
            instance=settings.instance_name,
            table=self._table,
            tables=self.followed_streams,
        )

    @property
    def followed_streams(self) -> list[str]:
        """The streams whose facts are rows of tables."""
        return [one.stream for one in self._followed_tables()]

    def refusal(self, stream: str, writer: str) -> str:
        """Why a fact cannot be posted here, if others bring the facts of its stream."""
        if self._writing is None or self._log is None:
            return ""
        if self.sources is not None and (why := self.sources.refusal(stream, writer)):
            return why
        return self._writing.refusal(self._log, stream, writer)

    def open(self, log: Log, publisher: Publisher) -> None:
        """Begin to take facts in. Harmless when repeated. Raises a `ReplicationError` if that cannot be."""
        if self._log is None:
            self._log = log
            self._open_tables(log)
            self._open_sources(log, publisher)

    async def close(self) -> None:
        """Take in no more. Harmless when repeated."""
        self._log = None
        if self._wakeups is not None:
            wakeups, self._wakeups = self._wakeups, None
            await wakeups.stop()
        if self.sources is not None:
            sources, self.sources = self.sources, None
            await sources.stop()
        if self.tables is not None:
            tables, self.tables = self.tables, None
            await tables.stop()

    def _followed_tables(self) -> "list[TableStream]":
        """The tables whose facts are taken in, not only what was missed of them.

        Of a stream that is also told on Redis, those of the writers that this process tells: real writers
        store no positions of some streams, so that only they can say how far they are.
        """
        followed = [one for one in self._settings.table_streams if not one.for_catch_up]
        if self._settings.redis is None:
            return followed
        return [msgspec.structs.replace(one, only=self._told_from(one.stream)) for one in followed]

    def _told_from(self, stream: str) -> tuple[str, ...]:
        instance = self._settings.instance_name
        return tuple(one.writer or instance for one in self._settings.redis_writes if one.stream == stream)

    def _open_tables(self, log: Log) -> None:
        """Follow the tables that the settings name, if they name any."""
        settings = self._settings
        followed = self._followed_tables()
        if not followed:
            return
        # Here, so that a daemon without tables need not have all of this in memory.
        from synrepl.storage.databases import Database
        from synrepl.storage.ids.generator import CHANNEL
        from synrepl.storage.tables.source import TableSource
        from synrepl.storage.wakeups import Wakeups

        for one in followed:
            if one.stream not in self._table or self._table[one.stream].ephemeral:
                raise ConfigError(f"table_streams: {one.stream} is no stream that can be kept")
        url = settings.tables_database or settings.database
        try:
            database = Database(url, what="synrepl-tables")
        except ReplicationError as error:
            raise ConfigError(f"the tables: {error}") from error
        self.tables = TableSource(
            database.connect,
            followed,
            flavor=database.flavor,
            log=log,
            table=self._table,
            clock=self._reactor,
            thread=ReactorThread(self._reactor, "tables"),
            writers_told=self._writers_told,
            lost=self._lost,
        )
        self.tables.start()
        if database.flavor == "postgresql":
            self._wakeups = Wakeups(self._reactor, url, CHANNEL, self.tables.wake, POLL_SECONDS)
            self._wakeups.start()

    def _open_sources(self, log: Log, publisher: Publisher) -> None:
        """Hear what the settings name, if they name anything."""
        if self._writing is None:
            return
        from synrepl.ingest import SourceManager

        self.sources = SourceManager(
            self._settings,
            self._reactor,
            log=log,
            publisher=publisher,
            table=self._table,
            metrics=self._metrics,
            writing=self._writing,
            tables=[one.stream for one in self._followed_tables() if not one.only],
            credentials=self._credentials,
            lost=self._lost,
        )
        self.sources.start()

    def _writers_told(self, states: "Sequence[WriterState]") -> None:
        now = self._reactor.seconds()
        for state in states:
            age = 0.0 if state.oldest_since is None else max(0.0, now - state.oldest_since)
            self._metrics.oldest_unfinished_id_age.labels(state.stream, state.writer).set(age)

    # -- what to know about them (`status.DescribedBringing`) ----------------------------------------------

    def describe(self, now: float) -> dict[str, Any]:
        """How each is doing."""
        told: dict[str, Any] = {"tables": [], "writers": [], "redis": None, "following": [], "stuck": []}
        if self.tables is not None:
            told |= self.tables.describe(now)
        if self.sources is not None:
            told |= self.sources.describe()
        return told

    def troubles(self) -> list[tuple[str, float]]:
        """What is wrong, in words, and since when, in Unix seconds."""
        found = self.tables.troubles() if self.tables is not None else []
        return found + (self.sources.troubles() if self.sources is not None else [])

    def reasons(self) -> list[tuple[str, float]]:
        """Of these, why what is here is not all there is."""
        found = self.tables.troubles() if self.tables is not None else []
        return found + (self.sources.reasons() if self.sources is not None else [])

    def is_followed(self, stream: str) -> bool:
        """Whether the facts of this stream come from a table."""
        return self.tables is not None and self.tables.is_followed(stream)

    def lag_seconds(self) -> float:
        """How long ago it had all that was told."""
        return self.sources.lag_seconds() if self.sources is not None else 0.0

    def lag_rows(self) -> int:
        """How many tokens are known to be missing."""
        return self.sources.lag_rows() if self.sources is not None else 0
