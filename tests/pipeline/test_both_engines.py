"""What one engine began, the other goes on with: archives, snapshots and tables."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from synrepl.http_api.routes import APPEND, DIGESTS
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.replay import replay
from synrepl.pipeline.report.report import report
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.snapshot.snapshot import read_snapshot
from synrepl.pipeline.store import Store
from synrepl.pipeline.tables.declarations import TABLES
from synrepl.pipeline.tables.tables import update_tables
from tests.pipeline import archives
from tests.pipeline.days import Day
from tests.processes.replicas import fill
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS: Final = [("local", "spark", "local"), ("spark", "local", "spark")]
"""Which engine takes which of three parts."""

STREAMS: Final = ("events", "caches", "receipts", "push_rules")


@pytest.fixture
def runners(spark: "SparkSession") -> Iterator[dict[str, Runner]]:
    """Both engines by name."""
    with LocalDriver(threads=2) as driver:
        yield {"local": driver, "spark": spark}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the first 1,500 facts of three parts."""
    (tmp_path / "daemon").mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", 1_500, streams=STREAMS)
    with Daemon(tmp_path / "daemon") as daemon:
        yield daemon


@pytest.mark.parametrize("order", ORDERS)
def test_an_archive_that_the_other_engine_began(
    runners: dict[str, Runner], daemon: Daemon, tmp_path: Path, order: Sequence[str]
) -> None:
    """It equals one that one engine wrote at once: each row, and what its table records of its end."""
    client = BlockingClient(daemon.url)
    stores = {name: Store(str(tmp_path / name)) for name in ("in-turn", "local", "spark")}
    ends = []
    for part, name in enumerate(order):
        if part:
            rows = [[[f"@user{number}:h"], [f"@also{number % 7}:h"]] for number in range(700)]
            body = json.dumps({"facts": rows, "writer": f"writer{part}"}).encode()
            client.json(APPEND.request("push_rules"), body)
        done = archive(runners[name], daemon.url, stores["in-turn"], batch_facts=400)
        assert 0 == archive(runners[order[part - 1]], daemon.url, stores["in-turn"]).facts
        ends.append((done.batches, done.facts, done.serial))
        if part == 1:
            assert optimize(runners[name], stores["in-turn"]).merged > 0
    for name in ("local", "spark"):
        archive(runners[name], daemon.url, stores[name])

    assert [(4, 1_500, 1_500), (2, 700, 2_200), (2, 700, 2_900)] == ends
    found = archives.rows_of_archive(stores["in-turn"].location)
    assert 1_500 + 4 * 700 == len(found)
    digests = client.json(DIGESTS.request(serials=[2_900]))["digests"]
    assert digests["2900"] == ArchiveTable(stores["in-turn"]).end.digest
    for name in ("local", "spark"):
        assert archives.rows_of_archive(stores[name].location) == found
        assert standing(stores[name]) == standing(stores["in-turn"])
        audited = audit(runners[name], stores["in-turn"], url=daemon.url, deep=True)
        assert audited.is_clean, audited.findings


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_every_job_reads_an_archive_whose_log_was_cleaned_up(
    runners: dict[str, Runner], daemon: Daemon, tmp_path: Path, engine: str
) -> None:
    """And gives what it gives of one with all its commits; the tables that a job made are cleaned up, too."""
    runner = runners[engine]
    whole, cleaned = Store(str(tmp_path / "whole")), Store(str(tmp_path / "cleaned"))
    archive(runner, daemon.url, whole, batch_facts=400)
    optimize(runner, whole)
    shutil.copytree(whole.location, cleaned.location)
    archives.clean_up(Path(cleaned.location))
    update_tables(runner, cleaned, str(tmp_path / "cleaned-job" / "tables"))
    for table in (tmp_path / "cleaned-job" / "tables").iterdir():
        archives.clean_up(table)
    late = json.dumps({"facts": [[["@late:h"]]] * 3}).encode()
    BlockingClient(daemon.url).json(APPEND.request("push_rules"), late)
    found: dict[str, list[Any]] = {}
    for store in (whole, cleaned):
        job = tmp_path / f"{Path(store.location).name}-job"
        added = archive(runner, daemon.url, store)
        compact(runner, store, Store(str(job / "snapshot")))
        update_tables(runner, store, str(job / "tables"))
        reported = report(runner, store, job / "report")
        (job / "log").mkdir()
        with Daemon(job / "log") as other:
            replayed = replay(runner, store, other.url, streams=["push_rules"])
        audited = audit(runner, store, deep=True)
        optimize(runner, store)
        ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
        found[store.location] = [
            (added.facts, audited.findings, audited.facts, audited.rows, ArchiveTable(store).end.digest),
            (reported.facts, reported.rows, replayed.facts, replayed.streams),
            (folded(job)[:-4], archives.rows_of_snapshot(job / "snapshot")),
            [rows_of_table(job, name) for name in TABLES],
        ]

    ours, theirs = found.values()
    assert (3, []) == ours[0][:2]
    assert any(ours[3])
    assert ours == theirs


def standing(store: Store) -> tuple[Any, ...]:
    """Where an archive ends, by its table."""
    end = ArchiveTable(store).end
    return end.last_serial, end.epoch, end.digest, end.end, end.history, end.server_name, end.epoch_starts


@pytest.mark.parametrize("order", ORDERS)
def test_a_snapshot_and_tables_that_the_other_engine_began(
    runners: dict[str, Runner], tmp_path: Path, order: Sequence[str]
) -> None:
    """They equal those that one engine made at once, row for row."""
    day = Day(3_000)
    position = Store(str(tmp_path / "archive"))
    third = len(day.facts) // 3
    for part, name in enumerate(order):
        some = day.facts[part * third : (part + 1) * third if part < 2 else None]
        archives.archive(position.location, some, batch_facts=200)
        made = compact(runners[name], position, Store(str(tmp_path / "in-turn" / "snapshot")))
        updated = update_tables(runners[name], position, str(tmp_path / "in-turn" / "tables"))
        assert (True, part == 0) == (made.is_new, made.full)
        assert {(True, part == 0, some[-1].serial)} == {
            (one.is_new, one.full, one.serial) for one in updated.tables
        }
    for name in ("local", "spark"):
        compact(runners[name], position, Store(str(tmp_path / name / "snapshot")))
        update_tables(runners[name], position, str(tmp_path / name / "tables"))

    rows = archives.rows_of_snapshot(tmp_path / "in-turn" / "snapshot")
    assert 0 < len(rows) < len(archives.rows_of_archive(position.location))
    for name in ("local", "spark"):
        assert archives.rows_of_snapshot(tmp_path / name / "snapshot") == rows
        assert folded(tmp_path / name) == folded(tmp_path / "in-turn")
        for table in TABLES:
            table_rows = rows_of_table(tmp_path / name, table)
            assert table_rows
            assert table_rows == rows_of_table(tmp_path / "in-turn", table)


def folded(folder: Path) -> tuple[Any, ...]:
    """What a snapshot says of itself, without its files and times."""
    found = read_snapshot(Store(str(folder / "snapshot")))
    assert found is not None
    place = found.epoch, found.serial, found.digest, found.clock, found.epoch_starts, found.archive_version
    return *place, found.facts, found.rows, found.keys


def rows_of_table(folder: Path, name: str) -> list[dict[str, Any]]:
    """All rows of a table with all columns, in an order of their own."""
    rows = DeltaTable(folder / "tables" / name).to_pyarrow_table().to_pylist()
    return sorted(rows, key=repr)
