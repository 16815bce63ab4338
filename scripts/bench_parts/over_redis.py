"""Benchmark of rows over Redis, end to end, compared with bare pub/sub of the same payloads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

from scripts.bench_parts.measuring import ROOT, Options, Result
from tests.servers.redis import RedisServer

__all__ = ["redis"]


def redis(options: Options) -> Iterator[Result]:
    """Measure pairs of a publisher and a subscriber on a Redis, each a process; the best round counts."""
    rows = options.scaled(200_000)
    pairs = [("bare-publisher", "bare-subscriber"), ("bare-publisher", "follower"), ("publisher", "follower")]
    with RedisServer() as server:
        rounds = [[_run(server, rows, *pair) for pair in pairs] for _ in range(2 if options.quick else 3)]
    bare, follower, whole = (max(one[position] for one in rounds) for position in range(len(pairs)))
    yield Result("bare pub/sub", bare, "rows/s")
    yield Result("bare publisher, our follower applying typed rows", follower, "rows/s")
    yield Result("bare / with our follower", bare / follower, "x")
    yield Result("our publisher from its log, our follower", whole, "rows/s")
    yield Result.at_most("bare / both ours", bare / whole, "x", 4)


def _run(server: RedisServer, rows: int, publisher: str, subscriber: str) -> float:
    """Return the rows per second, from the first publish until the last arrival."""
    hearing = _start(subscriber, server, rows)
    try:
        assert hearing.stdout is not None
        _wait_for(hearing.stdout, "ready")
        telling = _start(publisher, server, rows)
        try:
            assert telling.stdout is not None
            began = json.loads(_wait_for(telling.stdout, "{"))["began"]
            ended = json.loads(_wait_for(hearing.stdout, "{"))["ended"]
            assert telling.wait(60) == 0
        finally:
            telling.kill()
        return rows / float(ended - began)
    finally:
        hearing.kill()
        hearing.wait()


def _start(role: str, server: RedisServer, rows: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "scripts.bench_parts.redis_peer", role, server.url, str(rows)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _wait_for(output: IO[str], start: str) -> str:
    for line in output:
        if line.startswith(start):
            return line
    raise SystemExit(f"a process ended before it printed a line that begins with {start!r}")
