"""The PostgreSQL that tests start: both kinds of programs, every kind of end, nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import PostgresServer, find_binaries

ROOT = Path(__file__).resolve().parents[2]
BEGIN = (
    "import os; from tests.servers.postgres import PostgresServer;"
    "server = PostgresServer(); server.start();"
    "print(server.pid, server.url.partition('host=')[2], flush=True);"
)


def is_running(pid: int) -> bool:
    """Whether a process is there; a dead one that nobody has asked about does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    except ProcessLookupError:
        return False


def test_a_standby_takes_over_and_the_old_primary_follows() -> None:
    """And back again."""
    with PostgresServer() as first, PostgresServer(primary=first) as second:
        first.execute("CREATE TABLE things (id INTEGER)")
        second.wait_for(first)
        first.stop()
        second.promote()
        second.execute("INSERT INTO things VALUES (1)")
        first.follow(second)
        first.start()
        first.wait_for(second)
        second.stop()
        first.promote()

        assert [(1,)] == first.execute("INSERT INTO things SELECT * FROM things RETURNING id")


@pytest.mark.parametrize("binaries", find_binaries(), ids=lambda path: path.parent.name)
def test_each_postgresql_that_is_there_can_be_used(binaries: Path) -> None:
    """Which one a machine has must not decide which tests run."""
    with PostgresServer(binaries=binaries) as server:
        first, second = server.new_database(), server.new_database()
        with psycopg.connect(first) as database:
            database.execute("CREATE TABLE mine (id INT)")
        with psycopg.connect(second) as database:
            found = database.execute("SELECT to_regclass('mine')").fetchone()
        listens = server.execute("SHOW listen_addresses")

    assert found == (None,)
    assert listens == [("",)]
    assert len(server.url.partition("host=")[2] + "/.s.PGSQL.5432") < 100


def test_the_wheels_programs_work_from_a_place_that_only_we_can_enter() -> None:
    """As an environment below the home directory of root, who has to run them as someone else."""
    wheel = find_binaries()[-1]
    with tempfile.TemporaryDirectory() as closed:  # its mode is 0700
        install = Path(closed, "lib", "pgserver", "pginstall")
        shutil.copytree(wheel.parent, install)
        if (wheel.parents[2] / "pgserver.libs").is_dir():
            shutil.copytree(wheel.parents[2] / "pgserver.libs", install.parents[1] / "pgserver.libs")
        with PostgresServer(binaries=install / "bin") as server:
            assert server.execute("SELECT 1") == [(1,)]


def test_data_outlive_every_kind_of_end() -> None:
    """A killed server recovers from its journal; that is what it is killed for in tests."""
    with PostgresServer() as server:
        server.execute("CREATE TABLE kept (id INT)")
        for number, end in enumerate(
            (server.kill, server.stop, lambda: server.stop("immediate"), server.restart)
        ):
            server.execute(f"INSERT INTO kept VALUES ({number})")
            with psycopg.connect(server.url) as connected:
                pid = connected.info.backend_pid
                end()
                assert not is_running(pid)
            server.start()

        assert server.execute("SELECT id FROM kept ORDER BY id") == [(0,), (1,), (2,), (3,)]


def test_a_durable_server_syncs() -> None:
    """Measurements of anything else would flatter."""
    with PostgresServer(durable=True) as server:
        assert server.execute("SHOW fsync") == [("on",)]


@pytest.mark.parametrize(
    "end",
    ["", "raise ValueError('a test failed')", "os.kill(os.getpid(), 9)"],
    ids=["end", "exception", "kill"],
)
def test_nothing_is_left_when_the_program_ends(end: str) -> None:
    """However it ends: servers that pile up take a machine down slowly."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + end], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    pid, home = done.stdout.split()

    until = time.monotonic() + 20
    while (is_running(int(pid)) or Path(home).exists()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(int(pid))
    assert not Path(home).exists()
    assert done.returncode == {"": 0, "r": 1}.get(end[:1], -signal.SIGKILL)
