"""Benchmarks of replicas: joins, relays, and forwarded writes."""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from http.client import HTTPConnection
from typing import Final

from scripts.bench_parts.measuring import (
    EVENT,
    DaemonProcess,
    Options,
    Result,
    ask,
    daemon,
    part,
    resident_bytes,
)
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.routes import APPEND, CHANGELOG, STATUS
from synrepl.http_client import BlockingClient
from synrepl.replicas.replica.join import COMMIT_FACTS
from synrepl.storage.checked_rows import FACT_COLUMNS

__all__ = ["FOR_EVER", "join_seconds", "replicas"]

PATIENCE_SECONDS: Final = 100
LOOK_SECONDS: Final = 0.02
REPLICAS: Final = 10
ROUNDS: Final = 3
FOR_EVER: Final = ("--retain-seconds", "1e9")


def replicas(options: Options) -> Iterator[Result]:
    """Measure a primary and its replicas, each a process; logs are in SQLite, and every commit is synced."""
    rows = options.scaled(300_000)
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        part("log_filler", folder, "--upto", rows)
        bare = _bare_copy(folder, rows)
        yield Result("SQLite and SHA-256 alone, in one thread", bare, "rows/s")
        with daemon(folder, *FOR_EVER) as primary:
            yield from _join(primary, "native", f"tcp:127.0.0.1:{primary.follow}", rows)
            yield from _join(primary, "HTTP", f"http://127.0.0.1:{primary.http}", rows)
            yield from _relay(primary, rows, options.scaled(50_000))
    with daemon() as primary, daemon("", "--upstream", f"tcp:127.0.0.1:{primary.follow}") as replica:
        yield from _relayed(primary, replica, options.scaled(500))


def _join(primary: DaemonProcess, how: str, upstream: str, rows: int) -> Iterator[Result]:
    before = resident_bytes(primary.pid)
    with daemon("", "--upstream", upstream, *FOR_EVER) as replica:
        idle = resident_bytes(replica.pid)
        seconds = join_seconds(replica, rows)
        yield Result.at_least(f"JOIN, {how}", rows / seconds, "rows/s", 300_000)
        grown = max(resident_bytes(primary.pid) - before, 0) + resident_bytes(replica.pid) - idle
        yield Result(f"JOIN, {how}: growth of both meanwhile", grown / 2**20, "MiB")


def join_seconds(replica: DaemonProcess, rows: int) -> float:
    """Return how long it takes from now until the replica has so many facts."""
    started = time.monotonic()
    _until(lambda: _serial(replica) >= rows)
    return time.monotonic() - started


def _relay(primary: DaemonProcess, rows: int, live: int) -> Iterator[Result]:
    """Measure the primary, with replicas that only count facts, all in one process."""
    where = ("--port", primary.follow, "--http", primary.http)
    one = part("relay_readers", *where, "--replicas", 1)
    yield Result("relay from the log to 1 replica", rows / one["seconds"], "rows/s")
    ten = part("relay_readers", *where, "--replicas", REPLICAS)
    sent = REPLICAS * rows / ten["seconds"]
    yield Result(f"relay from the log to {REPLICAS} replicas, in total", sent, "rows/s")
    found = part("relay_readers", *where, "--replicas", REPLICAS, "--live", live)
    sent = REPLICAS * live / found["seconds"]
    yield Result(f"live relay of posted facts to {REPLICAS} replicas, in total", sent, "rows/s")


def _relayed(primary: DaemonProcess, replica: DaemonProcess, count: int) -> Iterator[Result]:
    _until(lambda: ask(replica.http, STATUS.request())["upstream"]["state"] == "live")
    direct, relayed = _median_ms(primary, count), _median_ms(replica, count)
    yield Result("a write at the primary, p50", direct, "ms")
    yield Result("a write at a replica, answered once the replica has it, p50", relayed, "ms")
    yield Result("relayed / direct", relayed / direct, "x")
    # In turn, so that both meet the same disk.
    times: dict[int | None, list[float]] = {None: [], 1: []}
    for _ in range(ROUNDS):
        for acks, found in times.items():
            found.append(_median_ms(primary, count, acks))
    alone, acknowledged = (min(found) for found in times.values())
    yield Result("a write answered once a replica has it on disk too (acks=1), p50", acknowledged, "ms")
    yield Result("acks=1 / acks=0", acknowledged / alone, "x")


def _median_ms(running: DaemonProcess, count: int, acks: int | None = None) -> float:
    request = APPEND.request("events", acks=acks)
    connection = HTTPConnection("127.0.0.1", running.http)
    body = b'{"facts":[[%b]]}' % EVENT
    found = []
    for _ in range(count):
        started = time.perf_counter()
        connection.request(request.method, request.target, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        found.append((time.perf_counter() - started) * 1000)
    return statistics.median(found)


def _serial(running: DaemonProcess) -> int:
    """Return the serial of a daemon now; 0 while it has no whole copy."""
    with closing(BlockingClient(f"http://127.0.0.1:{running.http}")) as client, suppress(HttpError):
        head, lines = client.lines(CHANGELOG.request(limit=1))
        list(lines)
        return int(head.get("Synrepl-Serial") or 0)
    return 0


def _bare_copy(folder: str, rows: int) -> float:
    """Return the rows per second of the least that a copy takes: digests, and inserts with their index."""
    with closing(sqlite3.connect(f"{folder}/synrepl.db")) as source:
        facts = source.execute(f"SELECT {FACT_COLUMNS} FROM facts ORDER BY serial").fetchall()
        schema = [one for (one,) in source.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 'facts'")]
    insert = f"INSERT INTO facts ({FACT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    with closing(sqlite3.connect(f"{folder}/bare.db", isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = WAL")
        copy.execute("PRAGMA synchronous = NORMAL")
        for statement in schema:
            copy.execute(statement)
        started, previous = time.monotonic(), "0" * 64
        for start in range(0, rows, COMMIT_FACTS):
            some = facts[start : start + COMMIT_FACTS]
            for serial, epoch, stream, writer, before, token, text, at_ms, digest in some:
                head = f"{previous} {serial} {epoch} {stream} {writer} {before} {token} {at_ms} "
                previous = sha256(head.encode() + text).hexdigest()
                assert previous == digest
            copy.execute("BEGIN")
            copy.executemany(insert, some)
            copy.execute("COMMIT")
        return rows / (time.monotonic() - started)


def _until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > until:
            raise SystemExit(f"the replica did not reach the expected state within {PATIENCE_SECONDS} s")
        time.sleep(LOOK_SECONDS)
