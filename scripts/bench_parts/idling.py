"""Benchmark of an idle daemon."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.bench_parts.measuring import Options, Result, daemon, resident_bytes

__all__ = ["idle"]

CONNECTIONS: Final = 200
SETTLE_SECONDS: Final = 1.0


def _empty_service() -> int:
    """Return the resident memory of ``twistd`` that serves nothing, in bytes: Twisted with its TLS."""
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        plan = Path(folder, "empty.tac")
        plan.write_text(
            "from twisted.application.service import Application\napplication = Application('')\n"
        )
        code = "from twisted.scripts.twistd import run; run()"
        command = [sys.executable, "-c", code, "--nodaemon", "--pidfile=", "--python", str(plan)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            try:
                time.sleep(2 * SETTLE_SECONDS)
                return resident_bytes(process.pid)
            finally:
                process.kill()


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
    yield Result.at_most("daemon", empty / 2**20, "MiB", 45)
    yield Result("twistd with an empty service", _empty_service() / 2**20, "MiB")
    yield Result.at_most("each connection", (full - empty) / CONNECTIONS / 1024, "KiB", 20)
