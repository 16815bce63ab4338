"""What is done with files in the background: missing ones are fetched, all are compared and verified.

`FileFetcher` fetches several at a time, and retries with backoff. `FileMaintenance` counts the files,
compares names with the disk, deletes what has no name, and scrubs.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.base.gate import Wakeup
from synrepl.base.interfaces import IClock
from synrepl.base.time import sleep
from synrepl.errors import RemoteProtocolError, ReplicationError, StorageError
from synrepl.files.names import FileQueue, WantedFile
from synrepl.files.store import STEP, ChecksumMismatch, DiskThread, FileStore, Scrub, Spool

UNRECORDED_SECONDS: Final = 10.0
"""The delay before a retry if the database cannot record the failure with its time of retry."""

PAGE: Final = 1_000
"""How many names or files are processed in one step."""
HOUR: Final = 3_600.0
SOON: Final = 300.0
"""After how many seconds files are deleted if not all names were known meanwhile."""
SLICE_SECONDS: Final = 1.0
ROUND_SECONDS: Final = 86_400.0
SAVE_EVERY: Final = 60
"""After how many slices the position of a scrub is saved."""


class FileTooLarge(RemoteProtocolError):
    """The source sent more bytes of a file than its rows state: the received ones are not the file's."""


class IFetchFile(Protocol):
    """The daemon from which a replica fetches files, and to which it forwards uploads."""

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with the bytes from `offset` to the end, waiting for each call.

        Raises a `ReplicationError` if the download fails or is cut short. The caller may keep the bytes that
        `on_chunk` got until then, and verifies the checksum of the whole file.
        """

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file of `size` bytes. `read` takes an offset and a number of bytes to read. `hops` is the
        number of daemons that have forwarded the file, with this one.

        Returns when the other daemon has stored the file. Raises a `ReplicationError` if that failed, or may
        have failed.
        """


class FileFetcher:
    """Fetches the queued files, at most `workers` at once. Calls `on_arrival` with the checksum of each.

    A file takes at most the bytes that its rows state, and one of more than `max_bytes` is not fetched.
    Without a `source` it fetches nothing. `running` has the fetches in progress by checksum. Opening `wakeup`
    makes `step` check the queue again. `on_failure` is called after each failed fetch.
    """

    def __init__(
        self,
        store: FileStore,
        queue: FileQueue,
        disk: DiskThread,
        clock: IClock,
        source: IFetchFile | None,
        workers: int,
        *,
        max_bytes: int,
        on_arrival: Callable[[str], None],
        on_failure: Callable[[], None],
        logger: Logger,
    ) -> None:
        self.source = source
        self.wakeup = Wakeup(clock)
        self.running: dict[str, Deferred[Any] | None] = {}
        self._store = store
        self._queue = queue
        self._disk = disk
        self._clock = clock
        self._workers = workers
        self._max_bytes = max_bytes
        self._on_arrival = on_arrival
        self._on_failure = on_failure
        self._logger = logger

    def set_source(self, source: IFetchFile | None) -> None:
        """Fetch from this source from now on (None: not at all). Fetches in progress are cancelled."""
        self.source = source
        for running in list(self.running.values()):
            if running is not None:
                running.cancel()
        self.wakeup.open()

    async def step(self) -> None:
        """Start the fetches that are due, then wait for more."""
        free = self._workers - len(self.running)
        next_at: int | None = None
        if self.source is not None and free > 0:
            files, next_at = await self._disk.run(self._queue.due, free, set(self.running))
            for file in files:
                self._start_fetch(file)
            if len(self.running) >= self._workers:
                next_at = None
        await self.wakeup.wait(None if next_at is None else (next_at - self._queue.now_ms()) / 1000)

    def _start_fetch(self, file: WantedFile) -> None:
        self.running[file.sha256] = None
        running = self._disk.tasks.start(self._fetch(file), "fetching a file")
        if file.sha256 in self.running:
            self.running[file.sha256] = running

    async def _fetch(self, file: WantedFile) -> None:
        sha256 = file.sha256
        try:
            if not await self._disk.run(self._store.has, sha256):
                await self._receive(file)
            await self._disk.run(self._queue.settle, [sha256], is_new=True)
        except CancelledError:
            raise
        except Exception as error:
            if isinstance(error, ReplicationError):
                if not file.tries:
                    self._logger.warn(
                        "files: cannot fetch {name} ({sha256}): {why}; will retry",
                        name=file.name,
                        sha256=sha256,
                        why=error,
                    )
            else:
                self._logger.failure("files: internal error while fetching {sha256}", sha256=sha256)
            await self._record_failure(sha256, error)
        else:
            if file.tries:
                self._logger.info("files: fetched {name} after a retry", name=file.name)
            self._on_arrival(sha256)
        finally:
            self.running.pop(sha256, None)
            self.wakeup.open()

    async def _record_failure(self, sha256: str, failure: Exception) -> None:
        why = str(failure) or type(failure).__name__
        is_wrong = isinstance(failure, ChecksumMismatch | FileTooLarge)
        try:
            await self._disk.run(self._queue.mark_failed, sha256, why, is_wrong=is_wrong)
        except ReplicationError as error:
            self._logger.error("files: {why}", why=error)
            # Otherwise the file would be due again at once.
            await sleep(self._clock, UNRECORDED_SECONDS)
        self._on_failure()

    async def _receive(self, file: WantedFile) -> None:
        run, sha256, size = self._disk.run, file.sha256, file.size
        assert self.source is not None
        if size > self._max_bytes:
            raise StorageError(
                op="fetch a file",
                why=f"its row states {size} bytes, over the limit of {self._max_bytes}",
                hint="raise --max-file-bytes",
            )
        spool: Spool = await self._disk.acquire(partial(self._store.resume, sha256, size), Spool.close)

        async def append(data: bytes) -> None:
            # The row is the bound: an answer that does not end would fill the disk.
            if spool.length + len(data) > size:
                await run(spool.abort)
                raise FileTooLarge(
                    f"the upstream sent more than the {size} bytes that the row of {file.name} states"
                )
            await run(spool.append, data)

        try:
            while not await run(spool.rehash, STEP):
                pass
            await self.source.fetch(sha256, spool.length, append)
            await run(spool.commit, sha256)
        finally:
            # The next fetch resumes after the received bytes; wrong ones are deleted already.
            self._disk.run_later(spool.close)


class FileMaintenance:
    """Counts the files and compares them with the names; then deletes files hourly, and scrubs all in slices.

    A slice is scrubbed each `SLICE_SECONDS`; after a round of all files the next one begins after
    `ROUND_SECONDS`. Files without a name are deleted after `grace_seconds`, while `are_names_known()`, which
    the disk's thread asks too. `on_loss`
    gets the checksum of each file that is damaged, or has a name and has gone missing, and the reason.
    """

    def __init__(
        self,
        store: FileStore,
        queue: FileQueue,
        disk: DiskThread,
        clock: IClock,
        *,
        on_loss: Callable[[str, str], None],
        are_names_known: Callable[[], bool],
        grace_seconds: float,
        logger: Logger,
    ) -> None:
        self._store = store
        self._queue = queue
        self._disk = disk
        self._clock = clock
        self._on_loss = on_loss
        self._are_names_known = are_names_known
        self._grace_seconds = grace_seconds
        self._logger = logger
        self._wakeup = Wakeup(clock)
        self._is_counted = False
        self._scrub: Scrub | None = None
        self._slices = 0
        self._next_round = 0.0
        self._next_deletion = 0.0

    def recount(self) -> None:
        """Count and compare again: the names have changed."""
        self._is_counted = False
        self._wakeup.open()

    async def step(self) -> None:
        """Do the work that is due, then wait until more is due."""
        now = self._clock.seconds()
        if not self._is_counted:
            await self._count()
            await self.compare()
            self._is_counted = True
            self._next_round = now + SLICE_SECONDS
        elif now >= self._next_deletion:
            await self.delete_unreferenced()
            self._next_deletion = now + (HOUR if self._are_names_known() else SOON)
        elif now >= self._next_round:
            await self._scrub_slice(now)
        else:
            await self._wakeup.wait(min(self._next_deletion, self._next_round) - now)

    async def compare(self) -> None:
        """Find files that have a name and have gone missing from the disk, and report them as lost."""
        last: str | None = ""
        while last is not None:
            last, lost = await self._disk.run(self._compare_page, last)
            for sha256 in lost:
                self._on_loss(sha256, "the file is missing from the disk")

    async def delete_unreferenced(self) -> int:
        """While all names are known, delete files that had none for the grace period. Returns their number.

        Interrupted downloads of files that are not missing any more are deleted too: their last name was
        deleted, or their bytes came by an upload.
        """
        if not self._are_names_known():
            return 0
        await self._disk.run(self._store.sweep_downloads, self._queue.is_missing)
        await self._disk.run(self._check_garbage)
        count = 0
        while deleted := await self._disk.run(self._delete_page):
            count += deleted
        if count:
            self._logger.info("files: deleted {count} files without a name", count=count)
        return count

    def close(self) -> None:
        """Close the scrub, and save its position. Call in the thread."""
        if self._scrub is not None:
            self._scrub.close()
            self._queue.remember("scrub", self._scrub.position)
            self._scrub = None

    async def _count(self) -> None:
        await self._disk.run(self._store.restart_count)
        while (stored := await self._disk.run(self._store.count)) is not None:
            if stored:
                await self._disk.run(self._queue.settle, stored)

    def _compare_page(self, after: str) -> tuple[str | None, list[str]]:
        names = self._queue.references_after(after, PAGE)
        named = dict.fromkeys(row.sha256 for row in names if row.sha256 is not None)
        lost = [one for one in named if not self._store.has(one) and not self._queue.is_missing(one)]
        self._queue.settle(lost)
        return names[-1].name if len(names) == PAGE else None, lost

    def _check_garbage(self) -> None:
        """Raise `StorageError` if the queue is damaged, from which files are about to be deleted."""
        if self._queue.garbage(int(self._grace_seconds * 1000), 1):
            self._queue.check()

    def _delete_page(self) -> int:
        deleted = []
        for sha256 in self._queue.garbage(int(self._grace_seconds * 1000), PAGE):
            # A fact that was committed meanwhile may name it.
            if not self._are_names_known():
                break
            self._store.remove(sha256)
            deleted.append(sha256)
        self._queue.settle(deleted)
        return len(deleted)

    async def _scrub_slice(self, now: float) -> None:
        if self._scrub is None:
            self._scrub = self._store.scrub(await self._disk.run(self._queue.recall, "scrub"))
        scrub = self._scrub
        self._next_round = now + SLICE_SECONDS
        bad, is_done = await self._disk.run(scrub.step, STEP)
        for sha256 in bad:
            self._on_loss(sha256, "the file was damaged on disk, and is now in quarantine")
        self._slices += 1
        if is_done or self._slices % SAVE_EVERY == 0:
            await self._disk.run(self._queue.remember, "scrub", scrub.position)
        if is_done:
            self._next_round = now + ROUND_SECONDS
            await self.compare()
