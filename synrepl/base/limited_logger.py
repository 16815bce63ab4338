"""Rate-limited logging of lines that peers can cause."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.logger import Logger, LogLevel

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer

MAX_LINES: Final = 10
WINDOW_SECONDS: Final = 60.0

MAX_LOGGED: Final = 100
REPEAT_SECONDS: Final = 60.0
"""After this long, a problem that lasts is logged again. `MAX_LOGGED` problems are remembered."""


class _Window(msgspec.Struct):
    """The lines of one kind since `started`, in seconds; `last` has the fields of the last dropped line."""

    started: float
    level: Any
    written: int = 0
    left_out: int = 0
    last: dict[str, Any] = {}


class LimitedLogger:
    """Writes up to `MAX_LINES` lines of a kind in `WINDOW_SECONDS`, then how many more it has dropped.

    The format of a line is its kind. A peer that repeats a mistake cannot fill the disk.
    """

    def __init__(self, logger: Logger, clock: IClock) -> None:
        self._logger = logger
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._timer = Timer(clock, self.flush)

    def info(self, format: str, **fields: Any) -> None:
        """Write a line for information."""
        self._write(LogLevel.info, format, fields)

    def warn(self, format: str, **fields: Any) -> None:
        """Write a line that an operator should see."""
        self._write(LogLevel.warn, format, fields)

    def flush(self) -> None:
        """Report the dropped lines now, and start a new window."""
        for kind, window in list(self._windows.items()):
            self._end(kind, window)

    def stop(self) -> None:
        """Report the dropped lines, and cancel the timer."""
        self.flush()
        self._timer.stop()

    def _write(self, level: Any, kind: str, fields: dict[str, Any]) -> None:
        now = self._clock.seconds()
        window = self._windows.get(kind)
        if window is not None and now >= window.started + WINDOW_SECONDS:
            self._end(kind, window)
            window = None
        if window is None:
            window = self._windows[kind] = _Window(now, level)
        if window.written < MAX_LINES:
            window.written += 1
            self._logger.emit(level, kind, **fields)
            return
        window.left_out += 1
        window.last = fields
        self._timer.start(WINDOW_SECONDS)

    def _end(self, kind: str, window: _Window) -> None:
        del self._windows[kind]
        if window.left_out:
            more = f"similar lines dropped in the last minute: {window.left_out}; the last one: {kind}"
            self._logger.emit(window.level, more, **window.last)


class RepeatLimit:
    """Says which problems to log: one that lasts is met again and again, and logged once in `REPEAT_SECONDS`.

    `seconds` returns the time.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._logged: dict[str, float] = {}
        """When each problem was logged last."""

    def __len__(self) -> int:
        return len(self._logged)

    def allows(self, problem: str) -> bool:
        """Whether to log this problem now; if so, it counts as logged."""
        now = self._seconds()
        logged_at = self._logged.get(problem)
        if logged_at is not None and now < logged_at + REPEAT_SECONDS:
            return False
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[problem] = now
        return True
