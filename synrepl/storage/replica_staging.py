"""The replication part of a log: following another log, starting epochs, and becoming a copy."""

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

COPY_NOTES: Final = frozenset({"history", "filter", "joined", "resync"})
"""Notes that describe the copied log rather than this daemon. A new copy brings or drops them."""


class HistoryMismatch(StorageError):
    """A fact's digest does not follow from the fact before it. The fact was not stored."""

    def __init__(self, serial: int) -> None:
        super().__init__(
            op="follow",
            why=f"the digest of serial {serial} does not follow from the facts before it",
            hint="it was changed in transit, or belongs to another history",
        )
        self.serial = serial


class ReplicaStaging:
    """The replication part of `Log`.

    Each operation that changes the log excludes all other writes: appends wait. An operation that has started
    runs to its end even if its caller is cancelled, so that the log knows its position.
    """

    _engine: IEngine
    _writing: IThread
    _reading: IThread
    _head: LogHead
    _reads: ReadHealth
    _is_writing: bool
    _is_open: bool
    _lost: LogLost | None

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._leases: dict[str, Lease] = {}
        self._replaced_watchers: list[Callable[[], None]] = []
        self._epoch_watchers: list[Callable[[], None]] = []
        self._swap_waiters: list[Deferred[None]] | None = None
        # After a failed `follow` of unknown outcome: the digest it would have reached, and how to apply it.
        self._uncertain_follow: tuple[str, Callable[[], None]] | None = None

    # -- provided by `Log` ---------------------------------------------------------------------------------

    def _notify(self, facts: Sequence[Fact]) -> None:
        raise NotImplementedError

    def _now_ms(self) -> int:
        raise NotImplementedError

    async def _exclusive(self) -> None:
        """Wait until no write is running, and exclude other writes until `_end_exclusive`."""
        raise NotImplementedError

    def _end_exclusive(self) -> None:
        raise NotImplementedError

    def _read_failed(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        """Record a failed read; `probe` repeats it."""
        raise NotImplementedError

    def _load_state(self, head: Head) -> None:
        """Take the engine's head, and start the ephemeral streams empty."""
        raise NotImplementedError

    async def _load(self, open_engine: Callable[[], Head]) -> Head:
        """Open the engine with `open_engine`, and load its notes and leases."""

        def work() -> tuple[Head, dict[str, str], list[Lease]]:
            return open_engine(), self._engine.notes(), self._engine.leases()

        head, self._notes, leases = await self._writing.run(work)
        self._leases = {lease.uuid: lease for lease in leases}
        return head

    # -- position and history ------------------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """Epoch, serial and digest together."""
        head = self._head
        return LogPosition(head.epoch, head.serial, head.digest)

    @property
    def trimmed_upto(self) -> LogPosition:
        """The position up to which the log is trimmed."""
        return self._head.trimmed_upto

    @property
    def epoch_starts(self) -> Sequence[EpochStart]:
        """The starts of all epochs, in order."""
        return self._head.epoch_starts

    @property
    def uuid(self) -> str:
        """The uuid of this copy of the log."""
        return self._notes.get("uuid", "")

    @property
    def history(self) -> str:
        """The uuid of the log, the same for all its copies."""
        return self._notes.get("history", "")

    def digest_at(self, serial: int) -> Awaitable[str | None]:
        """The digest at this serial; None if it is unknown."""
        return self._read("digest_at", partial(self._engine.digest_at, serial))

    def receipts_between(self, after: int, upto: int) -> Awaitable[list[AppendReceipt]]:
        """The receipts of appends whose first serial is in ``after < serial <= upto``."""
        return self._read("receipts_between", partial(self._engine.receipts_between, after, upto))

    @property
    def receipts_upto(self) -> int:
        """A serial beyond which no append has a receipt."""
        return self._head.receipts_upto

    def size(self, after: int) -> Awaitable[int]:
        """The approximate size in bytes of the facts beyond this serial."""
        return self._checked("size", self._writing, partial(self._engine.size, after))

    def snapshot(self) -> Awaitable[LogSnapshot]:
        """Everything the log has besides facts, as of one moment between two commits."""
        return self._checked("snapshot", self._writing, self._engine.snapshot)

    # -- notes and leases ----------------------------------------------------------------------------------

    @property
    def notes(self) -> Mapping[str, str]:
        """Short texts stored with the log, by name."""
        return self._notes

    async def note(self, **notes: str | None) -> None:
        """Store these notes; None deletes a note."""
        await _uncancelled(self._note(notes))

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
        """Store these leases, and delete the dropped uuids."""
        await self._writing.run(partial(self._engine.keep_leases, changed, dropped))
        self._leases.update((lease.uuid, lease) for lease in changed)
        for uuid in dropped:
            self._leases.pop(uuid, None)

    async def flush(self) -> None:
        """Wait until every earlier write has succeeded or failed."""
        await self._exclusive()
        self._end_exclusive()

    async def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Run `IEngine.trim` on one slice. Gives the new `trimmed_upto`."""

        async def work() -> LogPosition:
            try:
                trimmed_upto = await self._writing.run(partial(self._engine.trim, upto, keys, limit))
            except StorageError as error:
                # Without a probe: by the time of a retry a lease may need the facts.
                self._read_failed("trim", error, None)
                raise
            self._reads.record_success("trim")
            self._head.trimmed_upto = trimmed_upto
            return trimmed_upto

        return await self._run_exclusive(work)

    # -- following another log -----------------------------------------------------------------------------

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt] = (),
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts and receipts of the log that this one is a copy of, unchanged.

        The facts continue this log without a gap; otherwise `upto` is the log's position after them. Raises
        `HistoryMismatch` if a fact does not continue the log, or another `StorageError`. A failed call stores
        nothing.
        """

        async def work() -> None:
            apply = partial(self._apply_followed, facts, receipts, upto)
            try:
                await self._writing.run(partial(_follow, self._engine, self.position, facts, receipts, upto))
            except HistoryMismatch:
                raise
            except StorageError:
                self._uncertain_follow = _position_after(facts, upto, self.position).digest, apply
                raise
            apply()

        await self._run_exclusive(work)

    def _apply_followed(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], upto: LogPosition | None
    ) -> None:
        """Advance the head over these committed facts, and notify the watchers."""
        self._head.advance(facts)
        if facts:
            self._head.epoch = max(self._head.epoch, facts[-1].epoch)
        if upto is not None:
            self._head.epoch, self._head.serial = upto.epoch, upto.serial
            self._head.digest = upto.digest
        if receipts:
            self._head.receipts_upto = self._head.serial
        if facts:
            self._notify(facts)

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin this epoch at the end of the log. Readers beyond its start have a diverged history."""
        await self._run_exclusive(partial(self._start_epoch, epoch_start))
        self._call_all(self._epoch_watchers)

    async def _start_epoch(self, epoch_start: EpochStart) -> EpochStart:
        self._head.load(await self._writing.run(partial(self._engine.begin_epoch, epoch_start)))
        return epoch_start

    def on_epoch_started(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time an epoch has begun."""
        self._epoch_watchers.append(callback)

    async def next_epoch(
        self,
        why: str,
        *,
        epoch: int | None = None,
        at_ms: int | None = None,
        stream: str = "",
        token: int = 0,
    ) -> EpochStart:
        """Begin the next epoch, or the given one, after all appends so far; now by default."""

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
            return await self._start_epoch(epoch_start)

        epoch_start = await self._run_exclusive(work)
        self._call_all(self._epoch_watchers)
        return epoch_start

    def _run_exclusive(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Deferred[T]":
        """Run this while no other write runs."""

        async def run() -> T:
            await self._exclusive()
            try:
                if result.called:
                    raise _cancelled()
                if self._lost is not None:
                    raise self._lost
                if self._uncertain_follow is not None:
                    head = await self._writing.run(self._engine.head)
                    (digest, apply), self._uncertain_follow = self._uncertain_follow, None
                    if head.digest == digest != self._head.digest:
                        apply()
                return await work()
            finally:
                self._end_exclusive()

        result = Deferred[T]()
        return _detached(run(), result)

    # -- becoming a copy -----------------------------------------------------------------------------------

    async def open_staged_copy(self) -> "StagedCopy":
        """Open the staged copy of another log; it may be empty."""
        copy = StagedCopy(self._engine.staging(), self._writing)
        try:
            await copy.open()
        except Exception:
            await copy.close()
            raise
        return copy

    async def drop_copy(self, copy: "StagedCopy") -> None:
        """Close a staged copy and delete it."""
        await copy.close()
        await self._writing.run(self._engine.drop_staged)

    def on_replaced(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time a copy has replaced this log."""
        self._replaced_watchers.append(callback)

    async def adopt_copy(self, copy: "StagedCopy") -> None:
        """Replace this log by a staged copy in one step; this daemon's own uuid, notes and leases stay."""

        async def work() -> None:
            waiting: list[Deferred[None]] = []
            try:
                own = {name: text for name, text in self._notes.items() if name not in COPY_NOTES}
                await copy.finish(own, list(self._leases.values()))
                self._swap_waiters = waiting
                # Wait for the last read: the file must not be closed under it.
                await self._reading.run(_do_nothing)
                self._load_state(await self._load(self._engine.adopt_staged))
            finally:
                self._swap_waiters = None
                for waiter in waiting:
                    waiter.callback(None)
            # Here rather than after `_run_exclusive`, so that it happens even if the caller was cancelled.
            self._call_all(self._replaced_watchers)

        await self._run_exclusive(work)

    @staticmethod
    def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
        for callback in callbacks:
            callback()

    def _read(self, kind: str, work: Callable[[], T]) -> "Deferred[T]":
        """Run this in the reading thread, after any replacement of the log in progress."""
        return self._checked(kind, self._reading, work)

    def _checked(self, kind: str, thread: IThread, work: Callable[[], T]) -> "Deferred[T]":
        """Run a read in this thread. A failure makes the log unhealthy until the same read works."""

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
        while self._swap_waiters is not None and thread is self._reading:
            waiter: Deferred[None] = Deferred()
            self._swap_waiters.append(waiter)
            await waiter
        return await thread.run(work)


class StagedCopy:
    """A copy of another log under construction, stored next to the log that it will replace.

    First come the facts of a snapshot (`add`), then the rest of the snapshot (`restore`), then what was
    committed meanwhile (`follow`, `begin_epoch`). The copy survives a kill at any point and continues from
    its `position`.
    """

    def __init__(self, engine: IEngine, thread: IThread) -> None:
        self.position: LogPosition
        self.notes: dict[str, str] = {}
        self._engine = engine
        self._thread = thread

    async def open(self) -> None:
        """Open the engine, and load the copy's position and notes."""
        head = await self._thread.run(self._engine.open)
        self.position = head.position
        self.notes = await self._thread.run(self._engine.notes)

    async def note(self, **notes: str | None) -> None:
        """Store these notes with the copy; None deletes a note."""
        await self._thread.run(partial(self._engine.note, notes))
        self.notes.update((name, text) for name, text in notes.items() if text is not None)

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None:
        """Add facts of the snapshot. They complete it up to the position `upto`.

        Beyond `trimmed_upto` no fact is missing, and each must follow from the one before it. Facts may be
        missing anywhere if it is None. Raises `HistoryMismatch` where a fact does not follow.
        """
        await self._thread.run(partial(_add, self._engine, self.position, facts, upto, trimmed_upto))
        self.position = upto

    async def restore(self, snapshot: LogSnapshot) -> None:
        """Store everything of the snapshot besides its facts."""
        self.position = (await self._thread.run(partial(self._engine.restore, snapshot))).position

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Append facts as `Log.follow` does, to the copy."""
        await self._thread.run(partial(_follow, self._engine, self.position, facts, receipts, upto))
        if upto is not None:
            self.position = upto
        elif facts:
            self.position = _position_of(facts[-1])

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin an epoch at the end of the copy."""
        self.position = (await self._thread.run(partial(self._engine.begin_epoch, epoch_start))).position

    async def finish(self, notes: Mapping[str, str], leases: Sequence[Lease]) -> None:
        """Store these notes and leases, and close the copy."""
        await self.note(**notes)
        await self._thread.run(partial(self._engine.keep_leases, leases))
        await self.close()

    async def close(self) -> None:
        """Close the engine; the staged copy stays."""
        await self._thread.run(self._engine.close)


def _add(
    engine: IEngine,
    position: LogPosition,
    facts: Sequence[Fact],
    upto: LogPosition,
    trimmed_upto: LogPosition | None,
) -> None:
    """Verify and commit facts of a snapshot, in the writing thread."""
    if trimmed_upto is not None:
        dense = [fact for fact in facts if fact.serial > trimmed_upto.serial]
        before = position if position.serial > trimmed_upto.serial else trimmed_upto
        wrong = verify(dense, before.digest)
        if wrong is not None:
            raise HistoryMismatch(wrong)
        if facts and len(dense) == len(facts) == upto.serial - position.serial:
            # Nothing is missing: this is an ordinary commit, which needs no second verification.
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
    """Verify and commit facts of the followed log, in the writing thread."""
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
        # The outcome is unknown. The head tells whether the commit succeeded.
        if engine.head().digest != upto_digest:
            raise


def _position_after(facts: Sequence[Fact], upto: LogPosition | None, position: LogPosition) -> LogPosition:
    """The position of a log after these facts, from `position`."""
    return upto or (_position_of(facts[-1]) if facts else position)


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Wait for this work, which continues if the caller is cancelled."""
    return await _detached(work, Deferred())


def _detached(work: Coroutine[Any, Any, T], result: "Deferred[T]") -> "Deferred[T]":
    """Start this work and give `result`, which it fires; cancelling `result` does not stop the work."""

    def ended(outcome: T | Failure) -> None:
        if not result.called:
            result.callback(outcome)

    Deferred.fromCoroutine(work).addBoth(ended)
    return result


def _cancelled() -> StorageError:
    return StorageError(op="write", why="the caller was cancelled", retryable=True)


def _position_of(fact: Fact) -> LogPosition:
    return LogPosition(fact.epoch, fact.serial, fact.digest)


def _do_nothing() -> None:
    pass
