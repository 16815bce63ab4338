"""The jobs as a user runs them: what they say, and with which exit code they end."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
from synrepl.pipeline.commands import jobs
from tests.cli.test_commands import check_light_help, check_places
from tests.processes.replicas import fill
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*words: str) -> Result:
    """``synrepl pipeline``, in this process and with its session."""
    return CliRunner().invoke(main, ["pipeline", *words])


def told(*words: str) -> Any:
    """What it says as JSON; all went well."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[Daemon]:
    """A daemon with some facts, and a Spark that has started."""
    folder = tmp_path_factory.mktemp("daemon")
    fill(folder / "synrepl.db", 600, streams=("receipts", "push_rules"))
    with Daemon(folder) as daemon:
        yield daemon


def test_all_jobs_one_after_the_other(daemon: Daemon, tmp_path: Path) -> None:
    """The day of an operator, in the order of the manual."""
    archive, snapshot, out = (str(tmp_path / name) for name in ("archive", "snapshot", "report"))
    url = ("--url", daemon.url)

    first = told("archive", *url, "--archive", archive, "--batch-facts", "400")
    again = run("archive", *url, "--archive", archive)
    folded = told("compact", "--archive", archive, "--snapshot", snapshot)
    same = run("compact", "--archive", archive, "--snapshot", snapshot)
    audited = told("audit", "--archive", archive, *url)
    drawn = told("report", "--archive", archive, "--out", out)
    (tmp_path / "other").mkdir()
    with Daemon(tmp_path / "other") as other:
        played = told("replay", "--archive", archive, "--url", other.url, "--stream", "push_rules")

    assert (600, 600, 2) == (first["facts"], first["serial"], first["batches"])
    assert "no new facts\n" in again.stdout
    assert 600 == folded["snapshot"]["serial"]
    assert "no new facts since serial 600" in same.stdout
    assert (True, []) == (audited["is_clean"], audited["findings"])
    assert str(Path(out) / "index.html") == drawn["page"]
    assert (300, ["push_rules"]) == (played["facts"], list(played["streams"]))


def test_an_archive_with_something_missing_is_an_exit_code(daemon: Daemon, tmp_path: Path) -> None:
    """And a line for people, which says what, whose, and where."""
    archive = str(tmp_path / "archive")
    told("archive", "--url", daemon.url, "--archive", archive)
    gone = next((tmp_path / "archive").glob("stream=receipts/**/*.parquet"))
    gone.unlink()

    result = run("audit", "--archive", archive)

    assert result.exit_code == 1
    assert "missing-file: receipts master tokens 1 to 300: stream=receipts" in result.stdout
    assert "NOT CLEAN" in result.stdout


def test_mistakes_are_one_line(daemon: Daemon, tmp_path: Path) -> None:
    """No traceback, nothing of Java."""
    archive, taken, in_the_way = (str(tmp_path / name) for name in ("archive", "taken", "in-the-way"))
    (tmp_path / "taken").touch()
    (tmp_path / "in-the-way").mkdir()
    (tmp_path / "in-the-way" / "stream=receipts").touch()
    for words, code, expected in (
        (("archive", "--archive", archive), 2, "Missing option '--url'"),
        (("archive", "--url", "nowhere", "--archive", archive), 1, "is not the address of a daemon"),
        (
            ("archive", "--url", daemon.url, "--archive", archive, "--conf", "x"),
            2,
            "--conf must be KEY=VALUE",
        ),
        (("archive", "--url", daemon.url, "--archive", "nope://x"), 1, "nope://x is not a path or URI"),
        (("archive", "--url", daemon.url, "--archive", taken), 1, f"{taken}: File exists"),
        (("archive", "--url", daemon.url, "--archive", in_the_way), 1, "Not a directory"),
        (("compact", "--archive", archive, "--snapshot", archive), 1, "nothing is archived there"),
        (("audit", "--archive", archive), 1, "nothing is archived there"),
        (("replay", "--archive", archive, "--url", daemon.url), 1, "nothing is archived there"),
        (
            ("archive", "--url", daemon.url, "--archive", archive, "--remote", "sc://127.0.0.1:1"),
            1,
            "cannot connect to",
        ),
    ):
        result = run(*words)

        assert (code, True) == (result.exit_code, expected in result.output), (words, result.output)
        assert "Traceback" not in result.output


def test_an_archive_of_an_empty_daemon_is_none() -> None:
    """It said "the archive ends at serial 0", and the next job that nothing is archived there."""
    done = SimpleNamespace(batches=0, merged=0, serial=0, epoch=1, digest="")

    lines = list(jobs._archive_lines(done))

    assert lines == ["no new facts", "nothing was archived: there is no table yet"]


def test_a_compaction_says_where_its_snapshot_is() -> None:
    """A daemon can start from there; the digest is that of the log."""
    made = SimpleNamespace(keys=2_000, rows=2_100, facts=1_900, serial=600, epoch=3, digest="0f" * 32)

    done = {"snapshot": made, "is_new": True, "read_rows": 9_000, "seconds": 1.5}
    lines = list(jobs._compact_lines(SimpleNamespace(**done, unknown=[])))

    assert lines == [
        "2,000 keys in 2,100 rows of 1,900 facts, from 9,000 rows, 1.5 s",
        "the snapshot is at serial 600 of epoch 3, digest 0f0f0f0f0f0f0f0f",
    ]
    *before, last = jobs._compact_lines(SimpleNamespace(**done, unknown=["packages", "notes"]))
    assert before == lines
    assert last.startswith(
        "left out: the rows of packages, notes, which this release of synrepl does not know"
    )


def test_the_pipeline_counts_bytes_as_the_status_does() -> None:
    """It had MB of its own, of 1,000,000 bytes: a small archive was 0.0 MB."""
    done = SimpleNamespace(
        batches=1, facts=1, rows=1, bytes=2_048, seconds=1.0, merged=0, serial=1, epoch=1, digest="ab"
    )

    first, _ = jobs._archive_lines(done)

    assert first == "archived 1 fact (1 row, 2.0 KiB) in 1 batch, 1.0 s"
    merged = SimpleNamespace(merged=8, made=1, bytes=3 << 20)
    assert [*jobs._optimize_lines(merged)] == ["merged 8 files into 1, 3.0 MiB"]


def test_the_help_of_a_job_imports_little() -> None:
    """As that of each command."""
    check_light_help("pipeline archive")


def test_each_job_is_where_the_table_says() -> None:
    """As each command is."""
    check_places(jobs.pipeline)
