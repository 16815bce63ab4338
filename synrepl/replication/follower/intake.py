"""StreamIntake: joins received rows to facts, and queues what arrives while the stream is blocked."""

from collections.abc import Sequence

from synrepl.replication.follower.apply_queue import ApplyQueue
from synrepl.replication.follower.mode import Mode
from synrepl.replication.follower.updates import RawFact
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["StreamIntake"]


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
