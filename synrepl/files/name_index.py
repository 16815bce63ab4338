"""Index of file names, copied from the stream ``files`` of the log into the queue."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred

from synrepl.files.context import FilesContext, Wakeup
from synrepl.files.records import LogProgress, NamedFile
from synrepl.ports.interfaces import ILog
from synrepl.streams import jsontext
from synrepl.streams.catalog import FILES
from synrepl.streams.facts import Fact
from synrepl.wire.dialect import NEWEST
from synrepl.wire.filter import Filter

__all__ = ["NameIndex"]

PAGE_ROWS: Final = 1_000
FILES_ONLY: Final = Filter.of(streams=[FILES.name])
MAX_BUFFERED_FACTS: Final = 10_000
"""The most facts buffered in memory; with more, they are read from the log again."""
UNSAVED_SERIALS: Final = 10_000
"""After how many serials without files the progress is saved."""


class NameIndex:
    """Follows the log: reads it first, then watches its commits. `on_batch` is called after each batch."""

    def __init__(self, log: ILog, context: FilesContext, on_batch: Callable[[], None]) -> None:
        self.progress = LogProgress()
        self._log = log
        self._context = context
        self._on_batch = on_batch
        self._wakeup = Wakeup(context.clock)
        self._buffer: list[Fact] = []
        self._buffered_upto = LogProgress()
        self._saved = 0
        self._is_live = False
        self._is_stale = False
        self._is_watching = False
        self._waiters: list[tuple[int, Deferred[None]]] = []

    async def open(self) -> None:
        """Load the saved progress, and check that the log is still the one it belongs to."""
        progress = await self._context.run(self._context.queue.open)
        self._is_stale = (
            bool(progress.serial) and await self._log.digest_at(progress.serial) != progress.digest
        )
        if not self._is_stale:
            self.progress = progress
            self._saved = progress.serial
        if not self._is_watching:
            self._is_watching = True
            self._log.subscribe(self._on_committed)

    @property
    def is_complete(self) -> bool:
        """Whether all names up to the end of the log are known."""
        return not self._is_stale and self.progress.serial >= self._log.serial

    def rebuild(self) -> None:
        """Read all names again: the log was replaced."""
        self._is_stale = True
        self._wakeup.notify()

    async def wait_for(self, serial: int) -> None:
        """Return when all names up to this serial, or to the end of the log if lower, are known."""
        serial = min(serial, self._log.serial)
        if self.progress.serial < serial:
            waiter: Deferred[None] = Deferred()
            self._waiters.append((serial, waiter))
            self._wakeup.notify()
            await waiter

    async def save(self) -> None:
        """Save the progress, so that less is read after a restart."""
        if self._saved < self.progress.serial:
            await self._store([], self.progress)

    async def step(self) -> None:
        """Process the next batch, or wait for one."""
        if self._is_stale:
            await self._context.run(self._context.queue.reset)
            self._is_stale = False
            self._restart(LogProgress())
        elif not self._is_live:
            await self._read()
        elif self._buffer:
            facts, self._buffer = self._buffer, []
            upto = self._buffered_upto
            try:
                await self._store(facts, upto)
            except BaseException:
                self._restart(self.progress)
                raise
        elif self.progress.serial < self._buffered_upto.serial:
            self._advance(self._buffered_upto)
        elif self.progress.serial - self._saved > UNSAVED_SERIALS:
            await self.save()
        else:
            await self._wakeup.wait()

    async def _read(self) -> None:
        upto = self._log.serial
        if self.progress.serial < upto:
            facts, upto_read = await self._log.read(
                after=self.progress.serial, upto=upto, limit=PAGE_ROWS, filter=FILES_ONLY
            )
            digest = await self._log.digest_at(upto_read)
            await self._store(facts, LogProgress(upto_read, digest or ""))
        # There is no await from here on, so that no fact is committed in between.
        if self.progress.serial >= self._log.serial:
            self._buffered_upto = self.progress
            self._is_live = True

    async def _store(self, facts: Sequence[Fact], progress: LogProgress) -> None:
        context = self._context
        work = partial(
            context.queue.note,
            [row for fact in facts for row in _rows(fact)],
            progress,
            now_ms=context.now_ms(),
            has=context.store.has,
            fetches=context.is_eager,
        )
        await context.run(work)
        self._saved = progress.serial
        self._advance(progress)
        if facts:
            self._on_batch()

    def _advance(self, progress: LogProgress) -> None:
        self.progress = progress
        done = [waiter for serial, waiter in self._waiters if serial <= progress.serial]
        self._waiters = [(serial, waiter) for serial, waiter in self._waiters if serial > progress.serial]
        for waiter in done:
            if not waiter.called:
                waiter.callback(None)

    def _restart(self, progress: LogProgress) -> None:
        self._buffer = []
        self._is_live = False
        self._saved = min(self._saved, progress.serial)
        self.progress = progress
        self._wakeup.notify()

    def _on_committed(self, facts: Sequence[Fact]) -> None:
        if not self._is_live or not facts or not facts[-1].serial:
            return
        is_idle = self.progress == self._buffered_upto
        self._buffered_upto = LogProgress(facts[-1].serial, facts[-1].digest)
        found = [fact for fact in facts if fact.stream == FILES.name]
        if found:
            self._buffer += found
            if len(self._buffer) > MAX_BUFFERED_FACTS:
                self._buffer = []
                self._is_live = False
            self._wakeup.notify()
        elif is_idle:
            self._advance(self._buffered_upto)
        if self.progress.serial - self._saved > UNSAVED_SERIALS:
            self._wakeup.notify()


def _rows(fact: Fact) -> list[NamedFile]:
    """Return the rows of a fact; the last row of a name counts."""
    if not (texts := jsontext.split_rows(fact.rows)):
        return []
    return [
        NamedFile(row.name, row.sha256, row.size, fact.serial) for row in FILES.decode_many(texts, NEWEST)
    ]
