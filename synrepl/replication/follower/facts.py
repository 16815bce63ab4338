"""The facts of one stream on their way to the subscribers: joined from rows, queued, decoded."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import length_hint
from typing import Any, Final, cast

import msgspec

from synrepl.errors import GapError, ReplicationError, RowError
from synrepl.replication.follower.gaps import StreamGaps
from synrepl.replication.follower.history import ORDERED, Order, PositionStep, StreamHistory
from synrepl.replication.follower.modes import Mode
from synrepl.replication.follower.updates import Batch, RawFact, Updates
from synrepl.streams.batches import Batches
from synrepl.streams.facts import LOST
from synrepl.streams.stream import Stream, row
from synrepl.wire import jsontext
from synrepl.wire.commands import Position, Rdata, Rewind
from synrepl.wire.dialect import Dialect
from synrepl.wire.rdata_runs import RdataRun

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""If the queued rows of one stream exceed this, reading is paused or they are dropped (`StreamIntake`)."""


LOST_ROWS: Final = [LOST]
"""In place of the rows of a fact that its source has lost."""


@dataclass(eq=False, slots=True)
class PositionEntry:
    """A POSITION that waits, or facts of a writer that were dropped: then `command` is at their last token.

    `lowest`: the lowest token of the dropped facts; None for a POSITION. `announced`: the first POSITION that
    was joined to them. `continues`: it begins where the one before it in the queue ends, so that the next one
    may be joined to it.
    """

    command: Position
    lowest: int | None = None
    announced: Position | None = None
    continues: bool = False

    def joins(self, command: Position) -> bool:
        """Whether a POSITION was joined to this one, as nothing lies between them."""
        before = self.command
        if not self.continues or command.prev_token != before.token or command.token < before.token:
            return False
        if self.lowest is None:
            self.command = msgspec.structs.replace(before, token=command.token)
        else:
            self.announced = self.announced or command
            self.command = _at(command, command.token)
        return True

    def drop(self, token: int, order: Order) -> None:
        """Add a dropped fact. Where tokens begin again, one below all others is the first of a new life."""
        assert self.lowest is not None
        begins_again = order.restarts and token < self.lowest
        self.command = _at(self.command, token if begins_again else max(token, self.command.token))
        self.lowest = min(token, self.lowest)


def _at(command: Position | Rdata, token: int) -> Position:
    """A POSITION of the same writer, which says nothing of what lies before this token."""
    return Position(stream=command.stream, instance=command.instance, prev_token=token, token=token)


class StreamIntake:
    """The commands of one stream on their way to `stream.StreamMachine`, and the `queue` of those that wait.

    If the queue is full and its rows can be fetched again, they are dropped. A `PositionEntry` takes the
    place of all that are dropped of a writer between two of its POSITIONs, and makes the follower fetch them.
    POSITIONs that follow each other are joined. So the queue is bounded while a stream is blocked.

    `bytes`: the size of the queued rows. `is_full`: a server that pushes must be paused, until the queue is
    empty again.
    """

    def __init__(self, name: str, batches: Batches[bytes]) -> None:
        self.queue: deque[Rdata | PositionEntry | Rewind] = deque()
        self.bytes = 0
        self.is_full = False
        self._name = name
        self._batches = batches
        # The writers with an incomplete fact.
        self._batching: set[str] = set()
        # The writers of whose incomplete fact a part was dropped: the rest of it must be dropped too.
        self._dropping: set[str] = set()
        # By writer, the last that waits, if that is a POSITION or dropped facts.
        self._last: dict[str, PositionEntry] = {}

    def clear(self) -> None:
        """Empty the queue, and drop incomplete facts."""
        self.queue.clear()
        self._last.clear()
        self.bytes = 0
        self.is_full = False
        self._batching.clear()
        self._dropping.clear()
        self._batches.clear(self._name)

    def enqueue(self, command: Rdata | Position | Rewind, mode: Mode) -> None:
        """Queue a command, within limits.

        If the queue is full, a server that pushes is paused. Where facts can be fetched, the queued rows are
        dropped instead, and what takes their place triggers the fetch.
        """
        if isinstance(command, Position):
            self._add_position(PositionEntry(command))
        elif isinstance(command, Rdata) and command.instance in self._dropping:
            self._drop_row(command, mode)
        else:
            self.queue.append(command)
            self._last.pop(command.instance, None)
            if isinstance(command, Rdata):
                self.bytes += len(command.row)
        if self.bytes > MAX_WAITING_BYTES:
            if mode.pushes:
                self.is_full = True
            else:
                self._drop_rows(mode)

    def tokens(self) -> list[tuple[str, int]]:
        """The writers and tokens of the facts that wait; of those that were dropped, the lowest."""
        rows = [(one.instance, one.token) for one in self.queue if isinstance(one, Rdata)]
        entries = [(one.command.instance, one.lowest) for one in self.queue if isinstance(one, PositionEntry)]
        return [(writer, token) for writer, token in [*rows, *entries] if token is not None]

    def pop(self) -> Rdata | PositionEntry | Rewind:
        """Remove and return the head of the queue, which must not be empty."""
        head = self.queue.popleft()
        if isinstance(head, Rdata):
            self.bytes -= len(head.row)
        elif isinstance(head, PositionEntry) and self._last.get(head.command.instance) is head:
            del self._last[head.command.instance]
        return head

    def pop_row(self) -> Rdata | None:
        """Remove and return the head of the queue if it is a row."""
        if self.queue and isinstance(row := self.queue[0], Rdata):
            self.pop()
            return row
        return None

    def _drop_rows(self, mode: Mode) -> None:
        waiting, self.queue, self.bytes = self.queue, deque(), 0
        self._last.clear()
        for one in waiting:
            if isinstance(one, Rdata):
                self._drop_row(one, mode)
            elif isinstance(one, PositionEntry):
                self._add_position(one)
            else:
                self.queue.append(one)
                self._last.pop(one.instance, None)

    def _drop_row(self, row: Rdata, mode: Mode) -> None:
        writer, token = row.instance, row.token
        if token is None:
            self._dropping.add(writer)
            return
        self._dropping.discard(writer)
        last = self._last.get(writer)
        if last is not None and last.lowest is not None:
            last.drop(token, mode.order)
        else:
            self._add_position(PositionEntry(_at(row, token), lowest=token, continues=True))

    def _add_position(self, position: PositionEntry) -> None:
        """Queue a POSITION, or join it to the last one of its writer."""
        writer = position.command.instance
        last = self._last.get(writer)
        if last is not None and position.lowest is None:
            if last.joins(position.command):
                return
            command = position.command
            position.continues = command.prev_token == last.command.token <= command.token
        self.queue.append(position)
        self._last[writer] = position

    def accepts_run(self, run: RdataRun, mode: Mode) -> bool:
        """Whether each row of a run is a fact that can be applied now, if it is new."""
        return (
            not mode.collects_rows
            and not self._batching
            and all(run.tokens)  # no token is None; a run with token 0 is applied row by row too
            and run.instance not in self._dropping
            and (run.instance in mode.ready or mode.accepts_writer(run.instance))
        )

    def row(self, command: Rdata, mode: Mode) -> Sequence[RawFact]:
        """Take a row. Returns the facts to apply now. Raises RemoteProtocolError if a fact is too large.

        The rest of a fact that was partly dropped is dropped, and fetched.
        """
        writer, token = command.instance, command.token
        if writer not in mode.ready and not mode.accepts_writer(writer):
            if mode.lacks_start(writer):
                self._drop_row(command, mode)
            return ()
        if token is None or writer in self._batching or writer in self._dropping:
            if writer in self._dropping:
                self._drop_row(command, mode)
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
        # Drop only this writer's rows: on a shared channel, POSITIONs arrive between rows of others.
        self._batches.clear(self._name, command.instance)
        self._batching.discard(command.instance)
        is_first = mode.announce(command.instance)
        return mode.flush(command.instance), is_first


class PendingFacts:
    """Facts to apply in order, without those that are known already. Set `mode` and `decode_many` first.

    The facts are the rest of a `run`, whose rows were decoded together, then those in the `queue`. They are
    taken one by one, or in batches of at most `most`. One that cannot be decoded, or is a repetition, is
    always alone.

    A repetition that may be an equal fact of a lost history is applied to the caches again, if the stream has
    some. `is_repetition`: one was taken last. `failure`: the writer, the token, the error and the rows of the
    fact at which `take` or `take_batches` ended, as it cannot be had. `reached`: where the facts being
    applied move the positions, by writer.
    """

    def __init__(self, stream: str, history: StreamHistory, gaps: StreamGaps) -> None:
        self.mode = Mode(history, ORDERED)
        self.decode_many: Callable[[list[bytes]], list[Any]] = list
        self.most = 1
        self.is_repetition = False
        self.failure: tuple[str, int, ReplicationError, list[bytes]] | None = None
        self.reached: dict[str, int] = {}
        self.run: Iterator[tuple[int, Any]] | None = None
        self.queue: deque[RawFact] = deque()
        self.extend: Callable[[Iterable[RawFact]], None] = self.queue.extend
        self._stream = stream
        self._history = history
        self._positions = history.positions
        self._gaps = gaps
        # Of the run.
        self._writer = ""
        self._tokens_left: Iterator[int] = iter(())

    @property
    def has_space(self) -> bool:
        """Whether more facts could be applied together with those in the queue."""
        return len(self.queue) < self.most

    def add_run(self, run: RdataRun) -> None:
        """Add a run of which each row is a fact. No facts may be pending."""
        tokens = cast("list[int]", run.tokens)
        if not self.mode.order.has_late_facts:
            try:
                rows = self.decode_many(run.rows)
            except RowError:
                pass  # decode fact by fact: report the bad one, apply the others
            else:
                self._writer, self._tokens_left = run.instance, iter(tokens)
                self.run = zip(self._tokens_left, rows, strict=True)
                return
        self.queue.extend(zip(repeat(run.instance), tokens, map(list, zip(run.rows)), strict=False))

    def clear(self) -> None:
        """Drop all facts, also the rest of a `take`."""
        self.queue.clear()
        if self.run is not None:
            deque(self.run, maxlen=0)
            self.run = None
        if self.failure is not None:
            self.failure = None
            self.reached.clear()

    def take(self) -> Generator[Updates[Any], None, None]:
        """Yield the facts to apply. A request for the next one first moves the position over the last one.

        To stop in between, close the generator: `finish` says how far the last fact moves the position.
        """
        self.is_repetition = False
        tokens = self._positions.writable
        return self._take_queued(tokens, ()) if self.run is None else self._take_run(self.run, tokens)

    def take_batches(self) -> Generator[Batch, None, None]:
        """Yield the facts to apply in batches, as `take` does."""
        positions, reached = self._positions, self.reached
        while True:
            self.is_repetition = False
            batch: list[Updates[Any]] = []
            while self.run is not None and len(batch) < self.most:
                batch += self._some_of_run(self.run, self.most - len(batch))
            if len(batch) < self.most:
                # Within a batch, its facts move a copy of the positions.
                tokens = dict(positions.tokens) | reached
                for updates in self._take_queued(tokens, batch):
                    batch.append(updates)
                    if len(batch) == self.most or self.is_repetition:
                        break
                moved = tokens.items() - positions.tokens.items()
                reached.update(dict(moved) | reached)
            if not batch:
                return
            yield tuple(batch)
            for writer, token in reached.items():
                positions.advance(writer, token)
            reached.clear()

    def _take_run(
        self, run: Iterator[tuple[int, Any]], tokens: dict[str, int]
    ) -> Generator[Updates[Any], None, None]:
        """Do `take` for the run, then for the queue."""
        stream, writer, reached = self._stream, self._writer, self.reached
        last = tokens.get(writer, -1)
        for token, found in run:
            if token > last:
                reached[writer] = last = token
                yield Updates(stream, writer, token, [found])
                tokens[writer] = token
        reached.clear()
        self.run = None
        yield from self._take_queued(tokens, ())

    def _some_of_run(self, run: Iterator[tuple[int, Any]], most: int) -> list[Updates[Any]]:
        """Remove so many rows of the run, and return them as facts, without those that are known."""
        stream, writer = self._stream, self._writer
        last = self.reached.get(writer, self._positions.tokens.get(writer, -1))
        facts = [
            Updates(stream, writer, last := token, [row]) for token, row in islice(run, most) if token > last
        ]
        if facts:
            self.reached[writer] = last
        if length_hint(self._tokens_left) == 0:  # exact for a list
            self.run = None
        return facts

    def _take_queued(
        self, tokens: dict[str, int], batch: Sequence[Updates[Any]]
    ) -> Generator[Updates[Any], None, None]:
        """Do `take` for the queue, with these positions. Ends before a fact that must not be in `batch`."""
        queue, reached, order, history = self.queue, self.reached, self.mode.order, self._history
        has_late_facts = order.has_late_facts
        while queue:
            writer, token, rows = queue[0]
            known = tokens.get(writer, -1)
            if not has_late_facts and token <= known:
                queue.popleft()
                continue
            failure: ReplicationError | None = None
            try:
                updates = Updates(self._stream, writer, token, self._decode(writer, token, rows, known))
            except (RowError, GapError) as error:
                if batch:
                    return
                failure = error
            if not has_late_facts:
                reached[writer] = token
            elif history.recent.add_if_new(writer, token, rows) or (order.is_exact and token > known):
                self.is_repetition = False
                self._reach_late(writer, token, known)
            elif order.is_exact or not history.has_caches:
                queue.popleft()
                continue
            elif batch:
                return
            else:
                self.is_repetition = True
            queue.popleft()
            if failure is not None:
                self.failure = writer, token, failure, rows
                return
            yield updates
            if (step := reached.pop(writer, None)) is not None:
                tokens[writer] = step

    def _decode(self, writer: str, token: int, rows: list[bytes], known: int) -> list[Any]:
        """Decode the rows of a fact after the position `known`.

        Raises RowError, and GapError if the source does not have the facts up to this one any more.
        """
        if rows == LOST_ROWS:
            have = known if 0 <= known < token else token - 1
            why = "the source no longer has them: it has lost or trimmed them"
            raise GapError(stream=self._stream, writer=writer, have=have, want=token, why=why)
        return self.decode_many(rows)

    def _reach_late(self, writer: str, token: int, known: int) -> None:
        """Note where a fact that may be late moves the position, which is `known`."""
        if not self.mode.order.is_exact:
            if self._gaps.repair is not None:
                # Fetched facts advance the position only when all of them are applied.
                return
            if token < known and not self.mode.in_backlog:
                self._history.is_out_of_order = True
        self.reached[writer] = token if token > known or self.mode.order.restarts else known

    def finish(self) -> list[PositionStep]:
        """End the facts at which `take` or `take_batches` stopped. Returns how they move the positions."""
        steps = [PositionStep(writer, token) for writer, token in self.reached.items()]
        self.reached.clear()
        return steps


@row
class _AnyRow:
    """Placeholder for the rows of an unknown stream, which are not decoded."""

    value: Any


def untyped(name: str) -> Stream[Any]:
    """A stream of which only the name is known, for a follower with `raw`."""
    return Stream(name, _AnyRow)


def decoder(
    stream: Stream[Any], dialect: Dialect, *, raw: bool = False, canonical: bool = False
) -> Callable[[list[bytes]], list[Any]]:
    """Return the decoder of a stream's rows: to typed rows, JSON values (`raw`), or canonical JSON texts.

    The decoder raises `RowError` for a row that it cannot decode.
    """
    if raw:
        return lambda rows: _decode_raw(stream.name, rows)
    if canonical:
        return lambda rows: [stream.canonical(row, dialect) for row in rows]
    decode, decode_many = stream.decode, stream.decode_many
    # For a single row, `decode` is faster.
    return lambda rows: [decode(rows[0], dialect)] if len(rows) == 1 else decode_many(rows, dialect)


def _decode_raw(stream: str, rows: list[bytes]) -> list[Any]:
    try:
        return [jsontext.loads(row) for row in rows]
    except ValueError as error:
        raise RowError(stream=stream, why=str(error)) from error
