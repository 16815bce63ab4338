"""What people and disks do to a log behind a daemon's back: refused or unready, with the way out said."""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from synrepl.storage.checked_rows import FACT_COLUMNS
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from tests.processes.channel import eventually, status
from tests.processes.loading import Asker, Refused, changelog, made_rows
from tests.processes.replicas import fill
from tests.processes.test_storage_trouble import cannot_start
from tests.service.processes import TWISTD, Daemon

SOON_SECONDS = 15.0
"""So soon an operator must be told."""

PAGE_BYTES = 4096


def post(daemon: Daemon, *numbers: int) -> dict[str, Any]:
    with Asker(daemon.url) as asker:
        return asker.post("to_device", [made_rows("to_device", number) for number in numbers])


def refused(work: Callable[[], object]) -> tuple[int, str]:
    """The status of an answer that is an error, and what it says."""
    with pytest.raises(Refused) as caught:
        work()
    return caught.value.status, caught.value.body.decode()


def reasons(daemon: Daemon) -> list[str]:
    """Why it is not ready; none if it is."""
    try:
        with Asker(daemon.url) as asker:
            asker.ask("GET", "/readyz")
    except Refused as error:
        found: list[str] = json.loads(error.body)["reasons"]
        return found
    return []


def wait_until_unready(daemon: Daemon) -> str:
    """Until it says that it is not; gives the one reason, which is in its status as well."""
    (reason,) = eventually(lambda: reasons(daemon), "an unready daemon", seconds=SOON_SECONDS)
    said = status(daemon.url)
    assert said["state"] == "failing"
    assert said["errors"][0]["what"] == reason
    return str(reason)


def wait_for_serial(daemon: Daemon, serial: int) -> None:
    eventually(lambda: status(daemon.url)["serial"] == serial, "all facts")


def check_no_traceback(daemon: Daemon) -> None:
    assert not any("Traceback" in line or "Unhandled" in line for line in daemon.lines), daemon.lines


def cannot_open(folder: Path, database: object = "synrepl.db", *options: str) -> str:
    return cannot_start(folder, *TWISTD, "--database", f"sqlite:{database}", *options)


def whole(daemon: Daemon, count: int) -> None:
    """All of these facts are there, in one history."""
    facts = list(changelog(daemon.url))
    assert verify(facts, EMPTY) is None
    assert len(facts) == count


def test_a_symbolic_link_is_no_second_log(tmp_path: Path) -> None:
    """Two daemons would each acknowledge facts that followers of the other one never see."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / "synrepl.db")
    with Daemon(tmp_path) as daemon:
        post(daemon, 1, 2)

        told = cannot_open(tmp_path / "other", "link.db")
        assert (
            f"process {daemon.pid} uses {tmp_path}/synrepl.db.lock (stop it, or choose another path)" in told
        )
        # Somebody who removes the lock file does not get any further.
        (tmp_path / "synrepl.db.lock").unlink()
        told = cannot_open(tmp_path / "other", "link.db")
        assert f"another process has opened {tmp_path}/synrepl.db, perhaps by another path" in told

        assert post(daemon, 3)["first_serial"] == 3
        assert reasons(daemon) == []
        daemon.terminate()
    with Daemon(tmp_path / "other", options=("--database", "sqlite:link.db")) as daemon:
        whole(daemon, 3)


def test_a_hard_link_is_refused(tmp_path: Path) -> None:
    """It has a write-ahead log of its own, so that the second daemon begins at serial 0."""
    with Daemon(tmp_path) as daemon:
        post(daemon, 1, 2)
        (tmp_path / "hard.db").hardlink_to(tmp_path / "synrepl.db")

        told = cannot_open(tmp_path, "hard.db")

        assert "hard.db is one file with 2 names (hard links)" in told
        assert f"keep one of the names: find / -xdev -samefile {tmp_path}/hard.db lists them" in told
        assert post(daemon, 3)["first_serial"] == 3
        whole(daemon, 3)


def test_a_daemon_that_finds_anothers_facts_in_its_log_writes_no_more(tmp_path: Path) -> None:
    """As of an older release, which locks nothing but a name."""
    with Daemon(tmp_path) as daemon:
        post(daemon, 1, 2)
        with closing(sqlite3.connect(tmp_path / "synrepl.db")) as other, other:
            other.execute(
                f"INSERT INTO facts ({FACT_COLUMNS})"
                " SELECT 3, epoch, stream, writer, token, 3, rows, committed_at_ms, digest"
                " FROM facts WHERE serial = 2"
            )

        for _ in range(2):
            code, body = refused(lambda: post(daemon, 3))
            assert code == 503
            assert "another process writes to this log: it ends at serial 3 (digest " in body
            assert "stop it, then restart this daemon" in body
        assert "another process writes to this log" in wait_until_unready(daemon)
        check_no_traceback(daemon)


def test_a_deleted_log_takes_no_facts(tmp_path: Path) -> None:
    """They would be gone with the process; nor may a restart begin anew without a word."""
    with Daemon(tmp_path) as daemon:
        post(daemon, *range(1, 11))
        (tmp_path / "synrepl.db").unlink()

        reason = wait_until_unready(daemon)
        assert "synrepl.db was deleted or replaced while the log was open" in reason
        assert "stop the daemon, then restore the log from a copy, or join again as a replica" in reason
        code, body = refused(lambda: post(daemon, 11))
        assert (code, "was deleted or replaced" in body) == (503, True)
        check_no_traceback(daemon)
        daemon.terminate()

    told = cannot_open(tmp_path)
    assert "holds nothing, but synrepl.db.state says that the log had reached serial " in told
    assert "remove synrepl.db.state" in told
    assert not (tmp_path / "synrepl.db").exists()


def test_no_append_to_a_deleted_log_is_acknowledged(tmp_path: Path) -> None:
    """However soon it comes."""
    with Daemon(tmp_path) as daemon:
        post(daemon, 1)
        (tmp_path / "synrepl.db").unlink()

        code, body = refused(lambda: post(daemon, 2))

        assert (code, "was deleted or replaced" in body) == (503, True)


def test_a_write_ahead_log_that_is_removed_after_a_kill_is_missed(tmp_path: Path) -> None:
    """All the newest facts are in it: the daemon would begin at serial 0."""
    with Daemon(tmp_path) as daemon:
        post(daemon, *range(1, 301))
        daemon.kill()
    kept = (tmp_path / "synrepl.db-wal").rename(tmp_path / "kept")

    told = cannot_open(tmp_path)

    # Whether the state was recorded since the start, or not yet.
    assert "synrepl.db-wal as they were" in told or "synrepl.db-wal is missing, with facts" in told
    kept.rename(tmp_path / "synrepl.db-wal")
    with Daemon(tmp_path) as daemon:
        whole(daemon, 300)


@pytest.mark.story
def test_flipped_bytes_in_the_middle_make_it_unready(tmp_path: Path) -> None:
    """The end is good, so that it starts, and appends work; nobody can read what is before."""
    path = tmp_path / "synrepl.db"
    fill(path, 20_000)
    data = bytearray(path.read_bytes())
    page = data.index(b"~9000~") // PAGE_BYTES * PAGE_BYTES
    data[page : page + 16] = bytes(255 - octet for octet in data[page : page + 16])
    path.write_bytes(data)
    with Daemon(tmp_path) as daemon:
        with Asker(daemon.url) as asker:
            assert refused(lambda: asker.ask("GET", "/v1/changelog?since=8000"))[0] >= 500

        reason = wait_until_unready(daemon)

        assert "database disk image is malformed" in reason
        assert "the file is damaged; restore it, or join again as a replica" in reason
        check_no_traceback(daemon)
        # It stays so: reading another page proves nothing.
        assert post(daemon, 1)["first_serial"] == 20_001
        assert wait_until_unready(daemon) == reason
        daemon.kill()


def test_a_log_of_another_homeserver_is_refused(tmp_path: Path) -> None:
    """Also a replica's, however it was joined."""
    names = ("primary", "native", "http")
    for name in names:
        (tmp_path / name).mkdir()
    named = ("--server-name", "example.org")
    with Daemon(tmp_path / "primary", options=named) as primary:
        post(primary, 1, 2, 3)
        upstreams = {"native": f"tcp:{primary.follow}", "http": primary.url}
        for name, upstream in upstreams.items():
            with Daemon(tmp_path / name, options=(*named, "--upstream", upstream)) as replica:
                wait_for_serial(replica, 3)
                replica.terminate()
        primary.terminate()

    for name in names:
        told = cannot_open(tmp_path / name, "synrepl.db", "--server-name", "localhost")
        assert "this log belongs to example.org, not to localhost (use --server-name example.org" in told
        told = cannot_open(tmp_path / name, "synrepl.db", "--server-name", "other.org")
        assert "this log belongs to example.org, not to other.org (use --server-name example.org" in told
    with Daemon(tmp_path / "primary", options=named) as primary:
        whole(primary, 3)


def copy_the_log(state_dir: Path) -> None:
    """A copy of a running daemon's log, beside it, as the manual makes one."""
    with (
        closing(sqlite3.connect(state_dir / "synrepl.db")) as source,
        closing(sqlite3.connect(state_dir / "copy.db")) as copy,
    ):
        source.backup(copy)


def test_an_older_copy_in_the_place_of_the_log_is_refused_until_it_is_meant(tmp_path: Path) -> None:
    """The manual's way to restore one says so, and works."""
    with Daemon(tmp_path) as daemon:
        post(daemon, 1, 2)
        copy_the_log(tmp_path)
        post(daemon, *range(3, 11))
        daemon.terminate()
    shutil.copy(tmp_path / "copy.db", tmp_path / "synrepl.db")

    told = cannot_open(tmp_path)

    assert "synrepl.db holds serial 2 in epoch 1 after 1 starts" in told
    assert "synrepl.db.state says that the log had reached serial 10 in epoch 1 after 1 starts" in told
    assert "replaced the log on purpose, remove synrepl.db.state" in told
    (tmp_path / "synrepl.db.state").unlink()
    assert "synrepl.db was open when it was last written, and" in cannot_open(tmp_path)
    # As `synrepl restore --in-place` does.
    meant = SQLEngine(SQLiteDatabase(tmp_path / "synrepl.db"))
    meant.database.is_put_back = True
    meant.open()
    meant.database.is_put_back = False
    meant.close()
    with Daemon(tmp_path) as daemon:
        whole(daemon, 2)


def test_a_copy_put_in_the_place_of_an_open_log_is_noticed(tmp_path: Path) -> None:
    """A restore while the daemon runs restores nothing, and loses what is written meanwhile."""
    with Daemon(tmp_path) as daemon:
        post(daemon, 1, 2)
        copy_the_log(tmp_path)
        (tmp_path / "copy.db").replace(tmp_path / "synrepl.db")

        assert "synrepl.db was deleted or replaced while the log was open" in wait_until_unready(daemon)
        check_no_traceback(daemon)


def test_files_are_private(tmp_path: Path) -> None:
    """A secret at the doors is of no use where other users can read the file."""
    (tmp_path / "log").mkdir()
    with Daemon(tmp_path / "log") as daemon:
        post(daemon, 1)
        with Asker(daemon.url) as asker:
            data = b"some bytes"
            asker.ask("PUT", f"/v1/files/sha256/{hashlib.sha256(data).hexdigest()}", data)
        folder = tmp_path / "log"
        made = [one for one in folder.rglob("*") if one.name != "twistd.log"]

        modes = {str(one.relative_to(folder)): one.stat().st_mode & 0o077 for one in made}

        assert {
            "synrepl.db",
            "synrepl.db-wal",
            "synrepl.db-shm",
            "synrepl.db.lock",
            "synrepl.db.state",
        } <= set(modes)
        assert set(modes.values()) == {0}, modes


def test_a_link_in_the_place_of_a_file_next_to_the_log(tmp_path: Path) -> None:
    """Its target was overwritten with a process id, and made private."""
    target = tmp_path / "target"
    target.write_text("of another program")
    for ending in (".lock", "-wal", "-shm", ".state"):
        link = tmp_path / f"synrepl.db{ending}"
        link.symlink_to(target)

        assert f"synrepl.db{ending} is a symbolic link (remove it" in cannot_open(tmp_path)

        assert target.read_text() == "of another program"
        link.unlink()
