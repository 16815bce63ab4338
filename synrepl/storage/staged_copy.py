"""Staged copy: a copy of another log under construction, and the facts of a followed log."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Unpack

from synrepl.base.history import AppendReceipt, EpochStart, Lease, LogSnapshot
from synrepl.base.interfaces import IThread
from synrepl.base.notes import NoteChanges, Notes, changed
from synrepl.errors import StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class HistoryMismatch(StorageError):
    """A fact's digest does not follow from the fact before it. The fact was not stored."""

    def __init__(self, serial: int) -> None:
        super().__init__(
            op="follow",
            why=f"the digest of serial {serial} does not follow from the facts before it",
            hint="it was changed in transit, or belongs to another history",
        )
        self.serial = serial


class StagedCopy:
    """A copy of another log under construction, stored next to the log that it will replace.

    First come the facts of a snapshot (`add`), then the rest of the snapshot (`restore`), then what was
    committed meanwhile (`follow`, `begin_epoch`). The copy survives a kill at any point and continues from
    its `position`.
    """

    def __init__(self, engine: SQLEngine, thread: IThread) -> None:
        self.position: LogPosition
        self.notes: Notes = {}
        self._engine = engine
        self._thread = thread

    async def open(self) -> None:
        """Open the engine, and load the copy's position and notes."""
        head = await self._thread.run(partial(self._engine.open, is_whole=False))
        self.position = head.position
        self.notes = await self._thread.run(self._engine.notes.all)

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes with the copy; None deletes a note."""
        await self._thread.run(partial(self._engine.notes.store, notes))
        self.notes = changed(self.notes, notes)

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None:
        """Add facts of the snapshot. They complete it up to the position `upto`.

        Beyond `trimmed_upto` no fact is missing, and each must follow from the one before it. Without
        `trimmed_upto` facts may be missing anywhere. Raises `HistoryMismatch` where a fact does not follow.
        """
        await self._thread.run(partial(_add, self._engine, self.position, facts, upto, trimmed_upto))
        self.position = upto

    async def restore(self, snapshot: LogSnapshot) -> None:
        """Store the positions, epoch starts, receipts and `trimmed_upto` of the snapshot."""
        self.position = (await self._thread.run(partial(self._engine.restore, snapshot))).position

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Append facts as `LogCopies.follow` does, to the copy."""
        await self._thread.run(partial(commit_followed, self._engine, self.position, facts, receipts, upto))
        self.position = position_after(facts, upto, self.position)

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin an epoch at the end of the copy."""
        self.position = (await self._thread.run(partial(self._engine.begin_epoch, epoch_start))).position

    async def finish(self, notes: Mapping[str, object], leases: Sequence[Lease]) -> None:
        """Store these notes and leases, and close the copy."""
        await self._thread.run(partial(self._engine.notes.store, notes))
        await self._thread.run(partial(self._engine.leases.store, leases))
        await self.close()

    async def close(self) -> None:
        """Close the engine; the staged copy stays."""
        await self._thread.run(self._engine.close)


def _add(
    engine: SQLEngine,
    position: LogPosition,
    facts: Sequence[Fact],
    upto: LogPosition,
    trimmed_upto: LogPosition | None,
) -> None:
    """Verify and commit facts of a snapshot, in the writing thread."""
    dense = verify_added(position, facts, trimmed_upto)
    if facts and len(dense) == len(facts) == upto.serial - position.serial:
        # Nothing is missing: this is an ordinary commit, which needs no second verification.
        engine.commit(facts, ())
        return
    engine.commit(facts, (), upto=upto)


def verify_added(
    position: LogPosition, facts: Sequence[Fact], trimmed_upto: LogPosition | None
) -> Sequence[Fact]:
    """Verify facts of a snapshot, which a copy at `position` adds. Returns those among which none is missing.

    Raises `HistoryMismatch` where one of them does not follow from the one before it.
    """
    if trimmed_upto is None:
        return ()
    dense = facts
    if facts and facts[0].serial <= trimmed_upto.serial:
        dense = [fact for fact in facts if fact.serial > trimmed_upto.serial]
    before = position if position.serial > trimmed_upto.serial else trimmed_upto
    wrong = verify(dense, before.digest)
    if wrong is not None:
        raise HistoryMismatch(wrong)
    return dense


def commit_followed(
    engine: SQLEngine,
    position: LogPosition,
    facts: Sequence[Fact],
    receipts: Sequence[AppendReceipt],
    upto: LogPosition | None,
) -> None:
    """Verify and commit facts of the followed log, in the writing thread.

    Raises `HistoryMismatch` if there is no `upto` and a fact does not continue the log.
    """
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


def position_after(facts: Sequence[Fact], upto: LogPosition | None, position: LogPosition) -> LogPosition:
    """The position of a log at `position` once these facts are appended: `upto` if given."""
    return upto or (facts[-1].position if facts else position)
