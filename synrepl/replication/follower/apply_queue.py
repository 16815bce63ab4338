"""ApplyQueue: rows and positions that wait while a stream is blocked."""

from collections import deque
from typing import Final

from synrepl.wire.commands import Position, Rdata

__all__ = ["MAX_WAITING_BYTES", "ApplyQueue"]

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""The largest size of one stream's queued rows."""


class ApplyQueue:
    """A queue of a stream's rows and positions: `commands`.

    If it is full and rows can be fetched again, `drop_rows` replaces the rows by a POSITION at the token of
    their newest complete fact. That position cannot be reached without fetching the rows. `dropping`: the
    writers of which part of an incomplete fact was dropped; the rest of it must be dropped too.
    """

    def __init__(self) -> None:
        self.commands: deque[Rdata | Position] = deque()
        self._bytes = 0
        self.dropping: set[str] = set()

    @property
    def bytes(self) -> int:
        """The size of the queued rows."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether the queue exceeds its limit."""
        return self._bytes > MAX_WAITING_BYTES

    def put(self, command: Rdata | Position) -> None:
        """Append a row or position."""
        if isinstance(command, Position):
            self.commands.append(command)
        elif command.instance in self.dropping:
            self._drop_row(command)
        else:
            self.commands.append(command)
            self._bytes += len(command.row)

    def pop(self) -> Rdata | Position:
        """Remove and return the head of the queue, which must not be empty."""
        command = self.commands.popleft()
        if isinstance(command, Rdata):
            self._bytes -= len(command.row)
        return command

    def drop_rows(self) -> None:
        """Drop all rows and leave positions in their place."""
        commands, self.commands, self._bytes = self.commands, deque(), 0
        for command in commands:
            if isinstance(command, Rdata):
                self._drop_row(command)
            else:
                self.commands.append(command)

    def clear(self) -> None:
        """Empty the queue."""
        self.commands.clear()
        self._bytes = 0
        self.dropping.clear()

    def _drop_row(self, row: Rdata) -> None:
        writer, token = row.instance, row.token
        if token is None:
            self.dropping.add(writer)
            return
        self.dropping.discard(writer)
        last = self.commands[-1] if self.commands else None
        if isinstance(last, Position) and last.instance == writer and last.token <= token:
            self.commands.pop()
        self.commands.append(Position(stream=row.stream, instance=writer, prev_token=token, token=token))
