"""Benchmark of the RESP port beside a redis-server: how long lines take, and what they cost."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from scripts.bench_parts.measuring import ROOT, Options, Result, cpu_seconds, daemon, resident_bytes
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

__all__ = ["resp"]

RATE: Final = 2_000
SUBSCRIBERS: Final = (1, 8, 50)


def resp(options: Options) -> Iterator[Result]:
    """Measure a publisher of 2,000 lines a second and 1, 8 and 50 subscribers, in processes of their own."""
    counts = SUBSCRIBERS[-1:] if options.quick else SUBSCRIBERS
    with RedisServer() as server:
        assert server.pid is not None
        for count in counts:
            found = _run(server.port, server.pid, count, options.seconds)
            yield from _results(f"redis-server, {count} subscribers", found)
    durable = ["--resp-ack", "durable"]
    for name, role, settings in (
        ("RESP port", "read", []),
        ("RESP port, RESP3", "read3", []),
        ("RESP port, durable", "read", durable),
    ):
        for count in counts:
            port = free_port()
            arguments = ["--server-name", "bench", "--resp", f"tcp:{port}:interface=127.0.0.1", *settings]
            with daemon("", *arguments) as process:
                found = _run(port, process.pid, count, options.seconds, role)
            yield from _results(f"{name}, {count} subscribers", found)


def _results(name: str, found: dict[str, float]) -> Iterator[Result]:
    for what in ("line_p50", "line_p99", "get_p99"):
        yield Result(f"{name}: {what.replace('_', ' ')}", found[what], "ms")
    yield Result(f"{name}: CPU a line", found["cpu_us"], "us")
    yield Result(f"{name}: memory", found["mib"], "MiB")


def _run(port: int, pid: int, subscribers: int, seconds: float, role: str = "read") -> dict[str, float]:
    reading = _start(role, port, subscribers, seconds)
    try:
        assert reading.stdout is not None
        assert reading.stdout.readline() == "ready\n"
        cpu = cpu_seconds(pid)
        publishing = _start("publish", port, RATE, seconds)
        assert publishing.stdout is not None
        found: dict[str, float] = json.loads(publishing.stdout.readline())
        used = cpu_seconds(pid) - cpu
        found |= json.loads(reading.stdout.readline())
        assert publishing.wait(60) == 0
    finally:
        reading.kill()
        reading.wait()
    expected = found["lines"] * subscribers
    assert found["lines"] > 0
    assert found["line_p50"] > 0, f"no line arrived of {expected}"
    return found | {"cpu_us": 1e6 * used / found["lines"], "mib": resident_bytes(pid) / 2**20}


def _start(role: str, port: int, number: int, seconds: float) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "scripts.bench_parts.resp_peer",
        role,
        str(port),
        str(number),
        str(seconds),
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
