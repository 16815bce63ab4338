"""Files that facts refer to by checksum, as the rest of a daemon sees them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import ReplicationError, StorageError
from synrepl.ports.files import IFetchFile, IFileQueue, IFileStore, ISpool, IStoredFile, QueueSummary
from synrepl.ports.interfaces import IClock, ILog, IThread
from synrepl.replication.files.context import FilesContext, Rule, Wakeup
from synrepl.replication.files.fetcher import FileFetcher
from synrepl.replication.files.maintenance import FileMaintenance
from synrepl.replication.files.name_index import NameIndex
from synrepl.replication.files.verified_reads import VerifiedReads

__all__ = ["Files"]

FAILING_TOLD: Final = 20
FIGURES_SECONDS: Final = 2.0
"""How often the numbers are taken anew, at most."""
PATIENCE_MS: Final = 60_000
"""How long a file may be missing before that counts as trouble."""


class Files:
    """The files of a daemon: those of a primary are uploaded to it, those of a replica come from `fetch`.

    `rule` is ``eager`` (a replica fetches every file) or ``lazy`` (those that are asked for). `thread` is its
    own, and is stopped with it. `refuses` says why no file may be brought just now, if none may. Every
    time-out here is in seconds.
    """

    def __init__(
        self,
        log: ILog,
        store: IFileStore,
        queue: IFileQueue,
        thread: IThread,
        clock: IClock,
        *,
        fetch: IFetchFile | None = None,
        rule: Literal["eager", "lazy"] = "eager",
        workers: int = 4,
        grace_seconds: float = 86_400.0,
        scrub_slice_seconds: float = 1.0,
        scrub_round_seconds: float = 86_400.0,
        refuses: Callable[[], ReplicationError | None] = lambda: None,
        logger: Logger,
    ) -> None:
        self._refuses = refuses
        self._log = log
        self._clock = clock
        self._rule: Literal["eager", "lazy"] = rule
        self._fetch = fetch
        self._desk = FilesContext(store, queue, thread, clock, self._rule_now(), logger)
        self._names = NameIndex(log, self._desk, self._noted)
        self._checks = VerifiedReads(self._desk, self._gone)
        self._fetching = FileFetcher(self._desk, fetch, workers, arrived=self._arrived, failed=self._changed)
        self._upkeep = FileMaintenance(
            self._desk,
            self._gone,
            lambda: self._names.is_complete,
            grace_seconds=grace_seconds,
            slice_seconds=scrub_slice_seconds,
            round_seconds=scrub_round_seconds,
        )
        self._figures = QueueSummary()
        self._figures_bell = Wakeup(clock)
        self._waiting: dict[str, set[Deferred[bool]]] = {}
        self._is_running = False

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin, from where an earlier life came to. Raises `StorageError`."""
        desk = self._desk
        await self._names.begin()
        await desk.run(partial(desk.queue.follow, desk.rule))
        await desk.run(partial(desk.store.sweep, desk.queue.is_missing))
        self._is_running = True
        for part, step in (
            ("reading names", self._names.step),
            ("fetching", self._fetching.step),
            ("upkeep", self._upkeep.step),
            ("counting", self._take_figures),
        ):
            desk.loops.start(desk.steadily(part, step), part)
        self._changed()

    async def stop(self) -> None:
        """End what is under way, keep how far it came, and end the thread. Harmless when repeated."""
        desk = self._desk
        desk.loops.cancel_all()
        desk.tasks.cancel_all()
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                if not waiter.called:
                    waiter.callback(False)
        if self._is_running:
            self._is_running = False
            desk.later(self._upkeep.close)
            desk.later(partial(desk.queue.remember, "seen", self._names.seen.text))
            desk.later(desk.queue.close)
        await desk.thread.stop()

    async def fetch_from(self, fetch: IFetchFile | None) -> None:
        """From now on this is a replica that gets its files there, or, without, a primary."""
        desk = self._desk
        self._fetch = fetch
        desk.rule = self._rule_now()
        await desk.run(partial(desk.queue.follow, desk.rule))
        self._fetching.change_source(fetch)
        self._changed()

    def rebuild(self) -> None:
        """The log was replaced by another one: learn all names anew. The bytes stay."""
        self._names.rebuild()
        self._upkeep.recount()

    # -- who wants a file ----------------------------------------------------------------------------------

    @property
    def is_replica(self) -> bool:
        """Whether files come from somewhere else."""
        return self._fetch is not None

    async def here(self, sha256: str, timeout: float) -> bool:
        """Whether the file is here, or gets here in so many seconds; a replica fetches it at once."""
        desk = self._desk
        if await desk.run(partial(desk.store.has, sha256)):
            return True
        if timeout <= 0:
            await self._demand(sha256)
            return await desk.run(partial(desk.store.has, sha256))
        waiter: Deferred[bool] = Deferred()
        waiters = self._waiting.setdefault(sha256, set())
        waiters.add(waiter)
        timer = self._clock.callLater(timeout, _give_up, waiter)
        try:
            await self._demand(sha256)
            return await waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiting.get(sha256) is waiters:
                del self._waiting[sha256]
            if timer.active():
                timer.cancel()

    async def is_named(self, sha256: str) -> bool:
        """Whether a name refers to it."""
        return await self._desk.run(partial(self._desk.queue.is_named, sha256))

    async def pass_on(self, sha256: str, hops: int = 0) -> None:
        """Bring a file that is here to where a replica gets its files; on a primary, that is done already.

        `hops` counts the replicas that it came through. Raises a `ReplicationError`.
        """
        if self._fetch is None:
            return
        file = await self.open(sha256)
        if file is None:
            raise StorageError(op="passing on a file", why="it is not here any more", retryable=True)
        try:
            await self._fetch.send(sha256, file.size, partial(self.read, file), hops + 1)
        finally:
            self.release(file)

    async def open(self, sha256: str) -> IStoredFile | None:
        """The file, all of which was found good a short while ago at most; None if it is not here.

        Whoever gets it gives it back with `release`.
        """
        return await self._checks.open(sha256)

    async def read(self, file: IStoredFile, offset: int, count: int) -> bytes:
        """So many bytes of an open file, no fewer unless it ends."""
        return await self._desk.run(partial(file.read, offset, count))

    def release(self, file: IStoredFile) -> None:
        """Let go of an open file."""
        self._desk.later(file.close)

    # -- who brings a file ---------------------------------------------------------------------------------

    async def receive(self) -> ISpool:
        """Begin to take bytes; `append` them, then `keep` or `discard` them. Raises what `refuses` gives."""
        if (refused := self._refuses()) is not None:
            raise refused
        return await self._desk.obtain(self._desk.store.receive, _abort)

    async def append(self, spool: ISpool, data: bytes) -> None:
        """Add these. Raises `DiskFull`, or another `StorageError`."""
        await self._desk.run(partial(spool.append, data))

    async def keep(self, spool: ISpool, sha256: str) -> bool:
        """Keep them, durably, if this is their checksum; whether they are new. Raises `ChecksumMismatch`."""
        desk = self._desk

        def work() -> bool:
            is_new = spool.commit(sha256)
            desk.queue.arrived(sha256, desk.now_ms())
            return is_new

        is_new = await desk.run(work)
        self._arrived(sha256)
        return is_new

    def discard(self, spool: ISpool) -> None:
        """Keep nothing of it."""
        self._desk.later(spool.abort)

    # -- what is missing -----------------------------------------------------------------------------------

    async def missing(self) -> list[tuple[str, str]]:
        """The name and checksum of every file that is not here, oldest first."""
        return await self._missing(None)

    async def complete(self, serial: int) -> list[tuple[str, str]]:
        """What is not here of the files that facts up to this serial refer to: empty if nothing is missing.

        Looks at the disk, so that this is true even of files that were taken away under our feet.
        """
        await self._names.reached(serial)
        await self._upkeep.compare()
        return await self._missing(serial)

    async def clear(self) -> int:
        """Delete now what no name has referred to for the time of grace; how many files that were."""
        return await self._upkeep.clear()

    # -- for people ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """How it stands, as of a few seconds ago at most."""
        store, figures = self._desk.store, self._figures
        oldest = figures.oldest_since_ms
        return {
            "rule": self._desk.rule,
            "stored": store.stored,
            "stored_bytes": store.stored_bytes,
            "wanted": figures.wanted,
            "in_flight": self._fetching.in_flight,
            "failing": [
                {
                    "name": one.name,
                    "sha256": one.sha256,
                    "why": one.why,
                    "tries": one.tries,
                    "next_at": one.next_at_ms / 1000,
                }
                for one in figures.failing
            ],
            "oldest_seconds": (None if oldest is None else max(0.0, self._clock.seconds() - oldest / 1000)),
            "missing": figures.missing,
            "quarantined": store.quarantined,
        }

    def problems(self) -> list[tuple[str, float]]:
        """What is wrong, and since when (Unix time in seconds). Files merely on their way are not."""
        found = [(f"files: {text}", since) for text, since in self._desk.troubles.values()]
        figures, rule = self._figures, self._desk.rule
        late_ms = self._desk.now_ms() - PATIENCE_MS
        failing = [one for one in figures.failing if one.since_ms <= late_ms]
        if failing:
            first = failing[0]
            count = figures.failing_count
            others = f", and so it is with {count - 1} more" if count > 1 else ""
            found.append(
                (f"files: {first.name} cannot be fetched: {first.why}{others}", first.since_ms / 1000)
            )
        oldest = figures.oldest_since_ms
        if rule == "none" and oldest is not None and oldest <= late_ms:
            text = f"files: the bytes of {figures.missing} are not here, first of {figures.first_missing}"
            found.append((text, oldest / 1000))
        return found

    # -- what happens --------------------------------------------------------------------------------------

    def _rule_now(self) -> Rule:
        return "none" if self._fetch is None else self._rule

    async def _missing(self, upto: int | None) -> list[tuple[str, str]]:
        found = await self._desk.run(partial(self._desk.queue.missing, upto))
        return [(one.name, one.sha256) for one in found]

    async def _demand(self, sha256: str) -> None:
        desk = self._desk
        if self._fetch is not None:
            await desk.run(partial(desk.queue.demand, sha256, desk.now_ms()))
            self._fetching.ring()

    def _noted(self) -> None:
        """There are other names than before; somebody may have waited for one of them."""
        if self._desk.rule == "lazy":
            for sha256 in list(self._waiting):
                self._desk.tasks.start(self._demand(sha256), "demanding a file")
        self._fetching.ring()
        self._changed()

    def _arrived(self, sha256: str) -> None:
        for waiter in list(self._waiting.get(sha256, ())):
            if not waiter.called:
                waiter.callback(True)
        self._changed()

    def _gone(self, sha256: str, why: str) -> None:
        """It was here, and is not, or was bad."""
        self._desk.tasks.start(self._note_loss(sha256, why), "noting a loss")

    async def _note_loss(self, sha256: str, why: str) -> None:
        desk = self._desk
        name = await desk.run(partial(desk.queue.lost, sha256, desk.now_ms(), fetches=desk.rule != "none"))
        if name is None:
            desk.logger.warn("files: {sha256}, which no name refers to: {why}", sha256=sha256, why=why)
        elif desk.rule == "none":
            desk.logger.error(
                "files: the bytes of {name} ({sha256}) are lost, upload them again: {why}",
                name=name,
                sha256=sha256,
                why=why,
            )
        else:
            desk.logger.warn(
                "files: {name} ({sha256}) is fetched again: {why}", name=name, sha256=sha256, why=why
            )
        self._fetching.ring()
        self._changed()

    def _changed(self) -> None:
        self._figures_bell.ring()

    async def _take_figures(self) -> None:
        await self._figures_bell.rung()
        self._figures = await self._desk.run(partial(self._desk.queue.summary, FAILING_TOLD))
        await Wakeup(self._clock).rung(FIGURES_SECONDS)


def _give_up(waiter: "Deferred[bool]") -> None:
    if not waiter.called:
        waiter.callback(False)


def _abort(spool: ISpool) -> None:
    spool.abort()
