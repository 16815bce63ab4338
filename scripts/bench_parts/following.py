"""Benchmark of a follower: from received bytes to typed rows at a subscriber."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from scripts.bench_parts.measuring import EVENT, Options, Result, best, peer
from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import Updates
from synrepl.streams.catalog import EVENTS, Event
from synrepl.streams.stream import Stream
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT

__all__ = ["chunks_of", "follow", "follower", "made_up", "subscribe_plainly"]

CHUNK: Final = 64 * 1024
"""The bytes of one read from a socket."""


def follower(options: Options) -> Iterator[Result]:
    """Measure a follower, a bare loop and, with `peer`, Synapse's own client at the same lines."""
    rows = options.scaled(50_000)
    lines = made_up(rows)
    chunks = chunks_of(lines)
    measures: list[Callable[[], float]] = [
        *(partial(follow, chunks, rows, subscribe) for subscribe in (_async, subscribe_plainly, _batch)),
        lambda: _bare(chunks, rows),
    ]
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        file = Path(folder, "lines.txt")
        file.write_bytes(lines)
        if options.peer:
            measures.append(
                lambda: peer(options, "bench_follower.py", "--lines", file, "--server-name", "bench")[
                    "us_per_row"
                ]
            )
        coroutine, plain, batch, bare, *others = best(options.rounds, *measures)
    yield Result("async subscriber", coroutine, "us a row")
    yield Result("plain subscriber", plain, "us a row")
    yield Result("batch subscriber", batch, "us a row")
    yield Result("bare splitting and decoding", bare, "us a row")
    yield Result.at_most("async subscriber / bare", coroutine / bare, "x", 1.5)
    yield Result.at_most("plain subscriber / bare", plain / bare, "x", 1.4)
    yield Result.at_most("batch subscriber / bare", batch / bare, "x", 1.15)
    for other in others:
        yield Result("Synapse 1.66.0", other, "us a row")
        yield Result.at_least("Synapse / async subscriber", other / coroutine, "x", 40)


def made_up(rows: int, streams: Sequence[str] = ("events",), run: int = 1) -> bytes:
    """Return the lines of a server that publishes so many events, in runs of one stream after the other."""
    names = [name.encode() for name in streams]
    lines = [b"SERVER bench\n", *(b"POSITION %b master 0 0\n" % name for name in names)]
    for serial in range(rows):
        turn, place = divmod(serial, run * len(names))
        stream, token = names[place // run], turn * run + place % run + 1
        lines.append(b"RDATA %b master %d %b\n" % (stream, token, EVENT))
    return b"".join(lines)


def chunks_of(lines: bytes) -> list[bytes]:
    """Divide lines as reads from a socket do."""
    return [lines[start : start + CHUNK] for start in range(0, len(lines), CHUNK)]


class _Applied:
    """What a subscriber has received: the number of facts, of one row each, and the last one."""

    def __init__(self) -> None:
        self.facts = 0
        self.last: Updates[Any] | None = None


def _async(follower: Follower, applied: _Applied) -> None:
    @follower.on(EVENTS)
    async def apply(updates: Updates[Any]) -> None:
        applied.facts += 1
        applied.last = updates


def subscribe_plainly(
    follower: Follower, applied: _Applied, streams: Sequence[Stream[Any]] = (EVENTS,)
) -> None:
    """Subscribe a plain function to each of these streams."""

    def apply(updates: Updates[Any]) -> None:
        applied.facts += 1
        applied.last = updates

    for stream in streams:
        follower.on(stream)(apply)


def _batch(follower: Follower, applied: _Applied) -> None:
    @follower.on_batch(EVENTS)
    def apply(batch: Sequence[Updates[Any]]) -> None:
        applied.facts += len(batch)
        applied.last = batch[-1]


def follow(chunks: list[bytes], rows: int, subscribe: Callable[[Follower, _Applied], None]) -> float:
    """Return the CPU microseconds for a row of a follower with these subscribers."""
    clock = Clock()
    metrics = Metrics(CollectorRegistry())
    follower = Follower(instance="bench", clock=clock, metrics=metrics, start="earliest")
    applied = _Applied()
    subscribe(follower, applied)
    factory = FollowerFactory(
        follower, dialect=CURRENT, expected_server="bench", clock=clock, metrics=metrics
    )
    protocol = factory.buildProtocol(None)
    protocol.makeConnection(StringTransport())
    started = time.process_time()
    for chunk in chunks:
        protocol.dataReceived(chunk)
        clock.advance(0)
    while applied.facts < rows:
        clock.advance(0.001)
    spent = time.process_time() - started
    assert applied.last is not None
    assert isinstance(applied.last.rows[0], Event)
    return spent / rows * 1e6


def _bare(chunks: list[bytes], rows: int) -> float:
    """The work that every follower must do: split lines and words, decode typed rows."""
    decode = msgspec.json.Decoder(tuple[Literal["ev"], Event]).decode
    seen = 0
    rest = b""
    started = time.process_time()
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"RDATA "):
                _, _, _, token, row = line.split(b" ", 4)
                int(token)
                decode(row)
                seen += 1
    assert seen == rows
    return (time.process_time() - started) / rows * 1e6
