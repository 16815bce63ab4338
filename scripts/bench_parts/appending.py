"""Benchmarks of appends, which are answered once their facts are on disk."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from scripts.bench_parts.measuring import EVENT, ROOT, Options, Result, cpu_seconds, daemon, part
from synrepl.http_api.routes import APPEND, APPEND_STREAM

__all__ = ["CONNECTIONS", "append", "http_append", "stream_appends"]

CONNECTIONS: Final = 64
TOKENS: Final = b'"tokens":'


def append(options: Options) -> Iterator[Result]:
    """Measure appends in one process to a log in SQLite; every commit is synced."""
    many = part("log_writers", "--writers", CONNECTIONS, "--seconds", options.seconds)
    one = part("log_writers", "--writers", 1, "--seconds", options.seconds)
    bare_many, bare_one = (
        part("bare_commits", "--facts", facts, "--seconds", options.seconds / 2)["facts_per_second"]
        for facts in (CONNECTIONS, 1)
    )
    yield Result.at_least(f"{CONNECTIONS} writers", many["facts_per_second"], "facts/s", 10_000)
    yield Result(f"SQLite alone, the same tables, {CONNECTIONS} facts a commit", bare_many, "facts/s")
    yield Result.at_least("writers / SQLite alone", many["facts_per_second"] / bare_many * 100, "%", 70)
    yield Result("one writer that waits for each answer", one["facts_per_second"], "facts/s")
    yield Result("SQLite alone, the same tables, 1 fact a commit", bare_one, "facts/s")
    yield Result.at_least("one writer / SQLite alone", one["facts_per_second"] / bare_one * 100, "%", 60)
    yield Result("a bare insert into one table, committed and synced", one["bare_per_second"], "commits/s")


def http_append(options: Options) -> Iterator[Result]:
    """Measure appends over HTTP, from another process, on persistent connections."""
    with _bare_site() as port:
        started = time.monotonic()
        bare = asyncio.run(_load(port, 1, options.seconds)) / (time.monotonic() - started)
    rates: dict[int, float] = {}
    with daemon() as running:
        for facts, aim in ((20, 10_000), (1, 1_500)):
            cpu, started = cpu_seconds(running.pid), time.monotonic()
            done = asyncio.run(_load(running.http, facts, options.seconds))
            took = time.monotonic() - started
            cpu = (cpu_seconds(running.pid) - cpu) / took * 100
            name = f"{facts} fact{'s' * (facts > 1)} a request"
            rates[facts] = done * facts / took
            yield Result.at_least(name, rates[facts], "facts/s", aim)
            yield Result(f"{name}: CPU of the daemon", cpu, "% of a core")
        yield Result("the least site of Twisted that reads a body", bare, "requests/s")
        yield Result.at_least("1 fact a request / least site", rates[1] / bare * 100, "%", 60)
        lines = [b'{"stream":"events","facts":[[%s]]}\n' % EVENT] * 100
        started = time.monotonic()
        done = asyncio.run(stream_appends(running.http, options.seconds, lambda: lines))
        rate = done / (time.monotonic() - started)
        yield Result.at_least("a stream of appends of 1 fact", rate, "facts/s", 25_000)


@contextmanager
def _bare_site() -> Iterator[int]:
    """Run `bare_site` for the length of the block, and give its port."""
    command = [sys.executable, "-m", "scripts.bench_parts.bare_site"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as site:
        try:
            assert site.stdout is not None
            yield int(site.stdout.readline())
        finally:
            site.kill()


async def stream_appends(
    port: int, seconds: float, make: Callable[[], list[bytes]], per_second: float | None = None
) -> int:
    """Send appends on one connection, a line for each, without waiting for the answers; return how many.

    `make` returns the lines to send together: so often each second, or as often as the daemon takes them.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/x-ndjson\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" % APPEND_STREAM.request().target.encode()
    )
    answering = asyncio.create_task(_count_answers(reader))
    times = sent = 0
    started = time.monotonic()
    while (now := time.monotonic() - started) < seconds and not answering.done():
        for _ in range(1 if per_second is None else int(now * per_second) - times):
            lines = make()
            data = b"".join(lines)
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            times, sent = times + 1, sent + len(lines)
        await (writer.drain() if per_second is None else asyncio.sleep(0.001))
    writer.write(b"0\r\n\r\n")
    answered = await answering
    writer.close()
    assert answered == sent, f"{answered} of {sent} appends were answered"
    return sent


async def _count_answers(reader: asyncio.StreamReader) -> int:
    """Return how many appends were answered with tokens, at the end of the response."""
    answered, end = 0, b""
    while not end.endswith(b"0\r\n\r\n") and (data := await reader.read(1 << 18)):
        # A word may be divided between two reads.
        answered += (end[-len(TOKENS) + 1 :] + data).count(TOKENS)
        end = (end + data)[-len(TOKENS) :]
    return answered


async def _load(port: int, facts: int, seconds: float) -> int:
    body = b'{"facts":[%s]}' % b",".join([b"[%s]" % EVENT] * facts)
    target = APPEND.request("events").target.encode()
    request = b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b"
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    posters = [
        (
            await loop.create_connection(
                lambda: _Poster(request % (target, len(body), body), until), "127.0.0.1", port
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
