"""The daemon as a process: how it starts, how it fails to, how it stops."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger

from synrepl.storage.databases import engine_for
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from tests.service.processes import TWISTD, Daemon, Process

ANYWHERE = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")


def test_a_second_daemon_on_one_log_ends_with_one_clear_line(tmp_path: Path) -> None:
    """Two writers would tear the log apart."""
    with Daemon(tmp_path), Process(*TWISTD, *ANYWHERE, cwd=tmp_path) as second:
        assert second.wait() == 1

        told = [line for line in second.lines if "cannot start" in line]
        assert len(told) == 1
        assert "uses synrepl.db.lock (stop it, or choose another path)" in told[0]
        assert not any("Traceback" in line or "Unhandled" in line for line in second.lines)


def test_a_busy_port_is_reported(tmp_path: Path) -> None:
    """With its endpoint, and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with Process(*TWISTD, "--listen", f"tcp:{port}:interface=127.0.0.1", cwd=tmp_path) as daemon:
            assert daemon.wait() == 1

    said = f"cannot start: cannot listen at tcp:{port}:interface=127.0.0.1: Address already in use"
    assert any(line.endswith(said) for line in daemon.lines)
    assert not any("Traceback" in line for line in daemon.lines)


def test_a_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    """It is not made: it may be a disk that is not there yet."""
    with Process(*TWISTD, *ANYWHERE, "--database", "sqlite:no/such/log.db", cwd=tmp_path) as daemon:
        assert daemon.wait() == 1

    assert any("cannot start" in line and "there is no directory no/such" in line for line in daemon.lines)
    assert not any("Traceback" in line for line in daemon.lines)


def test_a_database_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    """It stayed there, without a log and without ports: its parts were closed before they were made."""
    with Process(*TWISTD, *ANYWHERE, "--database", "postgresql://u@h/d?nonsense=1", cwd=tmp_path) as daemon:
        assert daemon.wait() == 1

    assert any("cannot start: cannot open the log: " in line for line in daemon.lines)
    assert not any("Traceback" in line for line in daemon.lines)


def test_listening_for_everyone_is_refused(tmp_path: Path) -> None:
    """Before anything is opened."""
    with Process(*TWISTD, "--listen", "tcp:9092", cwd=tmp_path) as daemon:
        assert daemon.wait() == 1

    assert "use tcp:9092:interface=127.0.0.1, or set --insecure" in daemon.lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_followers_are_told_when_it_shuts_down(tmp_path: Path) -> None:
    """So that they know that nothing is wrong with them."""
    with Daemon(tmp_path) as daemon:
        host, port = daemon.follow.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as follower:
            follower.sendall(b"NAME test\nREPLICATE ALL NOW\n")
            read = follower.makefile("rb")
            while not read.readline().startswith(b"POSITION"):
                pass
            daemon.terminate()
            last = read.readlines()[-1]

    assert last == b"ERROR server shutting down\n"


def test_what_was_stored_is_there_after_a_kill(tmp_path: Path) -> None:
    """The serial goes on where it was."""
    import http.client

    with Daemon(tmp_path) as daemon:
        connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/streams/push_rules/facts", b'{"facts": [[["@a:b"]]]}')
        assert connection.getresponse().status == 200
        connection.close()

    with Daemon(tmp_path) as daemon:
        daemon.wait_for("serial 1")


def test_rows_that_an_earlier_release_took_are_read_however_deep_they_are_nested(tmp_path: Path) -> None:
    """New ones are refused; those of a log are read below more calls than there were where they came in."""
    deep = b'["!r:hs","m.read","@a:hs","$e",null,{"a":%b1%b}]' % (b"[" * 980, b"]" * 980)
    clock, thread = Clock(), ImmediateThread()
    log = Log(
        engine_for(f"sqlite:{tmp_path}/synrepl.db"), thread, thread, clock, ephemeral=(), logger=Logger()
    )

    async def fill() -> None:
        await log.start()
        await log.append("receipts", "master", [b"[%b]" % deep])
        await log.stop()

    Deferred.fromCoroutine(fill()).addErrback(lambda failure: failure.raiseException())

    with Daemon(tmp_path) as daemon:
        for path in (
            "/v1/changelog",
            "/_synapse/replication/get_repl_stream_updates/receipts/x?from_token=0&upto_token=1",
        ):
            with urllib.request.urlopen(daemon.url + path, timeout=60) as answer:
                assert deep in answer.read()


@pytest.mark.story
def test_twist_runs_it_too(tmp_path: Path) -> None:
    """The newer of the two programs."""
    with Process("-m", "twisted", "--log-format", "text", "synrepl", *ANYWHERE, cwd=tmp_path) as daemon:
        daemon.wait_for("ready:")
        daemon.terminate()

    assert not any("Traceback" in line for line in daemon.lines)


def test_the_federation_stream_can_be_left_out(tmp_path: Path) -> None:
    """Its followers are not told a position; a request for it is one for an unknown stream."""
    with Daemon(tmp_path, options=("--no-federation",)) as daemon:
        host, _, port = daemon.follow.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as follower:
            follower.sendall(b"REPLICATE\n")
            heard = b""
            while b"POSITION to_device" not in heard:
                heard += follower.recv(65_536)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{daemon.url}/v1/streams/federation/allocated", timeout=60)

    assert b"POSITION federation" not in heard
