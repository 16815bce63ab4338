"""Benchmark of an idle daemon."""

import socket
import time
from collections.abc import Iterator
from typing import Final

from scripts.bench_parts.measuring import Options, Result, daemon, resident_bytes

__all__ = ["idle"]

CONNECTIONS: Final = 200
SETTLE_SECONDS: Final = 1.0


def idle(options: Options) -> Iterator[Result]:
    """Measure the resident memory of a daemon without followers, and of each idle connection."""
    with daemon() as running:
        time.sleep(SETTLE_SECONDS)
        empty = resident_bytes(running.pid)
        connections = []
        for _ in range(CONNECTIONS):
            connections.append(socket.create_connection(("127.0.0.1", running.follow), timeout=10))
            connections[-1].sendall(b"NAME bench\nREPLICATE \n")
        time.sleep(SETTLE_SECONDS)
        full = resident_bytes(running.pid)
        for connection in connections:
            connection.close()
    yield Result.at_most("daemon", empty / 2**20, "MiB", 60)
    yield Result.at_most("each connection", (full - empty) / CONNECTIONS / 1024, "KiB", 20)
