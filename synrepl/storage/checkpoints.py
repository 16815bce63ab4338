"""Checkpoints: keeps SQLite's ``-wal`` short, and says when another program prevents that.

SQLite moves what was committed from the ``-wal`` into the file as far as no reader needs the older state. A
program that keeps a read transaction open (a backup script, a shell) makes the ``-wal`` grow with each
commit, and SQLite never shortens it by itself.
"""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import StorageError

LOOK_SECONDS: Final = 10.0

PATIENCE_SECONDS: Final = 30.0
"""Our own reads prevent a checkpoint too, for less time than this."""


class Checkpoints:
    """Looks at the ``-wal`` now and then.

    `shorten` does so if it is long. It returns None if the ``-wal`` is short, else the programs that read
    the database, as far as the system tells.
    """

    _logger: ClassVar = Logger()

    def __init__(
        self, clock: IClock, tasks: Tasks, shorten: Callable[[], Awaitable[frozenset[str] | None]]
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._shorten = shorten
        self._timer = Timer(clock, self._look)
        self._held_since: float | None = None
        # The programs that have read at each look since they were first seen, and when that was.
        self._readers: dict[str, float] = {}
        self._is_told = False

    def start(self) -> None:
        """Look from now on."""
        self._timer.start(LOOK_SECONDS)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._timer.stop()

    @property
    def held_seconds(self) -> float:
        """How long the ``-wal`` could not be shortened; 0 if that is shorter than `PATIENCE_SECONDS`."""
        if self._held_since is None:
            return 0.0
        seconds = self._clock.seconds() - self._held_since
        return seconds if seconds >= PATIENCE_SECONDS else 0.0

    @property
    def oldest_reader(self) -> str:
        """The program that has read the database for the longest of these seconds; empty if unknown."""
        return min(self._readers, key=lambda reader: (self._readers[reader], reader), default="")

    def _look(self) -> None:
        self._timer.start(LOOK_SECONDS)
        self._tasks.start(self._look_now(), "shortening the -wal")

    async def _look_now(self) -> None:
        try:
            readers = await self._shorten()
        except StorageError:
            return  # a log that cannot be written is reported for itself
        now = self._clock.seconds()
        if readers is None:
            self._held_since, self._is_told, self._readers = None, False, {}
            return
        self._readers = {reader: self._readers.get(reader, now) for reader in readers}
        if self._held_since is None:
            self._held_since = now
        elif self.held_seconds and not self._is_told:
            self._is_told = True
            self._logger.warn(
                "the -wal of the log grows: {reader} keeps a transaction open in it",
                reader=self.oldest_reader or "another program",
            )
