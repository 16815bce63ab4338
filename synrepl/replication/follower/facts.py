"""PendingFacts: the facts of one stream that come next, and the decoders of their rows."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, cast

from synrepl.errors import RowError
from synrepl.replication.follower.gaps import StreamGaps
from synrepl.replication.follower.history import PositionStep, StreamHistory
from synrepl.replication.follower.modes import Mode
from synrepl.replication.follower.order import ORDERED
from synrepl.replication.follower.updates import RawFact, Updates
from synrepl.streams.stream import Stream, row
from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["PendingFacts", "decoder", "untyped"]


class PendingFacts:
    """Facts to apply in order, without those that are known already. Set `mode` and `decode_many` first.

    They are the rest of a `run`, whose rows were decoded together, then those in the `queue`.

    A repetition that may be an equal fact of a lost history is applied to the caches again, if the stream has
    some. `is_repetition`: the last fact of `take` is one. `failure`: why a fact cannot be decoded, at which
    `take` ended. `token`: that to which the fact being applied moves the position, if it does.
    """

    def __init__(self, stream: str, history: StreamHistory, gaps: StreamGaps) -> None:
        self.mode = Mode(history, ORDERED)
        self.decode_many: Callable[[list[bytes]], list[Any]] = list
        self.is_repetition = False
        self.failure: RowError | None = None
        self.token: int | None = None
        self.run: Iterator[tuple[int, Any]] | None = None
        self.queue: deque[RawFact] = deque()
        self.extend: Callable[[Iterable[RawFact]], None] = self.queue.extend
        self._stream = stream
        self._history = history
        self._positions = history.positions
        self._gaps = gaps
        self._writer = ""

    def add_run(self, run: RdataRun) -> None:
        """Add a run of which each row is a fact. There must be no other facts."""
        tokens = cast("list[int]", run.tokens)
        if not self.mode.order.has_late_facts:
            try:
                rows = self.decode_many(run.rows)
            except RowError:
                pass  # one by one: report the bad one, apply the others
            else:
                self._writer, self.run = run.instance, zip(tokens, rows, strict=True)
                return
        self.queue.extend(zip(repeat(run.instance), tokens, map(list, zip(run.rows)), strict=False))

    def clear(self) -> None:
        """Drop all facts, also the rest of a `take`."""
        self.queue.clear()
        if self.run is not None:
            deque(self.run, maxlen=0)
            self.run = None
        if self.failure is not None:
            self.failure = self.token = None

    def take(self) -> Iterator[Updates[Any]]:
        """The facts to apply. The position advances over each when the next one is requested.

        To stop in between, drop the iterator: `finish` says how far the last fact moves the position.
        """
        tokens, advance = self._positions.tokens, self._positions.advance
        self.is_repetition = False
        if self.run is not None:
            stream, writer = self._stream, self._writer
            last = tokens.get(writer, -1)
            for token, row in self.run:
                if token <= last:
                    continue
                self.token = last = token
                yield Updates(stream, writer, token, [row])
                advance(writer, token)
            self.run = self.token = None
        queue, order = self.queue, self.mode.order
        is_exact, has_late_facts = order.is_exact, order.has_late_facts
        add_if_new = self._history.recent.add_if_new
        while queue:
            writer, token, rows = queue.popleft()
            known = tokens.get(writer, -1)
            if not has_late_facts:
                if token <= known:
                    continue
                self.token = token
            elif add_if_new(writer, token, rows) or (is_exact and token > known):
                self.is_repetition = False
                self.token = token if token > known or order.restarts else known
                if not is_exact:
                    if self._gaps.repair is not None:
                        # Fetched facts advance the position only when all of them are applied.
                        self.token = None
                    elif token < known and not self.mode.in_backlog:
                        self._history.is_out_of_order = True
            elif is_exact or not self._history.has_caches:
                continue
            else:
                self.is_repetition, self.token = True, None
            self._writer = writer
            try:
                updates = Updates(self._stream, writer, token, self.decode_many(rows))
            except RowError as error:
                self.failure = error
                return
            yield updates
            if self.token is not None:
                advance(writer, self.token)
                self.token = None

    def finish(self) -> PositionStep | None:
        """End the fact at which `take` stopped. Returns the step that it made; None if it made none."""
        token = self.token
        if token is None:
            return None
        self.token = None
        return PositionStep(self._writer, token)


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
    """What decodes the rows of a stream: to typed rows, to JSON values (`raw`), or to canonical JSON texts.

    It raises `RowError` for a row of no known shape.
    """
    if raw:
        return lambda rows: _decode_raw(stream.name, rows)
    if canonical:
        return lambda rows: [stream.canonical(row, dialect) for row in rows]
    decode, decode_many = stream.decode, stream.decode_many
    # A row alone costs less by itself.
    return lambda rows: [decode(rows[0], dialect)] if len(rows) == 1 else decode_many(rows, dialect)


def _decode_raw(stream: str, rows: list[bytes]) -> list[Any]:
    try:
        return [jsontext.loads(row) for row in rows]
    except ValueError as error:
        raise RowError(stream=stream, why=str(error)) from error
