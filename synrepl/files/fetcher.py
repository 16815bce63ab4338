"""Fetcher of missing files: several at a time, retried with backoff."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import RemoteProtocolError, ReplicationError, StorageError
from synrepl.files.context import STEP, FilesContext, Wakeup
from synrepl.files.queue import WantedFile
from synrepl.files.spool import ChecksumMismatch, Spool
from synrepl.ports.time import sleep

UNRECORDED_SECONDS: Final = 10.0
"""The delay before a retry if the database cannot record the failure with its time of retry."""


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
        context: FilesContext,
        source: IFetchFile | None,
        workers: int,
        *,
        max_bytes: int,
        on_arrival: Callable[[str], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._context = context
        self._source = source
        self._workers = workers
        self._max_bytes = max_bytes
        self._on_arrival = on_arrival
        self._on_failure = on_failure
        self.wakeup = Wakeup(context.clock)
        self.running: dict[str, Deferred[Any] | None] = {}

    def set_source(self, source: IFetchFile | None) -> None:
        """Fetch from this source from now on (None: not at all). Fetches in progress are cancelled."""
        self._source = source
        for running in list(self.running.values()):
            if running is not None:
                running.cancel()
        self.wakeup.open()

    async def step(self) -> None:
        """Start the fetches that are due, then wait for more."""
        context = self._context
        free = self._workers - len(self.running)
        next_at: int | None = None
        if self._source is not None and free > 0:
            for file in await context.run(context.queue.take, context.now_ms(), free):
                self._start_fetch(file)
            if len(self.running) < self._workers:
                next_at = await context.run(context.queue.next_at)
        await self.wakeup.wait(None if next_at is None else (next_at - context.now_ms()) / 1000)

    def _start_fetch(self, file: WantedFile) -> None:
        if file.sha256 in self.running:
            return
        self.running[file.sha256] = None
        running = self._context.tasks.start(self._fetch(file), "fetching a file")
        if file.sha256 in self.running:
            self.running[file.sha256] = running

    async def _fetch(self, file: WantedFile) -> None:
        context = self._context
        sha256 = file.sha256
        try:
            if not await context.run(context.store.has, sha256):
                await self._receive(file)
            await context.run(context.queue.mark_arrived, sha256, context.now_ms())
        except CancelledError:
            context.run_later(context.queue.release, sha256)
            raise
        except Exception as error:
            if isinstance(error, ReplicationError):
                if not file.tries:
                    context.logger.warn(
                        "files: cannot fetch {name} ({sha256}): {why}; will retry",
                        name=file.name,
                        sha256=sha256,
                        why=error,
                    )
            else:
                context.logger.failure("files: internal error while fetching {sha256}", sha256=sha256)
            await self._record_failure(sha256, error)
        else:
            if file.tries:
                context.logger.info("files: fetched {name} after a retry", name=file.name)
            self._on_arrival(sha256)
        finally:
            self.running.pop(sha256, None)
            self.wakeup.open()

    async def _record_failure(self, sha256: str, failure: Exception) -> None:
        context = self._context
        why = str(failure) or type(failure).__name__
        is_wrong = isinstance(failure, ChecksumMismatch | FileTooLarge)
        try:
            await context.run(context.queue.mark_failed, sha256, why, context.now_ms(), is_wrong=is_wrong)
        except ReplicationError as error:
            context.logger.error("files: {why}", why=error)
            # Otherwise the file would be due again at once.
            await sleep(context.clock, UNRECORDED_SECONDS)
        self._on_failure()

    async def _receive(self, file: WantedFile) -> None:
        context = self._context
        sha256, size = file.sha256, file.size
        assert self._source is not None
        if size > self._max_bytes:
            raise StorageError(
                op="fetch a file",
                why=f"its row states {size} bytes, over the limit of {self._max_bytes}",
                hint="raise --max-file-bytes",
            )
        spool: Spool = await context.acquire(partial(context.store.resume, sha256, size), Spool.close)

        async def append(data: bytes) -> None:
            # The row is the bound: an answer that does not end would fill the disk.
            if spool.length + len(data) > size:
                await context.run(spool.abort)
                raise FileTooLarge(
                    f"the upstream sent more than the {size} bytes that the row of {file.name} states"
                )
            await context.run(spool.append, data)

        try:
            while not await context.run(spool.rehash, STEP):
                pass
            await self._source.fetch(sha256, spool.length, append)
            await context.run(spool.commit, sha256)
        finally:
            # The next fetch resumes after the received bytes; wrong ones are deleted already.
            context.run_later(spool.close)
