"""Fetches what is missing: a few files at a time, each by one owner, and none held up by another."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import ReplicationError
from synrepl.ports.files import IFetchFile, ISpool, WantedFile
from synrepl.replication.files.context import STEP, FilesContext, Wakeup

__all__ = ["FileFetcher"]

BROKEN_SECONDS: Final = 10.0
"""How long a file is left alone when it cannot even be noted that it failed."""


class FileFetcher:
    """Takes files from the queue, at most `workers` at once, and calls `arrived` with each that is here.

    With no `source` it fetches nothing.
    """

    def __init__(
        self,
        desk: FilesContext,
        source: IFetchFile | None,
        workers: int,
        *,
        arrived: Callable[[str], None],
        failed: Callable[[], None],
    ) -> None:
        self._desk = desk
        self._source = source
        self._workers = workers
        self._arrived = arrived
        self._failed = failed
        self._bell = Wakeup(desk.clock)
        self._running: dict[str, Deferred[Any] | None] = {}

    @property
    def in_flight(self) -> int:
        """How many files are being fetched."""
        return len(self._running)

    def ring(self) -> None:
        """There may be something to fetch."""
        self._bell.ring()

    def change_source(self, source: IFetchFile | None) -> None:
        """Fetch from there from now on; what is under way is begun anew."""
        self._source = source
        for running in list(self._running.values()):
            if running is not None:
                running.cancel()
        self._bell.ring()

    async def step(self) -> None:
        """Begin with what is due, then wait until there may be more."""
        desk = self._desk
        free = self._workers - len(self._running)
        next_at: int | None = None
        if self._source is not None and free > 0:
            for wanted in await desk.run(partial(desk.queue.take, desk.now_ms(), free)):
                self._begin(wanted)
            if len(self._running) < self._workers:
                next_at = await desk.run(desk.queue.next_at)
        await self._bell.rung(None if next_at is None else (next_at - desk.now_ms()) / 1000)

    def _begin(self, wanted: WantedFile) -> None:
        if wanted.sha256 in self._running:
            return
        self._running[wanted.sha256] = None
        running = self._desk.tasks.start(self._fetch(wanted), "fetching a file")
        if wanted.sha256 in self._running:
            self._running[wanted.sha256] = running

    async def _fetch(self, wanted: WantedFile) -> None:
        desk = self._desk
        sha256 = wanted.sha256
        try:
            if not await desk.run(partial(desk.store.has, sha256)):
                await self._receive(sha256)
            await desk.run(partial(desk.queue.arrived, sha256, desk.now_ms()))
        except CancelledError:
            desk.later(partial(desk.queue.let_go, sha256))
            raise
        except Exception as error:
            if isinstance(error, ReplicationError):
                if not wanted.tries:
                    desk.logger.warn(
                        "files: {name} ({sha256}) could not be fetched, and is tried again: {why}",
                        name=wanted.name,
                        sha256=sha256,
                        why=error,
                    )
            else:
                desk.logger.failure("files: a fault in fetching {sha256}", sha256=sha256)
            await self._put_off(sha256, str(error) or type(error).__name__)
        else:
            if wanted.tries:
                desk.logger.info("files: {name} is here after all", name=wanted.name)
            self._arrived(sha256)
        finally:
            self._running.pop(sha256, None)
            self._bell.ring()

    async def _put_off(self, sha256: str, why: str) -> None:
        desk = self._desk
        try:
            await desk.run(partial(desk.queue.failed, sha256, why, desk.now_ms()))
        except ReplicationError as error:
            desk.logger.error("files: {why}", why=error)
            # It would be due again at once.
            await Wakeup(desk.clock).rung(BROKEN_SECONDS)
        self._failed()

    async def _receive(self, sha256: str) -> None:
        desk = self._desk
        assert self._source is not None
        spool: ISpool = await desk.obtain(partial(desk.store.resume, sha256), _close)
        try:
            while not await desk.run(partial(spool.rehash, STEP)):
                pass
            await self._source.fetch(sha256, spool.length, lambda data: desk.run(partial(spool.append, data)))
            await desk.run(partial(spool.commit, sha256))
        finally:
            # What came so far is gone on from the next time, unless it was wrong.
            desk.later(spool.close)


def _close(spool: ISpool) -> None:
    spool.close()
