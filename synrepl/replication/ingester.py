"""From what followers hear into the log: each fact once, whoever brings it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import ReplicationError, StorageError
from synrepl.ports.interfaces import Appended, IClock, SaveablePosition
from synrepl.ports.tasks import Tasks
from synrepl.replication.follower.follower import Follower, FollowerEvent
from synrepl.replication.follower.updates import Updates
from synrepl.streams import jsontext
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import Replicate

__all__ = ["IngestLog", "Ingester", "LogPositions"]

CERTIFY_SECONDS: Final = 1.0
"""How often the log is told that a writer wrote nothing: each time is a fact without rows."""

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""What may wait for the log before streams are held up."""

HISTORY_ROWS: Final = 1_000
"""Facts beyond a position that are looked at: one with rows is enough."""

ANSWER_SECONDS: Final = 1.0
QUESTIONS: Final = 5
"""How often a writer that seems to have gone back is asked, and how long each time is waited."""

RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)

FACT_BYTES: Final = 200
"""About what a fact that waits costs beside its rows."""


class IngestLog(Protocol):
    """What is asked of the log."""

    def append_assigned(self, stream: str, facts: Sequence[tuple[str, int, bytes]]) -> Awaitable[Appended]:
        """Add facts that have a writer and a token already; those that are known are left out."""

    def reset_writer(self, stream: str, writer: str) -> None:
        """The writer of an ephemeral stream began anew."""

    def positions(self, stream: str) -> dict[str, int]:
        """The committed position of each writer of this stream."""

    def positions_by_stream(self) -> SaveablePosition:
        """The positions of every stream that has any facts."""

    @property
    def serial(self) -> int:
        """The last committed serial."""

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """Facts of one stream and writer, by token."""

    async def rewind_stream(self, stream: str, upto: int) -> None:
        """The history of this stream beyond `upto` was lost where it came from: a new epoch begins."""


class LogPositions:
    """Lets a follower go on where the log stands, which is what it has durably.

    What this process writes itself (`own`, streams and writers) it never hears.
    """

    def __init__(self, log: IngestLog, own: Collection[tuple[str, str]] = ()) -> None:
        self._log = log
        self._own = frozenset(own)

    def load(self) -> SaveablePosition:
        """Where the log stands."""
        found = {}
        for stream, writers in self._log.positions_by_stream().items():
            heard = {writer: at for writer, at in writers.items() if (stream, writer) not in self._own}
            if heard:
                found[stream] = heard
        return found

    def save(self, positions: SaveablePosition) -> None:
        """Nothing to do: the facts themselves are saved."""


class Ingester:
    """Puts the facts of followers (made with `canonical`) into the log, many at a time.

    What comes while a commit is under way goes into the next one. A follower goes on as soon as a fact was
    handed over: if this process dies before the commit, it begins again where the log stands. When too much
    waits, streams are held up until the log has taken it. A commit that fails is tried again, for ever; so
    nothing of a stream is stored before what came earlier.

    A writer's silence (POSITION without rows) is a fact without rows, so that it is certified for good.

    A writer that stands lower than facts of its own which are here has lost them: its database was restored.
    Then the log begins a new epoch there, and `lost` is told the stream.
    """

    _logger = Logger()

    def __init__(
        self,
        log: IngestLog,
        table: StreamTable,
        clock: IClock,
        *,
        lost: Callable[[str], None] = lambda stream: None,
    ) -> None:
        self.trouble = ""
        self.facts = 0
        self._log = log
        self._table = table
        self._clock = clock
        self._lost = lost
        self._went_back: dict[tuple[str, str], int] = {}
        self._asked: dict[tuple[str, str], Follower] = {}
        self._answers: dict[tuple[str, str], list[int]] = {}
        self._tasks = Tasks(self._logger, "intake")
        self._waiting: dict[str, list[tuple[str, int, bytes]]] = {}
        self._waiting_bytes = 0
        self._is_storing = False
        self._rooms: list[Deferred[None]] = []
        self._told: dict[tuple[str, str], int] = {}
        self._timer: Any = None

    def follow(self, follower: Follower, *, knows_history: bool = True, confirms: bool = False) -> None:
        """Take in all that this follower hears. `knows_history`: it hears the writers themselves, so that one
        that stands lower has lost what came after; somebody between may just be behind. `confirms`: what it
        hears may be an old word that was held up on its way, so the writer is asked again before that counts.
        """
        follower.on_everything(self.take)
        follower.on_event(self._happened)
        if knows_history:
            follower.on_event(partial(self._note_history, follower if confirms else None))

    def take(self, updates: Updates[bytes]) -> "Deferred[None] | None":
        """Take in a fact. What it gives, if anything, fires when there is room for another."""
        self.facts += 1
        self._put(updates.stream, updates.writer, updates.token, jsontext.join(updates.rows))
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            return None
        room: Deferred[None] = Deferred()
        self._rooms.append(room)
        return room

    def reached(self, stream: str, writer: str) -> int:
        """Up to where this writer's facts are in the log, whoever brought them; -1 if that says nothing, as
        in streams that go back, or while history is looked at.
        """
        if self._table[stream].ephemeral or any(stream == name for name, _ in self._went_back):
            return -1
        return self._log.positions(stream).get(writer, -1)

    def stop(self) -> None:
        """Take nothing more in; what is not stored is heard again after the next start."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        self._tasks.cancel_all()

    # -- what waits ----------------------------------------------------------------------------------------

    def _put(self, stream: str, writer: str, token: int, rows: bytes) -> None:
        facts = self._waiting.get(stream)
        if facts is None:
            facts = self._waiting[stream] = []
        facts.append((writer, token, rows))
        self._waiting_bytes += len(rows) + FACT_BYTES
        self._store_soon()

    def _store_soon(self) -> None:
        if not self._is_storing:
            self._is_storing = True
            self._tasks.start(self._store(), "storing what was heard")

    def _note_history(self, asked: Follower | None, event: FollowerEvent) -> None:
        position = event.stream, event.writer
        if event.kind == "position" and position in self._answers:
            self._answers[position].append(event.token)
        if event.kind != "went_back" or event.stream not in self._table:
            return
        stream = self._table[event.stream]
        if stream.ordered and not stream.ephemeral:
            self._went_back[position] = min(event.token, self._went_back.get(position, event.token))
            if asked is not None:
                # After this turn, in which the same POSITION is told as such.
                self._clock.callLater(0, self._ask, asked, position)
            self._store_soon()

    def _ask(self, follower: Follower, position: tuple[str, str]) -> None:
        self._answers.setdefault(position, [])
        self._asked[position] = follower
        with suppress(ReplicationError):  # it asks by itself when it is connected again
            follower.send(Replicate())

    def _happened(self, event: FollowerEvent) -> None:
        if event.kind == "position":
            self._positioned(event.stream, event.writer, event.token)
        elif event.kind == "restarted" and event.stream in self._table:
            if self._table[event.stream].ephemeral:
                # What came of its former life is in memory only, and is void.
                waiting = self._waiting.pop(event.stream, [])
                if left := [fact for fact in waiting if fact[0] != event.writer]:
                    self._waiting[event.stream] = left
                self._log.reset_writer(event.stream, event.writer)
            self._told.pop((event.stream, event.writer), None)

    def _positioned(self, stream: str, writer: str, token: int) -> None:
        """A writer wrote nothing but what came. That is worth a fact now and then, the first time at once."""
        key = (stream, writer)
        if key not in self._told and writer not in self._log.positions(stream):
            self._told[key] = token
            self._put(stream, writer, token, NO_ROWS)
            return
        self._told[key] = token
        if self._timer is None:
            self._timer = self._clock.callLater(CERTIFY_SECONDS, self._certify)

    def _certify(self) -> None:
        self._timer = None
        told, self._told = self._told, {}
        for (stream, writer), token in told.items():
            if self._log.positions(stream).get(writer, -1) < token:
                self._put(stream, writer, token, NO_ROWS)

    # -- storing: one flight at a time ---------------------------------------------------------------------

    async def _store(self) -> None:
        try:
            # What else comes in this turn goes along.
            await deferLater(self._clock, 0, lambda: None)  # type: ignore[arg-type]
            while self._waiting or self._went_back:
                while self._went_back:
                    position = next(iter(self._went_back))
                    if await self._is_confirmed(position):
                        await self._look_at_history(position, self._went_back[position])
                    for noted in (self._went_back, self._asked, self._answers):
                        noted.pop(position, None)
                waiting, self._waiting = self._waiting, {}
                self._waiting_bytes = 0
                await self._keep(waiting)
                rooms, self._rooms = self._rooms, []
                for room in rooms:
                    room.callback(None)
        finally:
            self._is_storing = False

    async def _is_confirmed(self, position: tuple[str, str]) -> bool:
        """Whether a writer that was heard to stand lower than before still says so."""
        await deferLater(self._clock, 0, lambda: None)  # type: ignore[arg-type]
        if position not in self._asked:
            return True
        stream, writer = position
        for _ in range(QUESTIONS):
            await deferLater(self._clock, ANSWER_SECONDS, lambda: None)  # type: ignore[arg-type]
            answers = self._answers[position]
            if answers:
                return answers[-1] < self._log.positions(stream).get(writer, 0)
            self._ask(self._asked[position], position)
        self._logger.warn(
            "{writer} of {stream} was heard at {token}, lower than before, and says nothing any more",
            writer=writer,
            stream=stream,
            token=self._went_back[position],
        )
        return False

    async def _look_at_history(self, position: tuple[str, str], token: int) -> None:
        """A writer stands lower than it did: was that only a position, or are there facts that it lost?"""
        stream, writer = position
        facts, _ = await self._log.read_tokens(
            stream=stream,
            writer=writer,
            after=token,
            upto=self._log.positions(stream).get(writer, 0),
            serial=self._log.serial,
            limit=HISTORY_ROWS,
        )
        if any(fact.rows != NO_ROWS for fact in facts):
            self._logger.error(
                "{writer} of {stream} is back at {token}: what it wrote later was lost where it came from,"
                " and a new epoch begins",
                writer=writer,
                stream=stream,
                token=token,
            )
            await self._log.rewind_stream(stream, token)
            self._lost(stream)

    async def _keep(self, waiting: dict[str, list[tuple[str, int, bytes]]]) -> None:
        """Until all of it is stored: only then comes what came later."""
        attempt = 0
        while waiting:
            asked = [(stream, self._log.append_assigned(stream, facts)) for stream, facts in waiting.items()]
            failed: dict[str, list[tuple[str, int, bytes]]] = {}
            for stream, answer in asked:
                try:
                    await answer
                except StorageError as error:
                    failed[stream] = waiting[stream]
                    self.trouble = str(error)
            waiting = failed
            if waiting:
                seconds = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                if attempt == 0:
                    self._logger.error("{why}; tried again until it is kept", why=self.trouble)
                attempt += 1
                await deferLater(self._clock, seconds, lambda: None)  # type: ignore[arg-type]
            else:
                self.trouble = ""
