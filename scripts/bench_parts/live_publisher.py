"""Publishes facts over TCP from a log on disk, at a steady rate, to readers in a second process.

python -m scripts.bench_parts.live_publisher [--seconds S] [--readers N] [--rate ROWS] [--bare]

With --bare a loop of `send` publishes the same lines, without a log, and as often as a publisher does.
"""

import argparse
import json
import socket
import tempfile
import time
from typing import Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import LoopingCall, deferLater

from scripts.bench_parts.children import open_log, print_and_stop, reactor
from scripts.bench_parts.live_readers import WARM_UP_SECONDS, LiveReaders, stamped
from synrepl.base.metrics import Metrics
from synrepl.replication.serving.publisher import PUMP_SECONDS, Publisher
from synrepl.streams.table import StreamTable
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT

FACT: Final = b"[%b]" % stamped()


def main() -> None:
    """Publish, and print the speed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    if options.bare:
        print(json.dumps(_publish_bare(options)))
        return
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        found = Deferred.fromCoroutine(_publish(folder, options))
        found.addBoth(print_and_stop)
        reactor.run()


async def _publish(folder: str, options: argparse.Namespace) -> dict[str, float]:
    log = await open_log(folder)
    metrics = Metrics(CollectorRegistry())
    publisher = Publisher(log, StreamTable.default(), reactor, metrics, instance="master")
    publisher.follow_log()
    factory = PublisherFactory(
        publisher, server_name="bench", dialect=CURRENT, clock=reactor, metrics=metrics
    )
    port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    readers = LiveReaders(port.getHost().port, options.readers)
    while sum(follower.sender is not None for follower in publisher.followers) < options.readers:
        await deferLater(reactor, 0.05)

    sent = 0
    started, cpu, reactor_cpu = time.monotonic(), time.process_time(), time.thread_time()

    def more() -> None:
        nonlocal sent
        due = int((time.monotonic() - started) * options.rate)
        for _ in range(sent, due):
            log.append("events", "master", [FACT % time.monotonic_ns()])
        sent = due

    appending = LoopingCall(more)
    _ = appending.start(0.001)
    await deferLater(reactor, WARM_UP_SECONDS + options.seconds)
    appending.stop()
    took, cpu = time.monotonic() - started, time.process_time() - cpu
    reactor_cpu = time.thread_time() - reactor_cpu
    await deferLater(reactor, 0.5)
    factory.close("done")
    publisher.stop()
    await log.stop()
    await deferLater(reactor, 0.2)
    found = readers.finish()
    assert found["rows"] == sent * options.readers, "rows were lost"
    return {
        "rows_per_second": sent / took,
        "cpu_percent": cpu / took * 100,
        "us_per_row_follower": reactor_cpu / sent / options.readers * 1e6,
        "readers_cpu_percent": found["cpu_seconds"] / took * 100,
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
    }


def _publish_bare(options: argparse.Namespace) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0), backlog=options.readers) as server:
        readers = LiveReaders(server.getsockname()[1], options.readers)
        connections = [server.accept()[0] for _ in range(options.readers)]
    for connection in connections:
        connection.recv(100)
        connection.send(b"POSITION events master 0 0\n")
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent, started, cpu = 0, time.monotonic(), 0.0
    while (took := time.monotonic() - started) < WARM_UP_SECONDS + options.seconds:
        due = int(took * options.rate)
        rows = [(FACT % time.monotonic_ns())[1:-1] for _ in range(sent, due)]
        data = b"".join([b"RDATA events master %d %b\n" % (sent + 1, row) for row in rows])
        before = time.process_time()
        for connection in connections:
            connection.send(data)
        cpu += time.process_time() - before
        sent = due
        time.sleep(PUMP_SECONDS)
    for connection in connections:
        connection.close()
    found = readers.finish()
    return {"us_per_row_follower": cpu / sent / options.readers * 1e6, "p99_ms": found["p99_ms"]}


if __name__ == "__main__":
    main()
