"""Backups of real daemons, both killed again and again while facts come: nothing acknowledged is lacking."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import BackupContents, Examiner
from tests.processes.channel import eventually
from tests.processes.loading import LONG, drawn_seed, report, size
from tests.processes.replicas import Cluster, Load, Member
from tests.service.processes import ROOT, Process

KILLS: Final = size(8, 1_000)
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


def held(member: Member) -> tuple[int, bool]:
    """The serial up to which the daemon knows that the backup has everything, and whether it is there."""
    (backup,) = member.status()["backups"]
    return backup["serial"], backup["is_connected"]


def wait_until_held(member: Member, serial: int) -> None:
    """Until the backup has everything up to this serial."""
    eventually(lambda: held(member)[0] >= serial, member.describe, seconds=60)


def test_kills_of_a_backup_and_its_daemon_lose_nothing(tmp_path: Path) -> None:
    """What is acknowledged to the daemon is in the folder, whole; the rest is recorded by the next run."""
    seed = drawn_seed()
    chance = random.Random(seed)
    folder = tmp_path / "backup"
    kills: list[tuple[float, int]] = []
    began = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        load = Load([primary], seed=seed, pause=0.01 if not LONG else 0.002, most=size(5, 20))
        backup = Following(folder, primary)
        try:
            with load:
                # A copy that was sent is not on the disk yet; what is acknowledged later is.
                eventually(lambda: examined(folder).whole, primary.describe, seconds=60)
                for _ in range(KILLS):
                    # Half of the kills fall into a start; before the others it has caught up.
                    has_caught_up = chance.random() < 0.5
                    if has_caught_up:
                        head = primary.place().serial
                        wait_until_held(primary, head)
                    time.sleep(chance.uniform(0, SPAN_SECONDS))
                    if chance.random() < 0.3:
                        primary.kill()
                        primary.start()
                        continue
                    known, _ = held(primary)
                    killed_at = time.time()
                    backup.kill()
                    found = examined(folder)
                    state = found.whole[-1].state
                    assert found.damages == [], (seed, found)
                    assert state.position.serial >= known, seed
                    if has_caught_up:
                        kills.append((killed_at, state.position.serial))
                    backup = Following(folder, primary)
            place = primary.place()
            eventually(lambda: held(primary) == (place.serial, True), primary.describe, seconds=60)
        finally:
            backup.kill()
        position = examined(folder).whole[-1].state.position
        assert (position.epoch, position.serial, position.digest) == place, seed
        facts = primary.facts()
        seconds = time.monotonic() - began
    restored = command(tmp_path, "restore", "backup", "--database", "sqlite:restored.db")

    assert (restored["serial"], restored["digest"]) == (facts[-1].serial, facts[-1].digest)
    lacked = [
        at - fact.committed_at_ms / 1000
        for at, serial in kills
        for fact in facts[serial : serial + 1]
        if fact.committed_at_ms < at * 1000
    ]
    report(
        f"backup: {KILLS} kills, {len(facts)} facts in {seconds:.0f} s; one that had caught up lacked no fact"
        f" older than {max(lacked, default=0.0):.2f} s when it was killed"
    )
