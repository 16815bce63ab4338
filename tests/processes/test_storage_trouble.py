"""Where the log cannot be kept: told in one clear line, with an exit code, and nothing is lost."""

import json
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from synrepl.streams.digest import EMPTY, verify
from tests.processes.loading import Asker, Refused, changelog, ids_of, made_rows, report
from tests.service.processes import TWISTD, Daemon, Process

ANYWHERE = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "


def cannot_start(folder: Path, *program: str) -> str:
    """Run a daemon that must not start; gives the one line that says why."""
    with Process(*program, *ANYWHERE, cwd=folder) as daemon:
        code = daemon.wait()
    assert code == 1, daemon.lines
    assert not any("Traceback" in line or "Unhandled" in line for line in daemon.lines), daemon.lines
    told = [line for line in daemon.lines if "cannot start" in line]
    assert len(told) == 1, daemon.lines
    return told[0]


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """It may be the only copy of something else."""
    path = tmp_path / "synrepl.db"
    path.write_bytes(b"this is my thesis\n" * 1000)

    told = cannot_start(tmp_path, *TWISTD)

    assert "file is not a database (this file is no SQLite database; choose another one)" in told
    assert path.read_bytes() == b"this is my thesis\n" * 1000
    assert {one.name for one in tmp_path.iterdir()} == {"synrepl.db", "synrepl.db.lock"}


def test_a_changed_history_is_not_gone_on_with(tmp_path: Path) -> None:
    """Followers would be told two stories."""
    path = tmp_path / "synrepl.db"
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        asker.post("to_device", [made_rows("to_device", one) for one in range(1, 6)])
        daemon.terminate()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE facts SET rows = CAST('[[\"@m:a\"]]' AS BLOB) WHERE serial = 3")

    told = cannot_start(tmp_path, *TWISTD)

    assert "serial 3 is damaged" in told


def test_a_cut_off_database_is_reported(tmp_path: Path) -> None:
    """As after a copy that was not finished."""
    path = tmp_path / "synrepl.db"
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        asker.post("events", [made_rows("events", one, padding=200) for one in range(1, 2000)])
        daemon.terminate()
    path.write_bytes(path.read_bytes()[:40_000])

    told = cannot_start(tmp_path, *TWISTD)

    assert "the file is damaged; restore it, or join again as a replica" in told
    assert path.stat().st_size == 40_000


def test_a_daemon_that_is_there_does_not_suffer_from_a_second_one(tmp_path: Path) -> None:
    """The second is refused before it touches anything."""
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        asker.post("to_device", [made_rows("to_device", 1)])

        told = cannot_start(tmp_path, *TWISTD)

        assert f"process {daemon.pid} uses synrepl.db.lock" in told
        assert asker.post("to_device", [made_rows("to_device", 2)])["first_serial"] == 2
        assert verify(changelog(daemon.url), EMPTY) is None


def test_a_disk_that_is_full_at_the_start_is_reported(tmp_path: Path) -> None:
    """Not found out at the first append."""
    told = cannot_start(tmp_path, TWISTD[0], SMALL_FILES + TWISTD[1], *TWISTD[2:])

    assert "open failed" in told
    # And with room, it starts over what that left behind.
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        assert asker.post("to_device", [made_rows("to_device", 1)])["first_serial"] == 1


@pytest.mark.parametrize("padding", [10, 3000])
def test_a_disk_that_fills_refuses_appends_until_there_is_room(tmp_path: Path, padding: int) -> None:
    """Nothing acknowledged is lost, nothing refused is kept, and nobody needs to restart anything."""
    kept: dict[int, int] = {}
    number = refusals = 0
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:

        def post() -> None:
            nonlocal number
            number += 1
            facts = [made_rows("events", number, padding=padding)]
            kept[number] = asker.post("events", facts, key=str(number))["first_serial"]

        post()
        assert json.loads(asker.ask("GET", "/readyz")) == {"ready": True}
        biggest = max(one.stat().st_size for one in tmp_path.iterdir())
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (biggest + 100_000, resource.RLIM_INFINITY))
        for _ in range(5000):
            try:
                post()
            except Refused as error:
                refusal = error
                break
        else:
            raise AssertionError("the disk did not fill")
        first_refused = number
        for _ in range(3):
            with pytest.raises(Refused):
                post()
            refusals += 1
        with pytest.raises(Refused) as unready:
            asker.ask("GET", "/readyz")
        assert len(list(changelog(daemon.url))) == len(kept)

        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        # What was refused may be asked again with its key, and is kept then.
        number = first_refused - 1
        while len(kept) < first_refused + 10:
            post()
        assert json.loads(asker.ask("GET", "/readyz")) == {"ready": True}
        facts = list(changelog(daemon.url))
        daemon.terminate()
    assert refusal.status == 503
    assert json.loads(refusal.body)["error"] == "storage_error"
    assert unready.value.status == 503
    (reason,) = json.loads(unready.value.body)["reasons"]
    assert "synrepl.db" in reason
    assert {ids_of(fact.rows.decode())[0]: fact.serial for fact in facts} == kept
    assert verify(facts, EMPTY) is None
    with Daemon(tmp_path) as daemon:
        assert list(changelog(daemon.url)) == facts
    report(f"full disk: {len(kept)} kept, refused with {json.loads(refusal.body)['message']!r}")


def test_a_database_that_another_program_holds_is_told_and_waited_for(tmp_path: Path) -> None:
    """As someone's forgotten sqlite3 prompt: appends fail while it is there, and work when it has gone."""
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        asker.post("to_device", [made_rows("to_device", 1)])
        with closing(sqlite3.connect(tmp_path / "synrepl.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Refused) as refused:
                asker.post("to_device", [made_rows("to_device", 2)], key="two")
            with pytest.raises(Refused) as unready:
                asker.ask("GET", "/readyz")
            other.execute("ROLLBACK")

        assert asker.post("to_device", [made_rows("to_device", 2)], key="two")["first_serial"] == 2
        assert json.loads(asker.ask("GET", "/readyz")) == {"ready": True}
    assert (refused.value.status, unready.value.status) == (503, 503)
    assert "another program holds the database; stop it" in json.loads(refused.value.body)["message"]
