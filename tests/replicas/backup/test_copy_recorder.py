"""A backup in memory: what is recorded, is found again, and goes on."""

import os
import re
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from synrepl.base.access import Right
from synrepl.errors import NotConnected, StorageError
from synrepl.replicas.backup.backup_run import BackupFailed
from synrepl.replicas.backup.copy_recorder import OpenPart
from synrepl.replicas.backup.recorded_conversation import Cut
from synrepl.replicas.described import backup_problem
from synrepl.replicas.wire import native
from synrepl.replication.retention import keys_of
from synrepl.storage.private_files import DiskFull
from tests.replicas.backup.recorders import Recorder, examined, restored
from tests.replicas.clusters import FakeCluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a backup, which is not there yet."""
    return tmp_path / "backup"


def test_a_backup_has_what_the_log_had(folder: Path) -> None:
    """And ends by itself."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40, key="one")

    recorder = Recorder(cluster, folder).finish()

    found = examined(folder)
    assert a.log.position == recorder.log.position
    assert ([], "") == (found.damages, found.cut_at)
    assert [a.log.position] == [one.state.position for one in found.whole]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_next_run_records_only_what_came_since(folder: Path) -> None:
    """It goes on in the same part, which otherwise stays as it was."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40)
    Recorder(cluster, folder).finish()
    first = (folder / "parts" / "1.part").read_bytes()
    cluster.wrote(a, 5)

    Recorder(cluster, folder).finish()

    second = (folder / "parts" / "1.part").read_bytes()
    assert second.startswith(first)
    assert second[len(first) :].count(b'"prev_token"') == 5
    assert a.log.position == examined(folder).whole[-1].state.position


def test_what_follows_is_recorded_as_it_comes(folder: Path) -> None:
    """And acknowledged once it is on the disk."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    recorder = Recorder(cluster, folder, follow=True)
    cluster.pass_(1)

    cluster.wrote(a, 2)
    cluster.pass_(1)

    assert a.log.position == examined(folder).whole[-1].state.position
    (lease,) = a.registry.leases.all()
    assert a.log.head.serial == lease.serial
    recorder.kill()


def test_a_backup_is_no_replica(folder: Path) -> None:
    """It acknowledges nothing that an append waits for, is promised nothing, and named to nobody."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    recorder = Recorder(cluster, folder, follow=True)
    cluster.node("b", "a")
    cluster.pass_(2)

    assert [one["name"] for one in a.registry.status()] == ["b"]
    assert [one.name for one in a.registry.promises.replicas()] == ["b"]
    assert [address for address, _ in a.leases.addresses()] == ["b"]
    (backup,) = a.registry.backups()
    assert (backup["name"], backup["is_connected"], backup["age_seconds"]) == (
        recorder.folder.identity.name,
        True,
        0.0,
    )
    recorder.kill()


@pytest.mark.parametrize("killed", ["nobody", "the backup", "the daemon", "both"])
def test_a_backup_is_listed_once_its_first_copy_is_whole(folder: Path, killed: str) -> None:
    """What was sent to it is not on its disk yet. A kill in the middle leaves nothing to restore."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 50)
    recorder = Recorder(cluster, folder, follow=True)
    listed: list[object] = []
    while not examined(folder).whole and len(listed) < 10_000:
        listed += a.registry.backups()
        cluster.pass_(0.0005, step=0.0005)
        if killed != "nobody" and a.log.leases:
            break
    if killed in ("the backup", "both"):
        recorder.kill()
    if killed in ("the daemon", "both"):
        a.kill()
        cluster.start(a)
        listed += a.registry.backups()
        assert len(a.registry.leases.all()) == 1
    cluster.pass_(10)
    found = [backup["serial"] for backup in a.registry.backups()]

    assert [] == listed
    assert ([a.log.head.serial] if killed in ("nobody", "the daemon") else []) == found
    recorder.kill()


def test_an_absent_backup_grows_old(folder: Path) -> None:
    """Also if nothing new was written since: whoever makes it may be gone."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()
    cluster.pass_(1)
    cluster.clock.advance(3600)

    (backup,) = a.registry.backups()

    assert (backup["is_connected"], backup["serial"]) == (False, 3)
    assert 3600 <= backup["age_seconds"] < 3610


def test_an_epoch_is_recorded(folder: Path) -> None:
    """Of a promotion between two runs."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", "a")
    cluster.wrote(a, 3)
    cluster.pass_(1)
    Recorder(cluster, folder, "a").finish()
    cluster.promote(b)
    cluster.wrote(b, 2)

    recorder = Recorder(cluster, folder, "b").finish()

    assert b.log.position == recorder.log.position
    assert recorder.log.position.epoch == 2
    assert b.log.position == examined(folder).whole[-1].state.position


def test_a_trimmed_log_begins_another_copy(folder: Path) -> None:
    """The first one stays: it has what was trimmed."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 10)
    Recorder(cluster, folder).finish()
    cluster.wrote(a, 10)
    for lease in a.leases.all():
        a.leases.end(lease, "a test")
    cluster.done(Deferred.fromCoroutine(a.log.trim(15, keys_of(a.table), 1000)))

    Recorder(cluster, folder).finish()

    found = examined(folder)
    assert found.damages == []
    assert [one.state.position.serial for one in found.whole] == [10, 20]
    assert [one.number for one in found.whole] == [1, 2]


@pytest.mark.parametrize("past", ["other_history", "fork", "ahead"])
def test_another_past_is_refused_in_one_line(folder: Path, past: str) -> None:
    """Nothing is written then, and the line says what to do."""
    cluster = FakeCluster()
    a = cluster.node("a")
    b = cluster.node("b", None if past == "other_history" else "a")
    cluster.wrote(a, 5)
    cluster.pass_(1)
    b.kill()
    older = a.engine.copy()
    cluster.wrote(a, 5)
    Recorder(cluster, folder).finish()
    had = (folder / "parts" / "1.part").read_bytes()
    a.kill()
    if past == "ahead":
        b.engine, b.upstream = older, None
    cluster.start(b)
    if past == "other_history":
        cluster.wrote(b, 2)
    if past == "fork":
        cluster.promote(b, force=True)

    with pytest.raises(BackupFailed, match=f"{past}: .*; .*new folder"):
        Recorder(cluster, folder, "b").finish(60)

    assert had == (folder / "parts" / "1.part").read_bytes()


def test_a_daemon_that_never_comes_is_not_waited_for(folder: Path) -> None:
    """A timer of the system should see the run fail."""
    cluster = FakeCluster()

    with pytest.raises(NotConnected, match="nothing can be backed up: a cannot be reached"):
        Recorder(cluster, folder, patience=30).finish(60)


def test_a_daemon_that_cannot_read_its_log_is_not_waited_for(folder: Path) -> None:
    """It is reached again and again, and breaks off each time at the same place."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40)
    a.engine.database.connection.execute("UPDATE facts SET rows = CAST('[[1]]' AS BLOB) WHERE serial = 30")

    with pytest.raises(NotConnected, match=r"nothing can be backed up: .*the log cannot be read now"):
        Recorder(cluster, folder, patience=30).finish(90)


def test_a_daemon_of_an_older_release_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would promise appends what nobody can give: a backup cannot be promoted."""
    cluster = FakeCluster()
    a = cluster.node("a")
    monkeypatch.setattr(native, "OWN_CAPABILITIES", native.CAPABILITIES)

    with pytest.raises(BackupFailed, match="version: the daemon is of an older release"):
        Recorder(cluster, folder).finish()

    assert a.leases.all() == []


def test_one_folder_has_one_backup(folder: Path) -> None:
    """The second is told who has it."""
    cluster = FakeCluster()
    cluster.node("a")
    recorder = Recorder(cluster, folder, follow=True)

    with pytest.raises(StorageError, match=r"process \d+ uses .*/backup/lock"):
        Recorder(cluster, folder)

    recorder.kill()


def test_a_restored_log_is_the_log(folder: Path) -> None:
    """Facts, positions, receipts, and the name of the history; then an epoch begins."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40, key="one")
    Recorder(cluster, folder).finish()

    found = restored(folder, cluster)

    ours, theirs = found.engine.head(), a.engine.head()
    assert a.engine.facts == found.engine.facts
    assert a.engine.receipts_by_key == found.engine.receipts_by_key
    assert (theirs.positions, theirs.serial, theirs.digest) == (ours.positions, ours.serial, ours.digest)
    assert (a.log.history, "hs") == (found.log.history, found.result.server_name)
    assert [one.why for one in ours.epoch_starts] == ["restored"]
    assert found.log.head.epoch == 2


def test_a_full_disk_stops_nothing_for_good(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written half is written again once there is room; nothing is acknowledged before."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    recorder = Recorder(cluster, folder, follow=True)
    cluster.pass_(1)
    write = OpenPart.write
    fails = [True]

    def full(part: OpenPart, data: bytes) -> None:
        if fails[0]:
            write(part, data[: len(data) // 2])
            raise DiskFull(op="write", why="the disk is full", retryable=True)
        write(part, data)

    monkeypatch.setattr(OpenPart, "write", full)
    cluster.wrote(a, 5)
    cluster.pass_(3)
    (lease,) = a.leases.all()
    found = examined(folder)
    fails[0] = False
    cluster.pass_(30)

    assert (lease.serial, found.whole[-1].state.position.serial, found.damages) == (3, 3, [])
    assert found.cut_at
    assert examined(folder).whole[-1].state.position == a.log.position
    recorder.kill()


def test_a_copy_that_was_cut_off_goes_on(folder: Path) -> None:
    """Facts of the snapshot that are in the folder are not sent again."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 40)
    recorder = Recorder(cluster, folder)
    while not (folder / "parts" / "1.part").exists() or recorder.log._staged is None:
        cluster.pass_(0.001, step=0.001)
    recorder.kill()
    assert examined(folder).whole == []

    Recorder(cluster, folder).finish()

    found = examined(folder)
    assert [(one.number, one.state.position) for one in found.whole] == [(1, a.log.position)]


def test_issued_keys_are_recorded_and_restored(folder: Path) -> None:
    """As a replica has them: their salted digests, and which are revoked."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="shared")
    cluster.wrote(a, 3)
    Recorder(cluster, folder, secret="shared").finish()
    made, _ = cluster.done(Deferred.fromCoroutine(a.registry.issued.add("laptop", [Right.READ])))
    cluster.wrote(a, 3)

    Recorder(cluster, folder, secret="shared").finish()

    found = restored(folder, cluster, cut=Cut(serial=3))
    assert a.log.notes.get("keys") == found.log.notes.get("keys")
    assert made.name == "laptop"


@pytest.mark.parametrize(
    ("ages", "most", "words"),
    [
        ([], None, ""),
        ([50.0], None, ""),
        ([50.0, 5.0], 10.0, ""),
        ([50.0, 15.0], 10.0, "the newest backup is 15 s old, and should be at most 10 s: run synrepl backup"),
        ([], 200.0, ""),
        ([], 10.0, "no backup was made for 1 min 40 s, and should be at most 10 s"),
    ],
)
def test_an_old_backup_is_a_problem(ages: list[float], most: float | None, words: str) -> None:
    """If the operator has said from when on; a daemon that has just started has time for the first."""
    found = backup_problem([{"age_seconds": age} for age in ages], most, now=1100.0, began=1000.0)

    assert found.startswith(words)
    assert bool(found) is bool(words)


def test_a_mark_comes_after_what_it_counts_is_on_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was acknowledged is behind the sync of its mark: a power cut takes nothing back."""
    happened: list[str] = []
    write = OpenPart.write

    def note_write(part: OpenPart, data: bytes) -> None:
        happened.append(data.split(b" ", 2)[1].decode())
        write(part, data)

    monkeypatch.setattr(OpenPart, "write", note_write)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: happened.append("sync"))
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    Recorder(cluster, folder).finish()

    kinds = happened[::4]
    assert happened == [step for kind in kinds for step in (kind, "sync", "mark", "sync")]
    assert kinds[0] == "head"
    assert {"facts", "snapshot", "note"} < set(kinds)


def test_notes_and_facts_at_the_same_time_are_recorded_one_after_the_other(folder: Path) -> None:
    """Keys arrive while facts do: a mark must not take back the position of the one before it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    recorder = Recorder(cluster, folder, follow=True, disk_seconds=0.05)
    cluster.pass_(2)
    for number in range(5):
        Deferred.fromCoroutine(recorder.log.note(floor=str(number)))
        cluster.append(a, 2)
        Deferred.fromCoroutine(recorder.log.note(peers=f"[{number}]"))
        cluster.pass_(0.3)
    cluster.pass_(3)

    state = examined(folder).whole[-1].state
    assert state.position == recorder.log.position == a.log.position
    assert state.notes["peers"] == recorder.log.state.notes["peers"] == "[4]"
    serials = re.findall(rb'\{"serial":(\d+)', (folder / "parts" / "1.part").read_bytes())
    assert list(map(int, serials)) == list(range(1, 14))
    recorder.kill()
