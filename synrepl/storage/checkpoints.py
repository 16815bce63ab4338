"""Checkpoints: keeps SQLite's ``-wal`` short, and says when another program prevents that.

SQLite moves what was committed from the ``-wal`` into the file as far as no reader needs the older state. A
program that keeps a read transaction open (a backup script, a shell) makes the ``-wal`` grow with each
commit, and SQLite never shortens it by itself.
"""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Timer

LOOK_SECONDS: Final = 10.0

PATIENCE_SECONDS: Final = 30.0
"""Our own reads prevent a checkpoint too, for less time than this."""


class Checkpoints:
    """Looks at the ``-wal`` now and then. `shorten` does so if it is long, and returns whether it could."""

    _logger: ClassVar = Logger()

    def __init__(self, clock: IClock, tasks: Tasks, shorten: Callable[[], Awaitable[bool]]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._shorten = shorten
        self._timer = Timer(clock, self._look)
        self._prevented_since: float | None = None
        self._is_told = False

    def start(self) -> None:
        """Look from now on."""
        self._timer.start(LOOK_SECONDS)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._timer.stop()

    @property
    def prevented_seconds(self) -> float:
        """How long the ``-wal`` could not be shortened; 0 if that is shorter than `PATIENCE_SECONDS`."""
        if self._prevented_since is None:
            return 0.0
        seconds = self._clock.seconds() - self._prevented_since
        return seconds if seconds >= PATIENCE_SECONDS else 0.0

    def _look(self) -> None:
        self._timer.start(LOOK_SECONDS)
        self._tasks.start(self._look_now(), "shortening the -wal")

    async def _look_now(self) -> None:
        try:
            is_short = await self._shorten()
        except StorageError:
            return  # a log that cannot be written is reported for itself
        if is_short:
            self._prevented_since, self._is_told = None, False
        elif self._prevented_since is None:
            self._prevented_since = self._clock.seconds()
        elif self.prevented_seconds and not self._is_told:
            self._is_told = True
            self._logger.warn("the -wal of the log grows: another program keeps a transaction open in it")
