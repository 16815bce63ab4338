"""Stages for pictures and the manual: real daemons on loopback, with proxies that slow or cut connections."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final, Self

from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import APPEND, STATUS
from synrepl.http_client import BlockingClient
from synrepl.replicas.routes import PROMOTE
from tests.service.processes import ROOT, Daemon

__all__ = ["QUICK", "Proxy", "Stage", "ask", "restored"]

PATIENCE_SECONDS: Final = 40.0
CHUNK: Final = 16 * 1024

QUICK: Final = ("--timeout-seconds", "4", "--ping-seconds", "1")
"""Short timeouts, so that a lost connection is detected within seconds."""


def ask(url: str, request: HttpRequest, body: Any = None, *, secret: str | None = None) -> Any:
    """Send a request. Return the JSON of the answer. Raises `RequestError`, also for a refusal."""
    with closing(BlockingClient(url, secret=secret, timeout=PATIENCE_SECONDS)) as client:
        return client.json(request, None if body is None else json.dumps(body).encode())


class Proxy:
    """A TCP proxy in front of an address.

    It passes at most `bytes_a_second` of the answers (None: no limit), and nothing while `stalls` is true.
    """

    def __init__(self, to: str, *, bytes_a_second: float | None = None) -> None:
        host, port = to.rsplit(":", 1)
        self._to = (host.removeprefix("tcp:"), int(port))
        self.bytes_a_second = bytes_a_second
        self.stalls = False
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here = self._server.accept()[0]
                try:
                    there = socket.create_connection(self._to)
                except OSError:
                    here.close()
                    continue
                self._open += [here, there]
                threading.Thread(target=self._pass, args=(here, there, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(there, here, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                while self.stalls:
                    time.sleep(0.05)
                if is_answer and self.bytes_a_second:
                    time.sleep(len(data) / self.bytes_a_second)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Stage:
    """A temporary folder with daemons, which are killed at the end of the `with` block."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.daemons: dict[str, Daemon] = {}
        self.secret: str | None = None

    def __enter__(self) -> Self:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="synrepl-stage-")))
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
        self._stack.close()

    def start(self, name: str, *options: str, at: Daemon | None = None) -> Daemon:
        """Start a daemon in a folder of this name; with `at`, at the ports of that former daemon."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        port, http = (0, 0) if at is None else (_port(at.follow), _port(at.url))
        daemon = Daemon(
            folder,
            port=port,
            http_port=http,
            options=("--server-name", "example.org", "--replica-name", name, *options),
        )
        self.daemons[name] = daemon
        return daemon

    def replica(self, name: str, of: str, *options: str, at: Daemon | None = None) -> Daemon:
        """Start a replica of the daemon at the address `of`."""
        return self.start(name, "--upstream", of, *options, at=at)

    def list_as_primary(self, name: str, daemon: Daemon, other: Daemon) -> Daemon:
        """Let a first primary list another daemon: without keys it believes nobody else."""
        daemon.terminate()
        daemon = self.start(name, "--upstream", other.url, at=daemon)
        ask(daemon.url, PROMOTE.request(), {"force": True})
        mine = self.wait_until(daemon, lambda status: status["role"] == "primary", "a primary")
        known = (mine["epoch"], mine["address"])
        self.wait_until(other, lambda status: (status["epoch"], status["primary"]) == known, "its replica")
        self.wait_live(other)
        return daemon

    def proxy(self, to: str, *, bytes_a_second: float | None = None) -> Proxy:
        """Start a proxy in front of the address `to`."""
        proxy = Proxy(to, bytes_a_second=bytes_a_second)
        self._stack.callback(proxy.close)
        return proxy

    def stop(self, daemon: Daemon) -> None:
        """Suspend the process of a daemon: its connections stay open."""
        os.kill(daemon.pid, signal.SIGSTOP)

    def go_on(self, daemon: Daemon) -> None:
        """Resume the process of a daemon."""
        os.kill(daemon.pid, signal.SIGCONT)

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Run a ``synrepl`` command, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "synrepl", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    @staticmethod
    def append(daemon: Daemon, count: int, *, stream: str = "push_rules", writer: str = "master") -> None:
        """Append `count` facts. Raises `RequestError`."""
        for start in range(0, count, 2_000):
            many = range(start, min(count, start + 2_000))
            facts = [_rows(stream, number) for number in many]
            ask(daemon.url, APPEND.request(stream), {"facts": facts, "writer": writer})

    @staticmethod
    def put_name(daemon: Daemon, name: str, sha256: str) -> None:
        """Append a fact that names a file whose bytes are not stored. Raises `RequestError`."""
        row = ["create", name, sha256, 10]
        ask(daemon.url, APPEND.request("files"), {"facts": [[row]]})

    def wait_until(self, daemon: Daemon, is_so: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Return the daemon's status once `is_so` accepts it. Raises `TimeoutError`, which names `what`."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            status: dict[str, Any] = ask(daemon.url, STATUS.request(), secret=self.secret)
            if is_so(status):
                return status
            if time.monotonic() >= until:
                shown = json.dumps({**status, "streams": ...}, default=str)[:3000]
                raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s for {what}; the status is {shown}")
            time.sleep(0.1)

    def wait_live(self, daemon: Daemon) -> dict[str, Any]:
        """Return the status of this replica once it is live."""
        return self.wait_until(daemon, lambda status: status["upstream"]["state"] == "live", "a live replica")


def restored(stage: Stage) -> Daemon:
    """Return a replica that is ahead of its primary, which was restored from an older copy."""
    berlin = stage.start("berlin")
    stage.append(berlin, 200)
    berlin.terminate()
    database = stage.folder / "berlin" / "synrepl.db"
    backup = database.read_bytes()
    berlin = stage.start("berlin", at=berlin)
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK)
    stage.wait_live(paris)
    stage.append(berlin, 25)
    stage.wait_until(paris, lambda status: status["serial"] == 225, "all of it")
    berlin.terminate()
    database.write_bytes(backup)
    for name in ("synrepl.db-wal", "synrepl.db-shm", "synrepl.db.state"):
        database.with_name(name).unlink(missing_ok=True)
    stage.start("berlin", at=berlin)
    return paris


def _rows(stream: str, number: int) -> list[Any]:
    user = f"@user{number}:example.org"
    match stream:
        case "receipts":
            return [["!room:example.org", "m.read", user, f"$event{number}", None, {}]]
        case "device_lists":
            return [[user, False, False]]
        case "events":
            return [
                [
                    "ev",
                    [
                        f"$event{number}",
                        "!room:example.org",
                        "m.room.message",
                        *[None] * 3,
                        False,
                        False,
                        False,
                    ],
                ]
            ]
        case _:
            return [[user]]


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])
