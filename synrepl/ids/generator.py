"""Id generators: they reserve the ids of a stream, and track up to which id the stream is complete."""

import dataclasses
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, TracebackType
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from twisted.internet.defer import CancelledError, ensureDeferred
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.time import Backoff, doubling, sleep
from synrepl.errors import StorageError
from synrepl.ids.tracker import Tracker
from synrepl.ids.transactions import IPool, ITransaction, transact
from synrepl.storage.id_tables.id_database import CHANNEL, IdDatabase
from synrepl.storage.id_tables.id_problems import IdProblem, IdProblems, examine, repair
from synrepl.storage.id_tables.id_start import IdStart, id_start
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.id_tables.writers import Unfinished
from synrepl.storage.sql import Flavor
from synrepl.storage.worker_database import ICursor

T = TypeVar("T")

SETTLE_SECONDS: Final = 0.5
"""The longest delay between checks whether a transaction of unknown outcome has ended, in seconds."""
SETTLE_FIRST_SECONDS: Final = 0.01
"""The first delay between such checks of one transaction: most transactions have ended by then."""


class NotAWriter(StorageError):
    """This instance is not a writer of the stream, so it gets no ids."""

    def __init__(self, *, stream: str, instance: str, writers: Sequence[str]) -> None:
        super().__init__(
            op="reserve",
            why=f"{instance} is not among the writers of {stream} ({', '.join(writers)})",
            hint="write in one of those processes, or add this one to the writers in every configuration",
            stream=stream,
        )


Owner = str | tuple[CodeType, int]
"""The user of reserved ids: a text, or the code and line number of the caller."""


class IHeldName(Protocol):
    """The name under which this process writes, as far as a `WriterSession` holds it."""

    is_held: bool
    """Whether this process is the writer of its name now."""
    refusal: str
    """Who has the name instead, or why it is lost until a restart; empty if neither is so."""


class Reservation(msgspec.Struct, eq=False):
    """Ids that are reserved until they are completed or rolled back.

    `given_anew` are those that others have after a rollback.
    """

    ids: Sequence[int]
    tokens: Sequence[int]
    mark: int
    owner: Owner
    since: float
    given_anew: Sequence[int] = ()


class MultiWriterIdGenerator:
    """Generates the ids of a stream that several processes write, each under its own instance name.

    `pool` runs functions in transactions, as `twisted.enterprise.adbapi.ConnectionPool` does; `flavor` is the
    kind of its database, ``"sqlite"`` or ``"postgresql"``. `instance` is the name of this process among
    `stream.writers`. `clock` is the reactor. PostgreSQL notifies `channel` when the generator has stored a
    position, and ``synrepl`` when a `WriterSession` has.

    Call `start` first, or let a `WriterSession` do so: with several writers each needs one, as one that has
    stored no position is not known to those that start later. Then reserve ids around the code that writes
    the facts, with `next` or `next_many`, or inside a transaction of your own, with `within`::

        table = synrepl.IdTable(name="notes")
        stream = synrepl.IdStream(name="notes", sequence="notes_seq", tables=(table,), writers=("w1",))
        ids = synrepl.MultiWriterIdGenerator(pool, stream, instance="w1", flavor="sqlite", clock=reactor)

        async def write(text: str) -> int:
            async with ids.next() as token:
                row = (token, "w1", text)
                await synrepl.transact(pool, lambda cursor: cursor.execute(INSERT, row))
            return token

    The code that writes must have ended when the block ends, even if it is cancelled: `transact` ensures
    that, a bare `runInteraction` of adbapi does not. Tokens have the sign of the stream, as in its tables;
    `docs/explanation/ids.md` explains them.

    Reserving raises `NotAWriter` if `instance` is none of the stream's writers, and `StorageError` if the
    session has lost its name (retryable, unless another process has the name or declared this one dead), if
    `start` was not called, or, on SQLite, if the sequence is missing. Errors of the driver pass through.
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
        self.problems: list[IdProblem] = []
        """The problems found at the start; all are repaired, but lost history does not come back."""
        self.session: IHeldName | None = None
        """The session that makes this process the only writer of its name; None if there is none."""
        self.pool = pool
        self._clock = clock
        self._channel = channel
        self._lock = threading.RLock()
        self._tracker = Tracker(instance, stream.writers, IdStart(positions={}, persisted_upto=0))
        self._is_started = False
        self._reservations: set[Reservation] = set()
        self._saved = 0
        self._stored_token = 0
        self._is_saving = False

    # -- its start -----------------------------------------------------------------------------------------

    async def start(self, *, seen: int = 0) -> None:
        """Examine the ids in the database, repair what can be repaired, and start from there.

        `seen` is the highest token (without sign) that any reader is known to have, for example a daemon's
        log. Raises `StorageError` if the sequence does not exist. `problems` has what was found.
        """

        def examine_and_repair(cursor: ICursor) -> tuple[IdProblems, IdStart]:
            self.database.lock_start(cursor)
            examined = examine(cursor, self.database, seen=seen)
            repair(cursor, self.database, examined)
            return examined, id_start(cursor, self.database, self.instance)

        examined, position = await transact(self.pool, examine_and_repair)
        self.problems = examined.found
        self._warn(examined)
        with self._lock:
            self._tracker = Tracker(self.instance, self.stream.writers, position)
            self._saved = examined.positions.get(self.instance, 0)
            self._is_started = True

    def _warn(self, examined: IdProblems) -> None:
        notable = [problem for problem in examined.found if problem.kind != "sequence_unused"]
        if notable:
            is_loss = any(problem.is_loss for problem in notable)
            what = "ids of {stream}: history is lost" if is_loss else "repaired the ids of {stream}"
            self._logger.warn(
                what + ": {text}; sequence {sequence} was at {before}, new ids continue above {after}",
                stream=self.stream.name,
                text="; ".join(problem.text for problem in notable),
                sequence=self.stream.sequence,
                before=examined.allocated,
                after=max(examined.goal, examined.allocated),
            )

    # -- reserving -----------------------------------------------------------------------------------------

    def next(self, *, owner: str = "") -> "_ReservationContext[int]":
        """Reserve one id for the block of an ``async with``.

        The id is completed at the end of the block, and rolled back if an exception leaves the block; after a
        cancellation or a lost connection only once no transaction can still write it. `owner` names the user
        of the id in warnings; the default is the calling line.
        """
        return _ReservationContext(self, 1, owner or _call_site(), lambda tokens: tokens[0])

    def next_many(self, count: int, *, owner: str = "") -> "_ReservationContext[Sequence[int]]":
        """Reserve `count` ids, in order, for the block of an ``async with``, as `next` does."""
        return _ReservationContext(self, count, owner or _call_site(), lambda tokens: tokens)

    @contextmanager
    def within(
        self, transaction: ITransaction, count: int = 1, *, owner: str = ""
    ) -> Iterator[Sequence[int]]:
        """Reserve `count` ids inside a transaction of the caller, in its thread.

        The ids are completed after the commit, or rolled back after the rollback. The block must write its
        facts in the same transaction::

            def insert(transaction: Any) -> None:
                with ids.within(transaction) as (token,):
                    transaction.execute(INSERT, (token, "w1", "hello"))

            await synrepl.transact(pool, insert)
        """
        reservation = self._reserve(transaction, count, owner or _call_site(2))
        transaction.call_after(self.complete, reservation)
        transaction.call_on_exception(self.roll_back, reservation)
        yield reservation.tokens

    def _reserve(self, cursor: ICursor, count: int, owner: Owner) -> Reservation:
        if count < 1:
            raise ValueError(f"the count of ids must be at least 1, not {count}")
        with self._lock:
            self._check()
            floor = self._tracker.begin_reservation()
            above = self._tracker.reserved_upto
        try:
            ids, mark = self.database.allocate(cursor, count, above)
        except BaseException:
            with self._lock:
                self._tracker.cancel_reservation(floor)
            raise
        sign = self.stream.sign
        tokens = ids if sign > 0 else [-id_ for id_ in ids]
        reservation = Reservation(ids, tokens, mark, owner, self._clock.seconds())
        with self._lock:
            self._tracker.end_reservation(floor, ids)
            self._reservations.add(reservation)
        return reservation

    def _check(self) -> None:
        if self.session is not None and not self.session.is_held:
            raise StorageError(
                op="reserve",
                why=f"this process is not the writer {self.instance} now"
                f": {self.session.refusal or 'its session has no connection'}",
                stream=self.stream.name,
                retryable=not self.session.refusal,
            )
        if not self._is_started:
            raise StorageError(op="reserve", why="start the id generator first", stream=self.stream.name)
        if not self._tracker.is_writer:
            raise NotAWriter(stream=self.stream.name, instance=self.instance, writers=self.stream.writers)

    # -- finishing -----------------------------------------------------------------------------------------

    def complete(self, reservation: Reservation) -> None:
        """Finish ids whose facts are committed. Called in the reactor's thread."""
        if self._finish(reservation):
            self._save_soon()

    def roll_back(self, reservation: Reservation) -> None:
        """Finish the ids of a transaction that was to be rolled back, once it has certainly ended.

        Called in the reactor's thread. On SQLite the rollback undoes the allocation; `has_ended` repeats it,
        except for ids that were given to another transaction meanwhile.
        """

        def has_ended(cursor: ICursor) -> bool:
            reservation.given_anew = self.database.given_anew(cursor, reservation.ids)
            return self.database.has_ended(cursor, reservation.mark, reservation.ids[-1])

        ensureDeferred(self._finish_when(reservation, partial(transact, self.pool, has_ended)))

    def _finish_later(self, reservation: Reservation) -> None:
        """Finish ids when every transaction that may use them has ended: one that began after the reservation
        may still be running.
        """
        before: list[int] = []

        async def has_ended() -> bool:
            if not before:
                before.append(await transact(self.pool, self.database.mark))
            return await transact(
                self.pool, lambda cursor: self.database.have_ended(cursor, reservation.mark + 1, before[0])
            )

        ensureDeferred(self._finish_when(reservation, has_ended))

    async def _finish_when(self, reservation: Reservation, ask: Callable[[], Awaitable[bool]]) -> None:
        """Finish ids once it is certain that no fact with them will come, and that they will not be reused.

        A commit that failed with its connection may still be running in the server. Until it has ended the
        ids stay unfinished: otherwise other processes would move past them.
        """
        backoff = Backoff(doubling(SETTLE_FIRST_SECONDS, SETTLE_SECONDS))
        while reservation in self._reservations:
            try:
                has_ended = await ask()
            except Exception as error:
                has_ended = False
                self._logger.warn(
                    "ids {tokens} of {stream} stay unfinished, as their transaction may be running: {error}",
                    tokens=list(reservation.tokens),
                    stream=self.stream.name,
                    error=error,
                )
            if has_ended:
                self._finish(reservation)
            else:
                await sleep(self._clock, backoff.next())

    def _finish(self, reservation: Reservation) -> bool:
        with self._lock:
            if reservation not in self._reservations:
                return False
            self._reservations.discard(reservation)
            if anew := set(reservation.given_anew):
                # Some may have been given to this process again.
                self._tracker.forget(anew.difference(*(one.ids for one in self._reservations)))
            self._tracker.finish([id_ for id_ in reservation.ids if id_ not in anew])
        return True

    # -- other writers -------------------------------------------------------------------------------------

    def advance(self, writer: str, token: int, *, wrote: bool = False) -> None:
        """Record that another writer is at `token`. With `wrote` it wrote a fact with this token (RDATA);
        without, it only announced the position (POSITION).
        """
        with self._lock:
            self._tracker.advance(writer, token * self.stream.sign, wrote=wrote)

    def merge_positions(self, positions: Mapping[str, int]) -> None:
        """Record the stored positions of the other writers, given without sign."""
        with self._lock:
            for writer, token in positions.items():
                if writer != self.instance:
                    self._tracker.advance(writer, token)

    # -- positions -----------------------------------------------------------------------------------------

    @property
    def minimal_token(self) -> int:
        """The last token up to which this writer's facts are complete; for a reader, `persisted_upto`."""
        with self._lock:
            return self._tracker.minimal * self.stream.sign

    @property
    def announced_token(self) -> int:
        """The token up to which this writer will write no more facts: the one announced to others."""
        with self._lock:
            return self._tracker.announced * self.stream.sign

    @property
    def persisted_upto(self) -> int:
        """The linear position: every fact of every writer up to it is complete."""
        with self._lock:
            return self._tracker.persisted_upto * self.stream.sign

    def position_of(self, writer: str) -> int:
        """The token up to which this writer's facts are known to be complete."""
        with self._lock:
            return self._tracker.position_of(writer) * self.stream.sign

    def positions(self) -> dict[str, int]:
        """The last known position of each instance; of this process, if a writer, its `minimal_token`."""
        sign = self.stream.sign
        with self._lock:
            return {writer: token * sign for writer, token in self._tracker.positions().items()}

    def unfinished(self) -> list[Unfinished]:
        """The unfinished reservations of this process, oldest first."""
        now = self._clock.seconds()
        with self._lock:
            reservations = sorted(self._reservations, key=lambda one: one.since)
        return [
            Unfinished(
                stream=self.stream.name,
                writer=self.instance,
                tokens=tuple(one.tokens),
                owner=_describe(one.owner),
                age_seconds=max(0.0, now - one.since),
            )
            for one in reservations
        ]

    # -- storing the position ------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        """Store the announced token, unless the stream names no writers.

        If a store is running already, it repeats until it has stored the newest token.
        """
        if self.stream.writers and not self._is_saving:
            ensureDeferred(self._save()).addErrback(
                lambda failure: self._logger.warn(
                    "could not store the position of {stream}; the next store includes it: {error}",
                    stream=self.stream.name, error=failure.value,
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

    def store_position(self, cursor: ICursor) -> bool:
        """Store this writer's position, if the stream names writers. True if higher than at the last call."""
        if not self.stream.writers:
            return False
        with self._lock:
            token = self._tracker.announced
        self.database.save_position(cursor, self.instance, token)
        has_advanced = token > self._stored_token
        self._stored_token = token
        return has_advanced


class StreamIdGenerator(MultiWriterIdGenerator):
    """Generates the ids of a stream that only this process writes.

    `name`, `sequence`, `tables` and `negative` are those of an `IdStream` whose only writer is `instance`.
    The other arguments, the methods and the errors are those of `MultiWriterIdGenerator`::

        ids = synrepl.StreamIdGenerator(
            pool, name="notes", sequence="notes_seq", tables=[synrepl.IdTable(name="notes")],
            instance="w1", flavor="sqlite", clock=reactor,
        )
    """

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


@dataclasses.dataclass(eq=False)
class _ReservationContext(Generic[T]):
    generator: MultiWriterIdGenerator
    count: int
    owner: Owner
    select: Callable[[Sequence[int]], T]
    reservation: Reservation | None = None

    async def __aenter__(self) -> T:
        generator = self.generator
        with generator._lock:
            generator._check()

        def reserve(transaction: ITransaction) -> Reservation:
            reservation = generator._reserve(transaction, self.count, self.owner)
            transaction.call_on_exception(generator.roll_back, reservation)
            return reservation

        # If the caller is cancelled meanwhile, the ids are reserved all the same: finish them at once.
        self.reservation = await transact(generator.pool, reserve, on_abandoned=generator._finish)
        return self.select(self.reservation.tokens)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.reservation is not None
        if kind is None:
            self.generator.complete(self.reservation)
        elif _is_outcome_unknown(error):
            self.generator._finish_later(self.reservation)
        else:
            # The ids were reserved in an earlier transaction: no rollback undoes the allocation.
            self.generator._finish(self.reservation)


def _is_outcome_unknown(error: BaseException | None) -> bool:
    """Whether the work of a block that this error left may still be running: the block was cancelled or may
    have lost its connection. Any other error comes after a rollback or a commit.
    """
    if not isinstance(error, Exception) or isinstance(error, CancelledError):
        return True
    # DB-API's names for connection errors; the driver's own classes are unknown.
    return any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)


def _describe(owner: Owner) -> str:
    if isinstance(owner, str):
        return owner
    code, line = owner
    return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"


def _call_site(above: int = 0) -> tuple[CodeType, int]:
    """The caller's caller, as a cheap reference that is formatted on demand."""
    frame = sys._getframe(2 + above)
    return frame.f_code, frame.f_lineno


class AllocatedIds:
    """Tells a follower which tokens exist (`Follower(allocated=...)`), from the generators of this process.

    `generators` maps the names of streams on the wire to generators. For streams that the daemon reads from
    tables there is no other source: the daemon learns of an id only when its fact is complete.
    """

    def __init__(self, generators: Mapping[str, MultiWriterIdGenerator]) -> None:
        self._generators = dict(generators)

    async def highest(self, stream: str) -> int | None:
        """The highest allocated id, without sign; None for a stream without a generator."""
        generator = self._generators.get(stream)
        if generator is None:
            return None
        return await transact(generator.pool, generator.database.allocated)
