"""Measures what a publisher spends on each row and follower over TCP, and what a bare loop of `send` does.

python -m scripts.bench_parts.socket_writes [--readers N] [--rows ROWS]

The rows are read between two measurements, so that no reader is waiting, and waking it costs nothing.
"""

import argparse
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger

from scripts.bench_parts.children import reactor
from scripts.bench_parts.measuring import EVENT, best
from synrepl.base.metrics import Metrics
from synrepl.replication.serving.publisher import PUMP_SECONDS, Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import MemoryEngine
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT

ROUNDS: Final = 5
WRITES: Final = 200


def main() -> None:
    """Measure both, and print them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rows", type=int, default=10, help="in each write")
    options = parser.parse_args()
    log, readers = _log(), _Readers()
    factory = _serve(log, readers, options.readers)
    sockets = [protocol.transport.socket for protocol in factory.protocols]
    data = b"RDATA events master 123456 %b\n" % EVENT * options.rows

    def append(to: Log) -> None:
        to.append("events", "master", [b"[%b]" % EVENT] * options.rows)

    def publish() -> None:
        append(log)  # and the publisher writes
        reactor.iterate(0)

    def send() -> None:
        for one in sockets:
            one.send(data)

    alone = _log()
    appended, published, bare = best(
        ROUNDS,
        lambda: _cpu_seconds(lambda: append(alone), readers),
        lambda: _cpu_seconds(publish, readers),
        lambda: _cpu_seconds(send, readers),
    )
    assert readers.rows == 2 * ROUNDS * WRITES * options.rows * options.readers, "rows were lost"
    per_row = 1e6 / WRITES / options.rows / options.readers
    print(json.dumps({"publisher": (published - appended) * per_row, "bare": bare * per_row}))


class _Readers(list[socket.socket]):
    """The followers, as sockets."""

    rows = 0

    def read(self) -> None:
        """Read, and count, all that has come."""
        for one in self:
            try:
                while data := one.recv(1 << 18):
                    self.rows += data.count(b"RDATA ")
            except BlockingIOError:
                pass


def _log() -> Log:
    log = Log(MemoryEngine(), ImmediateThread(), ImmediateThread(), reactor, ephemeral=[], logger=Logger())
    Deferred.fromCoroutine(log.start())
    return log


def _serve(log: Log, readers: _Readers, count: int) -> PublisherFactory:
    metrics = Metrics(CollectorRegistry())
    publisher = Publisher(log, StreamTable.default(), reactor, metrics, instance="master")
    publisher.follow_log()
    factory = PublisherFactory(
        publisher, server_name="bench", dialect=CURRENT, clock=reactor, metrics=metrics
    )
    ports: list[Any] = []
    serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory).addCallback(ports.append)
    reactor.startRunning(installSignalHandlers=False)
    for _ in range(count):
        reader = socket.create_connection(("127.0.0.1", ports[0].getHost().port))
        reader.sendall(b"REPLICATE \n")
        reader.setblocking(False)
        readers.append(reader)
    while sum(follower.sender is not None for follower in publisher.followers) < count:
        reactor.iterate(0.01)
    return factory


def _cpu_seconds(work: Callable[[], None], readers: _Readers) -> float:
    """Return the CPU time of `WRITES` calls, each long enough after the one before to be written at once."""
    spent = 0.0
    for _ in range(WRITES):
        readers.read()
        time.sleep(PUMP_SECONDS)
        started = time.process_time()
        work()
        spent += time.process_time() - started
    readers.read()
    return spent


if __name__ == "__main__":
    main()
