"""Common parts of benchmarks: options, results, other processes, and their CPU time and memory."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.http_api.route import HttpRequest
from synrepl.http_client import BlockingClient

__all__ = [
    "EVENT",
    "ROOT",
    "DaemonProcess",
    "ask",
    "Options",
    "Result",
    "best",
    "cpu_seconds",
    "daemon",
    "event",
    "number",
    "part",
    "peer",
    "reactor_seconds",
    "proportional_bytes",
    "resident_bytes",
]

ROOT: Final = Path(__file__).resolve().parent.parent.parent

EVENT: Final = (
    b'["ev",["$event:here","!room:here","m.room.member","@user:here",null,null,"join",false,false]]'
)
"""A row as release 1.66 writes it, and as the log keeps it."""

PATIENCE_SECONDS: Final = 120


def event(row_bytes: int = 0) -> bytes:
    """Return `EVENT`, with a longer state key if it has fewer bytes than this."""
    return EVENT.replace(b"@user:here", b"@user:here" + b"x" * (row_bytes - len(EVENT)))


class Options(msgspec.Struct, frozen=True):
    """The size of the inputs. `peer` is the Python of a real Synapse; empty if there is none."""

    quick: bool = False
    rows: int | None = None
    peer: str = ""

    def scaled(self, rows: int) -> int:
        """Return the number of rows: `self.rows`, or else `rows`, with `quick` a fifth of that."""
        return self.rows or (rows // 5 if self.quick else rows)

    @property
    def seconds(self) -> float:
        """The length of a measurement at full load, in seconds."""
        return 1.0 if self.quick else 4.0

    @property
    def rounds(self) -> int:
        """The rounds of measurements that are compared; the best round counts."""
        return 2 if self.quick else 5


class Result(msgspec.Struct):
    """A line of the table. `aim` is text; `is_met` is None without an aim.

    `note` is a remark. If the value was not measured it is None, and the note is the reason.
    """

    what: str
    value: float | None
    unit: str
    aim: str = ""
    is_met: bool | None = None
    note: str = ""

    @classmethod
    def at_least(cls, what: str, value: float, unit: str, aim: float) -> "Result":
        """Make a result with an aim that it should not fall below."""
        return cls(what, value, unit, f">= {aim:,g}", value >= aim)

    @classmethod
    def at_most(cls, what: str, value: float, unit: str, aim: float) -> "Result":
        """Make a result with an aim that it should not exceed."""
        return cls(what, value, unit, f"<= {aim:,g}", value <= aim)


def number(value: float) -> str:
    """Format a value with three digits, or all those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def best(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Return the lowest value of each measure. They run in turns, so that a busy moment affects all."""
    found = [[measure() for measure in measures] for _ in range(rounds)]
    return [min(taken) for taken in zip(*found, strict=True)]


def part(name: str, *arguments: object, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Run another module of this folder in a process, and return the JSON that it prints."""
    command = [sys.executable, "-m", f"scripts.bench_parts.{name}", *map(str, arguments)]
    return _last_line(command, patience)


def peer(options: Options, name: str, *arguments: object) -> dict[str, Any]:
    """Run a program of ``tests/interop/peers`` with the Python of Synapse; return the JSON that it prints."""
    return _last_line([options.peer, str(ROOT / "tests/interop/peers" / name), *map(str, arguments)])


def _last_line(command: list[str], patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=patience)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def ask(http: int, request: HttpRequest, body: bytes | None = None) -> Any:
    """Send a request to the daemon at this port. Return the JSON of its answer. Raises `RequestError`."""
    with closing(BlockingClient(f"http://127.0.0.1:{http}")) as client:
        return client.json(request, body)


class DaemonProcess:
    """``twistd -n synrepl`` over a log in `folder`; it is ready once the object is made."""

    def __init__(self, folder: str, *arguments: str) -> None:
        self._said: list[str] = []
        self._is_ready = threading.Event()
        code = "from twisted.scripts.twistd import run; run()"
        anywhere = "tcp:0:interface=127.0.0.1"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", code, "--nodaemon", "--pidfile=", "synrepl"),
                *("--listen", anywhere, "--http", anywhere, "--database", f"sqlite:{folder}/synrepl.db"),
                *arguments,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        if not self._is_ready.wait(PATIENCE_SECONDS) or self._process.poll() is not None:
            self.stop()
            raise SystemExit("\n".join(["the daemon did not start:", *self._said]))
        self.follow = self._port("followers")
        self.http = self._port("http")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.rstrip())
            if "ready:" in line:
                self._is_ready.set()
        self._is_ready.set()

    def _port(self, what: str) -> int:
        found = re.search(rf"{what}: listening at tcp:127\.0\.0\.1:(\d+)", "\n".join(self._said))
        assert found is not None
        return int(found[1])

    def stop(self) -> None:
        """Stop the daemon; kill it if it has not ended after 10 seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def daemon(folder: str = "", *arguments: str) -> Iterator[DaemonProcess]:
    """Run a daemon for the length of the block, over the log in `folder`, or else over an empty one."""
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as empty:
        running = DaemonProcess(folder or empty, *arguments)
        try:
            yield running
        finally:
            running.stop()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, with all of its threads."""
    cpu_clock = ~pid << 3 | 2  # as clock_getcpuclockid(3) makes it: exact, where /proc counts in 10 ms
    return time.clock_gettime(cpu_clock)


def reactor_seconds(pid: int) -> float:
    """Return the CPU time of a daemon's first thread, which has its reactor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, in which a page that N processes share counts as an Nth (PSS)."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
