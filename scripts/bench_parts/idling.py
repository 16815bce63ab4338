"""Benchmark of an idle daemon."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from scripts.bench_parts.measuring import Options, Result, daemon, proportional_bytes, resident_bytes

__all__ = ["idle"]

CONNECTIONS: Final = 200
SETTLE_SECONDS: Final = 1.0


@contextmanager
def _empty_service(folder: str) -> Iterator[int]:
    """Run ``twistd`` that serves nothing: Twisted with its TLS. Yields the number of the process."""
    plan = Path(folder, "empty.tac")
    plan.write_text("from twisted.application.service import Application\napplication = Application('')\n")
    code = "from twisted.scripts.twistd import run; run()"
    command = [sys.executable, "-c", code, "--nodaemon", "--pidfile=", "--python", str(plan)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _above_empty_services(count: int, seconds: float) -> tuple[float, float]:
    """Return the memory of a daemon at rest, and what it has above an empty service, in bytes.

    So many of each run at once; both figures are medians. Shared pages count in parts (PSS).
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(_folder()) for _ in range(2 * count)]
        daemons = [stack.enter_context(daemon(folder)).pid for folder in folders[:count]]
        empty = [stack.enter_context(_empty_service(folder)) for folder in folders[count:]]
        time.sleep(seconds)
        of_daemons = median(map(proportional_bytes, daemons))
        return of_daemons, of_daemons - median(map(proportional_bytes, empty))


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        yield folder


def idle(options: Options) -> Iterator[Result]:
    """Measure the memory of a daemon at rest, also above an empty ``twistd``, and of each idle connection."""
    rest = _above_empty_services(2, 5.0) if options.quick else _above_empty_services(5, 60.0)
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
    yield Result("daemon, its part of shared pages", rest[0] / 2**20, "MiB")
    yield Result.at_most("that, above twistd with an empty service", rest[1] / 2**20, "MiB", 11)
    yield Result.at_most("each connection", (full - empty) / CONNECTIONS / 1024, "KiB", 20)
