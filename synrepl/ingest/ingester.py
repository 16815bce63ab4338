"""Ingester: appends the facts that followers receive to the log, each once."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

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
from synrepl.streams.facts import LOST, NO_ROWS
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext
from synrepl.wire.commands import Replicate

CERTIFY_SECONDS: Final = 1.0
"""How often a writer's silence is recorded in the log: each record is a fact without rows."""

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""The size of pending facts beyond which followers are blocked."""

MAX_HISTORY_ROWS: Final = 1_000
"""Facts beyond a position that are checked: one with rows is enough."""

QUERY_SECONDS: Final = 1.0
MAX_QUERIES: Final = 5
"""A writer whose position fell is queried up to this often, each time for `QUERY_SECONDS`."""

BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)

FACT_BYTES: Final = 200
"""The approximate memory of a pending fact in addition to its rows."""


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


class _Rewind(msgspec.Struct):
    """The lowest position that a rewound writer reported, and its answers to the queries of a follower."""

    token: int
    query_follower: Follower | None = None
    answers: list[int] = []


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
    database was restored from a backup. A new epoch starts, and `history_lost` is called with the stream.
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
        self._rewound: dict[Writer, _Rewind] = {}
        """The writers whose history is to be checked, by stream and writer."""
        self._tasks = Tasks(self._logger, "ingest")
        self._pending: dict[str, list[tuple[str, int, bytes]]] = {}
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

        -1 if there is none, for ephemeral streams, and while the history of any of its writers is checked.
        """
        if self.table[stream].ephemeral or any(stream == name for name, _ in self._rewound):
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
        if event.kind != "went_back" and not self._rewound:
            return  # as nearly always
        writer = Writer(event.stream, event.writer)
        rewind = self._rewound.get(writer)
        if event.kind == "position" and rewind is not None and rewind.query_follower is not None:
            rewind.answers.append(event.token)
        if event.kind != "went_back" or event.stream not in self.table:
            return
        stream = self.table[event.stream]
        if stream.ordered and not stream.ephemeral:
            if rewind is None:
                rewind = self._rewound[writer] = _Rewind(event.token)
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
            while self._pending or self._pending_refused or self._rewound:
                while self._rewound:
                    writer, rewind = next(iter(self._rewound.items()))
                    if await self._is_confirmed(writer, rewind):
                        await self._check_history(writer, rewind.token)
                    del self._rewound[writer]
                pending, self._pending = self._pending, {}
                refused, self._pending_refused = self._pending_refused, []
                self._pending_bytes = 0
                if refused:
                    await self._retry(partial(self.refused.keep, refused))
                await self._commit_all(pending)
                blocked, self._blocked = self._blocked, []
                for unblocked in blocked:
                    unblocked.callback(None)
        finally:
            self._is_storing = False

    async def _is_confirmed(self, writer: Writer, rewind: "_Rewind") -> bool:
        """Whether a writer still reports a position lower than before."""
        await sleep(self.clock, 0)
        if rewind.query_follower is None:
            return True
        stream, name = writer
        for _ in range(MAX_QUERIES):
            await sleep(self.clock, QUERY_SECONDS)
            if rewind.answers:
                return rewind.answers[-1] < self.log.positions(stream).get(name, 0)
            self._query_position(rewind.query_follower, rewind)
        self._logger.warn(
            "writer {writer} of {stream} reported position {token}, lower than before, but does not"
            " confirm it; ignored",
            writer=name,
            stream=stream,
            token=rewind.token,
        )
        return False

    async def _check_history(self, writer: Writer, token: int) -> None:
        """Start a new epoch if the log holds facts of this writer beyond its new position."""
        stream, name = writer
        facts, _ = await self.log.reads.tokens(
            stream=stream,
            writer=name,
            after=token,
            upto=self.log.positions(stream).get(name, 0),
            serial=self.log.head.serial,
            limit=MAX_HISTORY_ROWS,
        )
        if any(fact.rows != NO_ROWS for fact in facts):
            self._logger.error(
                "writer {writer} of {stream} was rewound to token {token}, it has lost its later facts:"
                " a new epoch starts",
                writer=name,
                stream=stream,
                token=token,
            )
            await self.log.epochs.begin_next("lost", stream=stream, token=token)
            self.history_lost(stream)

    async def _commit_all(self, pending: dict[str, list[tuple[str, int, bytes]]]) -> None:
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

    async def _retry(self, store: Callable[[], Awaitable[None]]) -> None:
        """Store something, and again until it is stored. `error` says why it is not."""
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            try:
                await store()
            except StorageError as error:
                self.error = str(error)
            else:
                self.error = ""
                return
            if backoff.failures == 0:
                self._logger.error("cannot store received facts, retrying: {why}", why=self.error)
            await sleep(self.clock, backoff.next())
