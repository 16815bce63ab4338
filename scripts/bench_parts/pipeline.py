"""Benchmark of the pipeline: reading from a daemon, and the jobs, compared with DuckDB on the same files."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench_parts.measuring import DaemonProcess, Options, Result, best, cpu_seconds, daemon, part
from synrepl.http_api.routes import ARROW, CHANGELOG
from synrepl.http_client import BlockingClient

__all__ = ["pipeline"]

KEPT = "--retain-seconds", "999999999"

COUNTED = (
    ("receipts", ("$[0]", "$[1]", "$[2]", "$[4]", "$[3]"), "c0, c1, c2, c3"),
    ("receipts", ("$[0]", "$[2]", "$[3]"), "c0, c1"),
    ("push_rules", ("$[0]",), "c0"),
    ("events", ("$[1][1]", "$[1][2]"), "date_trunc('hour', committed_at), c0"),
    ("caches", ("$[0]", "$[1]"), "committed_at::date, c0, c1"),
)
"""What the tables count: a stream, paths of the items of a row, and the key."""


def pipeline(options: Options) -> Iterator[Result]:
    """Measure a plain client of Arrow, and then each job with two cores and with one."""
    rows = options.scaled(10_000_000)
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        part("log_filler", folder, "--upto", rows, "--mixed", patience=1_200)
        with daemon(folder, *KEPT) as running:
            before = cpu_seconds(running.pid)
            (seconds,) = best(2, lambda: _arrow(running, rows))
            cpu = (cpu_seconds(running.pid) - before) / 2
            yield Result.at_least("daemon to Arrow, plain client", rows / seconds, "rows/s", 150_000)
            yield Result("the daemon's CPU", cpu / rows * 1e6, "us/row")
            two = _jobs(running, folder, 2, "--tables")
            local = _jobs(running, folder, 2, "--tables", engine="local")
            fold, look, count = _duckdb(Path(folder), options.rounds)
            one = _jobs(running, folder, 1)
    yield Result("starting Spark", two["start"] + two["first query"], "s")
    yield Result("source into Spark, two cores", rows / two["read"], "rows/s")
    for job, peer, aim in (("archive", 0.0, 0), ("compact", fold, 5), ("audit", look, 3)):
        speed = f"{job}, two cores", rows / two[job], "rows/s"
        yield Result(*speed) if peer else Result.at_least(*speed, 250_000)
        gain = f"{job}: one core takes", one[job] / two[job], "x"
        # The daemon is the limit of the archive: it has a core of its own if the job has one.
        yield Result.at_least(*gain, 1.6) if peer else Result(*gain)
        yield Result(f"{job}: the first in a process takes", two[f"{job} cold"] / two[job], "x")
        alone = two["start"] + two["first query"] + two[f"{job} cold"]
        share = (two["start"] + two["first query"]) / alone
        yield Result(f"{job}: share of a run that is starting", share * 100, "%")
        if peer:
            compared = f"{job}: takes, compared with DuckDB on the same files", two[job] / peer, "x"
            yield Result.at_most(*compared, aim)
    yield from _local_results(
        rows, local, two, {"compact": (fold, 2), "audit": (look, 1.5), "tables": (count, 2)}
    )


def _local_results(
    rows: int, local: dict[str, float], spark: dict[str, float], peers: dict[str, tuple[float, float]]
) -> Iterator[Result]:
    """Yield the figures of the local engine on two cores, compared with Spark and with DuckDB (with aims)."""
    for job in ("archive", "compact", "audit", "tables"):
        yield Result(f"{job}, local engine", rows / local[job], "rows/s")
        yield Result(f"{job}, local engine: as fast as Spark", spark[job] / local[job], "x")
        if job in peers:
            peer, aim = peers[job]
            compared = f"{job}, local engine: takes, compared with DuckDB", local[job] / peer, "x"
            yield Result.at_most(*compared, aim)
    yield Result("local engine: most memory", local["memory"], "MiB")


def _jobs(
    running: DaemonProcess, folder: str, cores: int, *more: str, engine: str = "spark"
) -> dict[str, float]:
    url = f"http://127.0.0.1:{running.http}"
    arguments = ("--url", url, "--folder", folder, "--cores", cores, "--engine", engine, *more)
    return part("pipeline_jobs", *arguments, patience=1_200)


def _arrow(running: DaemonProcess, rows: int) -> float:
    import pyarrow as pa

    client = BlockingClient(f"http://127.0.0.1:{running.http}")
    began = time.monotonic()
    with pa.ipc.open_stream(client.stream(CHANGELOG.request(since=0), accept=ARROW)) as stream:
        found = sum(len(batch) for batch in stream)
    assert found == rows, f"{found} rows instead of {rows}"
    client.close()
    return time.monotonic() - began


def _duckdb(folder: Path, rounds: int) -> list[float]:
    """Return the seconds of DuckDB, on two threads, for the work of `compact`, of `audit` and of `tables`."""
    import duckdb

    from synrepl.pipeline.archive.table import ArchiveTable
    from synrepl.pipeline.store import Store

    store = Store(str(folder / "archive"))
    files = [store.uri(path) for path in ArchiveTable(store).files["path"].to_pylist()]
    connection = duckdb.connect()
    connection.execute("SET threads = 2")

    def fold() -> float:
        began = time.monotonic()
        into = folder / "folded.parquet"
        connection.execute(
            "COPY (SELECT stream, key, max_by(row, serial * 1048576 + seq) AS row, max(serial) AS serial"
            f" FROM read_parquet({files}) GROUP BY ALL) TO '{into}' (FORMAT parquet, COMPRESSION zstd)"
        )
        return time.monotonic() - began

    def look() -> float:
        began = time.monotonic()
        for path in files:
            assert len(store.sha256(path.removeprefix(f"{store.path()}/"))) == 64
        connection.execute(
            "SELECT stream, writer, count(*), min(serial), max(serial), sum(serial), sum(seq),"
            f" min(prev_token), max(token) FROM read_parquet({files}) GROUP BY ALL"
        ).fetchall()
        return time.monotonic() - began

    def count() -> float:
        began = time.monotonic()
        for stream, items, key in COUNTED:
            its_files = [path for path in files if f"/stream={stream}/" in path]
            columns = ", ".join(f"row->>'{path}' AS c{number}" for number, path in enumerate(items))
            sums = f"count(*), min(committed_at), max_by(c{len(items) - 1}, serial), max(committed_at)"
            rows = f"SELECT serial, committed_at, {columns} FROM read_parquet({its_files})"
            connection.execute(f"SELECT {key}, {sums} FROM ({rows}) GROUP BY {key}").fetchall()
        return time.monotonic() - began

    return best(rounds, fold, look, count)
