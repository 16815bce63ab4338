"""Backups and restores as an operator makes them, with real processes; and what followers see of them."""

import json
import os
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from synrepl.base.history import RESTORED_PREFIX
from synrepl.storage.token_floor import MARGIN, TOKENS_PER_MS
from tests.postgres import kept_facts, new_database
from tests.processes.channel import eventually
from tests.processes.replicas import Cluster
from tests.service.processes import ROOT, Daemon, Process


def synrepl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "synrepl", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def answer(folder: Path, *words: str) -> Any:
    """What a command prints as JSON."""
    done = synrepl(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_day_of_disaster(tmp_path: Path) -> None:
    """Back up twice, once over each way; verify; lose all; restore to a serial; go on."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        primary.post("events", 1, 2, 3)
        first = answer(tmp_path, "backup", "backup", "--url", primary.url)
        primary.post("events", 4)
        primary.post("events", 5)
        second = answer(
            tmp_path, "backup", "backup", "--upstream", f"tcp:{primary.daemon.follow}", "--name", "nightly"
        )
        # What it has said at its end may be heard after it has ended.
        primary.wait_for(lambda said: [one["serial"] for one in said["backups"]] == [5], "a whole backup")
        (known,) = primary.status()["backups"]
        facts = primary.facts()
    verified = answer(tmp_path, "backup", "verify", "backup")
    restored = answer(tmp_path, "restore", "backup", "--database", "sqlite:new.db", "--until", "4")
    again = synrepl(tmp_path, "restore", "backup", "--database", "sqlite:new.db")

    assert (first["serial"], second["serial"], verified["serial"]) == (3, 5, 5)
    assert (known["name"], known["serial"]) == ("nightly", 5)
    assert (verified["damages"], verified["cut_at"], verified["digest"]) == ([], "", facts[-1].digest)
    assert (restored["serial"], restored["epoch"], restored["digest"]) == (4, 2, facts[3].digest)
    assert (again.returncode, "new.db has a log already, up to serial 4" in again.stderr) == (1, True)
    state = json.loads((tmp_path / "new.db.state").read_text())
    assert state["log"]["uuid"].startswith(RESTORED_PREFIX)
    with Daemon(tmp_path, options=("--database", "sqlite:new.db")) as daemon:
        forked = synrepl(tmp_path, "backup", "backup", "--url", daemon.url)
    assert (forked.returncode, len(forked.stderr.splitlines())) == (1, 1)
    assert "fork: the histories differ" in forked.stderr


def test_a_file_that_cannot_be_asked_for_is_a_failure(tmp_path: Path) -> None:
    """Facts are backed up all the same; a run that is told where files are has them."""
    data = b"hello\n"
    checksum = sha256(data).hexdigest()
    (tmp_path / "secret").write_text("secret of this test")
    secret = "--secret-file", "secret"
    # A host that is not that of --upstream gets no secret.
    options = *secret, "--advertise", "elsewhere.invalid", "--instance-name", "master"
    with Daemon(tmp_path, options=options) as daemon:
        headers = {"Authorization": "Bearer secret of this test"}
        row = ["create", "media/hello.txt", checksum, len(data)]
        facts = json.dumps({"facts": [[row]], "writer": "master"}).encode()
        for method, path, body in (
            ("PUT", f"files/sha256/{checksum}", data),
            ("POST", "streams/files/facts", facts),
        ):
            urlopen(Request(f"{daemon.url}/v1/{path}", body, headers, method=method)).close()
        asked = synrepl(tmp_path, "backup", "backup", "--upstream", f"tcp:{daemon.follow}", *secret, "--json")
        verified = synrepl(tmp_path, "backup", "verify", "backup")
        later = answer(tmp_path, "backup", "backup", "--url", daemon.url, *secret)

    assert asked.stdout, asked.stderr
    result = json.loads(asked.stdout)
    assert (asked.returncode, result["serial"], result["files_not_asked"]) == (1, 1, 1)
    assert list(result["missing"]) == [checksum]
    assert (verified.returncode, "is missing: media/hello.txt" in verified.stdout) == (1, True)
    assert (later["missing"], later["files_not_asked"]) == ({}, 0)
    assert answer(tmp_path, "backup", "verify", "backup")["missing_files"] == []


def test_a_follower_that_has_seen_lost_tokens_gets_every_new_fact(tmp_path: Path) -> None:
    """On the line protocol it knows tokens alone: those of new facts are above all that it can have seen."""
    tail = ("-m", "synrepl", "tail", "--state", "state", "--stream", "events", "--from", "earliest")
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        primary.post("events", 1)
        primary.post("events", 2)
        answer(tmp_path, "backup", "backup", "--url", primary.url)
        for number in range(3, 9):
            primary.post("events", number)
        with Process(*tail, "--http", primary.url, primary.daemon.follow, cwd=tmp_path) as follower:
            follower.wait_for('"type":"rdata"', 8)
            assert follower.terminate() == 0
        primary.kill()
        for path in primary.folder.glob("synrepl.db*"):
            path.unlink()
        began = int(time.time() * 1000) * TOKENS_PER_MS
        floor = answer(primary.folder, "restore", "../backup", "--database", "sqlite:synrepl.db")["floor"]
        primary.start()
        with Process(*tail, "--http", primary.url, primary.daemon.follow, cwd=tmp_path) as follower:
            follower.wait_for('"type":"connected"')
            for number in range(11, 14):
                primary.post("events", number)
            follower.wait_for('"type":"rdata"', 3)
            lines = [json.loads(line) for line in follower.lines if line.startswith("{")]

    tokens = [line["token"] for line in lines if line["type"] == "rdata"]
    assert tokens == [floor + 1, floor + 2, floor + 3]
    assert floor >= began
    assert any(line["type"] == "error" for line in lines), lines


def test_a_copy_of_a_running_log_begins_an_epoch_or_does_not_start(tmp_path: Path) -> None:
    """Whoever copied the file with cp is told at its start, and what to do."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        for number in range(1, 4):
            primary.post("events", number)
        for ending in ("", "-wal"):
            shutil.copy(f"{primary.database}{ending}", tmp_path / f"copy.db{ending}")
        refused = synrepl(
            tmp_path, "serve", "--database", "sqlite:copy.db", "--http", "tcp:0:interface=127.0.0.1"
        )
        used = synrepl(tmp_path, "restore", "--in-place", "--database", f"sqlite:{primary.database}")
        began = int(time.time() * 1000) * TOKENS_PER_MS
        restored = answer(tmp_path, "restore", "--in-place", "--database", "sqlite:copy.db")
        eventually(lambda: primary.status()["serial"] == 3, primary.describe)

    assert refused.returncode != 0
    assert "copy.db is a copy of a log, made while that was open" in refused.stderr
    assert (used.returncode, " uses " in used.stderr) == (1, True)
    assert (restored["serial"], restored["epoch"]) == (3, 2)
    assert restored["floor"] >= began
    with Daemon(tmp_path, options=("--database", "sqlite:copy.db")):
        pass


def test_a_backup_is_restored_into_postgresql(tmp_path: Path) -> None:
    """It is the same log; a dump of it that was put back begins an epoch, as a file does."""
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        for number in range(1, 6):
            primary.post("events", number)
        answer(tmp_path, "backup", "backup", "--url", primary.url)
        facts = primary.facts()
    url = new_database()

    restored = answer(tmp_path, "restore", "backup", "--database", url, "--until", "4")
    again = synrepl(tmp_path, "restore", "backup", "--database", url)
    in_place = answer(tmp_path, "restore", "--in-place", "--database", url)

    assert kept_facts(url) == facts[:4]
    assert (restored["serial"], restored["epoch"]) == (4, 2)
    assert (again.returncode, "has a log already, up to serial 4" in again.stderr) == (1, True)
    assert (in_place["serial"], in_place["epoch"]) == (4, 3)
    assert in_place["floor"] >= restored["floor"] + MARGIN
