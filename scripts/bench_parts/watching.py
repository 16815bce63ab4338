"""Benchmark of a daemon that watches a homeserver of twenty processes."""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import psycopg

from scripts.bench_parts.measuring import Options, Result, ask, cpu_seconds, daemon
from synrepl.homeserver.doctor.synapse import STREAMS
from synrepl.http_api.routes import STATUS
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

__all__ = ["watch"]

PROCESSES: Final = 20
PAGE_LINES: Final = 5_000
WRITERS: Final = 5
SETTLE_SECONDS: Final = 5.0


def watch(options: Options) -> Iterator[Result]:
    """Measure the CPU time of the watch, of 20 processes with pages of metrics of half a megabyte."""
    seconds = 10 if options.quick else 60
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        redis = RedisServer()
        redis.start()
        stack.callback(redis.remove)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="synrepl-bench-")))
        url = server.new_database()
        _make_tables(url)
        idle = _measure(str(folder / "idle"), seconds)
        words = _files(stack, folder, url, redis.port)
        watching = _measure(str(folder / "watching"), seconds, *words)
    yield Result("page of metrics", len(_page()) / 1024, "KiB")
    yield Result("CPU of an idle daemon", 100 * idle, "% of a core")
    yield Result.at_most("CPU of the watch of 20 processes", 100 * (watching - idle), "% of a core", 2)


def _measure(folder: str, seconds: float, *arguments: str) -> float:
    """The CPU time of a daemon in each second."""
    Path(folder).mkdir()
    with daemon(folder, *arguments) as running:
        time.sleep(SETTLE_SECONDS)
        began = cpu_seconds(running.pid)
        time.sleep(seconds)
        used = cpu_seconds(running.pid) - began
        seen = ask(running.http, STATUS.request())["homeserver"]
        if seen is not None and (seen["unseen"] or not seen["looked_at"]):
            raise AssertionError(f"the watch does not see all: {seen}")
        return used / seconds


def _make_tables(url: str) -> None:
    with psycopg.connect(url) as database:
        for table in ("schema_version", "applied_schema_deltas"):
            database.execute(f"CREATE TABLE {table} (version INTEGER)".encode())
        database.execute(
            "CREATE TABLE stream_positions (stream_name TEXT, instance_name TEXT, stream_id BIGINT)"
        )
        known = set()
        for stream in STREAMS:
            database.execute(f"CREATE SEQUENCE {stream.sequence}".encode())
            for one in stream.tables:
                if one.name not in known:
                    known.add(one.name)
                    database.execute(
                        f"CREATE TABLE {one.name} ({one.id_column} BIGINT PRIMARY KEY,"
                        " instance_name TEXT)".encode()
                    )
            for number in range(WRITERS):
                row = (stream.name, f"worker{number}", 1)
                database.execute("INSERT INTO stream_positions VALUES (%s, %s, %s)", row)
        for column in ("failing_since", "last_stream_ordering", "last_success"):
            database.execute(f"ALTER TABLE pushers ADD COLUMN {column} BIGINT".encode())
        for column in ("data", "app_id", "user_name"):
            database.execute(f"ALTER TABLE pushers ADD COLUMN {column} TEXT".encode())


def _page() -> bytes:
    lines = [f'synapse_storage_stream_current_position{{stream_name="{one.name}"}} 1.0' for one in STREAMS]
    lines += [
        f'synapse_http_server_response_time_seconds_bucket{{code="200",le="{number}",method="GET",'
        f'servlet="SyncRestServlet",tag="t"}} {number}.0'
        for number in range(PAGE_LINES)
    ]
    return "\n".join(lines).encode() + b"\n"


def _files(stack: ExitStack, folder: Path, url: str, redis_port: int) -> list[str]:
    """Start the pages, and write the homeserver's files: the words that name them."""
    page = _page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    def listener() -> dict[str, Any]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        return {"type": "metrics", "port": server.server_port, "bind_addresses": ["127.0.0.1"]}

    shared = {
        "server_name": "bench.test",
        "enable_metrics": True,
        "database": {"name": "psycopg2", "args": {"dsn": url}},
        "redis": {"enabled": True, "host": "127.0.0.1", "port": redis_port},
        "listeners": [listener()],
    }
    (folder / "homeserver.yaml").write_text(json.dumps(shared))
    words = ["--homeserver", str(folder / "homeserver.yaml")]
    for number in range(PROCESSES - 1):
        file = folder / f"worker{number}.yaml"
        settings = {"worker_app": "synapse.app.generic_worker", "worker_name": f"worker{number}"}
        file.write_text(json.dumps(settings | {"worker_listeners": [listener()]}))
        words += ["--homeserver-workers", str(file)]
    return words
