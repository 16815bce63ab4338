"""EpochComparisons: finds, for followers of other epochs, which facts of theirs this log has."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import CancelledError, Deferred

from synrepl.base.tasks import Tasks
from synrepl.errors import StorageError
from synrepl.replication.serving.forks import fork_serial, tokens_at
from synrepl.streams.writer import Writer
from synrepl.wire.extension import EpochMark

if TYPE_CHECKING:
    from synrepl.storage.log import Log

MAX_WAITING: Final = 100
"""Forks from epochs that the log does not have, which wait to be looked up."""

MAX_REMEMBERED: Final = 64
"""Forks that are remembered. After a promotion nearly all followers have the same one."""

_Tokens = Mapping[Writer, int]
"""Tokens by stream and writer."""

_Waiting = OrderedDict[int, list["Deferred[_Tokens]"]]
"""By the serial of the fork: the followers that wait for its tokens."""


class EpochComparisons:
    """Compares the epochs of followers with those of the log.

    To look up a fork takes many reads, and whoever reaches the port may send any epochs. So forks are looked
    up one after another, and once for all followers that have the same. Those from epochs of this log come
    first: they are few, and all followers of the last primary have one of them.
    """

    def __init__(self, log: "Log", tasks: Tasks) -> None:
        self._log = log
        self._tasks = tasks
        self._remembered: OrderedDict[int, _Tokens] = OrderedDict()
        self._known: _Waiting = OrderedDict()
        self._unknown: _Waiting = OrderedDict()
        self._is_running = False

    async def fork_tokens(self, theirs: EpochMark) -> list[tuple[str, str, int]]:
        """Return, by stream and writer, up to which token a follower of this epoch has the facts of the log.

        Raises `StorageError`.
        """
        log = self._log
        tokens = await self._tokens_at(fork_serial(log, theirs), theirs)
        found = []
        for stream, writers in log.positions_by_stream().items():
            if stream in log.ephemeral.names:
                continue
            lost = [
                start.token
                for start in log.head.epoch_starts
                if start.epoch > theirs.epoch and start.stream == stream
            ]
            # A writer that came later has no facts up to the fork.
            found += [
                (stream, writer, min([tokens.get(Writer(stream, writer), 0), *lost])) for writer in writers
            ]
        return found

    def forget(self) -> None:
        """Forget all results: the log was replaced, or has begun an epoch."""
        # A new one: what is being looked up now goes to the old one.
        self._remembered = OrderedDict()

    async def _tokens_at(self, serial: int, theirs: EpochMark) -> _Tokens:
        if (found := self._remembered.get(serial)) is not None:
            self._remembered.move_to_end(serial)
            return found
        starts = {(start.epoch, start.serial, start.at_ms) for start in self._log.head.epoch_starts}
        queue = self._known if starts.issuperset(theirs.starts) else self._unknown
        if queue is self._unknown and serial not in queue and len(queue) >= MAX_WAITING:
            why, hint = f"{MAX_WAITING} other comparisons wait", "connect again later"
            raise StorageError(op="comparing epochs", why=why, hint=hint, retryable=True, tried=False)
        waiter: Deferred[_Tokens] = Deferred()
        queue.setdefault(serial, []).append(waiter)
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run(), "comparing epochs")
        try:
            return await waiter
        finally:
            # Of one that was disconnected; the others are gone from here already.
            if (waiting := queue.get(serial)) is not None and waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del queue[serial]

    async def _run(self) -> None:
        """Look up forks until none is waited for."""
        try:
            while queue := self._known or self._unknown:
                serial = next(iter(queue))
                remembered = self._remembered
                try:
                    found = await tokens_at(self._log, serial)
                except CancelledError:
                    raise
                except Exception as error:
                    for waiter in queue.pop(serial, ()):
                        waiter.errback(error)
                    continue
                remembered[serial] = found
                if len(remembered) > MAX_REMEMBERED:
                    remembered.popitem(last=False)
                for waiter in queue.pop(serial, ()):
                    waiter.callback(found)
        finally:
            self._is_running = False
