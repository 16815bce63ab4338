"""Followers in one process that only count: the rows that they receive by TCP, and their ages on arrival.

python -m scripts.bench_parts.live_readers PORT --readers N [--streams NAMES]

A row holds the time of its append (`stamped`). The first line of the output says how long it took until each
reader had been told where the streams are, the second one what they have received. It comes once the
connections have ended; or the input, if no row has arrived for a second.
"""

import argparse
import json
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from typing import Final

from scripts.bench_parts.measuring import PATIENCE_SECONDS, ROOT, event

__all__ = ["WARM_UP_SECONDS", "LiveReaders", "stamped"]

WARM_UP_SECONDS: Final = 0.5
"""How long ages are not counted, from the first row on."""
QUIET_SECONDS: Final = 1.0
STAMP: Final = re.compile(rb'"\$(\d+)"')


def stamped(row_bytes: int = 0) -> bytes:
    """Return an event of about so many bytes. It takes the time of its append, in ns, in place of its ``%d``.

    All processes of a machine share the monotonic clock.
    """
    return event(row_bytes).replace(b"$event:here", b"$%d")


class LiveReaders:
    """The other process, until `close`."""

    def __init__(self, port: int, readers: int, streams: Collection[str] = ()) -> None:
        command = [sys.executable, "-m", "scripts.bench_parts.live_readers", str(port)]
        command += ["--readers", str(readers), "--streams", ",".join(streams)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live_seconds(self) -> float:
        """Return how long it took until all readers were live, once they are. To be called once."""
        assert self._process.stdout is not None
        found: float = json.loads(self._process.stdout.readline())["live_seconds"]
        return found

    def finish(self) -> dict[str, float]:
        """Return what the readers have received, once nothing more comes."""
        output = self._process.communicate(timeout=PATIENCE_SECONDS)[0]
        found: dict[str, float] = json.loads(output.splitlines()[-1])
        return found

    def close(self) -> None:
        """Kill the process, if it has not ended."""
        with self._process:
            self._process.kill()


def main() -> None:
    """Read, and print what was received."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--readers", type=int, required=True)
    parser.add_argument("--streams", default="", help="declared streams to follow, besides all others")
    options = parser.parse_args()
    started = time.monotonic()
    readers = _Readers(options.port, options.readers, list(filter(None, options.streams.split(","))))
    while readers.waiting:
        readers.receive()
    print(json.dumps({"live_seconds": time.monotonic() - started}), flush=True)
    cpu = time.process_time()
    readers.watch_input()
    while not readers.are_done():
        readers.receive(timeout=QUIET_SECONDS / 10)
    print(json.dumps({"cpu_seconds": time.process_time() - cpu, **readers.found()}))


class _Readers:
    """The connections, and what they have received. `waiting` are those that have not got a POSITION yet."""

    def __init__(self, port: int, readers: int, streams: Collection[str]) -> None:
        self.waiting: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._open = readers
        self._has_input = False
        self._rests: dict[int, bytes] = {}
        self._begun = 0
        self._row_at = 0
        self._ages: list[int] = []
        request = f"REPLICATE {' '.join(f'+{name}' for name in streams)}\n".encode()
        for _ in range(readers):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
            connection.sendall(request)
            self.waiting.add(connection.fileno())
            self._selector.register(connection, selectors.EVENT_READ)

    def watch_input(self) -> None:
        """Note the end of the input from now on."""
        self._has_input = True
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def are_done(self) -> bool:
        """Whether nothing more will come."""
        is_quiet = time.monotonic_ns() - self._row_at > QUIET_SECONDS * 1e9
        return not self._open or (not self._has_input and is_quiet)

    def receive(self, timeout: float | None = None) -> None:
        """Read once from each connection that has something."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj is sys.stdin:
                self._selector.unregister(sys.stdin)
                self._has_input = False
            elif data := key.fileobj.recv(1 << 18):  # type: ignore[union-attr]  # a socket
                self._count(key.fd, data)
            elif key.fd in self.waiting:
                raise SystemExit(f"connection {key.fd} was closed before it was live")
            else:
                self._selector.unregister(key.fileobj)
                self._open -= 1

    def _count(self, number: int, data: bytes) -> None:
        now = time.monotonic_ns()
        whole, _, self._rests[number] = (self._rests.get(number, b"") + data).rpartition(b"\n")
        if number in self.waiting and b"POSITION " in whole:
            self.waiting.remove(number)
        if stamps := [int(digits) for digits in STAMP.findall(whole)]:
            self._begun, self._row_at = self._begun or stamps[0], now
            counted_from = self._begun + WARM_UP_SECONDS * 1e9
            self._ages += [now - then if then > counted_from else -1 for then in stamps]

    def found(self) -> dict[str, float]:
        """Return the number of rows, and the percentiles of their ages."""
        ages = sorted(age for age in self._ages if age >= 0) or [0]
        return {
            "rows": len(self._ages),
            "p50_ms": ages[len(ages) // 2] / 1e6,
            "p99_ms": ages[len(ages) * 99 // 100] / 1e6,
        }


if __name__ == "__main__":
    main()
