"""StreamIntake: joins received rows to facts, and queues what arrives while the stream is blocked."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from synrepl.replication.follower.modes import Mode
from synrepl.replication.follower.updates import RawFact
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["MAX_WAITING_BYTES", "ApplyQueue", "StreamIntake"]

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


class StreamIntake:
    """The commands of one stream on their way to `stream.StreamMachine`.

    `is_full`: a server that pushes must be paused, until the queue is empty again.
    """

    def __init__(self, name: str, batches: Batches[bytes]) -> None:
        self.queue = ApplyQueue()
        self.is_full = False
        self._dropping = self.queue.dropping
        self._name = name
        self._batches = batches
        # The writers with an incomplete fact.
        self._batching: set[str] = set()

    def clear(self) -> None:
        """Drop everything that was partly received."""
        self.queue.clear()
        self.is_full = False
        self._batching.clear()
        self._batches.clear(self._name)

    def enqueue(self, command: Rdata | Position, mode: Mode) -> None:
        """Queue a command, within limits.

        If the queue is full, a server that pushes is paused. Where facts can be fetched, the queued rows are
        dropped instead, and the POSITION in their place triggers the fetch.
        """
        self.queue.put(command)
        if self.queue.is_full:
            if mode.pushes:
                self.is_full = True
            else:
                self.queue.drop_rows()

    def accepts_run(self, run: RdataRun, mode: Mode) -> bool:
        """Whether each row of a run is a fact that can be applied now, if it is new."""
        return (
            not mode.collects_rows
            and not self._batching
            and None not in run.tokens
            and run.instance not in self.queue.dropping
            and (run.instance in mode.ready or mode.accepts_writer(run.instance))
        )

    def row(self, command: Rdata, mode: Mode) -> Sequence[RawFact]:
        """Take a row. Returns the facts that can be applied now.

        A row that belongs to a fact that was partly dropped is queued, which drops it.
        """
        writer, token = command.instance, command.token
        if writer not in mode.ready and not mode.accepts_writer(writer):
            return ()
        if token is None or writer in self._batching or writer in self._dropping:
            if writer in self._dropping:
                self.queue.put(command)
                return ()
            rows = self._batches.add(self._name, writer, token, command.row, len(command.row))
            if rows is None or token is None:
                self._batching.add(writer)
                return ()
            self._batching.discard(writer)
        else:
            rows = [command.row]
        return mode.collect(writer, token, rows) if mode.collects_rows else ((writer, token, rows),)

    def position(self, command: Position, mode: Mode) -> tuple[Sequence[RawFact], bool]:
        """Take a POSITION. Returns the facts that it completes, and whether it is the writer's first."""
        # Only this writer's: on a shared channel, POSITIONs arrive between another writer's rows.
        self._batches.clear(self._name, command.instance)
        self._batching.discard(command.instance)
        is_first = mode.announce(command.instance)
        return mode.flush(command.instance), is_first
