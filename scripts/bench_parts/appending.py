"""Benchmarks of appends, which are answered once their facts are on disk."""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from scripts.bench_parts.measuring import EVENT, Options, Result, cpu_seconds, daemon, part

__all__ = ["append", "http_append"]

CONNECTIONS: Final = 64


def append(options: Options) -> Iterator[Result]:
    """Measure appends in one process to a log in SQLite; every commit is synced."""
    many = part("log_writers", "--writers", CONNECTIONS, "--seconds", options.seconds)
    one = part("log_writers", "--writers", 1, "--seconds", options.seconds)
    yield Result.at_least(f"{CONNECTIONS} writers", many["facts_per_second"], "facts/s", 10_000)
    yield Result("one writer that waits for each answer", one["facts_per_second"], "facts/s")
    yield Result("a bare insert, committed and synced", one["bare_per_second"], "commits/s")


def http_append(options: Options) -> Iterator[Result]:
    """Measure appends over HTTP, from another process, on persistent connections."""
    with daemon() as running:
        for facts, aim in ((20, 10_000), (1, 1_500)):
            cpu, started = cpu_seconds(running.pid), time.monotonic()
            done = asyncio.run(_load(running.http, facts, options.seconds))
            took = time.monotonic() - started
            cpu = (cpu_seconds(running.pid) - cpu) / took * 100
            name = f"{facts} fact{'s' * (facts > 1)} a request"
            yield Result.at_least(name, done * facts / took, "facts/s", aim)
            yield Result(f"{name}: CPU of the daemon", cpu, "% of a core")


async def _load(port: int, facts: int, seconds: float) -> int:
    body = b'{"facts":[%s]}' % b",".join([b"[%s]" % EVENT] * facts)
    request = b"POST /v1/streams/events/facts HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s"
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    posters = [
        (
            await loop.create_connection(
                lambda: _Poster(request % (len(body), body), until), "127.0.0.1", port
            )
        )[1]
        for _ in range(CONNECTIONS)
    ]
    return sum([await poster.done for poster in posters])


class _Poster(asyncio.Protocol):
    """A client that repeats one request, each time after the answer, until a time."""

    def __init__(self, request: bytes, until: float) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._request = request
        self._until = until
        self._answers = 0
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, body = self._heard.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(None, 1)[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError(self._heard.decode()))
            return
        self._answers += 1
        self._heard = b""
        if asyncio.get_running_loop().time() < self._until:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(self._answers)
