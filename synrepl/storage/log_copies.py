"""The log as one of several copies: it is copied, follows another log, and is replaced by a copy of it."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from twisted.internet.defer import Deferred

from synrepl.base.history import AppendReceipt, EpochStart, LogSnapshot
from synrepl.base.interfaces import Head, IClock, IThread
from synrepl.errors import StorageError
from synrepl.storage.checked_reads import CheckedReads
from synrepl.storage.committer import Committer
from synrepl.storage.engine import SQLEngine
from synrepl.storage.epochs import Epochs
from synrepl.storage.log_head import LogHead
from synrepl.storage.staged_copy import HistoryMismatch, StagedCopy, commit_followed, position_after
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class LogCopies:
    """Exclusive writes to a log: appends wait meanwhile.

    `adopt` replaces the log by a closed copy, and `notify` gives facts to the subscribers of the log.
    """

    def __init__(
        self,
        engine: SQLEngine,
        writing: IThread,
        clock: IClock,
        head: LogHead,
        committer: Committer,
        checked: CheckedReads,
        epochs: Epochs,
        *,
        adopt: Callable[[StagedCopy], Awaitable[None]],
        notify: Callable[[Sequence[Fact]], None],
    ) -> None:
        self._engine = engine
        self._writing = writing
        self._clock = clock
        self._head = head
        self._committer = committer
        self._checked = checked
        self._epochs = epochs
        self._adopt = adopt
        self._notify = notify
        self._replacement_subscribers: list[Callable[[], None]] = []

    @property
    def position(self) -> LogPosition:
        """Where the log ends: epoch, serial and digest, as a `StagedCopy` has it."""
        return self._head.position

    def on_replaced(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time a copy has replaced this log."""
        self._replacement_subscribers.append(callback)

    def snapshot(self) -> "Deferred[LogSnapshot]":
        """The positions, epoch starts and receipts as of the head, once no commit is running or uncertain."""
        return self._committer.exclusive(
            partial(self._checked.run, "snapshot", self._engine.snapshot, thread=self._writing)
        )

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt] = (),
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts and receipts of the upstream's log, unchanged.

        Without `upto` the facts must continue this log; `HistoryMismatch` is raised if not. With `upto` the
        facts may have gaps, and the log's position becomes `upto`. May raise another `StorageError`. If the
        outcome of a failed call is unknown, it is looked up before the next exclusive write.
        """

        async def work() -> None:
            before = self._head.digest
            after = position_after(facts, upto, self._head.position).digest

            def settle(head: Head) -> None:
                if head.digest == after != before:
                    self._apply_followed(facts, receipts, upto)

            try:
                await self._writing.run(
                    partial(commit_followed, self._engine, self._head.position, facts, receipts, upto)
                )
            except HistoryMismatch:
                raise
            except StorageError:
                self._committer.doubt(settle)
                raise
            self._apply_followed(facts, receipts, upto)

        await self._committer.exclusive(work)

    def _apply_followed(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], upto: LogPosition | None
    ) -> None:
        self._head.advance(facts)
        if facts:
            self._head.epoch = max(self._head.epoch, facts[-1].epoch)
        if upto is not None:
            self._head.move_to(upto)
        if receipts:
            self._head.receipts_upto = self._head.serial
        if facts:
            self._committer.committed_at = self._clock.seconds()
            self._notify(facts)

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin this epoch of the upstream's log, as `Epochs.begin` does."""
        await self._epochs.begin(epoch_start)

    async def open_staged(self) -> StagedCopy:
        """Open the staged copy of another log; it may be empty."""
        copy = StagedCopy(self._engine.staging(), self._writing)
        try:
            await copy.open()
        except Exception:
            await copy.close()
            raise
        return copy

    async def drop(self, copy: StagedCopy) -> None:
        """Close a staged copy and delete it."""
        await copy.close()
        await self._writing.run(self._engine.drop_staged)

    async def adopt(self, copy: StagedCopy) -> None:
        """Replace this log by a staged copy in one step; keep the uuid, leases and `own_notes`."""

        async def work() -> None:
            await self._adopt(copy)
            # Here rather than after `exclusive`, so that it happens even if the caller was cancelled.
            for callback in self._replacement_subscribers:
                callback()

        await self._committer.exclusive(work)
