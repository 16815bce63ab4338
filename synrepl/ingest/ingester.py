"""Ingester: appends the facts that followers receive to the log, each once."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.interfaces import IClock, SaveablePosition
from synrepl.base.tasks import Tasks
from synrepl.base.time import Backoff, Timer, sleep
from synrepl.errors import GapError, ReplicationError, StorageError
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.storage.log import Log
from synrepl.streams.catalog import RefusedFact
from synrepl.streams.facts import LOST, NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext
from synrepl.wire.commands import Replicate

T = TypeVar("T")

CERTIFY_SECONDS: Final = 1.0
"""How often a writer's silence is recorded in the log: each record is a fact without rows."""

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""The size of pending facts beyond which followers are blocked."""

MAX_HISTORY_ROWS: Final = 1_000
"""Facts beyond a position that are checked: one with rows is enough."""

LOOK_BACK: Final = 100
"""How many tokens before a fact show whether the log is trimmed there."""

QUERY_SECONDS: Final = 1.0
MAX_QUERIES: Final = 5
"""A writer whose position fell is queried up to this often, each time for `QUERY_SECONDS`."""

BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)

FACT_BYTES: Final = 200
"""The approximate memory of a pending fact in addition to its rows."""


_Fact = tuple[str, int, bytes]
"""Writer, token and rows."""


class LoggedPositions:
    """A position store backed by the log: a follower continues from the log's durable positions.

    Streams and writers in `own` are left out: this process writes them and never receives them.
    """

    def __init__(self, log: Log, own: Collection[Writer] = ()) -> None:
        self._log = log
        self._own = frozenset(own)

    def load(self) -> SaveablePosition:
        """The positions of the log."""
        found = {}
        for stream, writers in self._log.positions_by_stream().items():
            others = {writer: at for writer, at in writers.items() if (stream, writer) not in self._own}
            if others:
                found[stream] = others
        return found

    def save(self, positions: SaveablePosition) -> None:
        """Do nothing: the facts themselves are saved."""


class _Rewind(msgspec.Struct, eq=False):
    """A writer reported `token`, below its position before; the lowest, if it did so several times.

    `earlier` are the pending facts of its stream from before the report. `answers` are its answers to the
    queries of a follower.
    """

    writer: Writer
    token: int
    earlier: list[_Fact]
    query_follower: Follower | None = None
    answers: list[int] = []
    is_checked: bool = False


@dataclass(eq=False, repr=False)
class Ingester:
    """Appends the facts of followers (made with `canonical`) to the log, many per commit.

    Facts that arrive during a commit go into the next one. A follower continues once its fact is submitted:
    if this process dies before the commit, the follower restarts from the log's position. When too many facts
    are pending, followers are blocked until the next commit (backpressure). A failed commit is retried
    without limit, so a stream's facts are stored in order.

    A writer's silence (POSITION without rows) is stored as a fact without rows, which records its position.
    What a follower has lost, since a row cannot be read or no source has it, is stored as `LOST`: the log
    shows the hole then, and does not certify that nothing was there. A fact that cannot be read is kept in
    `refused` first.

    In an ordered kept stream, a writer whose position is below its own facts in the log has lost them: its
    database was restored from a backup. A new epoch starts, and `history_lost` is called with the stream. A
    writer that does not confirm its lower position stays suspected: a fact that it then sends under a known
    token shows a new history if the log has other rows there.
    """

    _logger = Logger()
    log: Log
    table: StreamTable
    clock: IClock
    _: KW_ONLY
    refused: RefusedFacts
    history_lost: Callable[[str], None] = lambda stream: None

    def __post_init__(self) -> None:
        self.error = ""
        self.facts = 0
        self._rewinds: deque[_Rewind] = deque()
        """The reports of lower positions that are to be checked, in order."""
        self._suspected: dict[Writer, int] = {}
        """The lower position of each writer that did not confirm it, and has not caught up with the log."""
        self._tasks = Tasks(self._logger, "ingest")
        self._pending: dict[str, list[_Fact]] = {}
        self._pending_refused: list[RefusedFact] = []
        self._pending_bytes = 0
        self._is_storing = False
        self._blocked: list[Deferred[None]] = []
        self._announced: dict[Writer, int] = {}
        self._timer = Timer(self.clock, self._certify_silence)

    def attach(
        self,
        follower: Follower,
        *,
        sender: Callable[[str, str], str] = lambda stream, writer: "",
        knows_history: bool = True,
        confirms: bool = False,
    ) -> None:
        """Ingest all facts of this follower. `sender` names who sends a stream of a writer.

        `knows_history`: the follower is connected to the writers themselves, so a lower position means lost
        facts; an intermediary may only be behind. `confirms`: POSITIONs may be delayed, so a writer is
        queried again before a lower position counts.
        """
        follower.on_everything(self.submit)
        follower.on_event(partial(self._on_event, sender))
        if knows_history:
            follower.on_event(partial(self._on_history_event, follower if confirms else None))

    def submit(self, updates: Updates[bytes]) -> "Deferred[None] | None":
        """Add a fact. Returns None, or a Deferred that fires when the caller may submit the next one."""
        self.facts += 1
        self._add(updates.stream, updates.writer, updates.token, jsontext.join(updates.rows))
        if self._pending_bytes <= MAX_PENDING_BYTES:
            return None
        unblocked: Deferred[None] = Deferred()
        self._blocked.append(unblocked)
        return unblocked

    def durable_position(self, stream: str, writer: str) -> int:
        """The writer's position in the log, from any source.

        -1 if there is none, for ephemeral streams, and while the history of any of its writers is in doubt.
        """
        doubted = (*(rewind.writer for rewind in self._rewinds), *self._suspected)
        if self.table[stream].ephemeral or any(stream == name for name, _ in doubted):
            return -1
        return self.log.positions(stream).get(writer, -1)

    def stop(self) -> None:
        """Stop ingesting. Facts that are not stored are received again after the next start."""
        self._timer.stop()
        self._tasks.cancel_all()

    def _add(self, stream: str, writer: str, token: int, rows: bytes) -> None:
        facts = self._pending.get(stream)
        if facts is None:
            facts = self._pending[stream] = []
        facts.append((writer, token, rows))
        self._pending_bytes += len(rows) + FACT_BYTES
        self._store_soon()

    def _store_soon(self) -> None:
        if not self._is_storing:
            self._is_storing = True
            self._tasks.start(self._store(), "storing received facts")

    def _on_history_event(self, query_follower: Follower | None, event: FollowerEvent) -> None:
        if event.kind != "went_back" and not self._rewinds:
            return  # as nearly always
        writer = Writer(event.stream, event.writer)
        if event.kind == "position":
            for rewind in self._rewinds:
                if rewind.writer == writer and rewind.query_follower is not None:
                    rewind.answers.append(event.token)
        if event.kind != "went_back" or event.stream not in self.table:
            return
        stream = self.table[event.stream]
        if stream.ordered and not stream.ephemeral:
            earlier = self._pending.pop(event.stream, [])
            last = self._rewinds[-1] if self._rewinds else None
            if last is not None and last.writer == writer and not last.is_checked and not earlier:
                rewind = last
            else:
                rewind = _Rewind(writer, event.token, earlier)
                self._rewinds.append(rewind)
            rewind.token = min(event.token, rewind.token)
            if query_follower is not None:
                # In the next reactor turn: in this one, the same POSITION is still to be processed.
                self.clock.callLater(0, self._query_position, query_follower, rewind)
            self._store_soon()

    def _query_position(self, follower: Follower, rewind: "_Rewind") -> None:
        rewind.query_follower = follower
        with suppress(ReplicationError):  # the follower sends REPLICATE itself when it reconnects
            follower.send(Replicate())

    def _on_event(self, publisher: Callable[[str, str], str], event: FollowerEvent) -> None:
        if event.kind == "position":
            self._on_position(event.stream, event.writer, event.token)
        elif event.kind == "lost" and event.stream in self.table:
            if event.rows:
                self._refuse(event, publisher(event.stream, event.writer))
            if not self.table[event.stream].ephemeral:
                self._add(event.stream, event.writer, event.token, LOST)
        elif event.kind == "restarted" and event.stream in self.table:
            if self.table[event.stream].ephemeral:
                # Pending facts from before the restart are void.
                pending = self._pending.pop(event.stream, [])
                if left := [fact for fact in pending if fact[0] != event.writer]:
                    self._pending[event.stream] = left
                self.log.reset_writer(event.stream, event.writer)
            self._announced.pop(Writer(event.stream, event.writer), None)

    def _refuse(self, event: FollowerEvent, publisher: str) -> None:
        """Keep a fact that cannot be read. A row is text: a line that is none is refused as a whole."""
        rows = [row.decode(errors="backslashreplace") for row in event.rows]
        why = event.error.why if isinstance(event.error, GapError) else event.text
        self._pending_refused.append(
            RefusedFact(
                stream=event.stream,
                writer=event.writer,
                token=event.token,
                publisher=publisher,
                why=why,
                rows=rows,
            )
        )
        self._pending_bytes += sum(map(len, rows)) + FACT_BYTES
        self._store_soon()

    def _on_position(self, stream: str, writer: str, token: int) -> None:
        """Record a writer's position without new facts: the first at once, later ones now and then."""
        one = Writer(stream, writer)
        if one not in self._announced and writer not in self.log.positions(stream):
            self._announced[one] = token
            self._add(stream, writer, token, NO_ROWS)
            return
        self._announced[one] = token
        self._timer.start(CERTIFY_SECONDS)

    def _certify_silence(self) -> None:
        announced, self._announced = self._announced, {}
        for (stream, writer), token in announced.items():
            if self.log.positions(stream).get(writer, -1) < token:
                self._add(stream, writer, token, NO_ROWS)

    async def _store(self) -> None:
        try:
            # Include everything submitted in this reactor turn.
            await sleep(self.clock, 0)
            while self._pending or self._pending_refused or self._rewinds:
                while self._rewinds:
                    await self._check_rewind(self._rewinds[0])
                    self._rewinds.popleft()
                pending, self._pending = self._pending, {}
                refused, self._pending_refused = self._pending_refused, []
                self._pending_bytes = 0
                if refused:
                    await self._retry(partial(self.refused.keep, refused))
                for writer, token in list(self._suspected.items()):
                    await self._check_suspected(writer, token, pending)
                await self._commit_all(pending)
                blocked, self._blocked = self._blocked, []
                for unblocked in blocked:
                    unblocked.callback(None)
        finally:
            self._is_storing = False

    async def _check_rewind(self, rewind: "_Rewind") -> None:
        writer = rewind.writer
        await self._commit_all({writer.stream: rewind.earlier} if rewind.earlier else {})
        is_confirmed = await self._is_confirmed(rewind)
        rewind.is_checked = True
        if is_confirmed is None:
            self._suspected[writer] = min(rewind.token, self._suspected.get(writer, rewind.token))
            return
        if is_confirmed:
            await self._check_history(writer, rewind.token)
        self._suspected.pop(writer, None)

    async def _is_confirmed(self, rewind: "_Rewind") -> bool | None:
        """Whether a writer still reports a position lower than before. None if it does not answer."""
        await sleep(self.clock, 0)
        if rewind.query_follower is None:
            return True
        stream, name = rewind.writer
        for _ in range(MAX_QUERIES):
            await sleep(self.clock, QUERY_SECONDS)
            if rewind.answers:
                return rewind.answers[-1] < self.log.positions(stream).get(name, 0)
            self._query_position(rewind.query_follower, rewind)
        self._logger.warn(
            "writer {writer} of {stream} reported position {token}, lower than before, but does not"
            " confirm it; its next facts show whether it has lost any",
            writer=name,
            stream=stream,
            token=rewind.token,
        )
        return None

    async def _check_suspected(self, writer: Writer, token: int, pending: dict[str, list[_Fact]]) -> None:
        """Start a new epoch if a suspected writer sent a fact that the log has otherwise or not at all."""
        stream, name = writer
        facts = [one for one in pending.get(stream, ()) if one[0] == name and one[2] not in (NO_ROWS, LOST)]
        if not facts:
            return
        position = self.log.positions(stream).get(name, 0)
        known = [(at, rows) for _, at, rows in facts if at <= position]
        if known:
            stored, is_more = await self._read(writer, after=known[0][0] - LOOK_BACK, upto=known[-1][0])
            checked = [one for one in known if not is_more or one[0] <= stored[-1].token]
            if any(self._contradicts(stored, at, rows) for at, rows in checked):
                await self._begin_epoch(writer, min(token, known[0][0] - 1))
                del self._suspected[writer]
                return
        if len(known) < len(facts):
            # It has gone through all that the log has, and said the same.
            del self._suspected[writer]

    def _contradicts(self, stored: Sequence[Fact], token: int, rows: bytes) -> bool:
        """Whether a fact under this token is none of those that were stored around it.

        What is fetched again can have less: the newest row of a key alone. A fact that was lost proves
        nothing, nor does one that is not there where the log is trimmed.
        """
        for fact in stored:
            if fact.token == token:
                return fact.rows != NO_ROWS and not {*jsontext.split(rows)} <= {*jsontext.split(fact.rows)}
        trimmed_upto = self.log.head.trimmed_upto.serial
        return not trimmed_upto or any(one.token < token and one.serial > trimmed_upto for one in stored)

    async def _check_history(self, writer: Writer, token: int) -> None:
        """Start a new epoch if the log holds facts of this writer beyond its new position."""
        stored, _ = await self._read(
            writer, after=token, upto=self.log.positions(writer.stream).get(writer.name, 0)
        )
        if any(fact.rows != NO_ROWS for fact in stored):
            await self._begin_epoch(writer, token)

    async def _read(self, writer: Writer, *, after: int, upto: int) -> tuple[list[Fact], bool]:
        async def read() -> tuple[list[Fact], bool]:
            return await self.log.reads.tokens(
                stream=writer.stream,
                writer=writer.name,
                after=after,
                upto=upto,
                serial=self.log.head.serial,
                limit=MAX_HISTORY_ROWS,
            )

        return await self._retry(read)

    async def _begin_epoch(self, writer: Writer, token: int) -> None:
        self._logger.error(
            "writer {writer} of {stream} was rewound to token {token}, it has lost its later facts:"
            " a new epoch starts",
            writer=writer.name,
            stream=writer.stream,
            token=token,
        )
        await self._retry(partial(self.log.epochs.begin_next, "lost", stream=writer.stream, token=token))
        self.history_lost(writer.stream)

    async def _commit_all(self, pending: dict[str, list[_Fact]]) -> None:
        """Commit pending facts, retrying until all are stored: later facts must not overtake them."""
        left = dict(pending)

        async def commit() -> None:
            commits = [(stream, self.log.append_assigned(stream, facts)) for stream, facts in left.items()]
            failed: StorageError | None = None
            for stream, one in commits:
                try:
                    await one
                except StorageError as error:
                    failed = error
                else:
                    del left[stream]
            if failed is not None:
                raise failed

        await self._retry(commit)

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the log for something, and again until it is done. `error` says why it is not."""
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            try:
                done = await work()
            except StorageError as error:
                self.error = str(error)
            else:
                self.error = ""
                return done
            if backoff.failures == 0:
                self._logger.error("cannot store received facts, retrying: {why}", why=self.error)
            await sleep(self.clock, backoff.next())
