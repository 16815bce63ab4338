"""Epochs: counters in a log that tell diverged histories of its copies apart."""

from collections.abc import Callable
from functools import partial
from typing import Final

from synrepl.base.history import EpochStart
from synrepl.base.interfaces import Head, IClock, IThread
from synrepl.base.time import sleep
from synrepl.errors import StorageError
from synrepl.storage.append_errors import LogNotOurs
from synrepl.storage.committer import Committer
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log_head import LogHead

LOOK_UPS: Final = 20
"""How often, once a second, the outcome of an epoch is looked up before the next write does so."""


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
        self._problem = ""
        """What was last told to be unknown."""

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
            # Here rather than after `exclusive`, so that it happens even if the caller was cancelled.
            self._started(head)
            return epoch_start

        return await self._committer.exclusive(work)

    def _started(self, head: Head) -> None:
        self._head.load(head)
        for callback in self._subscribers:
            callback()

    def _forget_problem(self) -> None:
        if self._committer.problem == self._problem:
            self._committer.problem = ""

    async def _look_up(self, epoch_start: EpochStart, error: StorageError) -> Head:
        """The head, if the epoch was begun despite this error; which is raised if not, or not known in time.

        A server that has cut the COMMIT off is often away for some seconds.
        """
        for _ in range(LOOK_UPS):
            try:
                head: Head = await self._writing.run(self._engine.head)
            except StorageError as unknown:
                if not unknown.retryable or isinstance(unknown, LogNotOurs) or not self._committer.is_open:
                    break
                self._problem = f"it is unknown whether an epoch began: {unknown}"
                self._committer.problem = self._problem
                await sleep(self._clock, 1.0)
            else:
                self._forget_problem()
                if epoch_start not in head.epoch_starts:
                    raise error
                return head

        def settle(head: Head) -> None:
            self._forget_problem()
            if epoch_start in head.epoch_starts:
                self._started(head)

        self._committer.doubt(settle)
        raise error
