"""The jobs on a server of Spark Connect: the same, from a process that has no Java."""

import json
from pathlib import Path
from typing import Any

from synrepl.pipeline.archive.manifest import manifests
from synrepl.pipeline.store import Store
from tests.pipeline.clusters import connect_server
from tests.processes.replicas import fill
from tests.service.processes import Daemon, Process


def told(remote: str, *words: str, cwd: Path) -> Any:
    """What a job says as JSON, which ended well."""
    with Process("-m", "synrepl", "pipeline", *words, "--remote", remote, "--json", cwd=cwd) as job:
        assert 0 == job.wait(), job.lines
        return json.loads(job.lines[-1])


def test_all_jobs_on_a_server(tmp_path: Path) -> None:
    """Archived batch by batch, and the same again; folded, audited, drawn, and played back."""
    archive, snapshot, out = (str(tmp_path / name) for name in ("archive", "snapshot", "report"))
    for name in ("daemon", "other"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", 600, streams=("receipts", "push_rules", "caches"))
    with (
        Daemon(tmp_path / "daemon") as daemon,
        Daemon(tmp_path / "other") as other,
        connect_server() as remote,
    ):
        url, only = ("--url", daemon.url), ("--stream", "push_rules")
        first = told(remote, "archive", *url, "--archive", archive, "--batch-facts", "400", cwd=tmp_path)
        again = told(remote, "archive", *url, "--archive", archive, cwd=tmp_path)
        folded = told(remote, "compact", "--archive", archive, "--snapshot", snapshot, cwd=tmp_path)
        audited = told(remote, "audit", "--archive", archive, *url, cwd=tmp_path)
        drawn = told(remote, "report", "--archive", archive, "--out", out, cwd=tmp_path)
        played = told(remote, "replay", "--archive", archive, "--url", other.url, *only, cwd=tmp_path)

    assert (600, 2) == (first["facts"], first["batches"])
    assert (0, 600) == (again["facts"], again["serial"])
    assert [400, 200] == [one.facts for one in manifests(Store(archive))]
    assert 600 == folded["snapshot"]["serial"]
    assert audited["is_clean"]
    assert 600 == drawn["facts"]
    assert {"push_rules": 200} == played["streams"]
