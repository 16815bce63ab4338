"""Publishes facts over TCP from a log on disk, at a steady rate, to readers in a second process.

python -m scripts.bench_parts.live_publisher [--seconds S] [--readers N] [--rate ROWS] [--bare]

With --bare a loop of `send` publishes the same lines, without a log, and as often as a publisher does.
"""

import argparse
import json
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from typing import Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import LoopingCall, deferLater

from scripts.bench_parts.children import open_log, print_and_stop, reactor
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import PUMP_SECONDS, Publisher
from synrepl.streams.table import StreamTable
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT

WARM_UP_SECONDS: Final = 0.5

FACT: Final = b'[["ev",["$%d","!room:here","m.room.member","@user:here",null,null,"join",false,false]]]'
"""Its event id is the time of its append, by the clock that all processes of a machine share."""


def main() -> None:
    """Publish; with `--read-from`, read in the second process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--read-from", type=int)
    options = parser.parse_args()
    if options.read_from is not None:
        _read(options.read_from, options.readers)
        return
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
    factory = PublisherFactory(
        publisher, server_name="bench", dialect=CURRENT, clock=reactor, metrics=metrics
    )
    port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    readers = _start_readers(port.getHost().port, options.readers)
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
    found: dict[str, float] = json.loads(readers.communicate(timeout=30)[0])
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
        readers = _start_readers(server.getsockname()[1], options.readers)
        connections = [server.accept()[0] for _ in range(options.readers)]
    for connection in connections:
        connection.recv(100)
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
    found: dict[str, float] = json.loads(readers.communicate(timeout=30)[0])
    return {"us_per_row_follower": cpu / sent / options.readers * 1e6, "p99_ms": found["p99_ms"]}


def _start_readers(port: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "scripts.bench_parts.live_publisher"]
    command += ["--read-from", str(port), "--readers", str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _read(port: int, count: int) -> None:
    """Read with so many connections until they end; print the ages of the rows on arrival."""
    stamp = re.compile(rb'"\$(\d+)"')
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"REPLICATE \n")
        selector.register(connection, selectors.EVENT_READ)
    ages: list[int] = []
    rests: dict[int, bytes] = {}
    begun = 0
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]  # a socket
            now = time.monotonic_ns()
            if not data:
                selector.unregister(key.fileobj)
                continue
            whole, _, rests[key.fd] = (rests.get(key.fd, b"") + data).rpartition(b"\n")
            stamps = [int(digits) for digits in stamp.findall(whole)]
            begun = begun or (stamps[0] if stamps else 0)
            ages += [now - then if then - begun > WARM_UP_SECONDS * 1e9 else -1 for then in stamps]
    cpu = time.process_time()
    rows = len(ages)
    ages = sorted(age for age in ages if age >= 0)
    print(
        json.dumps(
            {
                "rows": rows,
                "cpu_seconds": cpu,
                "p50_ms": ages[len(ages) // 2] / 1e6,
                "p99_ms": ages[len(ages) * 99 // 100] / 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
