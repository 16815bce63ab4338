"""Backups of real daemons, both killed again and again while facts come: nothing acknowledged is lacking."""

import json
import random
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import BackupContents, Examiner
from synrepl.streams.facts import decode_facts
from tests.processes.channel import eventually
from tests.processes.loading import Asker, drawn_seed, report, size
from tests.processes.replicas import Cluster, Load, Member, Place
from tests.service.processes import ROOT, Process

KILLS: Final = size(8, 100)
PARTS: Final = size(1, 10)
"""Each has a log and a backup of its own, so that the time to verify it stays short."""

RATE: Final = size(50, 1_000)
"""Facts a second, without the time in which the daemon is down."""

SPAN_SECONDS: Final = 0.6
"""The longest time from one kill to the next."""


class Following(Process):
    """``synrepl backup --follow``."""

    def __init__(self, folder: Path, member: Member) -> None:
        super().__init__(
            "-m", "synrepl", "backup", "run", str(folder), "--follow", "--url", member.url, cwd=folder.parent
        )


def command(folder: Path, *words: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", *words, "--json"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def examined(folder: Path) -> BackupContents:
    """What the folder has."""
    return Examiner(BackupFolder(folder)).examine()


def verified(folder: Path) -> dict[str, Any]:
    """What ``synrepl backup verify`` says of a folder that is whole."""
    found: dict[str, Any] = command(folder.parent, "backup", "verify", folder.name)
    assert found["damages"] == found["missing_files"] == []
    return found


def held(member: Member) -> tuple[int, bool]:
    """The serial up to which the daemon knows that the backup has everything, and whether it is there."""
    (backup,) = member.status()["backups"]
    return backup["serial"], backup["is_connected"]


def wait_until_held(member: Member, serial: int) -> None:
    """Until the backup has everything up to this serial."""
    eventually(lambda: held(member)[0] >= serial, member.describe, seconds=60)


def committed_at(member: Member, serial: int) -> float:
    """When the daemon has committed the fact with this serial, in Unix seconds; for ever, if it has none."""
    with Asker(member.url) as asker:
        facts = decode_facts(asker.ask("GET", f"/v1/changelog?since={serial - 1}&limit=1"))
    return facts[0].committed_at_ms / 1000 if facts else inf


@pytest.mark.parametrize("part", range(PARTS))
def test_kills_of_a_backup_and_its_daemon_lose_nothing(tmp_path: Path, part: int) -> None:
    """After each kill `verify` names a serial up to which all is there, no lower than what the daemon knew to
    be there; the rest is recorded by the next run."""
    seed = drawn_seed() + part
    chance = random.Random(seed)
    folder = tmp_path / "backup"
    lacked: list[float] = []
    killed = {"backup": 0, "daemon": 0}
    began = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        load = Load([primary], seed=seed, rate=RATE, most=size(5, 40))
        backup = Following(folder, primary)
        try:
            with load:
                # A copy that was sent is not on the disk yet: the daemon lists the backup once it is.
                eventually(lambda: primary.status()["backups"], primary.describe, seconds=60)
                for _ in range(KILLS):
                    # Half of the kills fall into a start; before the others it has caught up.
                    has_caught_up = chance.random() < 0.5
                    if has_caught_up:
                        wait_until_held(primary, primary.place().serial)
                    time.sleep(chance.uniform(0, SPAN_SECONDS))
                    known, _ = held(primary)
                    is_daemon = chance.random() < 0.3
                    killed_at = time.time()
                    (primary if is_daemon else backup).kill()
                    serial = verified(folder)["serial"]
                    assert serial >= known, seed
                    if is_daemon:
                        primary.start()
                    else:
                        backup = Following(folder, primary)
                    killed["daemon" if is_daemon else "backup"] += 1
                    if has_caught_up:
                        lacked.append(killed_at - committed_at(primary, serial + 1))
                seconds = time.monotonic() - began
            place = cluster.wait_until_same()
            eventually(lambda: held(primary) == (place.serial, True), primary.describe, seconds=60)
        finally:
            backup.kill()
        found = verified(folder)
    restored = command(tmp_path, "restore", "backup", "--database", "sqlite:restored.db")

    assert Place(found["epoch"], found["serial"], found["digest"]) == place, seed
    assert (restored["serial"], restored["digest"]) == (place.serial, place.digest)
    report(
        f"backup: {killed['backup']} kills of it, {killed['daemon']} of the daemon, {place.serial} facts in"
        f" {seconds:.0f} s ({place.serial / seconds:.0f}/s); of {len(lacked)} kills after it had caught up,"
        f" what lacked was {max(0.0, *lacked):.2f} s old at most"
    )
