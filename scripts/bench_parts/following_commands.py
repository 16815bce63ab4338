"""Benchmark of a follower without the wire: from commands to typed rows, for each way to follow a stream."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from twisted.internet.task import Clock

from scripts.bench_parts.measuring import EVENT, Options, Result, best
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import Updates
from synrepl.replication.strategies import SHARED, FollowStrategy, following
from synrepl.streams.catalog import BACKFILL, CACHES, EVENTS
from synrepl.streams.stream import Stream
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import CURRENT, LEGACY, Dialect
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["follower_streams"]

RUN: Final = 500
"""The number of rows that arrive together, as in one read from a socket."""

INVALIDATION: Final = b'["get_user_by_id",["@user:here"],1700000000000]'
BACKFILLED: Final = b'["$event:here","!room:here","m.room.member",null,null,null]'


class Case:
    """One way to follow a stream, with the commands that are received."""

    def __init__(
        self,
        what: str,
        stream: Stream[Any],
        row: bytes,
        rows: int,
        *,
        strategy: FollowStrategy | None = None,
        dialect: Dialect = CURRENT,
        in_runs: bool = True,
        descends: bool = False,
        is_async: bool = False,
    ) -> None:
        self.what = what
        self.rows = rows
        self._stream = stream
        self._strategy = strategy if strategy is not None else following(dialect)
        self._dialect = dialect
        self._is_async = is_async
        writer = "master"
        self._received: list[Sequence[Command | RdataRun]] = []
        for start in range(0, rows, RUN):
            tokens = list(range(start + 1, min(start + RUN, rows) + 1))
            if descends:
                tokens.reverse()
            if in_runs:
                run = RdataRun(
                    stream=stream.name, instance=writer, tokens=list(tokens), rows=[row] * len(tokens)
                )
                self._received.append([run])
            else:
                self._received += [
                    [Rdata(stream=stream.name, instance=writer, token=token, row=row)] for token in tokens
                ]
            if descends:
                self._received.append([_position(stream, tokens[-1] - 1, tokens[0])])

    def measure(self) -> float:
        """Return the CPU microseconds per row."""
        clock = Clock()
        follower = Follower(instance="bench", clock=clock, start="earliest")
        applied = 0

        def apply(updates: Updates[Any]) -> None:
            nonlocal applied
            applied += len(updates.rows)

        async def apply_slowly(updates: Updates[Any]) -> None:
            apply(updates)

        follower.on(self._stream)(apply_slowly if self._is_async else apply)
        server = follower.server
        server.connected(_Connection(), self._dialect, self._strategy)
        server.received([_position(self._stream, 0, 0)])
        started = time.process_time()
        for commands in self._received:
            server.received(commands)
        spent = time.process_time() - started
        assert applied == self.rows, (self.what, applied)
        return spent / self.rows * 1e6


def _position(stream: Stream[Any], prev: int, token: int) -> Position:
    return Position(stream=stream.name, instance="master", prev_token=prev, token=token)


class _Connection:
    """A connection that ignores everything."""

    def write(self, data: bytes) -> None: ...

    def send(self, command: Command) -> None: ...

    def fail(self, why: str) -> None: ...

    def established(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def cases(rows: int) -> list[Case]:
    """Return the cases, each with so many rows."""
    return [
        Case("ordered, in runs", EVENTS, EVENT, rows),
        Case("ordered, in runs, async", EVENTS, EVENT, rows, is_async=True),
        Case("ordered, one by one", EVENTS, EVENT, rows, in_runs=False),
        Case("unordered, in runs", CACHES, INVALIDATION, rows),
        Case("unordered, one by one", CACHES, INVALIDATION, rows, in_runs=False),
        Case("shared, one by one", EVENTS, EVENT, rows, strategy=SHARED, in_runs=False),
        Case("shared, unordered, one by one", CACHES, INVALIDATION, rows, strategy=SHARED, in_runs=False),
        Case("shared, descending", BACKFILL, BACKFILLED, rows, strategy=SHARED, descends=True),
        Case("pushed, in runs", EVENTS, EVENT, rows, dialect=LEGACY),
        Case("pushed, one by one", EVENTS, EVENT, rows, dialect=LEGACY, in_runs=False),
    ]


def follower_streams(options: Options) -> Iterator[Result]:
    """Measure each case."""
    found = cases(options.scaled(20_000))
    for case, taken in zip(found, best(options.rounds, *(case.measure for case in found)), strict=True):
        yield Result(case.what, taken, "us a row")
