"""What every kind of `synrepl tail` shares: lines out, and an orderly end."""

from collections.abc import Callable, Mapping
from typing import Any

from synrepl.cli.output import JsonLines, OutputClosed
from synrepl.errors import StorageError
from synrepl.ports.interfaces import SaveablePosition
from synrepl.storage.position_files import FilePositions

__all__ = ["PrintedPositions", "TailOutput"]


class TailOutput:
    """Prints, at most once a turn of the reactor, until it is told to end, nobody reads, or enough is out.

    `exit_after` is how many facts are enough; None is never.
    """

    def __init__(self, reactor: Any, lines: JsonLines, *, exit_after: int | None) -> None:
        self.reactor = reactor
        self.trouble = ""
        self.is_ending = False
        self._lines = lines
        self._left = exit_after
        self._is_closed = False

    def say(self, kind: str, **fields: Any) -> None:
        """Print a line of this type."""
        self.say_object({"type": kind, **fields})

    def say_object(self, line: Mapping[str, Any]) -> None:
        """Print a line."""
        if not self._lines:
            self.reactor.callLater(0, self.flush)
        self._lines.add(line)

    def fact(self, line: Mapping[str, Any]) -> bool:
        """Print a fact. False: it was not, since enough are printed; then it must not count as had."""
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
            if not self._left:
                self.end()
        self.say_object(line)
        return True

    def flush(self) -> bool:
        """Hand over all lines to whoever reads them; False if nobody does."""
        if self._is_closed:
            return False
        try:
            self._lines.flush()
        except OutputClosed:
            self._is_closed = True
            self.end()
            return False
        return True

    def end(self, trouble: str = "") -> None:
        """Finish; with `trouble`, the command fails with that line."""
        self.trouble = self.trouble or trouble
        if not self.is_ending:
            self.is_ending = True
            self.reactor.callWhenRunning(self._stop)

    def run(self, start: Callable[[], None], stop: Callable[[], Any]) -> None:
        """Run the reactor: `start` is called first; `stop` when it ends, by a signal or by itself."""
        self.reactor.callWhenRunning(start)
        self.reactor.addSystemEventTrigger("before", "shutdown", stop)
        self.reactor.run()
        self.flush()

    def _stop(self) -> None:
        if self.reactor.running and not self.reactor._stopped:
            self.reactor.stop()


class PrintedPositions:
    """An `IPositionStore` that claims nothing that was not printed."""

    def __init__(self, file: FilePositions, tailing: TailOutput) -> None:
        self._file = file
        self._tailing = tailing

    def load(self) -> SaveablePosition:
        """What the file says."""
        return self._file.load()

    def save(self, positions: SaveablePosition) -> None:
        """Print what waits, then keep the positions."""
        if self._tailing.flush():
            try:
                self._file.save(positions)
            except StorageError as error:
                self._tailing.end(str(error))
