"""Index of the files that facts refer to, copied from the log into the queue.

The stream ``files`` gives files names. Rows of declared streams may refer to files as well: each such column
of each key is a name that only this index knows (`queue.reference`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred

from synrepl.files.context import FilesContext, Wakeup
from synrepl.files.queue import LogProgress, NamedFile, reference
from synrepl.storage.log import Log
from synrepl.streams.catalog import FILES
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST
from synrepl.wire.filter import Filter

PAGE_ROWS: Final = 1_000
UNSAVED_SERIALS: Final = 10_000
"""After how many serials without files the progress is saved."""


class NameIndex:
    """Reads the names of the log into the queue. Calls `on_batch` after each batch that has any.

    `find_stream` returns a stream of the daemon's table; None without one.
    """

    def __init__(
        self,
        log: Log,
        context: FilesContext,
        on_batch: Callable[[], None],
        find_stream: Callable[[str], Stream[Any] | None] = lambda name: None,
    ) -> None:
        self._find_stream = find_stream
        self._streams = {FILES.name}
        self.progress = LogProgress()
        self._log = log
        self._context = context
        self._on_batch = on_batch
        self._wakeup = Wakeup(context.clock)
        self._saved = 0
        self._is_idle = False
        """Whether all facts are read, and `step` waits for more."""
        self._is_stale = False
        self._is_watching = False
        self._waiters: list[tuple[int, Deferred[None]]] = []

    async def open(self) -> None:
        """Load the saved progress. If it belongs to another log, all names are read again."""
        progress = await self._context.run(self._context.queue.open)
        self._is_stale = (
            bool(progress.serial) and await self._log.reads.digest(progress.serial) != progress.digest
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
        return self._knows(self._log.head.serial)

    def _knows(self, serial: int) -> bool:
        return not self._is_stale and self.progress.serial >= serial

    def stream_added(self, stream: Stream[Any]) -> None:
        """Read a declared stream too, if its rows refer to files.

        If the log has facts of it, and was opened before, all names are read again.
        """
        if stream.files:
            self._streams.add(stream.name)
            if self._is_watching and self._log.positions(stream.name):
                self.rebuild()

    def rebuild(self) -> None:
        """Read all names again: the log was replaced."""
        self._is_stale, self._is_idle = True, False
        self._wakeup.open()

    async def wait_for(self, serial: int) -> None:
        """Return when all names up to this serial, or to the end of the log if lower, are known."""
        serial = min(serial, self._log.head.serial)
        if not self._knows(serial):
            waiter: Deferred[None] = Deferred()
            self._waiters.append((serial, waiter))
            self._wakeup.open()
            await waiter

    async def step(self) -> None:
        """Read the next facts, or wait for some."""
        if self._is_stale:
            await self._context.run(self._context.queue.reset)
            self._is_stale = False
            self._saved = 0
            self._advance(LogProgress())
        elif self.progress.serial < self._log.head.serial:
            facts, upto = await self._read()
            await self._store(facts, LogProgress(upto, await self._log.reads.digest(upto) or ""))
        elif self.progress.serial - self._saved > UNSAVED_SERIALS:
            # Saved, so that less is read again after a restart.
            await self._store([], self.progress)
        else:
            # There was no await since the check, so that no fact was committed in between.
            self._is_idle = True
            try:
                await self._wakeup.wait()
            finally:
                self._is_idle = False

    async def _read(self) -> tuple[Sequence[Fact], int]:
        """Read the next facts with names; return them, and the last serial that was looked at."""
        if not any(map(self._log.positions, self._streams)):
            # A long log without names need not be looked through.
            return [], self._log.head.serial
        return await self._log.reads.facts(
            after=self.progress.serial,
            upto=self._log.head.serial,
            limit=PAGE_ROWS,
            filter=Filter.of(streams=self._streams),
        )

    async def _store(self, facts: Sequence[Fact], progress: LogProgress) -> None:
        context = self._context
        work = partial(
            context.queue.note,
            [row for fact in facts for row in self._rows(fact)],
            progress,
            now_ms=context.now_ms(),
            has=context.store.has,
            fetches=context.rule == "eager",
        )
        await context.run(work)
        self._saved = progress.serial
        self._advance(progress)
        if facts:
            self._on_batch()

    def _rows(self, fact: Fact) -> list[NamedFile]:
        """The names that a fact gives to files, or takes from them."""
        if not (texts := jsontext.split(fact.rows)):
            return []
        serial = fact.serial
        if fact.stream == FILES.name:
            named = FILES.decode_many(texts, NEWEST)
            return [NamedFile(row.name, row.sha256, row.size, serial) for row in named]
        stream = self._find_stream(fact.stream)
        if stream is None:
            return []
        found = []
        for number, row in enumerate(stream.decode_many(texts, NEWEST)):
            key = (serial, number) if stream.key is None else stream.key(row)
            for column in stream.files:
                name = reference(fact.stream, key, column)
                file = getattr(row, column)
                sha256, size = (None, None) if file is None else (file["sha256"], file["size"])
                found.append(NamedFile(name, sha256, size, serial))
        return found

    def _advance(self, progress: LogProgress) -> None:
        self.progress = progress
        done = [waiter for serial, waiter in self._waiters if serial <= progress.serial]
        self._waiters = [(serial, waiter) for serial, waiter in self._waiters if serial > progress.serial]
        for waiter in done:
            if not waiter.called:
                waiter.callback(None)

    def _on_committed(self, facts: Sequence[Fact]) -> None:
        if not facts or not facts[-1].serial:
            return
        if self._is_idle and not any(fact.stream in self._streams for fact in facts):
            self._advance(LogProgress(facts[-1].serial, facts[-1].digest))
            if self.progress.serial - self._saved <= UNSAVED_SERIALS:
                return
        self._wakeup.open()
