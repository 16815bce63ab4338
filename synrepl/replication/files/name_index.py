"""Which names there are: what the log says of the stream ``files``, taken over into the queue."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred

from synrepl.ports.files import LogProgress, NamedFile
from synrepl.ports.interfaces import ILog
from synrepl.replication.files.context import FilesContext, Wakeup
from synrepl.streams import jsontext
from synrepl.streams.catalog.files import FILES
from synrepl.streams.facts import Fact
from synrepl.wire.dialect import NEWEST
from synrepl.wire.filter import Filter

__all__ = ["NameIndex"]

PAGE_ROWS: Final = 1_000
OF_FILES: Final = Filter.of(streams=[FILES.name])
HELD_FACTS: Final = 10_000
"""Facts that wait in memory; with more of them, they are read from the log again."""
UNSAVED_SERIALS: Final = 10_000
"""How much of the log without files goes by before it is kept that it was looked through."""


class NameIndex:
    """Follows the log, first by reading it, then as it is told. `noted` is called after each batch."""

    def __init__(self, log: ILog, desk: FilesContext, noted: Callable[[], None]) -> None:
        self.seen = LogProgress()
        self._log = log
        self._desk = desk
        self._noted = noted
        self._bell = Wakeup(desk.clock)
        self._fresh: list[Fact] = []
        self._fresh_upto = LogProgress()
        self._saved = 0
        self._is_live = False
        self._is_stale = False
        self._is_watching = False
        self._waiters: list[tuple[int, Deferred[None]]] = []

    async def begin(self) -> None:
        """Find out where an earlier life came to, and whether the log is still the one it read."""
        seen = await self._desk.run(self._desk.queue.open)
        self._is_stale = bool(seen.serial) and await self._log.digest_at(seen.serial) != seen.digest
        if not self._is_stale:
            self.seen = seen
            self._saved = seen.serial
        if not self._is_watching:
            self._is_watching = True
            self._log.subscribe(self._committed)

    @property
    def is_complete(self) -> bool:
        """Whether all names up to the log's end are known."""
        return not self._is_stale and self.seen.serial >= self._log.serial

    def rebuild(self) -> None:
        """The log is another one: learn all names anew."""
        self._is_stale = True
        self._bell.ring()

    async def reached(self, serial: int) -> None:
        """Returns when all names up to this serial are known, or, if that is less, up to the log's end."""
        serial = min(serial, self._log.serial)
        if self.seen.serial < serial:
            waiter: Deferred[None] = Deferred()
            self._waiters.append((serial, waiter))
            self._bell.ring()
            await waiter

    async def save(self) -> None:
        """Keep how far it came, so that the next life need not read as much."""
        if self._saved < self.seen.serial:
            await self._note([], self.seen)

    async def step(self) -> None:
        """Take over the next batch, or wait for one."""
        if self._is_stale:
            await self._desk.run(self._desk.queue.reset)
            self._is_stale = False
            self._restart(LogProgress())
        elif not self._is_live:
            await self._read()
        elif self._fresh:
            facts, self._fresh = self._fresh, []
            upto = self._fresh_upto
            try:
                await self._note(facts, upto)
            except BaseException:
                self._restart(self.seen)
                raise
        elif self.seen.serial < self._fresh_upto.serial:
            self._advance(self._fresh_upto)
        elif self.seen.serial - self._saved > UNSAVED_SERIALS:
            await self.save()
        else:
            await self._bell.rung()

    async def _read(self) -> None:
        upto = self._log.serial
        if self.seen.serial < upto:
            facts, looked = await self._log.read(
                after=self.seen.serial, upto=upto, limit=PAGE_ROWS, filter=OF_FILES
            )
            digest = await self._log.digest_at(looked)
            await self._note(facts, LogProgress(looked, digest or ""))
        # Nothing is waited for from here on, so no fact comes in between.
        if self.seen.serial >= self._log.serial:
            self._fresh_upto = self.seen
            self._is_live = True

    async def _note(self, facts: Sequence[Fact], seen: LogProgress) -> None:
        desk = self._desk
        work = partial(
            desk.queue.note,
            [row for fact in facts for row in _rows(fact)],
            seen,
            now_ms=desk.now_ms(),
            has=desk.store.has,
            fetches=desk.fetches,
        )
        await desk.run(work)
        self._saved = seen.serial
        self._advance(seen)
        if facts:
            self._noted()

    def _advance(self, seen: LogProgress) -> None:
        self.seen = seen
        done = [waiter for serial, waiter in self._waiters if serial <= seen.serial]
        self._waiters = [(serial, waiter) for serial, waiter in self._waiters if serial > seen.serial]
        for waiter in done:
            if not waiter.called:
                waiter.callback(None)

    def _restart(self, seen: LogProgress) -> None:
        self._fresh = []
        self._is_live = False
        self._saved = min(self._saved, seen.serial)
        self.seen = seen
        self._bell.ring()

    def _committed(self, facts: Sequence[Fact]) -> None:
        if not self._is_live or not facts or not facts[-1].serial:
            return
        is_idle = self.seen == self._fresh_upto
        self._fresh_upto = LogProgress(facts[-1].serial, facts[-1].digest)
        news = [fact for fact in facts if fact.stream == FILES.name]
        if news:
            self._fresh += news
            if len(self._fresh) > HELD_FACTS:
                self._fresh = []
                self._is_live = False
            self._bell.ring()
        elif is_idle:
            self._advance(self._fresh_upto)
        if self.seen.serial - self._saved > UNSAVED_SERIALS:
            self._bell.ring()


def _rows(fact: Fact) -> list[NamedFile]:
    """The rows of a fact; the last one of a name counts."""
    if not (texts := jsontext.split(fact.rows)):
        return []
    return [
        NamedFile(row.name, row.sha256, row.size, fact.serial) for row in FILES.decode_many(texts, NEWEST)
    ]
