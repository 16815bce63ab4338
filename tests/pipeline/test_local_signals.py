"""Local jobs that get a signal while tasks are at work: they end soon, and the next run goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from synrepl.cli.command import CliError
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.commands.pipeline_job import job_errors
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.snapshot.snapshot import read_snapshot
from synrepl.pipeline.store import Store
from tests.pipeline.archives import paths_of, rows_of_archive, rows_of_snapshot
from tests.processes.loading import changelog
from tests.processes.replicas import fill
from tests.service.processes import Daemon, Process

IMPATIENT: Final = """
import signal, threading
from synrepl.pipeline.commands.pipeline_job import pipeline_job
from synrepl.pipeline.local import LocalDriver

@pipeline_job(lambda done: [])
def job(runner, progress):
    end_tasks = LocalDriver.end_tasks

    def interrupted(driver):
        signal.raise_signal(signal.SIGINT)
        end_tasks(driver)

    LocalDriver.end_tasks = interrupted
    # As a task of which nobody waits for the result.
    runner._pool.submit(threading.Event().wait)
    signal.raise_signal(signal.SIGINT)

import click
click.command()(job)(["--engine", "local"])
"""
"""A job that gets a signal while a task goes on for ever, and others while it waits for that task."""

PROGRAM: Final = """
import sys, threading

point, count = sys.argv.pop(1), int(sys.argv.pop(1))
seen = 0

def at(now):
    global seen
    if now == point:
        seen += 1
        if seen == count:
            print("at work", flush=True)
            # As a task that retries, or that is in a library.
            threading.Event().wait()

from synrepl.http_api.routes import APPEND_BATCH
from synrepl.pipeline.audit import file_scan
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.store import Store
from synrepl.pipeline.tables import tables
write, digest = Store.write, file_scan.file_digest
send, read_typed = SourceClient.send, tables._read_typed

def told_write(*arguments):
    at("file")
    write(*arguments)

def told_digest(*arguments):
    at("scan")
    return digest(*arguments)

def told_send(client, request, body=None, **more):
    if request.method == "PUT":
        at("upload")
    elif request == APPEND_BATCH.request():
        at("append")
    return send(client, request, body, **more)

def told_read(*arguments):
    for rows in read_typed(*arguments):
        at("rows")
        yield rows

Store.write, file_scan.file_digest = told_write, told_digest
SourceClient.send, tables._read_typed = told_send, told_read
from synrepl.cli import main
main(prog_name="synrepl")
"""
"""The command, in which a task goes on for ever: as it writes, scans, uploads, appends, or reads rows."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 2,000 facts of two streams."""
    folder = tmp_path_factory.mktemp("daemon")
    fill(folder / "synrepl.db", 2_000, streams=("receipts", "push_rules"))
    with Daemon(folder) as daemon:
        yield daemon


@pytest.fixture
def position(daemon: Daemon, tmp_path: Path) -> Path:
    """An archive of them, in five batches."""
    with LocalDriver(threads=2) as driver:
        archive(driver, daemon.url, Store(str(tmp_path / "archive")), batch_facts=400)
    return tmp_path / "archive"


@pytest.fixture(autouse=True)
def between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for the files between tasks, of which none is left."""
    folder = tmp_path / "between"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert [] == [*folder.iterdir()]


def command(folder: Path, *words: str, point: str = "", count: int = 1) -> Process:
    """``synrepl pipeline`` on this machine alone."""
    return Process("-c", PROGRAM, point, str(count), "pipeline", *words, "--engine", "local", cwd=folder)


def end_by(number: signal.Signals, run: Process) -> None:
    """Send a signal to a job at work: it says in one line that it has ended before its end."""
    with run:
        run.wait_for("at work")
        os.kill(run.pid, number)

        assert 1 == run.wait(), run.lines
        assert ["at work", "Error: interrupted before the job ended"] == run.lines


def test_more_signals_do_not_let_it_wait_for_its_tasks(tmp_path: Path) -> None:
    """Each ends a wait for them, and none the time after which the process ends."""
    with Process("-c", IMPATIENT, cwd=tmp_path) as run:
        assert 1 == run.wait(), run.lines
        assert ["Error: interrupted before the job ended"] == run.lines


def finish(run: Process) -> str:
    """Run a job to its end. Gives what it says."""
    with run:
        assert 0 == run.wait(), run.lines
    return "\n".join(run.lines)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_archive_has_whole_batches_then(daemon: Daemon, tmp_path: Path, number: signal.Signals) -> None:
    """Those that were committed; the next run adds the others, each fact once."""
    words = ("archive", "--url", daemon.url, "--archive", "archive", "--batch-facts", "400")
    end_by(number, command(tmp_path, *words, point="file", count=4))

    store = Store(str(tmp_path / "archive"))
    serials = rows_of_archive(store.location)["serial"].to_pylist()
    assert ArchiveTable(store).end.last_serial in (400, 800, 1_200)
    assert [*range(1, ArchiveTable(store).end.last_serial + 1)] == serials
    assert "the archive ends at serial 2000" in finish(command(tmp_path, *words))
    assert [*range(1, 2_001)] == rows_of_archive(store.location)["serial"].to_pylist()
    with LocalDriver(threads=2) as driver:
        found = audit(driver, store, url=daemon.url, deep=True)
    assert found.is_clean, found.findings


@pytest.mark.parametrize("number", SIGNALS)
def test_an_archive_without_merged_files_stays_as_it_is(position: Path, number: signal.Signals) -> None:
    """None of its small files is gone; the next run merges them."""
    before, rows = paths_of(position), rows_of_archive(position)
    words = "optimize", "--archive", "archive"
    end_by(number, command(position.parent, *words, point="file"))

    assert before == paths_of(position)
    assert f"merged {len(before)} files into 2" in finish(command(position.parent, *words))
    assert rows == rows_of_archive(position)


@pytest.mark.parametrize("number", SIGNALS)
def test_there_is_no_snapshot_then(position: Path, number: signal.Signals) -> None:
    """The next run makes it, without the files of the one that was interrupted."""
    words = "compact", "--archive", "archive", "--snapshot", "snapshot"
    end_by(number, command(position.parent, *words, point="file"))

    assert read_snapshot(Store(str(position.parent / "snapshot"))) is None
    assert "the snapshot is at serial 2000" in finish(command(position.parent, *words))
    assert 2_000 == len(rows_of_snapshot(position.parent / "snapshot"))


@pytest.mark.parametrize("number", SIGNALS)
def test_an_audit_says_nothing_then(position: Path, number: signal.Signals) -> None:
    """A part of the findings would look like all of them."""
    words = "audit", "--archive", "archive"
    end_by(number, command(position.parent, *words, point="scan", count=2))

    assert "clean: 2,000 facts" in finish(command(position.parent, *words))


@pytest.mark.parametrize("number", SIGNALS)
def test_tables_are_at_one_end_of_the_archive_or_the_other(position: Path, number: signal.Signals) -> None:
    """While a library waits for rows; the next run brings each to the end."""
    words = "tables", "--archive", "archive", "--out", "tables"
    end_by(number, command(position.parent, *words, point="rows"))

    assert not [*position.parent.glob("tables/receipts/_delta_log/*.json")]
    assert "receipts: 1,000 rows" in finish(command(position.parent, *words))


@pytest.mark.parametrize("number", SIGNALS)
def test_the_error_that_a_library_makes_of_a_signal_is_no_failure(number: signal.Signals) -> None:
    """Of DuckDB or delta-rs, as one that is interrupted in a statement."""

    def job() -> None:
        with job_errors(None):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                raise RuntimeError("Query interrupted") from None

    with pytest.raises(CliError, match=r"^interrupted before the job ended$"):
        job()


# The first append of all has no facts.
@pytest.mark.parametrize(("point", "count", "stores"), [("upload", 3, 0), ("append", 4, 800)])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_replay_goes_on_under_its_name(
    position: Path, number: signal.Signals, point: str, count: int, stores: int
) -> None:
    """The daemon has whole batches in their order, and in the end each fact once."""
    expected = [row.as_py() for row in rows_of_archive(position)["row"]]
    (position.parent / "other").mkdir()
    with Daemon(position.parent / "other") as other:
        words = "replay", "--archive", "archive", "--url", other.url, "--name", "once"
        end_by(number, command(position.parent, *words, point=point, count=count))

        stored = [fact.rows.decode()[1:-1] for fact in changelog(other.url)]
        assert expected[:stores] == stored
        assert "replayed 2,000 facts" in finish(command(position.parent, *words))
        assert expected == [fact.rows.decode()[1:-1] for fact in changelog(other.url)]
