"""Benchmark of catching up: one reader reads a long log."""

import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

from scripts.bench_parts.measuring import DaemonProcess, Options, Result, daemon, part, resident_bytes
from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import CATCH_UP, CHANGELOG, ROWS

__all__ = ["catch_up", "changelog"]


def catch_up(options: Options) -> Iterator[Result]:
    """Measure each way to read the log, and by how much the daemon's memory grows meanwhile."""
    rows = options.scaled(200_000)
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        part("log_filler", folder, "--upto", rows)
        with daemon(folder) as running:
            before = resident_bytes(running.pid)
            for name, read, aim in (
                ("HTTP changelog", changelog, 600_000),
                ("HTTP rows", _rows, 150_000),
                ("HTTP as Synapse asks", _as_synapse, 150_000),
                ("pushed to a legacy reader", _pushed, 300_000),
            ):
                yield Result.at_least(name, rows / _seconds(read, running, rows), "rows/s", aim)
            grown = (resident_bytes(running.pid) - before) / 2**20
            yield Result("growth of the daemon meanwhile", grown, "MiB")


def _seconds(read: object, running: DaemonProcess, rows: int) -> float:
    assert callable(read)
    started = time.monotonic()
    found = read(running, rows)
    assert found == rows, f"{found} rows instead of {rows}"
    return time.monotonic() - started


def changelog(running: DaemonProcess, rows: int, since: int = 0) -> int:
    """Read at most so many facts after a serial, and return how many there are."""
    connection = HTTPConnection("127.0.0.1", running.http)
    connection.request("GET", CHANGELOG.request(since=since, limit=rows).target)
    answer = connection.getresponse()
    seen = 0
    while data := answer.read1(1 << 18):
        seen += data.count(b"\n")
    return seen


def _rows(running: DaemonProcess, rows: int) -> int:
    return _pages(running, lambda after: ROWS.request("events", limit=10_000, **{"from": after}), "upto")


def _as_synapse(running: DaemonProcess, rows: int) -> int:
    def page(after: int) -> HttpRequest:
        return CATCH_UP.request("events", "bench", from_token=after, upto_token=rows)

    return _pages(running, page, "upto_token")


def _pages(running: DaemonProcess, make: Callable[[int], HttpRequest], upto: str) -> int:
    connection = HTTPConnection("127.0.0.1", running.http)
    seen, after, is_limited = 0, 0, True
    while is_limited:
        connection.request("GET", make(after).target, headers={"Host": "master"})
        body = connection.getresponse().read()
        end = json.loads(b"{" + body[body.rindex(f'"{upto}"'.encode()) :])  # not all of it: that costs us
        seen += body.count(b'["ev",')
        after, is_limited = end[upto], end["limited"]
    return seen


def _pushed(running: DaemonProcess, rows: int) -> int:
    with socket.create_connection(("127.0.0.1", running.follow), timeout=60) as connection:
        connection.sendall(b"NAME bench\nREPLICATE events 0\n")
        seen, rest = 0, b""
        while seen < rows and (data := connection.recv(1 << 18)):
            whole, _, rest = (rest + data).rpartition(b"\n")
            seen += whole.count(b"RDATA ")
    return seen
