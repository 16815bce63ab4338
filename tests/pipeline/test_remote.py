"""The jobs on a server of Spark Connect: the same, from a process that has no Java."""

import json
from pathlib import Path
from typing import Any

from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.store import Store
from tests.pipeline.clusters import connect_server, run_python
from tests.processes.replicas import fill
from tests.service.processes import Daemon

SYNREPL = "from synrepl.cli import main; main()"


def told(remote: str, *words: str) -> Any:
    """What a job says as JSON, which ended well."""
    return json.loads(run_python(SYNREPL, "pipeline", *words, "--remote", remote, "--json"))


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
        first = told(remote, "archive", *url, "--archive", archive, "--batch-facts", "400")
        again = told(remote, "archive", *url, "--archive", archive)
        folded = told(remote, "compact", "--archive", archive, "--snapshot", snapshot)
        audited = told(remote, "audit", "--archive", archive, *url)
        drawn = told(remote, "report", "--archive", archive, "--out", out)
        played = told(remote, "replay", "--archive", archive, "--url", other.url, *only)

    assert (600, 2) == (first["facts"], first["batches"])
    assert (0, 600) == (again["facts"], again["serial"])
    assert [400, 200] == [one.facts for one in ArchiveTable(Store(archive)).batches()]
    assert 600 == folded["snapshot"]["serial"]
    assert audited["is_clean"]
    assert 600 == drawn["facts"]
    assert {"push_rules": 200} == played["streams"]
