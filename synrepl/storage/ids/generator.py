"""Gives out the ids of a stream, and knows how far it is complete."""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, TracebackType
from typing import Final, Generic, Protocol, TypeVar

from twisted.internet.defer import CancelledError, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock
from synrepl.storage.ids.database import Flavor, IdDatabase
from synrepl.storage.ids.layout import IdStream, IdTable
from synrepl.storage.ids.reservation import NotAWriter, Reservation, Unfinished
from synrepl.storage.ids.startup import IdPosition, IdProblem, IdProblems, examine, mend, stand
from synrepl.storage.ids.tracker import Tracker
from synrepl.storage.ids.transactions import ICursor, IPool, ITransaction, transact

__all__ = ["CHANNEL", "ISession", "MultiWriterIdGenerator", "StreamIdGenerator"]

T = TypeVar("T")

SETTLE_SECONDS: Final = 0.5
"""How long after a rollback of doubtful outcome the database is asked again, at most."""
SETTLE_FIRST_SECONDS: Final = 0.01
"""How long at first: what is under way in a busy database is mostly over by then."""

CHANNEL: Final = "synrepl"
"""What PostgreSQL is asked to NOTIFY on when a position is stored: a wake-up, without content."""


class ISession(Protocol):
    """As much as a generator knows of what makes its process a writer."""

    is_held: bool
    refusal: str


class MultiWriterIdGenerator:
    """The ids of a stream that several processes may write, each with its own name.

    `pool` runs functions in transactions (`twisted.enterprise.adbapi.ConnectionPool` does); `flavor` says
    what its database is. PostgreSQL notifies `channel` when a position is stored. Start it (`start`) before
    anything else.

    Reserve ids around whatever writes the facts::

        async with ids.next() as token:
            await transact(pool, partial(insert, token))

    or inside a transaction of yours (`within`). What writes must have ended when the block does, also when it
    is called off: `transact` waits for that, a bare `runInteraction` of adbapi does not. The tokens are
    explained in `docs/explanation/ids.md`; they have the sign of the stream, as the tables do.
    """

    _logger = Logger()

    def __init__(
        self,
        pool: IPool,
        stream: IdStream,
        *,
        instance: str,
        flavor: Flavor,
        clock: IClock,
        channel: str = CHANNEL,
    ) -> None:
        self.stream = stream
        self.instance = instance
        self.database = IdDatabase(stream, flavor)
        self.findings: list[IdProblem] = []
        """What was wrong when it started, and was mended."""
        self.session: ISession | None = None
        """What makes this process the only writer of its name; set by that (`WriterSession`)."""
        self.pool = pool
        self._clock = clock
        self._channel = channel
        self._lock = threading.RLock()
        self._tracker = Tracker(instance, stream.writers, positions={}, persisted_upto=0)
        self._is_started = False
        self._reservations: set[Reservation] = set()
        self._watchers: list[Callable[[], None]] = []
        self._saved = 0
        self._told = 0
        self._is_saving = False

    # -- its start -----------------------------------------------------------------------------------------

    async def start(self, *, seen: int = 0) -> None:
        """Look what the database holds, mend what can be mended, and begin from there.

        `seen` is the highest token (without sign) that some reader is known to have, as the log of a daemon
        tells. Raises `StorageError` if there is no such sequence.
        """

        def begin(cursor: ICursor) -> tuple[IdProblems, IdPosition]:
            self.database.lock_start(cursor)
            findings = examine(cursor, self.database, seen=seen)
            mend(cursor, self.database, findings)
            return findings, stand(cursor, self.database, self.instance)

        findings, standing = await transact(self.pool, begin)
        self.findings = findings.found
        self._warn(findings)
        with self._lock:
            self._tracker = Tracker(
                self.instance,
                self.stream.writers,
                positions=standing.positions,
                persisted_upto=standing.persisted_upto,
                own_row=standing.own_row,
            )
            self._saved = findings.positions.get(self.instance, 0)
            self._is_started = True

    def _warn(self, findings: IdProblems) -> None:
        worth_it = [finding for finding in findings.found if finding.kind != "sequence_unused"]
        if worth_it:
            self._logger.warn(
                "ids of {stream} mended: {text}; sequence {sequence} was at {before}, now at {after}",
                stream=self.stream.name,
                text="; ".join(finding.text for finding in worth_it),
                sequence=self.stream.sequence,
                before=findings.allocated,
                after=max(findings.goal, findings.allocated),
            )

    # -- reserving -----------------------------------------------------------------------------------------

    def next(self, *, owner: str = "") -> "_Next[int]":
        """One id, for an ``async with``: completed at its end, rolled back if that ends by an exception."""
        return _Next(self, 1, owner or _site(), lambda tokens: tokens[0])

    def next_many(self, count: int, *, owner: str = "") -> "_Next[Sequence[int]]":
        """Several ids at once, ascending by age, for an ``async with``."""
        return _Next(self, count, owner or _site(), lambda tokens: tokens)

    @contextmanager
    def within(
        self, transaction: ITransaction, count: int = 1, *, owner: str = ""
    ) -> Iterator[Sequence[int]]:
        """Ids inside a transaction of the caller's, completed once that is committed or rolled back.

        It runs in the thread of the transaction. What the block writes belongs into the same transaction.
        """
        reservation = self._reserve(transaction, count, owner or _site(2))
        transaction.call_after(reservation.complete)
        transaction.call_on_exception(reservation.roll_back)
        yield reservation.tokens

    def _reserve(self, cursor: ICursor, count: int, owner: "str | tuple[CodeType, int]") -> Reservation:
        """Ask the database for ids, in a transaction's thread."""
        if count < 1:
            raise ValueError(f"at least one id, not {count}")
        with self._lock:
            self._check()
            asking = self._tracker.asks()
            above = self._tracker.reserved_upto
        try:
            ids, mark = self.database.allocate(cursor, count, above)
        except BaseException:
            with self._lock:
                self._tracker.gave_up(asking)
            raise
        sign = self.stream.sign
        tokens = ids if sign > 0 else [-taken for taken in ids]
        reservation = Reservation(self, ids, tokens, mark, owner, self._clock.seconds())
        with self._lock:
            self._tracker.reserved(asking, ids)
            self._reservations.add(reservation)
        return reservation

    def _check(self) -> None:
        if self.session is not None and not self.session.is_held:
            raise StorageError(
                op="reserve",
                why=f"this process is not the writer {self.instance} now"
                + (f": {self.session.refusal}" if self.session.refusal else ""),
                stream=self.stream.name,
                retryable=not self.session.refusal,
            )
        if not self._is_started:
            raise StorageError(op="reserve", why="the generator was not started", stream=self.stream.name)
        if not self._tracker.is_writer:
            raise NotAWriter(stream=self.stream.name, instance=self.instance, writers=self.stream.writers)

    # -- finishing -----------------------------------------------------------------------------------------

    def complete(self, reservation: Reservation) -> None:
        """The facts under these ids are committed. `Reservation.complete` comes here."""
        if self._finish(reservation):
            self._save_soon()

    def roll_back(self, reservation: Reservation) -> None:
        """It was to be rolled back, with the transaction in which the ids were reserved.

        SQLite's rollback takes back the count as well.
        """
        mark, highest = reservation.mark, reservation.ids[-1]

        async def is_over() -> bool:
            return await transact(self.pool, lambda cursor: self.database.is_over(cursor, mark, highest))

        ensureDeferred(self._finish_when(reservation, is_over))

    def _leave(self, reservation: Reservation) -> None:
        """Whatever used the ids may be under way yet, in some transaction that began after they were
        reserved.
        """
        before: list[int] = []

        async def is_over() -> bool:
            if not before:
                before.append(await transact(self.pool, self.database.mark))
            return await transact(
                self.pool,
                lambda cursor: self.database.have_ended(cursor, reservation.mark + 1, before[0]),
            )

        ensureDeferred(self._finish_when(reservation, is_over))

    async def _finish_when(self, reservation: Reservation, ask: Callable[[], Awaitable[bool]]) -> None:
        """Finish ids once it is certain that nothing of them will come, and that they will not come again.

        A commit that failed with its connection may be under way in the server still. Until that is settled
        they stay unfinished: others would be told that they are passed.
        """
        delay = SETTLE_FIRST_SECONDS
        while reservation in self._reservations:
            try:
                is_over = await ask()
            except Exception as error:
                is_over = False
                self._logger.warn(
                    "ids {tokens} of {stream} stay unfinished: {error}",
                    tokens=list(reservation.tokens),
                    stream=self.stream.name,
                    error=error,
                )
            if is_over:
                self._finish(reservation)
            else:
                await deferLater(self._clock, delay)  # type: ignore[arg-type]  # an IReactorTime
                delay = min(2 * delay, SETTLE_SECONDS)

    def _finish(self, reservation: Reservation) -> bool:
        with self._lock:
            if reservation not in self._reservations:
                return False
            self._reservations.discard(reservation)
            before = self._tracker.announced
            self._tracker.finish(reservation.ids)
            moved = self._tracker.announced != before
        if moved:
            self._tell()
        return True

    # -- telling -------------------------------------------------------------------------------------------

    def advance(self, writer: str, token: int, *, wrote: bool = False) -> None:
        """Another writer was heard to be at `token`; `wrote` says that it wrote a fact with this very token
        (RDATA), and not only that it is there (POSITION).
        """
        with self._lock:
            self._tracker.advance(writer, token * self.stream.sign, wrote=wrote)
        self._tell()

    def hear(self, positions: Mapping[str, int]) -> None:
        """Take in the stored positions of all writers, without sign."""
        with self._lock:
            for writer, token in positions.items():
                if writer != self.instance:
                    self._tracker.advance(writer, token)
        self._tell()

    def on_advance(self, watcher: Callable[[], None]) -> None:
        """Call this whenever a position may have moved, in whichever thread it did."""
        self._watchers.append(watcher)

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()

    # -- positions -----------------------------------------------------------------------------------------

    @property
    def minimal_token(self) -> int:
        """Up to where this writer's facts are complete: its last one with nothing unfinished before it."""
        with self._lock:
            return self._tracker.minimal * self.stream.sign

    @property
    def announced_token(self) -> int:
        """Below this nothing of this writer will come any more: what others may be told."""
        with self._lock:
            return self._tracker.announced * self.stream.sign

    @property
    def persisted_upto(self) -> int:
        """The linear position: everything up to it is complete, whoever wrote it."""
        with self._lock:
            return self._tracker.persisted_upto * self.stream.sign

    def position_of(self, writer: str) -> int:
        """Up to where the facts of this writer are complete, as far as is known here."""
        with self._lock:
            return self._tracker.position_of(writer) * self.stream.sign

    def positions(self) -> dict[str, int]:
        """The position of each writer, as told."""
        sign = self.stream.sign
        with self._lock:
            return {writer: token * sign for writer, token in self._tracker.positions().items()}

    def unfinished(self) -> list[Unfinished]:
        """What is reserved here and not finished, the oldest first."""
        now = self._clock.seconds()
        with self._lock:
            reservations = sorted(self._reservations, key=lambda one: one.since)
        return [
            Unfinished(
                stream=self.stream.name,
                writer=self.instance,
                tokens=tuple(one.tokens),
                owner=one.owner,
                age_seconds=max(0.0, now - one.since),
            )
            for one in reservations
        ]

    # -- storing the position ------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        """Store the announced token: at once if nothing is being stored, else once for all that comes
        meanwhile.
        """
        if self.stream.writers and not self._is_saving:
            ensureDeferred(self._save()).addErrback(
                lambda failure: self._logger.warn(
                    "the position of {stream} could not be stored, it will be with the next:"
                    " {error}", stream=self.stream.name, error=failure.value,
                )
            )  # fmt: skip

    async def _save(self) -> None:
        self._is_saving = True
        try:
            while True:
                with self._lock:
                    token = self._tracker.announced
                if token <= self._saved:
                    return
                await transact(self.pool, partial(self._save_and_notify, token=token))
                self._saved = token
        finally:
            self._is_saving = False

    def _save_and_notify(self, cursor: ICursor, token: int) -> None:
        self.database.save_position(cursor, self.instance, token)
        self.database.notify(cursor, self._channel)

    def tell_position(self, cursor: ICursor) -> bool:
        """Store how far this writer is in this transaction, idle or not, and whether that is news."""
        if not self.stream.writers:
            return False
        with self._lock:
            token = self._tracker.announced
        self.database.save_position(cursor, self.instance, token)
        is_news = token > self._told
        self._told = token
        return is_news


class StreamIdGenerator(MultiWriterIdGenerator):
    """The ids of a stream that only this process writes."""

    def __init__(
        self,
        pool: IPool,
        *,
        name: str,
        sequence: str,
        tables: Sequence[IdTable],
        instance: str,
        flavor: Flavor,
        clock: IClock,
        negative: bool = False,
        channel: str = CHANNEL,
    ) -> None:
        stream = IdStream(
            name=name, sequence=sequence, tables=tuple(tables), writers=(instance,), negative=negative
        )
        super().__init__(pool, stream, instance=instance, flavor=flavor, clock=clock, channel=channel)


class _Next(Generic[T]):
    """The ``async with`` around the writing of facts."""

    def __init__(
        self,
        generator: MultiWriterIdGenerator,
        count: int,
        owner: "str | tuple[CodeType, int]",
        give: Callable[[Sequence[int]], T],
    ) -> None:
        self._generator = generator
        self._count = count
        self._owner = owner
        self._give = give
        self._reservation: Reservation | None = None

    async def __aenter__(self) -> T:
        generator = self._generator
        with generator._lock:
            generator._check()

        def reserve(transaction: ITransaction) -> Reservation:
            reservation = generator._reserve(transaction, self._count, self._owner)
            transaction.call_on_exception(generator._finish, reservation)
            return reservation

        # Called off while it waits, the database gives ids all the same: they are finished at once then.
        self._reservation = await transact(generator.pool, reserve, unheard=generator._finish)
        return self._give(self._reservation.tokens)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._reservation is not None
        if kind is None:
            self._reservation.complete()
        elif _leaves_doubt(error):
            self._generator._leave(self._reservation)
        else:
            # They were reserved in a transaction of their own: no rollback takes back the count.
            self._generator._finish(self._reservation)


def _leaves_doubt(error: BaseException | None) -> bool:
    """Whether a block that was left by this may have something under way yet: it was called off, or lost its
    connection. Any other error comes after a rollback, or after a commit.
    """
    if not isinstance(error, Exception) or isinstance(error, CancelledError):
        return True
    # So DB-API names what happens to a connection; which driver's it is is not known here.
    return any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)


def _site(above: int = 0) -> tuple[CodeType, int]:
    """Where the caller's caller is: cheap to note, spelled out when asked."""
    frame = sys._getframe(2 + above)
    return frame.f_code, frame.f_lineno
