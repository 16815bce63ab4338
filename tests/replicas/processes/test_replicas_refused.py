"""What a primary cannot do for a replica, provoked: it stops, or waits, and says why."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes.channel import SECRET, eventually
from tests.processes.loading import Refused, report
from tests.processes.replicas import Cluster, Member, fill


def copy_log(member: Member, to: Path) -> None:
    """What an operator's backup is, of a daemon that is not running."""
    shutil.copyfile(member.database, to)


def restore(member: Member, backup: Path) -> None:
    """Put the backup in its place."""
    for path in (*member.folder.glob("synrepl.db-*"), member.folder / "synrepl.db.state"):
        path.unlink()
    shutil.copyfile(backup, member.database)


def stopped(member: Member) -> Any:
    """Its status, once it has stopped."""
    said = member.status()
    return said if said["state"] == "stopped" else None


def stored(member: Member) -> int:
    """How many facts its database has: a stopped replica serves none of them."""
    with closing(sqlite3.connect(f"file:{member.database}?mode=ro", uri=True)) as database:
        found: int = database.execute("SELECT count(*) FROM facts").fetchone()[0]
        return found


def wait_until_stopped(member: Member) -> dict[str, Any]:
    """Until it has; it must say so everywhere."""
    said: dict[str, Any] = eventually(
        lambda: stopped(member), lambda: f"a replica that stops\n{member.describe()}"
    )
    assert not member.is_ready()
    assert said["upstream"]["state"] == "stopped"
    assert said["errors"][0]["what"].startswith("stopped: ")
    return said


def test_a_primary_that_was_restored_from_an_older_copy_is_not_followed(tmp_path: Path) -> None:
    """Its replicas have the only copy of what came after the backup."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        over_http = cluster.add("over_http", upstream=primary.front_url)
        primary.post("events", *range(1, 20))
        cluster.wait_until_same()
        primary.stop()
        backup = tmp_path / "backup.db"
        copy_log(primary, backup)
        primary.start()
        primary.post("events", *range(20, 40))
        position = cluster.wait_until_same()
        primary.stop()
        restore(primary, backup)
        primary.start()
        for member in (replica, over_http):
            said = wait_until_stopped(member)
            assert said["upstream"]["refusal"]["code"] == "ahead", said["upstream"]
            assert "ahead" in said["errors"][0]["what"]
            assert member.place() == position, "nothing is given up"
            assert stored(member) == position.serial
            with pytest.raises(Refused) as refused:
                member.facts()
            assert (refused.value.status, b'"stopped"' in refused.value.body) == (503, True)
        assert not replica.ask("GET", "/v1/leases")["leases"]

        # Its writing goes on: then it is a fork, which is no better.
        primary.post("receipts", *range(100, 150))
        replica.restart()
        said = wait_until_stopped(replica)
        assert said["upstream"]["refusal"]["code"] == "fork", said["upstream"]

        for member in (replica, over_http):
            member.ask("POST", "/v1/resync", {})
        cluster.wait_until_same()
        for member in (replica, over_http):
            (file,) = member.folder.glob("synrepl.db.only-here-*.ndjson")
            assert len(file.read_text().splitlines()) == 20, file
    report(f"refused, ahead and fork: {time.monotonic() - begun:.1f} s")


def test_a_primary_of_another_log_at_the_same_address_is_not_followed(tmp_path: Path) -> None:
    """As after a wrong restore, or a wrong port."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        primary.post("events", *range(1, 20))
        position = cluster.wait_until_same()
        primary.stop()
        for path in primary.folder.glob("synrepl.db*"):
            if path.is_file():
                path.unlink()
        fill(primary.database, 100)
        primary.start()
        said = wait_until_stopped(replica)
        assert said["upstream"]["refusal"]["code"] == "other_history", said["upstream"]
        assert replica.place() == position
    report(f"refused, other history: {time.monotonic() - begun:.1f} s")


def test_a_replica_without_the_right_secret_is_told_so_and_asks_again(tmp_path: Path) -> None:
    """Nothing is sent to it, and nothing kept for it; once it has the right one it joins."""
    begun = time.monotonic()
    keys, right, wrong, own, ours = (tmp_path / name for name in ("keys", "right", "wrong", "own", "ours"))
    keys.write_text("replica another\n")
    right.write_text(SECRET)
    wrong.write_text("another-one")
    own.write_text("of-the-replica")
    ours.write_text(f"tests {SECRET} all\n")
    for path in (keys, right, wrong, own, ours):
        path.chmod(0o600)
    (tmp_path / "primary").mkdir()
    fill(tmp_path / "primary" / "synrepl.db", 20)
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", "--secret-file", str(right), "--keys-file", str(keys))
        options = ("--secret-file", str(own), "--keys-file", str(ours))
        replica = cluster.add("replica", *options, upstream=primary.front)
        wait_until_refused(replica, "no_rights")
        assert primary.status()["leases"] == []

        guarded = cluster.add("guarded", "--secret-file", str(wrong))
        over_http = cluster.add("over_http", "--secret-file", str(right), upstream=guarded.front_url)
        wait_until_refused(over_http, "no_rights")

        keys.write_text("replica of-the-replica\n")
        primary.restart()
        replica.restart()
        assert cluster.wait_until_same(primary, replica).serial == 20
    report(f"refused, no rights: {time.monotonic() - begun:.1f} s")


def wait_until_refused(member: Member, word: str) -> None:
    """Until it says why it is not served."""
    said = member.wait_for(
        lambda said: said["upstream"]["refusal"] and said["upstream"]["state"] == "refused" and said,
        "a replica that is refused",
    )
    assert said["upstream"]["refusal"]["code"] == word, said["upstream"]
    assert (said["state"], said["serial"]) == ("joining", 0)
