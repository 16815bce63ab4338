"""Catch-up from the homeserver's database, and over HTTP for streams without tables."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from synrepl.errors import NotConnected, RowError
from synrepl.ports.interfaces import IThread
from synrepl.replication.follower.updates import ICatchUp, MissedFacts
from synrepl.storage.databases import Database
from synrepl.storage.tables.layout import TableStream
from synrepl.storage.tables.reader import TablePage, TableReader
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext

__all__ = ["DatabaseCatchUp"]

PAGE_ROWS: Final = 1_000


class DatabaseCatchUp:
    """An `ICatchUp` that reads the tables of `streams` in `thread`. Other streams go to `others`."""

    def __init__(
        self,
        database: Database,
        streams: Sequence[TableStream],
        *,
        table: StreamTable,
        thread: IThread,
        others: ICatchUp,
    ) -> None:
        self._database = database
        self._readers = {stream.stream: TableReader(stream, database.flavor) for stream in streams}
        self._table = table
        self._thread = thread
        self._others = others

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """The facts with ``after < token <= upto``, or the first page of them. Raises `ReplicationError`."""
        reader = self._readers.get(stream)
        if reader is None:
            return await self._others.fetch(stream=stream, writer=writer, after=after, upto=upto)
        work = partial(reader.missed, writer=writer, after=after, upto=upto, rows=PAGE_ROWS)
        try:
            page: TablePage = await self._thread.run(
                partial(self._database.read_transaction, "read missing facts", work)
            )
            facts = [
                (token, jsontext.split(self._table[stream].canonical_fact(rows)))
                for _, token, rows in page.facts
            ]
        except RowError as error:
            raise NotConnected(f"the table of {stream} has rows of another shape: {error}") from error
        return MissedFacts(facts=facts, upto=page.upto, limited=page.upto < upto)

    async def stop(self) -> None:
        """End the thread."""
        await self._thread.stop()
