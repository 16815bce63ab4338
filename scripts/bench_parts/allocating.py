"""Benchmark of id generators: ids are reserved in a database and finished, and the position is stored."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.bench_parts.measuring import Options, Result, part
from tests.servers.postgres import PostgresServer

__all__ = ["ids"]


def ids(options: Options) -> Iterator[Result]:
    """Measure ids per second, on PostgreSQL and SQLite. Each transaction writes one row, and is synced.

    `within` and the transactions without a generator have one connection, `next` has eight.
    """
    seconds = options.seconds / 4
    with PostgresServer(durable=True) as server:
        found = part("id_writers", "--url", server.new_database(), "--seconds", seconds)
    yield Result("PostgreSQL, `within`, 1 at a time", found["within_1_per_second"], "ids/s")
    yield Result("PostgreSQL, `within`, 20 at a time", found["within_20_per_second"], "ids/s")
    yield Result("PostgreSQL, `next`, 8 concurrent", found["next_per_second"], "ids/s")
    ratio = found["bare_per_second"] / found["within_1_per_second"]
    yield Result("without a generator / `within`", ratio, "x")
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        found = part("id_writers", "--url", f"sqlite:{Path(folder, 'ids.db')}", "--seconds", seconds)
    yield Result("SQLite, `within`, 1 at a time", found["within_1_per_second"], "ids/s")
    yield Result("SQLite, `within`, 20 at a time", found["within_20_per_second"], "ids/s")
    ratio = found["bare_per_second"] / found["within_1_per_second"]
    yield Result("without a generator / `within`", ratio, "x")
