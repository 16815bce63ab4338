"""Carries facts from tables into the log: what is committed, in order, and never past an unfinished id."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from twisted.logger import Logger

from synrepl.errors import ReplicationError, RowError
from synrepl.ports.interfaces import IClock, IThread
from synrepl.ports.tasks import Tasks
from synrepl.storage.ids.database import Flavor
from synrepl.storage.ids.startup import IdProblems
from synrepl.storage.ids.writers import WriterState, read_writers
from synrepl.storage.log import Log
from synrepl.storage.tables.layout import TableStream
from synrepl.storage.tables.reader import TablePage, TableReader
from synrepl.streams.facts import NO_ROWS
from synrepl.streams.table import StreamTable

__all__ = ["TableSource", "TableState"]

T = TypeVar("T")

PAGE_ROWS: Final = 1_000
CERTIFY_SECONDS: Final = 1.0
"""How often the log is told that a writer wrote nothing: each time is a fact without rows."""


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """How a table-backed stream is doing: taken in up to `upto` of `limit`.

    `trouble` is what is wrong, if anything is; at `right_at`, in Unix seconds, nothing was.
    """

    stream: str
    upto: int
    limit: int
    trouble: str
    right_at: float


class _Followed:
    """One stream: its reader, and how far it has come."""

    def __init__(self, stream: TableStream, flavor: Flavor) -> None:
        self.stream = stream
        self.reader = TableReader(stream, flavor)
        self.upto = 0
        self.limit = 0
        self.certified_at = 0.0
        self.is_begun = False
        self.trouble = ""
        self.right_at = 0.0


class TableSource:
    """Follows the tables of `streams` in one database, in `thread`, with a connection from `connect`.

    It looks when it is woken (`wake`) and every `poll_seconds`. When the database is away it tries again, for
    ever. `writers_told` hears what the writers tell of their unfinished ids,
    `lost` of which stream history was lost: the log is in a new epoch then.
    """

    _logger = Logger()

    def __init__(
        self,
        connect: Callable[[], Any],
        streams: Sequence[TableStream],
        *,
        flavor: Flavor,
        log: Log,
        table: StreamTable,
        clock: IClock,
        thread: IThread,
        poll_seconds: float = 1.0,
        writers_told: Callable[[Sequence[WriterState]], None] = lambda states: None,
        lost: Callable[[str], None] = lambda stream: None,
    ) -> None:
        self._connect = connect
        self._followed = [_Followed(stream, flavor) for stream in streams]
        self._log = log
        self._table = table
        self._clock = clock
        self._thread = thread
        self._poll_seconds = poll_seconds
        self._writers_told = writers_told
        self._lost = lost
        self._flavor = flavor
        self._writers: list[WriterState] = []
        self._tasks = Tasks(self._logger, "tables")
        self._connection: Any = None
        self._is_looking = False
        self._look_again = False
        self._timer: Any = None
        self._is_stopped = False

    def start(self) -> None:
        """Begin to follow."""
        self.wake()

    async def stop(self) -> None:
        """Finish nothing, let the connection go, and end the thread."""
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._tasks.cancel_all()
        await self._thread.run(self._close)
        await self._thread.stop()

    def states(self) -> list[TableState]:
        """How each stream is doing."""
        return [
            TableState(
                stream=one.stream.stream,
                upto=one.upto,
                limit=one.limit,
                trouble=one.trouble,
                right_at=one.right_at,
            )
            for one in self._followed
        ]

    def problems(self) -> list[tuple[str, float]]:
        """What is wrong, in words, and when it was last right, in Unix seconds."""
        return [
            (f"table of {one.stream}: {one.trouble}", one.right_at) for one in self.states() if one.trouble
        ]

    def status(self, now: float) -> dict[str, Any]:
        """How each stream is doing, and what the writers tell of unfinished ids, as the status has it."""
        return {
            "tables": [msgspec.to_builtins(state) for state in self.states()],
            "writers": [
                msgspec.to_builtins(state)
                | {
                    "age_seconds": None
                    if state.oldest_since is None
                    else round(max(0.0, now - state.oldest_since), 3)
                }
                for state in self._writers
            ],
        }

    def is_followed(self, stream: str) -> bool:
        """Whether facts of this stream come from a table."""
        return any(one.stream.stream == stream for one in self._followed)

    # -- looking -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look soon: something may have been committed."""
        self._look_again = True
        if not self._is_looking and not self._is_stopped:
            self._is_looking = True
            self._tasks.start(self._look(), "taking in tables")

    async def _look(self) -> None:
        try:
            while self._look_again and not self._is_stopped:
                self._look_again = False
                for followed in self._followed:
                    await self._take_in(followed)
                await self._hear_writers()
        finally:
            self._is_looking = False
            if not self._is_stopped:
                if self._timer is not None and self._timer.active():
                    self._timer.cancel()
                self._timer = self._clock.callLater(self._poll_seconds, self.wake)

    async def _take_in(self, followed: _Followed) -> None:
        """Everything that is complete now, page by page."""
        try:
            if not followed.is_begun:
                await self._begin(followed)
            while not self._is_stopped:
                page: TablePage = await self._ask(
                    partial(followed.reader.page, after=followed.upto, rows=PAGE_ROWS)
                )
                await self._keep(followed, page)
                if page.upto >= page.limit:
                    break
            followed.trouble = ""
            followed.right_at = self._clock.seconds()
        except ReplicationError as error:
            self._complain(followed, str(error))
        except Exception as error:  # whatever the driver raises
            self._complain(followed, f"{type(error).__name__}: {error}".strip())
            await self._thread.run(self._close)

    def _complain(self, followed: _Followed, why: str) -> None:
        if why != followed.trouble:
            self._logger.warn(
                "{stream} cannot be read from its table, and is tried again: {why}",
                stream=followed.stream.stream,
                why=why,
            )
        followed.trouble = why

    async def _begin(self, followed: _Followed) -> None:
        """Go on where the log stands, or at the end of a stream that it does not have."""
        name = followed.stream.stream
        known = self._reached(followed)
        if known:
            # What was taken in was so in order of ids, whoever wrote: all of it up to the highest.
            followed.upto = max(known.values())
            await self._check_history(followed)
        elif not followed.stream.from_first:
            page: TablePage = await self._ask(partial(followed.reader.page, after=0, rows=1))
            followed.upto = page.limit
            await self._log.append_assigned(name, [(writer, page.limit, NO_ROWS) for writer in page.writers])
        followed.is_begun = True

    def _reached(self, followed: _Followed) -> dict[str, int]:
        """Where the writers stand in the log whose facts are taken from this table."""
        only = followed.stream.only
        reached = self._log.positions(followed.stream.stream)
        return {writer: at for writer, at in reached.items() if not only or writer in only}

    async def _check_history(self, followed: _Followed) -> None:
        """Whether the database still has all that the log has. If not, a new epoch begins where it ends."""
        findings: IdProblems = await self._ask(partial(followed.reader.examine, seen=followed.upto))
        for finding in findings.found:
            if finding.is_loss:
                await self._log.rewind_stream(followed.stream.stream, finding.before)
                followed.upto = finding.before
                self._logger.error(
                    "{stream}: {text}; epoch {epoch} begins, and followers read it again",
                    stream=finding.stream,
                    text=finding.text,
                    epoch=self._log.epoch,
                )
                self._lost(followed.stream.stream)

    async def _keep(self, followed: _Followed, page: TablePage) -> None:
        """Put a page into the log: its facts, and for writers without any that they have none."""
        stream = self._table[followed.stream.stream]
        facts: list[tuple[str, int, bytes]] = []
        for writer, token, rows in page.facts:
            try:
                facts.append((writer, token, stream.canonical_fact(rows)))
            except RowError as error:
                raise RowError(
                    stream=stream.name, why=f"id {token}: {error.why}", index=error.index
                ) from error
        # Position 1 stands for "nothing yet": there is nothing to certify.
        at_end = page.upto >= page.limit > 1
        is_due = self._clock.seconds() - followed.certified_at >= CERTIFY_SECONDS
        if at_end and is_due:
            followed.certified_at = self._clock.seconds()
            reached = self._reached(followed) | {writer: token for writer, token, _ in facts}
            facts += [
                (writer, page.upto, NO_ROWS)
                for writer in dict.fromkeys([*page.writers, *reached])
                if reached.get(writer, 0) < page.upto
            ]
        if facts:
            await self._log.append_assigned(stream.name, facts)
        followed.upto, followed.limit = page.upto, page.limit

    async def _hear_writers(self) -> None:
        """What the writers tell of unfinished ids, if they tell."""
        try:
            self._writers = await self._ask(self._read_writers)
        except Exception:
            return  # the streams' own troubles say enough
        self._writers_told(self._writers)

    # -- in the thread -------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[Any], T]) -> Awaitable[T]:
        return self._thread.run(partial(self._interact, work))

    def _interact(self, work: Callable[[Any], T]) -> T:
        """One transaction, which changes nothing."""
        if self._connection is None:
            self._connection = self._connect()
        cursor = self._connection.cursor()
        try:
            return work(cursor)
        finally:
            self._connection.rollback()

    def _read_writers(self, cursor: Any) -> list[WriterState]:
        if self._flavor == "postgresql":
            # Homeservers that know nothing of us have no such table; their log should not fill with that.
            cursor.execute("SELECT to_regclass('synrepl_writers')")
            if cursor.fetchone()[0] is None:
                return []
        return read_writers(cursor)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        for followed in self._followed:
            # Whatever comes next may be another database, restored from a dump, under the same name.
            followed.is_begun = False
        if connection is not None:
            connection.close()
