"""StreamIntake: joins received rows to facts, and queues what arrives while the stream is blocked."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from synrepl.replication.follower.modes import Mode
from synrepl.replication.follower.updates import RawFact
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["MAX_WAITING_BYTES", "StreamIntake"]

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""The largest size of one stream's queued rows."""


class StreamIntake:
    """The commands of one stream on their way to `stream.StreamMachine`, and the `queue` of those that wait.

    If the queue is full and rows can be fetched again, its rows are replaced by a POSITION at the token of
    their newest complete fact. That position cannot be reached without fetching the rows. `bytes`: the size
    of the queued rows. `is_full`: a server that pushes must be paused, until the queue is empty again.
    """

    def __init__(self, name: str, batches: Batches[bytes]) -> None:
        self.queue: deque[Rdata | Position] = deque()
        self.bytes = 0
        self.is_full = False
        self._name = name
        self._batches = batches
        # The writers with an incomplete fact.
        self._batching: set[str] = set()
        # Those of which part of an incomplete fact was dropped: the rest of it must be dropped too.
        self._dropping: set[str] = set()

    def clear(self) -> None:
        """Drop everything that was partly received."""
        self.queue.clear()
        self.bytes = 0
        self.is_full = False
        self._batching.clear()
        self._dropping.clear()
        self._batches.clear(self._name)

    def enqueue(self, command: Rdata | Position, mode: Mode) -> None:
        """Queue a command, within limits.

        If the queue is full, a server that pushes is paused. Where facts can be fetched, the queued rows are
        dropped instead, and the POSITION in their place triggers the fetch.
        """
        if isinstance(command, Position):
            self.queue.append(command)
        elif command.instance in self._dropping:
            self._drop_row(command)
        else:
            self.queue.append(command)
            self.bytes += len(command.row)
        if self.bytes > MAX_WAITING_BYTES:
            if mode.pushes:
                self.is_full = True
            else:
                self._drop_rows()

    def pop(self) -> Rdata | Position:
        """Remove and return the head of the queue, which must not be empty."""
        command = self.queue.popleft()
        if isinstance(command, Rdata):
            self.bytes -= len(command.row)
        return command

    def _drop_rows(self) -> None:
        commands, self.queue, self.bytes = self.queue, deque(), 0
        for command in commands:
            if isinstance(command, Rdata):
                self._drop_row(command)
            else:
                self.queue.append(command)

    def _drop_row(self, row: Rdata) -> None:
        writer, token = row.instance, row.token
        if token is None:
            self._dropping.add(writer)
            return
        self._dropping.discard(writer)
        last = self.queue[-1] if self.queue else None
        if isinstance(last, Position) and last.instance == writer and last.token <= token:
            self.queue.pop()
        self.queue.append(Position(stream=row.stream, instance=writer, prev_token=token, token=token))

    def accepts_run(self, run: RdataRun, mode: Mode) -> bool:
        """Whether each row of a run is a fact that can be applied now, if it is new."""
        return (
            not mode.collects_rows
            and not self._batching
            and None not in run.tokens
            and run.instance not in self._dropping
            and (run.instance in mode.ready or mode.accepts_writer(run.instance))
        )

    def row(self, command: Rdata, mode: Mode) -> Sequence[RawFact]:
        """Take a row. Returns the facts that can be applied now.

        The rest of a fact that was partly dropped is dropped: a POSITION in the queue takes its place.
        """
        writer, token = command.instance, command.token
        if writer not in mode.ready and not mode.accepts_writer(writer):
            return ()
        if token is None or writer in self._batching or writer in self._dropping:
            if writer in self._dropping:
                self._drop_row(command)
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
