"""Opening of files with verified checksums; concurrent readers share one check."""

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import StorageError
from synrepl.files.context import STEP, FilesContext
from synrepl.files.file_check import Damaged, StoredFile

__all__ = ["VerifiedReads"]


class VerifiedReads:
    """Opens files. `on_damage` is called with each damaged file and the reason.

    A check continues even if no reader waits for it any more: a reader that timed out will retry.
    """

    def __init__(self, context: FilesContext, on_damage: Callable[[str, str], None]) -> None:
        self._context = context
        self._on_damage = on_damage
        self._waiting: dict[str, list[Deferred[StoredFile | None]]] = {}

    async def open(self, sha256: str) -> StoredFile | None:
        """Return the verified file; None if it is missing."""
        waiter: Deferred[StoredFile | None] = Deferred()
        waiting = self._waiting.get(sha256)
        if waiting is not None:
            waiting.append(waiter)
        else:
            self._waiting[sha256] = [waiter]
            self._context.tasks.start(self._check(sha256), "checking a file")
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
        context = self._context
        file = await context.acquire(partial(context.store.open, sha256), _close)
        try:
            while file is not None and not await context.run(file.verify, STEP):
                pass
        except BaseException:
            assert file is not None
            context.run_later(file.close)
            raise
        return file


def _close(file: StoredFile | None) -> None:
    if file is not None:
        file.close()
