"""Epochs: counters in a log that tell diverged histories of its copies apart."""

from collections.abc import Callable
from functools import partial

from synrepl.base.history import EpochStart
from synrepl.base.interfaces import Head, IClock, IThread
from synrepl.errors import StorageError
from synrepl.storage.committer import Committer
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log_head import LogHead


class Epochs:
    """Begins epochs at the end of a log, between two commits. `LogHead.epoch_starts` has those so far."""

    def __init__(
        self, engine: SQLEngine, writing: IThread, clock: IClock, head: LogHead, committer: Committer
    ) -> None:
        self._engine = engine
        self._writing = writing
        self._clock = clock
        self._head = head
        self._committer = committer
        self._subscribers: list[Callable[[], None]] = []

    def on_started(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time `begin` or `begin_next` has begun an epoch."""
        self._subscribers.append(callback)

    async def begin(self, epoch_start: EpochStart) -> None:
        """Begin this epoch at the end of the log. Readers beyond its start have a diverged history."""
        await self._begin(lambda: epoch_start)

    async def begin_next(
        self,
        why: str,
        *,
        epoch: int | None = None,
        at_ms: int | None = None,
        stream: str = "",
        token: int = 0,
        check: Callable[[], object] = lambda: None,
    ) -> EpochStart:
        """Begin the next epoch, or `epoch`, after all appends so far. The default of `at_ms` is now.

        `check` is called right before; if it raises an error, no epoch begins.

        With a `stream` its facts beyond `token` are discarded: their source has lost them. Followers beyond
        that token have a diverged history, and the caller must close their connections.
        """

        def make() -> EpochStart:
            check()
            position = self._head.position
            return EpochStart(
                epoch=position.epoch + 1 if epoch is None else epoch,
                serial=position.serial,
                digest=position.digest,
                at_ms=int(self._clock.seconds() * 1000) if at_ms is None else at_ms,
                why=why,
                stream=stream,
                token=token,
            )

        return await self._begin(make)

    async def _begin(self, make: Callable[[], EpochStart]) -> EpochStart:
        async def work() -> EpochStart:
            # Made now that no append is under way.
            epoch_start = make()
            try:
                head = await self._writing.run(partial(self._engine.begin_epoch, epoch_start))
            except StorageError as error:
                if not error.tried:
                    raise
                head = await self._look_up(epoch_start, error)
            self._head.load(head)
            # Here rather than after `exclusive`, so that it happens even if the caller was cancelled.
            for callback in self._subscribers:
                callback()
            return epoch_start

        return await self._committer.exclusive(work)

    async def _look_up(self, epoch_start: EpochStart, error: StorageError) -> Head:
        """The head, if the epoch was begun despite this error; which is raised if not, or not known yet."""

        def settle(head: Head) -> None:
            if epoch_start in head.epoch_starts:
                self._head.load(head)

        try:
            head: Head = await self._writing.run(self._engine.head)
        except StorageError:
            self._committer.doubt(settle)
            raise error from None
        if epoch_start not in head.epoch_starts:
            raise error
        return head
