"""Replicas that store nothing and count the facts that they receive: a program of the module `replicas`."""

import argparse
import asyncio
import hashlib
import json
import time
from typing import Any, Final

from scripts.bench_parts.measuring import ask, event
from synrepl.http_api.routes import APPEND, STATUS
from synrepl.replicas.wire.native import VERSION

POSTED_AT_ONCE: Final = 500
POSTED_BYTES: Final = 8 * 1024 * 1024


class Reader:
    """One replica, which only subscribes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    async def subscribe(self, port: int, status: dict[str, Any], after: int, digest: str) -> None:
        """Greet the primary, and subscribe to the facts after a serial."""
        self._streams = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        self._say("NAME", "bench")
        uuid = hashlib.sha256(b"%d" % self.number).hexdigest()[:32]
        hello = {"uuid": uuid, "name": f"bench{self.number}", "version": VERSION, "registered": False}
        self._say("HELLO", hello)
        await self._hear("WELCOME")
        position = {"epoch": 1, "serial": after, "digest": digest}
        self._say("SUBSCRIBE", {"history": status["history"], "position": position})
        await self._hear("SUBSCRIBED")

    def _say(self, command: str, said: Any) -> None:
        text = said if isinstance(said, str) else json.dumps(said)
        self._streams[1].write(f"{command} {text}\n".encode())

    async def _hear(self, command: str) -> None:
        while True:
            line = await self._streams[0].readline()
            check(line)
            if line.startswith(command.encode()):
                return

    async def count(self, rows: int) -> None:
        """Return when so many facts have arrived."""
        reading = self._streams[0]
        while self.seen < rows:
            line = await reading.readline()
            check(line)
            if line.startswith(b"BLOCK "):
                _, kind, lines, size, _ = line.split()
                await reading.readexactly(int(size))
                self.seen += int(lines) if kind == b"facts" else 0
            elif line.startswith(b"PING"):
                self._streams[1].write(b"PING 1\n")

    def close(self) -> None:
        """Close the connection."""
        self._streams[1].close()


def check(line: bytes) -> None:
    """Raises `AssertionError` if the primary closed the connection or refused."""
    assert line, "the connection was closed"
    assert not line.startswith((b"ERROR", b"REFUSED")), line


async def measure(given: argparse.Namespace) -> float:
    """Return the seconds until every replica has received all facts."""
    status = ask(given.http, STATUS.request())
    after = status["serial"] if given.live else 0
    digest = "0" * 64 if after == 0 else status["digest"]
    rows = given.live or status["serial"] - after
    readers = [Reader(number) for number in range(given.replicas)]
    for reader in readers:
        await reader.subscribe(given.port, status, after, digest)
    started = time.monotonic()
    counting = [asyncio.ensure_future(reader.count(rows)) for reader in readers]
    if given.live:
        await asyncio.to_thread(post, given.http, rows, given.row_bytes)
    await asyncio.gather(*counting)
    seconds = time.monotonic() - started
    for reader in readers:
        reader.close()
    return seconds


def post(http: int, rows: int, row_bytes: int) -> None:
    """Post so many facts to the primary."""
    fact = b"[%b]" % event(row_bytes)
    at_once = min(POSTED_AT_ONCE, POSTED_BYTES // len(fact))
    for done in range(0, rows, at_once):
        facts = b",".join([fact] * min(at_once, rows - done))
        ask(http, APPEND.request("events"), b'{"facts":[%b]}' % facts)


def main() -> None:
    """Measure, and print the seconds as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--live", type=int, default=0, help="facts to post; else the log is read")
    parser.add_argument("--row-bytes", type=int, default=0)
    print(json.dumps({"seconds": asyncio.run(measure(parser.parse_args()))}))


if __name__ == "__main__":
    main()
