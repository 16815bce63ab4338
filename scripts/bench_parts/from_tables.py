"""Benchmark of a table-backed stream: from rows committed to a table to a follower over TCP."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from scripts.bench_parts.measuring import Options, Result, daemon, part
from scripts.bench_parts.table_follower import CONFIG, STREAM
from synrepl.storage.id_tables.id_database import IdDatabase
from tests.servers.postgres import PostgresServer

__all__ = ["tables"]

MODERATE: Final = 200


def tables(options: Options) -> Iterator[Result]:
    """Measure throughput and delay; commits of the table (PostgreSQL) and of the log (SQLite) are synced."""
    with PostgresServer(durable=True) as server:
        found = _measure(server, options.seconds / 2, 0)
        yield Result("rows committed, 20 a transaction", found["written_per_second"], "rows/s")
        yield Result("applied at the follower", found["applied_per_second"], "rows/s")
        ratio = found["written_per_second"] / found["applied_per_second"]
        yield Result("committed / applied", ratio, "x")
        found = _measure(server, options.seconds, MODERATE)
        yield Result(f"{MODERATE} rows/s: insert to follower, p50", found["p50_ms"], "ms")
        yield Result(f"{MODERATE} rows/s: insert to follower, p99", found["p99_ms"], "ms")


def _measure(server: PostgresServer, seconds: float, rate: int) -> dict[str, float]:
    url = server.new_database()
    with psycopg.connect(url) as database:
        cursor = database.cursor()
        IdDatabase(STREAM, "postgresql").create(cursor)
        cursor.execute(
            "CREATE TABLE receipts_linearized (stream_id BIGINT PRIMARY KEY, instance_name TEXT,"
            " room_id TEXT, user_id TEXT, event_id TEXT, data TEXT)"
        )
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        config = Path(folder, "synrepl.yaml")
        config.write_text(json.dumps({"table_streams": [CONFIG], "tables_database": url}))
        with daemon(folder, "--config", str(config)) as running:
            return part(
                *("table_follower", "--url", url, "--follow", running.follow, "--http", running.http),
                *("--seconds", seconds, "--rate", rate),
            )
