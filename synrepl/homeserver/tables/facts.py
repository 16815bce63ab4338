"""Facts of the homeserver's tables, as a source of the daemon's log."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from synrepl.base.interfaces import IThread
from synrepl.base.metrics import Metrics
from synrepl.base.problems import Problem
from synrepl.errors import ConfigError, NotConnected, ReplicationError, RowError
from synrepl.homeserver.settings import HomeserverSettings
from synrepl.homeserver.tables.layout import TableStream
from synrepl.homeserver.tables.scan import TablePage, TableScan
from synrepl.homeserver.tables.source import POLL_SECONDS, TableSource
from synrepl.homeserver.tables.wakeups import Wakeups
from synrepl.replication.follower.updates import MissedFacts
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.id_database import CHANNEL
from synrepl.storage.id_tables.writers import WriterState
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext

PAGE_ROWS: Final = 1_000
"""Approximate number of rows that one query reads from a table."""


class TableFacts:
    """An `IFactSource`: the tables of the setting `table_streams`, live ones and those that only fill gaps.

    `history_lost` is called with the name of a stream whose tables have lost facts that followers have.
    """

    def __init__(
        self,
        settings: HomeserverSettings,
        reactor: Any,
        *,
        log: Log,
        table: StreamTable,
        metrics: Metrics,
        history_lost: Callable[[str], None],
    ) -> None:
        self._followed = settings.followed_tables
        self._for_catch_up = [one for one in settings.table_streams if one.for_catch_up]
        self._url = settings.tables_database or settings.database
        self._reactor = reactor
        self._log = log
        self._table = table
        self._metrics = metrics
        self._history_lost = history_lost
        self.streams = tuple(one.stream for one in self._followed)
        self.whole_streams = tuple(one.stream for one in self._followed if not one.only)
        self.missed_streams = tuple(one.stream for one in self._for_catch_up)
        self._source: TableSource | None = None
        self._missed: MissedRows | None = None
        self._wakeups: Wakeups | None = None

    def open(self) -> None:
        """Follow the live tables, and be ready to read the others. Raises `ConfigError`."""
        if self._for_catch_up:
            self._missed = MissedRows(
                self._database("synrepl-catch-up"),
                self._for_catch_up,
                table=self._table,
                thread=ReactorThread(self._reactor, "catch-up"),
            )
        if not self._followed:
            return
        for one in self._followed:
            if one.stream not in self._table or self._table[one.stream].ephemeral:
                raise ConfigError(f"table_streams: {one.stream} is unknown or ephemeral; name a kept stream")
        database = self._database("synrepl-tables")
        self._source = TableSource(
            database.connect,
            self._followed,
            flavor=database.flavor,
            log=self._log,
            table=self._table,
            clock=self._reactor,
            thread=ReactorThread(self._reactor, "tables"),
            on_writer_status=self._count_unfinished,
            on_lost=self._history_lost,
        )
        self._source.start()
        if database.flavor == "postgresql":
            self._wakeups = Wakeups(self._reactor, self._url, CHANNEL, self._source.wake, POLL_SECONDS)
            self._wakeups.start()

    async def close(self) -> None:
        """Let go of the database. Idempotent."""
        parts = [part for part in (self._wakeups, self._missed, self._source) if part is not None]
        self._wakeups = self._missed = self._source = None
        for part in parts:
            await part.stop()

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """See `ICatchUp`."""
        if self._missed is None:
            raise NotConnected("the tables are not open: this daemon is not the primary")
        return await self._missed.fetch(stream=stream, writer=writer, after=after, upto=upto)

    def status(self) -> dict[str, Any]:
        """The tables, and the writers that store their status beside them; empty while it is closed."""
        return {"tables": [], "writers": []} if self._source is None else self._source.status()

    def problems(self) -> list[Problem]:
        """The tables that cannot be read."""
        return [] if self._source is None else self._source.problems()

    def _database(self, what: str) -> Database:
        try:
            return Database(self._url, what=what)
        except ReplicationError as error:
            raise ConfigError(f"cannot use the database of table_streams: {error}") from error

    def _count_unfinished(self, states: Sequence[WriterState]) -> None:
        now = self._reactor.seconds()
        for state in states:
            age = 0.0 if state.oldest_since is None else max(0.0, now - state.oldest_since)
            self._metrics.oldest_unfinished_id_age.labels(state.stream, state.writer).set(age)


class MissedRows:
    """An `ICatchUp` that reads the tables of `streams` in `thread`, which it stops in the end."""

    def __init__(
        self, database: Database, streams: Sequence[TableStream], *, table: StreamTable, thread: IThread
    ) -> None:
        self._database = database
        self._scans = {one.stream: TableScan(one, database.flavor) for one in streams}
        self._table = table
        self._thread = thread

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """See `ICatchUp`."""
        work = partial(self._scans[stream].missed, writer=writer, after=after, upto=upto, rows=PAGE_ROWS)
        try:
            page: TablePage = await self._thread.run(
                partial(self._database.read_transaction, "read missing facts", work)
            )
            facts = [
                (token, jsontext.split(self._table[stream].canonical_fact(rows)))
                for _, token, rows in page.facts
            ]
        except RowError as error:
            raise NotConnected(f"cannot read missing facts from a table (table_streams): {error}") from error
        return MissedFacts(facts=facts, upto=page.upto, limited=page.upto < upto)

    async def stop(self) -> None:
        """Stop the thread."""
        await self._thread.stop()
