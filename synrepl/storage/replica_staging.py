"""The part of a log that copies and is copied: following another history, being one, and becoming a copy."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.errors import StorageError
from synrepl.ports.history import AppendReceipt, EpochStart, Lease, LogPosition, LogSnapshot
from synrepl.ports.interfaces import Head, IEngine, IThread, KeysOf
from synrepl.storage.append_errors import InvalidValue, LogLost
from synrepl.storage.group_commit import LogHead
from synrepl.storage.health import Probe, ReadHealth
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["StagedCopy", "ReplicaStaging", "HistoryMismatch"]

T = TypeVar("T")

COPIED: Final = frozenset({"history", "filter", "joined", "resync"})
"""Notes that tell of the copy, not of the daemon that has it, or that a new one settles."""


class HistoryMismatch(StorageError):
    """A fact does not follow from those before it: its digest says otherwise. It was not kept."""

    def __init__(self, serial: int) -> None:
        super().__init__(
            op="follow",
            why=f"the digest of serial {serial} does not follow from the facts before it",
            hint="it was changed on the way, or is of another history",
        )
        self.serial = serial


class ReplicaStaging:
    """What `Log` is made of, as far as replicas are concerned.

    All that changes the log does so alone: appends wait meanwhile. What has begun goes on to its end, also
    when whoever asked for it is cancelled: the log must know where it stands.
    """

    _engine: IEngine
    _writing: IThread
    _reading: IThread
    _standing: LogHead
    _reads: ReadHealth
    _is_writing: bool
    _is_open: bool
    _lost: LogLost | None

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._leases: dict[str, Lease] = {}
        self._replaced: list[Callable[[], None]] = []
        self._turned: list[Callable[[], None]] = []
        self._swapping: list[Deferred[None]] | None = None
        # What is true if the engine stands there: nobody could say whether it was kept.
        self._unsure: tuple[str, Callable[[], None]] | None = None

    # -- what `Log` does for it ----------------------------------------------------------------------------

    def _show(self, facts: Sequence[Fact]) -> None:
        raise NotImplementedError

    def _now_ms(self) -> int:
        raise NotImplementedError

    async def _turn_to_write(self) -> None:
        """Returns when nobody else writes; from then on nobody does until `_end_turn`."""
        raise NotImplementedError

    def _end_turn(self) -> None:
        raise NotImplementedError

    def _read_failed(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """The log could not be read; `probe` tries the same again."""
        raise NotImplementedError

    def _begin_life(self, head: Head) -> None:
        """Stand where the engine says; what is ephemeral begins anew."""
        raise NotImplementedError

    async def _load(self, open_engine: Callable[[], Head]) -> Head:
        """Begin with the engine so, and know what it keeps beside the facts."""

        def work() -> tuple[Head, dict[str, str], list[Lease]]:
            return open_engine(), self._engine.notes(), self._engine.leases()

        head, self._notes, leases = await self._writing.run(work)
        self._leases = {lease.uuid: lease for lease in leases}
        return head

    # -- where it stands in its history --------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """Epoch, serial and digest together."""
        standing = self._standing
        return LogPosition(standing.epoch, standing.serial, standing.digest)

    @property
    def trimmed_upto(self) -> LogPosition:
        """Up to where it was trimmed."""
        return self._standing.trimmed_upto

    @property
    def epoch_starts(self) -> Sequence[EpochStart]:
        """Where epochs began."""
        return self._standing.epoch_starts

    @property
    def uuid(self) -> str:
        """This copy's own."""
        return self._notes.get("uuid", "")

    @property
    def history(self) -> str:
        """That of the log, the same for all copies of it."""
        return self._notes.get("history", "")

    def digest_at(self, serial: int) -> Awaitable[str | None]:
        """The digest there, if it is known."""
        return self._read("digest_at", partial(self._engine.digest_at, serial))

    def receipts_between(self, after: int, upto: int) -> Awaitable[list[AppendReceipt]]:
        """The receipts of appends whose first serial is there."""
        return self._read("receipts_between", partial(self._engine.receipts_between, after, upto))

    @property
    def receipts_upto(self) -> int:
        """No receipt is of an append beyond this serial."""
        return self._standing.receipts_upto

    def size(self, after: int) -> Awaitable[int]:
        """About how many bytes the facts beyond this serial take."""
        return self._checked("size", self._writing, partial(self._engine.size, after))

    def snapshot(self) -> Awaitable[LogSnapshot]:
        """What stands beside the facts, as of one moment between two commits."""
        return self._checked("snapshot", self._writing, self._engine.snapshot)

    # -- small things kept beside it -----------------------------------------------------------------------

    @property
    def notes(self) -> Mapping[str, str]:
        """Small texts kept beside the log."""
        return self._notes

    async def note(self, **notes: str | None) -> None:
        """Keep these, or forget those that are None."""
        await _to_its_end(self._note(notes))

    async def _note(self, notes: Mapping[str, str | None]) -> None:
        await self._writing.run(partial(self._engine.note, notes))
        for name, text in notes.items():
            if text is None:
                self._notes.pop(name, None)
            else:
                self._notes[name] = text

    @property
    def leases(self) -> Mapping[str, Lease]:
        """All leases, by uuid."""
        return self._leases

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Keep these leases as they are now, and forget those dropped."""
        await self._writing.run(partial(self._engine.keep_leases, changed, dropped))
        self._leases.update((lease.uuid, lease) for lease in changed)
        for uuid in dropped:
            self._leases.pop(uuid, None)

    async def settled(self) -> None:
        """Returns when everything asked for before is kept, or failed."""
        await self._turn_to_write()
        self._end_turn()

    async def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """`IEngine.trim`: a slice. Gives where the log begins now."""

        async def work() -> LogPosition:
            try:
                trimmed_upto = await self._writing.run(partial(self._engine.trim, upto, keys, limit))
            except StorageError as error:
                # Not to be tried again from here: a lease may need the facts by then.
                self._read_failed("trim", error, None)
                raise
            self._reads.worked("trim")
            self._standing.trimmed_upto = trimmed_upto
            return trimmed_upto

        return await self._alone(work)

    # -- following another log -----------------------------------------------------------------------------

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt] = (),
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts and receipts of the log that this one is a copy of, unchanged.

        The facts continue this log without a gap, or `upto` says where the log stands afterwards. Raises
        `HistoryMismatch` if a fact does not continue the log, or another `StorageError`. A failed call stores
        nothing.
        """

        async def work() -> None:
            followed = partial(self._followed, facts, receipts, upto)
            try:
                await self._writing.run(partial(_follow, self._engine, self.position, facts, receipts, upto))
            except HistoryMismatch:
                raise
            except StorageError:
                self._unsure = _reached(facts, upto, self.position).digest, followed
                raise
            followed()

        await self._alone(work)

    def _followed(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], upto: LogPosition | None
    ) -> None:
        """These are kept: stand after them, and show them."""
        self._standing.advance(facts)
        if facts:
            self._standing.epoch = max(self._standing.epoch, facts[-1].epoch)
        if upto is not None:
            self._standing.epoch, self._standing.serial = upto.epoch, upto.serial
            self._standing.digest = upto.digest
        if receipts:
            self._standing.receipts_upto = self._standing.serial
        if facts:
            self._show(facts)

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin a new epoch where the log stands. Readers that have more are beside this history now."""
        await self._alone(partial(self._turn, epoch_start))
        self._tell(self._turned)

    async def _turn(self, epoch_start: EpochStart) -> EpochStart:
        self._standing.take(await self._writing.run(partial(self._engine.begin_epoch, epoch_start)))
        return epoch_start

    def on_turned(self, told: Callable[[], None]) -> None:
        """Call `told` each time an epoch has begun."""
        self._turned.append(told)

    async def next_epoch(
        self,
        why: str,
        *,
        epoch: int | None = None,
        at_ms: int | None = None,
        stream: str = "",
        token: int = 0,
    ) -> EpochStart:
        """Begin the next epoch, or this one, after all that is appended so far; now, unless said."""

        async def work() -> EpochStart:
            position = self.position
            epoch_start = EpochStart(
                epoch=position.epoch + 1 if epoch is None else epoch,
                serial=position.serial,
                digest=position.digest,
                at_ms=self._now_ms() if at_ms is None else at_ms,
                why=why,
                stream=stream,
                token=token,
            )
            return await self._turn(epoch_start)

        epoch_start = await self._alone(work)
        self._tell(self._turned)
        return epoch_start

    def _alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Deferred[T]":
        """Do this while nobody else writes."""

        async def alone() -> T:
            await self._turn_to_write()
            try:
                if asked.called:
                    raise _cancelled()
                if self._lost is not None:
                    raise self._lost
                if self._unsure is not None:
                    head = await self._writing.run(self._engine.head)
                    (digest, kept), self._unsure = self._unsure, None
                    if head.digest == digest != self._standing.digest:
                        kept()
                return await work()
            finally:
                self._end_turn()

        asked = Deferred[T]()
        return _into(alone(), asked)

    # -- becoming a copy -----------------------------------------------------------------------------------

    async def copy(self) -> "StagedCopy":
        """What was staged of a copy of another log, opened; it may be empty."""
        copy = StagedCopy(self._engine.staging(), self._writing)
        try:
            await copy.open()
        except Exception:
            await copy.close()
            raise
        return copy

    async def drop_copy(self, copy: "StagedCopy") -> None:
        """Close it, and remove what was staged."""
        await copy.close()
        await self._writing.run(self._engine.drop_staged)

    def on_replaced(self, told: Callable[[], None]) -> None:
        """Call `told` each time a copy took the place of all that was here."""
        self._replaced.append(told)

    async def adopt_copy(self, copy: "StagedCopy") -> None:
        """Become what this copy is, in one step; this daemon's own uuid, notes and leases stay."""

        async def work() -> None:
            waiting: list[Deferred[None]] = []
            try:
                own = {name: text for name, text in self._notes.items() if name not in COPIED}
                await copy.finish(own, list(self._leases.values()))
                self._swapping = waiting
                # After the last read, so that nobody closes the file under it.
                await self._reading.run(_nothing)
                self._begin_life(await self._load(self._engine.adopt_staged))
            finally:
                self._swapping = None
                for waiter in waiting:
                    waiter.callback(None)
            # Also if nobody waits any more for this to be done.
            self._tell(self._replaced)

        await self._alone(work)

    @staticmethod
    def _tell(whom: Sequence[Callable[[], None]]) -> None:
        for told in whom:
            told()

    def _read(self, kind: str, work: Callable[[], T]) -> "Deferred[T]":
        """Do this in the reading thread, once nobody replaces what there is to read."""
        return self._checked(kind, self._reading, work)

    def _checked(self, kind: str, thread: IThread, work: Callable[[], T]) -> "Deferred[T]":
        """Read so, in this thread. A failure makes the log unhealthy until the same read works."""

        def probe() -> "Deferred[T]":
            return Deferred.fromCoroutine(self._read_now(thread, work))

        async def read() -> T:
            try:
                return await probe()
            except InvalidValue:
                raise
            except StorageError as error:
                self._read_failed(kind, error, probe)
                raise

        return Deferred.fromCoroutine(read())

    async def _read_now(self, thread: IThread, work: Callable[[], T]) -> T:
        while self._swapping is not None and thread is self._reading:
            waiter: Deferred[None] = Deferred()
            self._swapping.append(waiter)
            await waiter
        return await thread.run(work)


class StagedCopy:
    """A copy of another log in the making, beside the log that it will replace.

    First come the facts of a snapshot (`add`), then what stands beside them (`restore`), then what came
    meanwhile (`follow`, `begin_epoch`). Survives a kill at any point, and then goes on from its `place`.
    """

    def __init__(self, engine: IEngine, thread: IThread) -> None:
        self.position: LogPosition
        self.notes: dict[str, str] = {}
        self._engine = engine
        self._thread = thread

    async def open(self) -> None:
        """See what is there."""
        head = await self._thread.run(self._engine.open)
        self.position = head.position
        self.notes = await self._thread.run(self._engine.notes)

    async def note(self, **notes: str | None) -> None:
        """Keep these notes with the copy, or forget those that are None."""
        await self._thread.run(partial(self._engine.note, notes))
        self.notes.update((name, text) for name, text in notes.items() if text is not None)

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None:
        """Facts of the snapshot; all of it up to that place that there is, or is wanted, is here then.

        Beyond `begin` no fact is missing, and each must follow from the one before; where that is None,
        some are left out anywhere. `HistoryMismatch` where one does not follow.
        """
        await self._thread.run(partial(_add, self._engine, self.position, facts, upto, trimmed_upto))
        self.position = upto

    async def restore(self, snapshot: LogSnapshot) -> None:
        """What stands beside the facts."""
        self.position = (await self._thread.run(partial(self._engine.restore, snapshot))).position

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """`Log.follow`, of the copy."""
        await self._thread.run(partial(_follow, self._engine, self.position, facts, receipts, upto))
        if upto is not None:
            self.position = upto
        elif facts:
            self.position = _place(facts[-1])

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """An epoch begins where the copy stands."""
        self.position = (await self._thread.run(partial(self._engine.begin_epoch, epoch_start))).position

    async def finish(self, notes: Mapping[str, str], leases: Sequence[Lease]) -> None:
        """Take these along, and close."""
        await self.note(**notes)
        await self._thread.run(partial(self._engine.keep_leases, leases))
        await self.close()

    async def close(self) -> None:
        """Let go of it; what is staged stays."""
        await self._thread.run(self._engine.close)


def _add(
    engine: IEngine,
    position: LogPosition,
    facts: Sequence[Fact],
    upto: LogPosition,
    trimmed_upto: LogPosition | None,
) -> None:
    """In the writing thread."""
    if trimmed_upto is not None:
        dense = [fact for fact in facts if fact.serial > trimmed_upto.serial]
        before = position if position.serial > trimmed_upto.serial else trimmed_upto
        wrong = verify(dense, before.digest)
        if wrong is not None:
            raise HistoryMismatch(wrong)
        if facts and len(dense) == len(facts) == upto.serial - position.serial:
            # Nothing is missing, so that this is a commit like any other, and need not be verified again.
            engine.commit(facts, ())
            return
    engine.commit(facts, (), upto=upto)


def _follow(
    engine: IEngine,
    position: LogPosition,
    facts: Sequence[Fact],
    receipts: Sequence[AppendReceipt],
    upto: LogPosition | None,
) -> None:
    """In the writing thread."""
    if upto is None:
        wrong = verify(facts, position.digest)
        if wrong is not None:
            raise HistoryMismatch(wrong)
        upto_digest = facts[-1].digest if facts else position.digest
    else:
        upto_digest = upto.digest
    try:
        engine.commit(facts, receipts, upto=upto)
    except StorageError as error:
        if not error.tried:
            raise
        # It may have been kept although nobody said so.
        if engine.head().digest != upto_digest:
            raise


def _reached(facts: Sequence[Fact], upto: LogPosition | None, position: LogPosition) -> LogPosition:
    """Where a log stands after these, if it stood at `place`."""
    return upto or (_place(facts[-1]) if facts else position)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for this, which goes on when nobody waits any more."""
    return await _into(work, Deferred())


def _into(work: Coroutine[Any, Any, T], asked: "Deferred[T]") -> "Deferred[T]":
    """Begin this work, which is for whoever waits for `asked`; cancelling that leaves the work alone."""

    def ended(result: T | Failure) -> None:
        if not asked.called:
            asked.callback(result)

    Deferred.fromCoroutine(work).addBoth(ended)
    return asked


def _cancelled() -> StorageError:
    return StorageError(op="write", why="nobody waits for it any more", retryable=True)


def _place(fact: Fact) -> LogPosition:
    return LogPosition(fact.epoch, fact.serial, fact.digest)


def _nothing() -> None:
    pass
