"""A million facts archived on an object store by two jobs at once, which are killed at each commit edge."""

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from synrepl.http_api.routes import STATUS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.row_files import map_files, read_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.spark import SparkDriver
from synrepl.pipeline.store import Store
from tests.pipeline.kills import ArchiveProcess
from tests.pipeline.object_stores import CREDENTIALS, s3_bucket
from tests.processes.loading import LONG, report, size
from tests.processes.replicas import fill
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FACTS: Final = size(40_000, 1_000_000)
BATCH_FACTS: Final = size(1_000, 10_000)
STREAMS: Final = ("events", "caches", "receipts", "push_rules")
POINTS: Final = ("data", "request", "answer", "commit")
"""Before the commit: the files are written. During: the request is lost, or its answer. After."""

KILLS: Final = size(8, 20)
SECONDS: Final = 1500.0
"""The time for all jobs, on a slow machine."""

COUNTED: Final = (
    "count(*), count(DISTINCT serial), min(serial), max(serial), CAST(sum(serial * (seq + 1)) AS bigint),"
    " max_by(digest, serial)"
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with facts of one row."""
    (tmp_path / "daemon").mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", FACTS, streams=STREAMS)
    with Daemon(tmp_path / "daemon") as daemon:
        yield daemon


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A new bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_bucket() as location:
        yield Store(location)


LOCAL: Final = "local"
"""The place of a local job; that of a Spark of its own is empty, and others are servers of Spark Connect."""


@pytest.mark.slow
def test_kills_of_two_local_jobs_at_once(daemon: Daemon, store: Store) -> None:
    """Each fact is there once, for every reader of Delta tables; the history has one version a batch."""
    kill_two_jobs(daemon, store, [LOCAL] * (KILLS // 2), [LOCAL] * (KILLS // 2))

    with LocalDriver(threads=2) as driver:
        assert audit(driver, store, url=daemon.url).is_clean


@pytest.mark.spark
@pytest.mark.slow
def test_kills_of_two_jobs_at_once(daemon: Daemon, store: Store, remote: str, spark: "SparkSession") -> None:
    """The same of two jobs on Spark."""
    # A job with a Spark of its own takes longer to start.
    others = [remote] * (KILLS // 2 - 1)
    kill_two_jobs(daemon, store, ["", *others], ["" if LONG else remote, *others])

    check_by_spark(daemon, store, spark)


@pytest.mark.spark
@pytest.mark.slow
def test_kills_of_jobs_of_both_engines_at_once(
    daemon: Daemon, store: Store, remote: str, spark: "SparkSession"
) -> None:
    """The same of a job on Spark and a local one: they race as two of one engine do."""
    kill_two_jobs(daemon, store, [remote] * (KILLS // 2), [LOCAL] * (KILLS // 2))

    check_by_spark(daemon, store, spark)


def kill_two_jobs(daemon: Daemon, store: Store, first: Sequence[str], second: Sequence[str]) -> None:
    """Run two jobs at once, each killed in each of its places, and then to their ends. Check the archive."""
    until = time.monotonic() + SECONDS
    with ThreadPoolExecutor(2) as pool:
        given = (first, 0), (second, 2)
        jobs = [pool.submit(killed, daemon.url, store, places, shift, until) for places, shift in given]
        assert [len(first), len(second)] == [job.result() for job in jobs]
    partly = ArchiveTable(store).end.last_serial
    assert 0 < partly < FACTS
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(finished, daemon.url, store, places[-1], until) for places in (first, second)]
        assert [FACTS] * 2 == [job.result() for job in jobs]

    expected = expected_of(daemon)
    assert expected == by_duckdb(store)
    assert expected == by_polars(store)
    check_history(store)
    report(f"{KILLS} kills up to serial {partly:,}, {len(ArchiveTable(store).batches())} batches")


def expected_of(daemon: Daemon) -> tuple[Any, ...]:
    """What `COUNTED` is of an archive that has each fact of the daemon once."""
    digest = BlockingClient(daemon.url).json(STATUS.request())["digest"]
    return FACTS, FACTS, 1, FACTS, FACTS * (FACTS + 1) // 2, digest


def check_by_spark(daemon: Daemon, store: Store, spark: "SparkSession") -> None:
    """The archive is what Spark reads, too: in tasks, as by itself it needs jars for an object store."""
    driver = SparkDriver(spark)
    rows = map_files(driver, ArchiveTable(store).files, partial(rows_of, store), ROWS)
    (found,) = driver.query(f"SELECT {COUNTED} FROM {{rows}}", rows).read_all().to_pylist()
    assert expected_of(daemon) == (*found.values(),)
    assert audit(spark, store, url=daemon.url).is_clean


def rows_of(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of files (runs in a task)."""
    for batch in batches:
        yield from read_files(store, batch["path"].to_pylist(), ROWS)


def run_in(place: str) -> dict[str, Any]:
    """The arguments of a job in this place."""
    return {"engine": "local"} if place == LOCAL else {"engine": "spark", "remote": place}


def killed(url: str, store: Store, places: Sequence[str], shift: int, until: float) -> int:
    """Run a job in each place, one after the other, and kill it. Gives the number of kills."""
    found = 0
    for number, place in enumerate(places):
        began = time.monotonic()
        point, count = POINTS[(number + shift) % 4], 1 + number % 2
        run = ArchiveProcess(
            url, store.location, batch_facts=BATCH_FACTS, point=point, count=count, **run_in(place)
        )
        try:
            found += run.wait(until - time.monotonic()) == -signal.SIGKILL
        finally:
            run.kill()
        report(f"{point} {count} {time.monotonic() - began:.1f} s: {run.lines}")
        assert not run.is_done, run.lines
    return found


def finished(url: str, store: Store, place: str, until: float) -> int:
    """Run a job to its end. Gives the serial at which it says that the archive ends."""
    run = ArchiveProcess(url, store.location, batch_facts=5 * BATCH_FACTS, **run_in(place))
    try:
        assert run.wait(until - time.monotonic()) == 0, run.lines
    finally:
        run.kill()
    return int(run.lines[-1].removeprefix("done "))


def by_duckdb(store: Store) -> Any:
    """DuckDB has no network here for its extension: delta-rs gives it the files."""
    connection = duckdb.connect()
    table = DeltaTable(store.table_uri, storage_options=store.options)
    connection.register("archive", table.to_pyarrow_dataset())
    return connection.execute(f"SELECT {COUNTED} FROM archive").fetchone()


def by_polars(store: Store) -> Any:
    serial = pl.col("serial")
    frame = pl.scan_delta(store.table_uri, storage_options=store.options)
    return (
        frame.select(
            pl.len(),
            serial.n_unique().alias("facts"),
            serial.min().alias("first"),
            serial.max().alias("last"),
            (serial * (pl.col("seq") + 1)).sum().alias("sum"),
            pl.col("digest").sort_by(serial).last(),
        )
        .collect()
        .row(0)
    )


def check_history(store: Store) -> None:
    """Every version is a batch that continues the one before, or merges files."""
    table = ArchiveTable(store)
    batches = table.batches()
    assert FACTS == sum(one.facts for one in batches) == batches[-1].last_serial
    versions = [one.version for one in batches]
    assert len(set(versions)) == len(versions)
    history = DeltaTable(store.table_uri, storage_options=store.options).history()
    assert list(range(table.version + 1)) == sorted(one["version"] for one in history)
    assert set(versions) == {one["version"] for one in history if "synrepl" in one}
    merges = [one for one in history if "synrepl" not in one]
    assert len(merges) <= 4
