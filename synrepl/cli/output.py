"""The output of synrepl tail: lines, positions, the log level and the end."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)

from synrepl.cli.json_lines import JsonLines, OutputClosed
from synrepl.errors import StorageError
from synrepl.ports.interfaces import SaveablePosition
from synrepl.ports.time import Timer
from synrepl.storage.position_files import FilePositions

__all__ = ["PrintedPositions", "TailOutput", "quiet"]


class TailOutput:
    """Printer of lines that also runs and stops the reactor.

    Lines are written at most once per reactor iteration. The output ends on `end`, when standard output is
    closed, after `exit_after` facts, or with an error after `patience` seconds without a connection; None
    means no limit. `error` is the line the command fails with.
    """

    def __init__(
        self, reactor: Any, lines: JsonLines, *, exit_after: int | None, patience: float | None = None
    ) -> None:
        self.reactor = reactor
        self._patience = patience
        self._patience_timer = Timer(reactor, lambda: self.end(f"no connection: {self._why}"))
        self._why = "the server does not respond"
        self.error = ""
        self.is_ending = False
        self._lines = lines
        self._left = exit_after
        self._is_closed = False

    def write_event(self, kind: str, **fields: Any) -> None:
        """Print a line of this type."""
        self.write({"type": kind, **fields})
        if kind == "connected":
            self._patience_timer.stop()
        elif kind == "disconnected":
            self._why = str(fields.get("reason") or self._why)
            self._expect_connection()

    def _expect_connection(self) -> None:
        """End the command unless there is a connection in time."""
        if self._patience is not None and not self._patience_timer.is_active:
            self._patience_timer.start(self._patience)

    def write(self, line: Mapping[str, Any]) -> None:
        """Print a line."""
        if not self._lines:
            self.reactor.callLater(0, self.flush)
        self._lines.add(line)

    def write_fact(self, line: Mapping[str, Any]) -> bool:
        """Print a fact. Return False if the limit was reached: the fact is not printed and not consumed."""
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
            if not self._left:
                self.end()
        self.write(line)
        return True

    def flush(self) -> bool:
        """Write all lines to standard output. Return False if standard output is closed."""
        if self._is_closed:
            return False
        try:
            self._lines.flush()
        except OutputClosed:
            self._is_closed = True
            self.end()
            return False
        return True

    def end(self, error: str = "") -> None:
        """Finish; with `error`, the command fails with that line."""
        self.error = self.error or error
        if not self.is_ending:
            self.is_ending = True
            self.reactor.callWhenRunning(self._stop)

    def run(self, start: Callable[[], None], stop: Callable[[], Any]) -> None:
        """Run the reactor. Call `start` first, and `stop` when the reactor ends, by a signal or by itself."""
        self.reactor.callWhenRunning(start)
        if self._patience:
            self.reactor.callWhenRunning(self._expect_connection)
        self.reactor.addSystemEventTrigger("before", "shutdown", stop)
        self.reactor.run()
        self.flush()

    def _stop(self) -> None:
        if self.reactor.running and not self.reactor._stopped:
            self.reactor.stop()


class PrintedPositions:
    """An `IPositionStore` that saves positions of printed facts only."""

    def __init__(self, file: FilePositions, output: TailOutput) -> None:
        self._file = file
        self._output = output

    def load(self) -> SaveablePosition:
        """Return the positions in the file."""
        return self._file.load()

    def save(self, positions: SaveablePosition) -> None:
        """Print the waiting lines, then save the positions."""
        if self._output.flush():
            try:
                self._file.save(positions)
            except StorageError as error:
                self._output.end(str(error))


def quiet() -> None:
    """Log critical events to standard error, and drop all others."""
    observer: ILogObserver = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(LogLevel.critical)]
    )
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
