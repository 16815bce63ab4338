"""Files that facts refer to by checksum: the facade for the rest of a daemon."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger, LogLevel

from synrepl.base.gate import Wakeup
from synrepl.base.interfaces import IClock, IThread
from synrepl.base.problems import Problem
from synrepl.base.response_errors import NeverSent
from synrepl.base.tasks import Loops
from synrepl.base.time import Timer, sleep
from synrepl.errors import ReplicationError, StorageError
from synrepl.files.fetching import FileFetcher, FileMaintenance, IFetchFile
from synrepl.files.names import FileQueue, NamedFile, NameIndex, QueueSummary, Rule
from synrepl.files.store import STEP, Damaged, DiskThread, FileStore, Spool, StoredFile
from synrepl.storage.log import Log
from synrepl.streams.stream import Stream

MAX_BYTES: Final = 16 * 1024**3
MAX_FAILING_SHOWN: Final = 20
SUMMARY_SECONDS: Final = 2.0
"""The shortest interval between two summaries of the queue."""
PATIENCE_MS: Final = 60_000
"""How many milliseconds a file may be missing before that is a problem."""
NO_SOURCE: Final = "no usable address of the upstream's HTTP API is known"


class Files:
    """The files of a daemon, which clients upload. A replica fetches and forwards files by `fetch`.

    `rule` is ``eager`` (a replica fetches every file) or ``lazy`` (only requested files). `thread` belongs to
    this object, and is stopped with it. Files without a name are deleted after `grace_seconds`. `refusal`
    returns the error with which uploads are refused now, or None. A file of more than `max_bytes` is not
    fetched. `is_primary` tells whether files are complete once they are stored here. `find_stream` returns a
    declared stream, whose rows may refer to files (`stream_added`). Timeouts are in seconds.
    """

    def __init__(
        self,
        log: Log,
        store: FileStore,
        thread: IThread,
        clock: IClock,
        *,
        fetch: IFetchFile | None = None,
        rule: Literal["eager", "lazy"] = "eager",
        workers: int = 4,
        max_bytes: int = MAX_BYTES,
        grace_seconds: float = 86_400.0,
        refusal: Callable[[], ReplicationError | None] = lambda: None,
        is_primary: Callable[[], bool] = lambda: True,
        find_stream: Callable[[str], Stream[Any] | None] = lambda name: None,
        logger: Logger,
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._refusal = refusal
        self._is_primary = is_primary
        self._logger = logger
        self._source_rule: Rule = rule
        self._disk = DiskThread(thread, logger)
        # Cancelled before the tasks of the thread, which they start.
        self._loops = Loops(clock, logger, "files")
        self._queue = FileQueue(
            store.directory, has=store.has, seconds=clock.seconds, rule="none" if fetch is None else rule
        )
        self._summary = QueueSummary()
        self._summary_wakeup = Wakeup(clock)
        self._names = NameIndex(log, self._queue, self._disk, clock, self._on_new_names, find_stream)
        self._verified_reads = _VerifiedReads(store, self._disk, self._on_loss)
        self._fetcher = FileFetcher(
            store,
            self._queue,
            self._disk,
            clock,
            fetch,
            workers,
            max_bytes=max_bytes,
            on_arrival=self._on_arrival,
            on_failure=self._summary_wakeup.open,
            logger=logger,
        )
        self._maintenance = FileMaintenance(
            store,
            self._queue,
            self._disk,
            clock,
            on_loss=self._on_loss,
            are_names_known=lambda: self._names.is_complete,
            grace_seconds=grace_seconds,
            logger=logger,
        )
        self._waiting: dict[str, dict[Deferred[bool], None]] = {}
        self._is_running = False

    async def start(self) -> None:
        """Start, from the saved progress. Raises `StorageError`."""
        await self._names.open()
        await self._disk.run(self._queue.follow, self._queue.rule)
        await self._disk.run(self._store.sweep, self._queue.is_missing)
        self._is_running = True
        for part, step in (
            ("reading names", self._names.step),
            ("fetching", self._fetcher.step),
            ("maintenance", self._maintenance.step),
            ("counting", self._update_summary),
        ):
            self._loops.repeat(step, part)
        self._summary_wakeup.open()

    async def stop(self) -> None:
        """Stop all work, save the progress, and stop the thread. Idempotent."""
        self._loops.cancel_all()
        self._disk.tasks.cancel_all()
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                _answer(waiter, is_present=False)
        if self._is_running:
            self._is_running = False
            self._disk.run_later(self._maintenance.close)
            self._disk.run_later(self._queue.note, [], self._names.progress)
            self._disk.run_later(self._queue.close)
        await self._disk.stop()

    async def set_source(self, fetch: IFetchFile | None) -> None:
        """Fetch files from this source from now on.

        None: fetch none, as on a primary, or while no source is known.
        """
        self._queue.rule = "none" if fetch is None else self._source_rule
        await self._disk.run(self._queue.follow, self._queue.rule)
        self._fetcher.set_source(fetch)
        self._summary_wakeup.open()

    def rebuild(self) -> None:
        """Read all names again: the log was replaced. Stored files stay."""
        self._names.rebuild()
        self._maintenance.recount()

    def stream_added(self, stream: Stream[Any]) -> None:
        """Keep the files to which rows of a declared stream refer."""
        self._names.stream_added(stream)

    @property
    def is_replica(self) -> bool:
        """Whether files are fetched from another daemon, now or once its address is known."""
        return self._fetcher.source is not None or not self._is_primary()

    @property
    def has_source(self) -> bool:
        """Whether it is known from where files are fetched."""
        return self._fetcher.source is not None

    async def wait_for(self, sha256: str, timeout: float) -> bool:
        """Whether the file is present, or arrives in `timeout` seconds. A replica requests a named file."""
        if await self._disk.run(self._store.has, sha256):
            return True
        if timeout <= 0:
            await self._request(sha256)
            return await self._disk.run(self._store.has, sha256)
        waiter: Deferred[bool] = Deferred()
        waiters = self._waiting.setdefault(sha256, {})
        waiters[waiter] = None
        timer = Timer(self._clock, partial(_answer, waiter, is_present=False))
        timer.start(timeout)
        try:
            await self._request(sha256)
            return await waiter
        finally:
            waiters.pop(waiter, None)
            if not waiters and self._waiting.get(sha256) is waiters:
                del self._waiting[sha256]
            timer.stop()

    async def find(self, name: str) -> NamedFile | None:
        """The file to which this name refers at the end of the log; None if the name is not used."""
        await self._names.wait_for(self._log.head.serial)
        return await self._disk.run(self._queue.find, name)

    async def names_after(self, name: str, limit: int, prefix: str) -> list[NamedFile]:
        """Up to `limit` names after this one that begin with `prefix`, in the order of their UTF-8 bytes."""
        await self._names.wait_for(self._log.head.serial)
        return await self._disk.run(self._queue.names_after, name, limit, prefix=prefix)

    async def is_named(self, sha256: str) -> bool:
        """Whether a name refers to the file."""
        await self._names.wait_for(self._log.head.serial)
        return await self._disk.run(self._queue.name_of, sha256) is not None

    async def forward(self, sha256: str, hops: int = 0) -> None:
        """Send a file to the daemon from which this replica fetches; on a primary do nothing.

        `hops` is the number of replicas that forwarded it before. Raises a `ReplicationError`.
        """
        source = self._fetcher.source
        if source is None:
            if self.is_replica:
                raise NeverSent(NO_SOURCE)
            return
        file = await self.open(sha256)
        if file is None:
            raise StorageError(op="forward a file", why=f"{sha256} is missing", retryable=True)
        try:
            await source.send(sha256, file.size, partial(self.read, file), hops + 1)
        finally:
            self.release(file)

    async def open(self, sha256: str) -> StoredFile | None:
        """Open the file, verified now, or in the last minute and unchanged; None if it is missing or damaged.

        The caller closes it with `release`. Raises `StorageError`.
        """
        return await self._verified_reads.open(sha256)

    async def read(self, file: StoredFile, offset: int, count: int) -> bytes:
        """Read `count` bytes of an open file; fewer only at its end."""
        return await self._disk.run(file.read, offset, count)

    def release(self, file: StoredFile) -> None:
        """Close an open file."""
        self._disk.run_later(file.close)

    async def receive(self) -> Spool:
        """Start an upload: `append`, then `keep` or `discard`. Raises `refusal()` or `StorageError`."""
        if (refused := self._refusal()) is not None:
            raise refused
        return await self._disk.acquire(self._store.receive, Spool.abort)

    async def append(self, spool: Spool, data: bytes) -> None:
        """Add bytes to an upload. Raises `DiskFull`, or another `StorageError`."""
        await self._disk.run(spool.append, data)

    async def keep(self, spool: Spool, sha256: str) -> bool:
        """Store an upload durably if this is its checksum; return whether it is new.

        Raises `ChecksumMismatch`, or another `StorageError`.
        """

        def work() -> bool:
            is_new = spool.commit(sha256)
            self._queue.settle([sha256], is_new=True)
            return is_new

        is_new = await self._disk.run(work)
        self._on_arrival(sha256)
        return is_new

    def discard(self, spool: Spool) -> None:
        """Discard an upload."""
        self._disk.run_later(spool.abort)

    async def missing_upto(self, serial: int) -> list[tuple[str, str]]:
        """Name and checksum of each missing file that was named up to this serial, oldest first.

        Checks the disk, so that files removed from outside are found too.
        """
        await self._names.wait_for(serial)
        await self._maintenance.compare()
        return await self._disk.run(self._queue.missing, serial)

    def status(self, sees: Callable[[str], bool] = lambda stream: True) -> dict[str, Any]:
        """The files' part of the status. Its counts of queued and missing files may be some seconds old.

        Of the failing ones those are named whose streams the peer `sees`.
        """
        store, summary = self._store, self._summary
        oldest = summary.oldest_since_ms
        return {
            "rule": self._queue.rule,
            "stored": store.stored,
            "stored_bytes": store.stored_bytes,
            "wanted": summary.wanted,
            "in_flight": len(self._fetcher.running),
            "failing": [
                {name: getattr(one, name) for name in ("name", "sha256", "why", "tries", "next_at")}
                for one in summary.failing
                if sees(one.stream)
            ],
            "oldest_seconds": None if oldest is None else max(0.0, self._clock.seconds() - oldest / 1000),
            "missing": summary.missing,
            "quarantined": store.quarantined,
        }

    def problems(self) -> list[Problem]:
        """Problems, such as a file missing for over a minute."""
        found = [Problem(f"files: {text}", since) for text, since in self._loops.failing.values()]
        summary, rule = self._summary, self._queue.rule
        late_ms = self._queue.now_ms() - PATIENCE_MS
        # On a replica, a missing file is a problem only if fetching it fails.
        failing = [one for one in summary.failing if one.since_ms <= late_ms]
        if failing:
            first = failing[0]
            count = summary.failing_count
            others = f"; {count - 1} more files fail" if count > 1 else ""
            why = f"files: cannot fetch {first.name}: {first.why}{others}"
            found.append(Problem(why, first.since_ms / 1000))
        oldest = summary.oldest_since_ms
        if rule == "none" and oldest is not None and oldest <= late_ms:
            then = NO_SOURCE if self.is_replica else "upload them again"
            text = f"files: {summary.missing} missing, such as {summary.first_missing}; {then}"
            found.append(Problem(text, oldest / 1000))
        return found

    async def _request(self, sha256: str) -> None:
        if self.is_replica:
            await self._disk.run(self._queue.demand, sha256)
            self._fetcher.wakeup.open()

    def _on_new_names(self) -> None:
        if self._queue.rule == "lazy":
            for sha256 in list(self._waiting):
                self._disk.tasks.start(self._request(sha256), "requesting a file")
        self._fetcher.wakeup.open()
        self._summary_wakeup.open()

    def _on_arrival(self, sha256: str) -> None:
        for waiter in list(self._waiting.get(sha256, ())):
            _answer(waiter, is_present=True)
        self._summary_wakeup.open()

    def _on_loss(self, sha256: str, why: str) -> None:
        self._disk.tasks.start(self._record_loss(sha256, why), "recording a loss")

    async def _record_loss(self, sha256: str, why: str) -> None:
        is_primary = not self.is_replica
        await self._disk.run(self._queue.settle, [sha256])
        name = await self._disk.run(self._queue.name_of, sha256)
        what, then = "{name} ({sha256})", "upload it again" if is_primary else "it is fetched again"
        if name is None:
            what, then = "{sha256}", "no name refers to it, so it is not needed"
        level = LogLevel.error if is_primary and name is not None else LogLevel.warn
        text = f"files: {what} is lost: {{why}}; {then}"
        self._logger.emit(level, text, name=name, sha256=sha256, why=why)
        self._fetcher.wakeup.open()
        self._summary_wakeup.open()

    async def _update_summary(self) -> None:
        await self._summary_wakeup.wait()
        self._summary = await self._disk.run(self._queue.summary, MAX_FAILING_SHOWN)
        await sleep(self._clock, SUMMARY_SECONDS)


def _answer(waiter: "Deferred[bool]", *, is_present: bool) -> None:
    if not waiter.called:
        waiter.callback(is_present)


class _VerifiedReads:
    """Opens files. `on_damage` is called with each damaged file and the reason.

    A check continues even if no reader waits for it any more: a reader that timed out will retry.
    """

    def __init__(self, store: FileStore, disk: DiskThread, on_damage: Callable[[str, str], None]) -> None:
        self._store = store
        self._disk = disk
        self._on_damage = on_damage
        self._waiting: dict[str, list[Deferred[StoredFile | None]]] = {}

    async def open(self, sha256: str) -> StoredFile | None:
        waiter: Deferred[StoredFile | None] = Deferred()
        waiting = self._waiting.get(sha256)
        if waiting is not None:
            waiting.append(waiter)
        else:
            self._waiting[sha256] = [waiter]
            self._disk.tasks.start(self._check(sha256), "checking a file")
        return await waiter

    async def _check(self, sha256: str) -> None:
        found: StoredFile | None = None
        failure: Exception | None = None
        try:
            found = await self._verify(sha256)
        except Damaged as error:
            self._on_damage(sha256, str(error))
        except CancelledError:
            failure = StorageError(op="check a file", why="this daemon is stopping", retryable=True)
        except Exception as error:
            failure = error
        for waiter in self._waiting.pop(sha256):
            if waiter.called:
                continue
            if failure is not None:
                waiter.errback(failure)
            else:
                waiter.callback(found if found is None else found.again())
        if found is not None:
            found.close()

    async def _verify(self, sha256: str) -> StoredFile | None:
        file = await self._disk.acquire(partial(self._store.open, sha256), _close)
        try:
            while file is not None and not await self._disk.run(file.verify, STEP):
                pass
        except BaseException:
            assert file is not None
            self._disk.run_later(file.close)
            raise
        return file


def _close(file: StoredFile | None) -> None:
    if file is not None:
        file.close()
