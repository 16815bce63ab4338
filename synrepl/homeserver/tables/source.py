"""Table sources: copy committed facts from tables into the log, each writer's in order, none too early.

Several processes write one stream. Each reserves ids, and commits rows under them when it is done, so that an
id may be committed while a lower one of another process is not. In the database each writer has a position:
up to it all its own facts are there. The lowest of them is the linear position: up to it all facts of all
writers are there.

The source first copies everything up to the linear position, in the order of ids. Then it looks ahead: of
each writer that is further, it copies the facts up to that writer's own position. So a writer that is stuck
holds back its own facts alone. When the linear position arrives there, what was copied ahead is passed over.
In the log the tokens of one writer ascend; those of two writers may come in any order. Who reads a stream as
one sequence, as releases before 1.13 do, is sent it up to the linear position only (`FollowerSender`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from synrepl.base.interfaces import IClock, IThread
from synrepl.base.problems import Problem
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import ReplicationError, RowError
from synrepl.homeserver.tables.layout import TableStream
from synrepl.homeserver.tables.scan import TablePage, TableScan
from synrepl.storage.id_tables.id_problems import IdProblems
from synrepl.storage.id_tables.writers import WriterState, read_writers
from synrepl.storage.log import Log
from synrepl.storage.sql import Flavor
from synrepl.streams.facts import NO_ROWS
from synrepl.streams.table import StreamTable

T = TypeVar("T")

PAGE_ROWS: Final = 1_000
POLL_SECONDS: Final = 0.5
CERTIFY_SECONDS: Final = 1.0
"""The interval, in seconds, between proofs in the log that idle writers wrote nothing: facts without rows."""


class TableState(msgspec.Struct, kw_only=True):
    """The state of a table-backed stream: facts are complete up to id `limit`, and logged up to id `upto`.

    These are of all writers together. `held_by` are the writers at `limit` if others are ahead of it: theirs
    is the first id that is not finished. `trouble` is the current problem, or empty. `right_at` is when there
    last was none, in Unix seconds, or 0.
    """

    stream: str
    upto: int = 0
    limit: int = 0
    held_by: list[str] = []
    trouble: str = ""
    right_at: float = 0.0


class _Followed:
    def __init__(self, stream: TableStream, flavor: Flavor) -> None:
        self.stream = stream
        self.scan = TableScan(stream, flavor)
        self.state = TableState(stream=stream.stream)
        self.certified_at = 0.0
        self.is_started = False


class TableSource:
    """Follows the tables of `streams` in one database, in `thread`, with a connection from `connect`.

    It polls when it is woken (`wake`) and every `POLL_SECONDS`, and retries forever if the database is
    unreachable. After each poll `on_writer_status` is called with the writers' status, if readable. `on_lost`
    is called with the name of a stream whose source lost facts, after the log has begun a new epoch.
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
        on_writer_status: Callable[[Sequence[WriterState]], None] = lambda states: None,
        on_lost: Callable[[str], None] = lambda stream: None,
    ) -> None:
        self._connect = connect
        self._followed = [_Followed(stream, flavor) for stream in streams]
        self._log = log
        self._table = table
        self._clock = clock
        self._thread = thread
        self._on_writer_status = on_writer_status
        self._on_lost = on_lost
        self._flavor = flavor
        self._writers: list[WriterState] = []
        self._tasks = Tasks(self._logger, "tables")
        self._connection: Any = None
        self._is_polling = False
        self._poll_again = False
        self._timer = Timer(clock, self.wake)
        self._is_stopped = False

    def start(self) -> None:
        """Start following."""
        self.wake()

    async def stop(self) -> None:
        """Stop at once, close the connection, and stop the thread."""
        self._is_stopped = True
        self._timer.stop()
        self._tasks.cancel_all()
        await self._thread.run(self._close)
        await self._thread.stop()

    def states(self) -> list[TableState]:
        """The state of each stream."""
        return [copy(one.state) for one in self._followed]

    def problems(self) -> list[Problem]:
        """Each stream's problem, and when the stream last had none (0: not since the start)."""
        return [
            Problem(f"table of {one.stream}: {one.trouble}", one.right_at, not_ready=True)
            for one in self.states()
            if one.trouble
        ]

    def status(self) -> dict[str, Any]:
        """The streams and the writers' status, for the status report."""
        now = self._clock.seconds()
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
        """Whether this source follows the stream."""
        return any(one.stream.stream == stream for one in self._followed)

    def wake(self) -> None:
        """Poll soon: facts may have been committed."""
        self._poll_again = True
        if not self._is_polling and not self._is_stopped:
            self._is_polling = True
            self._tasks.start(self._poll(), "copying facts from tables")

    async def _poll(self) -> None:
        try:
            while self._poll_again and not self._is_stopped:
                self._poll_again = False
                for followed in self._followed:
                    await self._copy_complete(followed)
                await self._read_writer_status()
        finally:
            self._is_polling = False
            if not self._is_stopped:
                self._timer.restart(POLL_SECONDS)

    async def _copy_complete(self, followed: _Followed) -> None:
        try:
            if not followed.is_started:
                await self._start_following(followed)
            while not self._is_stopped:
                page: TablePage = await self._run(
                    partial(followed.scan.page, after=followed.state.upto, rows=PAGE_ROWS)
                )
                await self._append_page(followed, page)
                if page.upto >= page.limit:
                    await self._look_ahead(followed, page.complete)
                    break
            followed.state.trouble = ""
            followed.state.right_at = self._clock.seconds()
        except CancelledError:  # by `stop`, which closes the connection
            raise
        except ReplicationError as error:
            self._complain(followed, str(error))
        except Exception as error:  # whatever the driver raises
            self._complain(followed, f"{type(error).__name__}: {error}".strip())
            await self._thread.run(self._close)

    def _complain(self, followed: _Followed, why: str) -> None:
        if why != followed.state.trouble:
            self._logger.warn(
                "cannot read {stream} from its table, retrying: {why}", stream=followed.stream.stream, why=why
            )
        followed.state.trouble = why

    async def _start_following(self, followed: _Followed) -> None:
        """Continue from the log's positions; without any, start at the stream's end (`from_first`: at 0)."""
        name = followed.stream.stream
        known = self._log_positions(followed)
        if known:
            page: TablePage = await self._run(partial(followed.scan.page, after=0, rows=1))
            # Beyond the lowest position something of that writer may be missing. Writers that are gone do
            # not count: nobody moves their positions.
            writing = [known[writer] for writer in page.complete if writer in known]
            followed.state.upto = min(writing, default=max(known.values()))
            await self._check_history(followed, seen=max(known.values()))
        elif not followed.stream.from_first:
            page = await self._run(partial(followed.scan.page, after=0, rows=1))
            followed.state.upto = page.limit
            await self._log.append_assigned(name, [(writer, page.limit, NO_ROWS) for writer in page.complete])
        followed.is_started = True

    def _log_positions(self, followed: _Followed) -> dict[str, int]:
        only = followed.stream.only
        positions = self._log.positions(followed.stream.stream)
        return {writer: at for writer, at in positions.items() if not only or writer in only}

    async def _check_history(self, followed: _Followed, *, seen: int) -> None:
        """Begin a new epoch if the database has lost facts that the log has; it has ids up to `seen`."""
        examined: IdProblems = await self._run(partial(followed.scan.examine, seen=seen))
        for problem in examined.found:
            if problem.is_loss:
                await self._log.epochs.begin_next("lost", stream=followed.stream.stream, token=problem.before)
                followed.state.upto = min(followed.state.upto, problem.before)
                self._logger.error(
                    "{stream}: {text}; began epoch {epoch}, in which followers read the stream again",
                    stream=problem.stream,
                    text=problem.text,
                    epoch=self._log.head.epoch,
                )
                self._on_lost(followed.stream.stream)

    async def _append_page(self, followed: _Followed, page: TablePage) -> None:
        """Append the facts of a page to the log; at the end of the tables also positions of idle writers."""
        facts = self._new_facts(followed, page)
        # Position 1 means "nothing yet": there is nothing to certify.
        at_end = page.upto >= page.limit > 1
        is_due = self._clock.seconds() - followed.certified_at >= CERTIFY_SECONDS
        if at_end and is_due:
            followed.certified_at = self._clock.seconds()
            positions = self._log_positions(followed) | {writer: token for writer, token, _ in facts}
            facts += [
                (writer, page.upto, NO_ROWS)
                for writer in dict.fromkeys([*page.complete, *positions])
                if positions.get(writer, 0) < page.upto
            ]
        if facts:
            await self._log.append_assigned(followed.stream.stream, facts)
        followed.state.upto, followed.state.limit = page.upto, page.limit

    async def _look_ahead(self, followed: _Followed, complete: Mapping[str, int]) -> None:
        """Append the facts that each writer has completed beyond the linear position."""
        name, limit = followed.stream.stream, followed.state.limit
        ahead = any(upto > limit for upto in complete.values())
        followed.state.held_by = sorted(one for one, upto in complete.items() if ahead and upto == limit)
        if not ahead:
            return
        # Whoever takes the lowest position in the log for the linear one must know all writers.
        known = self._log.positions(name)
        start = limit if limit > 1 else 0
        if new := [(writer, start, NO_ROWS) for writer in complete if writer not in known]:
            await self._log.append_assigned(name, new)
        for writer, upto in complete.items():
            while not self._is_stopped:
                after = max(limit, self._log.positions(name).get(writer, 0))
                if after >= upto:
                    break
                work = partial(followed.scan.missed, writer=writer, after=after, upto=upto, rows=PAGE_ROWS)
                page: TablePage = await self._run(work)
                facts = self._new_facts(followed, page)
                if not facts or facts[-1][1] < page.upto:
                    # Nothing more of this writer up to there: it need not be read again.
                    facts.append((writer, page.upto, NO_ROWS))
                await self._log.append_assigned(name, facts)

    def _new_facts(self, followed: _Followed, page: TablePage) -> list[tuple[str, int, bytes]]:
        """The facts of a page that the log does not have yet, as it takes them. Raises `RowError`."""
        stream = self._table[followed.stream.stream]
        positions = self._log.positions(stream.name)
        facts: list[tuple[str, int, bytes]] = []
        for writer, token, rows in page.facts:
            if token <= positions.get(writer, 0):
                continue  # copied ahead
            try:
                facts.append((writer, token, stream.canonical_fact(rows)))
            except RowError as error:
                raise RowError(
                    stream=stream.name, why=f"id {token}: {error.why}", index=error.index
                ) from error
        return facts

    async def _read_writer_status(self) -> None:
        try:
            self._writers = await self._run(self._read_writers)
        except Exception:
            return  # the problems of the streams cover it
        self._on_writer_status(self._writers)

    def _run(self, work: Callable[[Any], T]) -> Awaitable[T]:
        return self._thread.run(partial(self._interact, work))

    def _interact(self, work: Callable[[Any], T]) -> T:
        if self._connection is None:
            self._connection = self._connect()
        cursor = self._connection.cursor()
        try:
            return work(cursor)
        finally:
            self._connection.rollback()

    def _read_writers(self, cursor: Any) -> list[WriterState]:
        if self._flavor == "postgresql":
            # Other writers' databases lack the table; the query would fill the server's log with errors.
            cursor.execute("SELECT to_regclass('synrepl_writers')")
            if cursor.fetchone()[0] is None:
                return []
        return read_writers(cursor)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        for followed in self._followed:
            # The next connection may be to another database, restored from a dump under the same name.
            followed.is_started = False
        if connection is not None:
            connection.close()
