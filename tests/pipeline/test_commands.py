"""The jobs as a user runs them: what they say, and with which exit code they end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
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
