"""Benchmarks of a publisher: facts are appended, and lines sent to many followers."""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger

from scripts.bench_parts.measuring import EVENT, Options, Result, best, part, peer
from synrepl.base.metrics import Metrics
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import MemoryEngine
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT

__all__ = ["live", "publisher"]

FOLLOWERS: Final = 50
FACT: Final = b"[%s]" % EVENT


def publisher(options: Options) -> Iterator[Result]:
    """Measure a publisher in memory, for facts one by one, 20 at a time and all at once (as for Synapse)."""
    rows = options.scaled(5_000)
    groups = {"one by one": 1, "20 facts at a time": 20, "all at once": rows}
    measures = [partial(_append, rows, at_once) for at_once in groups.values()]
    measures += [partial(_publish, rows, at_once) for at_once in groups.values()]
    measures.append(partial(_write, rows))
    if options.peer:
        measures.append(partial(_publish_by_peer, options, rows))
    found = best(options.rounds, *measures)
    appended, published, bare, others = found[:3], found[3:6], found[6], found[7:]
    # The facts are appended to a log in memory meanwhile, whose time is not the publisher's.
    times = [both - alone for both, alone in zip(published, appended, strict=True)]
    for name, spent in zip(groups, times, strict=True):
        yield Result.at_most(f"to {FOLLOWERS} followers, {name}", spent, "us a row x follower", 0.5)
    yield Result("bare writes to transports, two rows in each", bare, "us a row x follower")
    yield Result("one by one / bare writes", times[0] / bare, "x")
    for name, spent in zip(groups, appended, strict=True):
        yield Result(f"the log in memory, {name}", spent * FOLLOWERS, "us a row")
    whole = times[-1]
    for other in others:
        yield Result("Synapse 1.66.0, all at once", other, "us a row x follower")
        yield Result.at_least("Synapse / ours, all at once", other / whole, "x", 15)


def live(options: Options) -> Iterator[Result]:
    """Measure a publisher over TCP: its writes, and from a log on disk to readers in a second process."""
    written = part("socket_writes", "--readers", FOLLOWERS)
    yield Result("10 rows in each write", written["publisher"], "us a row x follower")
    yield Result("10 rows in each bare send", written["bare"], "us a row x follower")
    yield Result("write / bare send", written["publisher"] / written["bare"], "x")
    arguments = ("--seconds", 2 if options.quick else 5, "--readers", FOLLOWERS)
    found = part("live_publisher", *arguments)
    bare = part("live_publisher", *arguments, "--bare")
    yield Result("rows sent", found["rows_per_second"], f"rows/s to {FOLLOWERS}")
    yield Result("append to reader, p50", found["p50_ms"], "ms")
    yield Result.at_most("append to reader, p99", found["p99_ms"], "ms", 5)
    yield Result("a bare loop of send to reader, p99", bare["p99_ms"], "ms")
    yield Result("CPU of the publisher's reactor", found["us_per_row_follower"], "us a row x follower")
    yield Result("a bare loop of send", bare["us_per_row_follower"], "us a row x follower")
    yield Result("CPU of the publisher", found["cpu_percent"], "% of a core")
    yield Result("CPU of the readers", found["readers_cpu_percent"], "% of a core")


class Sink(StringTransport):
    """A transport that counts rows and keeps nothing, as that of Synapse's measurement does."""

    rows = 0

    def write(self, data: bytes) -> None:
        self.rows += data.count(b"RDATA ")

    def writeSequence(self, data: Iterable[bytes]) -> None:
        for piece in data:
            self.write(piece)


def _log(clock: Clock) -> Log:
    log = Log(MemoryEngine(), ImmediateThread(), ImmediateThread(), clock, ephemeral=[], logger=Logger())
    Deferred.fromCoroutine(log.start())
    return log


def _append(rows: int, at_once: int) -> float:
    clock = Clock()
    for _ in range(FOLLOWERS):
        clock.callLater(1e6, lambda: None)  # like a keepalive: `Clock` sorts its calls all the time
    return _timed_appends(_log(clock), clock, rows, at_once)


def _timed_appends(log: Log, clock: Clock, rows: int, at_once: int) -> float:
    started = time.process_time()
    for start in range(0, rows, at_once):
        facts = [FACT] * min(at_once, rows - start)
        log.append("events", "master", facts)
        clock.advance(0.001 * len(facts))
    clock.advance(0.01)
    return (time.process_time() - started) / rows / FOLLOWERS * 1e6


def _publish(rows: int, at_once: int) -> float:
    clock = Clock()
    log = _log(clock)
    metrics = Metrics(CollectorRegistry())
    publisher = Publisher(log, StreamTable.default(), clock, metrics, instance="master")
    publisher.follow_log()
    factory = PublisherFactory(publisher, server_name="bench", dialect=CURRENT, clock=clock, metrics=metrics)
    sinks = [Sink() for _ in range(FOLLOWERS)]
    for sink in sinks:
        protocol = factory.buildProtocol(None)
        protocol.makeConnection(sink)
        protocol.dataReceived(b"REPLICATE \n")
    spent = _timed_appends(log, clock, rows, at_once)
    assert all(sink.rows == rows for sink in sinks)
    return spent


def _write(rows: int) -> float:
    sinks = [Sink() for _ in range(FOLLOWERS)]
    data = b"RDATA events master 123456 %b\n" % EVENT * 2
    started = time.process_time()
    for _ in range(0, rows, 2):
        for sink in sinks:
            sink.write(data)
    return (time.process_time() - started) / rows / FOLLOWERS * 1e6


def _publish_by_peer(options: Options, rows: int) -> float:
    found: float = peer(options, "bench_publisher.py", "--rows", rows, "--followers", FOLLOWERS)[
        "us_per_row_follower"
    ]
    return found
