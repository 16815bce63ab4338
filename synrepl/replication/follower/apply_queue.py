"""What waits while a stream is held up."""

from collections import deque
from typing import Final

from synrepl.wire.commands import Position, Rdata

__all__ = ["MAX_WAITING_BYTES", "ApplyQueue"]

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Rows of one stream that may wait."""


class ApplyQueue:
    """Rows and positions of a stream, in order.

    When it is too much and can be had again, rows can be let go: a POSITION at the token of their newest
    whole fact stands for them, which cannot be reached without fetching them."""

    def __init__(self) -> None:
        self._commands: deque[Rdata | Position] = deque()
        self._bytes = 0
        # Writers of whose fact under way some rows were let go, so that the others must be as well.
        self._cut: set[str] = set()

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def bytes(self) -> int:
        """How large the rows are that wait."""
        return self._bytes

    @property
    def is_too_much(self) -> bool:
        """Whether more waits than may."""
        return self._bytes > MAX_WAITING_BYTES

    def lets_go_of(self, writer: str) -> bool:
        """Whether this writer's next row belongs to a fact that was let go."""
        return writer in self._cut

    def put(self, command: Rdata | Position) -> None:
        """Let this wait behind all others."""
        if isinstance(command, Position):
            self._commands.append(command)
        elif command.instance in self._cut:
            self._let_go_of(command)
        else:
            self._commands.append(command)
            self._bytes += len(command.row)

    def put_first(self, position: Position) -> None:
        """Let this wait before all others."""
        self._commands.appendleft(position)

    def take(self) -> Rdata | Position | None:
        """The first that waits."""
        if not self._commands:
            return None
        command = self._commands.popleft()
        if isinstance(command, Rdata):
            self._bytes -= len(command.row)
        return command

    def let_go(self) -> None:
        """Drop all rows."""
        commands, self._commands, self._bytes = self._commands, deque(), 0
        for command in commands:
            if isinstance(command, Rdata):
                self._let_go_of(command)
            else:
                self._commands.append(command)

    def clear(self) -> None:
        """Forget everything."""
        self._commands.clear()
        self._bytes = 0
        self._cut.clear()

    def _let_go_of(self, row: Rdata) -> None:
        writer, token = row.instance, row.token
        if token is None:
            self._cut.add(writer)
            return
        self._cut.discard(writer)
        last = self._commands[-1] if self._commands else None
        if isinstance(last, Position) and last.instance == writer and last.token <= token:
            self._commands.pop()
        self._commands.append(Position(stream=row.stream, instance=writer, prev_token=token, token=token))
