"""Benchmark of an idle daemon."""

import compileall
import os
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

from scripts.bench_parts.measuring import ROOT, Options, Result, daemon, proportional_bytes, resident_bytes

__all__ = ["idle"]

CONNECTIONS: Final = 200
SETTLE_SECONDS: Final = 1.0


EMPTY_PLAN: Final = "from twisted.application.service import Application\napplication = Application('')\n"

EMPTY_PLUGIN: Final = """
from twisted.application.service import IServiceMaker, Service
from twisted.plugin import IPlugin
from twisted.python.usage import Options
from zope.interface import implementer

@implementer(IServiceMaker, IPlugin)
class EmptyMaker:
    tapname, description, options = "empty", "Nothing.", Options

    def makeService(self, options):
        return Service()

maker = EmptyMaker()
"""
"""Before ``twistd`` runs a plugin by its name, it imports the interfaces of all: 1 MiB, with `unittest`."""


@contextmanager
def _empty_service(folder: str, *, is_plugin: bool = False) -> Iterator[int]:
    """Run ``twistd`` that serves nothing: Twisted with its TLS. Yields the number of the process.

    With `is_plugin` it is started by its name, as synrepl is; else from a file.
    """
    plan, plugin = Path(folder, "empty.tac"), Path(folder, "twisted", "plugins", "empty_plugin.py")
    plan.write_text(EMPTY_PLAN)
    plugin.parent.mkdir(parents=True)
    plugin.write_text(EMPTY_PLUGIN)
    what = ["empty"] if is_plugin else ["--python", str(plan)]
    code = "from twisted.scripts.twistd import run; run()"
    command = [sys.executable, "-c", code, "--nodaemon", "--pidfile=", *what]
    paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _above_empty_services(count: int, seconds: float) -> tuple[float, float, float]:
    """Return the memory of a daemon at rest, and what it has above an empty service, in bytes.

    The last is what it has above an empty plugin. So many of each run at once; all figures are medians.
    Shared pages count in parts (PSS).
    """
    # As its installation leaves it: a daemon that compiles its modules keeps 2 MiB more.
    compileall.compile_dir(ROOT / "synrepl", quiet=2)
    with ExitStack() as stack:
        folders = iter([stack.enter_context(_folder()) for _ in range(3 * count)])
        daemons = [stack.enter_context(daemon(next(folders))).pid for _ in range(count)]
        empty = [stack.enter_context(_empty_service(next(folders))) for _ in range(count)]
        plugins = [stack.enter_context(_empty_service(next(folders), is_plugin=True)) for _ in range(count)]
        time.sleep(seconds)
        of_daemons, of_empty, of_plugins = (
            median(map(proportional_bytes, processes)) for processes in (daemons, empty, plugins)
        )
        return of_daemons, of_daemons - of_empty, of_daemons - of_plugins


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        yield folder


def _follow(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(b"NAME bench\nREPLICATE \n")
    return connection


def idle(options: Options) -> Iterator[Result]:
    """Measure the memory of a daemon at rest, also above an empty ``twistd``, and of each idle connection."""
    rest = _above_empty_services(2, 5.0) if options.quick else _above_empty_services(5, 60.0)
    with daemon() as running:
        time.sleep(SETTLE_SECONDS)
        empty = resident_bytes(running.pid)
        connections = [_follow(running.follow)]
        time.sleep(SETTLE_SECONDS)
        # The first one loads what serves followers.
        one = resident_bytes(running.pid)
        connections += [_follow(running.follow) for _ in range(CONNECTIONS)]
        time.sleep(SETTLE_SECONDS)
        full = resident_bytes(running.pid)
        for connection in connections:
            connection.close()
    yield Result.at_most("daemon", empty / 2**20, "MiB", 45)
    yield Result("daemon, its part of shared pages", rest[0] / 2**20, "MiB")
    yield Result.at_most("that, above twistd with an empty service", rest[1] / 2**20, "MiB", 11)
    yield Result("that, above twistd with an empty plugin", rest[2] / 2**20, "MiB")
    yield Result.at_most("each connection", (full - one) / CONNECTIONS / 1024, "KiB", 20)
