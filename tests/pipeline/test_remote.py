"""The jobs on a server of Spark Connect: the same, from a process that has no Java."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.store import Store
from tests.pipeline.clusters import run_python
from tests.processes.replicas import fill
from tests.service.processes import Daemon

SYNREPL = """
import json, sys
from synrepl.cli import main

for words in json.loads(sys.argv[1]):
    main(words, standalone_mode=False)
"""
"""Commands, one after the other: a process for each would spend most of its time on imports."""


def told(remote: str, *jobs: Sequence[str]) -> list[Any]:
    """What these jobs say as JSON, which ended well."""
    commands = [["pipeline", *words, "--remote", remote, "--json"] for words in jobs]
    return [json.loads(line) for line in run_python(SYNREPL, json.dumps(commands)).splitlines()]


def test_all_jobs_on_a_server(remote: str, tmp_path: Path) -> None:
    """Archived batch by batch, and the same again; folded, audited, drawn, and played back."""
    archive, snapshot, out = (str(tmp_path / name) for name in ("archive", "snapshot", "report"))
    for name in ("daemon", "other"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "daemon" / "synrepl.db", 600, streams=("receipts", "push_rules", "caches"))
    with (
        Daemon(tmp_path / "daemon") as daemon,
        Daemon(tmp_path / "other") as other,
    ):
        url, only = ("--url", daemon.url), ("--stream", "push_rules")
        first, again, folded, audited, drawn, played = told(
            remote,
            ("archive", *url, "--archive", archive, "--batch-facts", "400"),
            ("archive", *url, "--archive", archive),
            ("compact", "--archive", archive, "--snapshot", snapshot),
            ("audit", "--archive", archive, *url),
            ("report", "--archive", archive, "--out", out),
            ("replay", "--archive", archive, "--url", other.url, *only),
        )

    assert (600, 2) == (first["facts"], first["batches"])
    assert (0, 600) == (again["facts"], again["serial"])
    assert [400, 200] == [one.facts for one in ArchiveTable(Store(archive)).batches()]
    assert 600 == folded["snapshot"]["serial"]
    assert audited["is_clean"]
    assert 600 == drawn["facts"]
    assert {"push_rules": 200} == played["streams"]
