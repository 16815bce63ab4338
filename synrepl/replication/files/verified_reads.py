"""Opening a file for somebody who wants its bytes: looked through first, once for all who ask meanwhile."""

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import StorageError
from synrepl.ports.files import Damaged, IChecking, IStoredFile
from synrepl.replication.files.context import STEP, FilesContext

__all__ = ["VerifiedReads"]


class VerifiedReads:
    """Opens files. `damaged` is called with one that was found bad, and with why.

    A check goes on when nobody waits for it any more: whoever gave up will come again.
    """

    def __init__(self, desk: FilesContext, damaged: Callable[[str, str], None]) -> None:
        self._desk = desk
        self._damaged = damaged
        self._waiting: dict[str, list[Deferred[IStoredFile | None]]] = {}

    async def open(self, sha256: str) -> IStoredFile | None:
        """The file, all of which is good; None if it is not here (any more)."""
        waiter: Deferred[IStoredFile | None] = Deferred()
        waiting = self._waiting.get(sha256)
        if waiting is not None:
            waiting.append(waiter)
        else:
            self._waiting[sha256] = [waiter]
            self._desk.tasks.start(self._check(sha256), "checking a file")
        return await waiter

    async def _check(self, sha256: str) -> None:
        found: IStoredFile | None = None
        failure: Exception | None = None
        try:
            found = await self._look_through(sha256)
        except Damaged as error:
            self._damaged(sha256, str(error))
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

    async def _look_through(self, sha256: str) -> IStoredFile | None:
        desk = self._desk
        checking = await desk.obtain(partial(desk.store.check, sha256), _close)
        if checking is None:
            return None
        try:
            while True:
                found = await desk.obtain(partial(checking.step, STEP), _close)
                if found is not None:
                    return found
        finally:
            desk.later(checking.close)


def _close(one: IChecking | IStoredFile | None) -> None:
    if one is not None:
        one.close()
