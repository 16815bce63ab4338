"""A part of a daemon that cannot stop does not keep the others from stopping."""

import signal
import socket
from pathlib import Path

import pytest

from tests.service.processes import Process

BROKEN = """
import sys
from synrepl.daemon.ingest import Ingest
from synrepl.replication.retention import Retention

def broken(self):
    raise RuntimeError(f"{type(self).__name__} is stuck")

Ingest.stop = broken
Retention.stop = broken
"""
TWISTD = (
    "from twisted.scripts.twistd import run; sys.argv[1:1] = ['--nodaemon', '--pidfile=', 'synrepl']; run()"
)
SERVE = "from synrepl.cli.main import main; sys.argv[1:1] = ['serve', '--server-name', 'hs']; main()"
OPTIONS = ("--database", "sqlite:synrepl.db", "--http", "tcp:0:interface=127.0.0.1")


def check_stopped(folder: Path, daemon: Process, code: int) -> None:
    """Each failure is told, the log is closed, and the exit code says that something is wrong."""
    assert daemon.wait() == code
    told = "\n".join(daemon.lines)
    for part in ("Ingest", "Retention"):
        assert f"{part} did not stop" in told
        assert f"RuntimeError: {part} is stuck" in told
    # The last connection to close removes it.
    assert not (folder / "synrepl.db-wal").exists()


@pytest.mark.parametrize(("program", "code"), [(TWISTD, -signal.SIGTERM), (SERVE, 1)])
def test_all_parts_stop_although_two_cannot(program: str, code: int, tmp_path: Path) -> None:
    """The log stayed open: queued appends got neither a commit nor an error, and the exit code was 0."""
    listen = ("--listen", "tcp:0:interface=127.0.0.1")
    with Process("-c", BROKEN + program, *OPTIONS, *listen, cwd=tmp_path) as daemon:
        daemon.wait_for("ready:")
        assert (tmp_path / "synrepl.db-wal").exists()

        daemon.terminate()

        # twistd ends by the signal that stopped it.
        check_stopped(tmp_path, daemon, code)


@pytest.mark.parametrize(("program", "code"), [(TWISTD, 1), (SERVE, 2)])
def test_all_parts_stop_after_a_failed_start(program: str, code: int, tmp_path: Path) -> None:
    """The reason of the failed start stays the one that is told."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        listen = ("--listen", f"tcp:{busy.getsockname()[1]}:interface=127.0.0.1")
        with Process("-c", BROKEN + program, *OPTIONS, *listen, cwd=tmp_path) as daemon:
            daemon.wait()

    assert any("cannot start: cannot listen at" in line for line in daemon.lines)
    if program is TWISTD:
        check_stopped(tmp_path, daemon, code)
    assert daemon.code == code
    assert not (tmp_path / "synrepl.db-wal").exists()
