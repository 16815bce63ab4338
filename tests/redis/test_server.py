"""The Redis that tests start: every kind of program, every kind of end, nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import hiredis
import pytest

from tests.servers.redis import RedisServer, SentinelServer, find_redis_servers

ROOT = Path(__file__).resolve().parents[2]
BEGIN = (
    "import os; from tests.servers.redis import RedisServer;"
    "server = RedisServer(); server.start();"
    "print(server.pid, server.socket, flush=True);"
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


@pytest.mark.parametrize("program", find_redis_servers(), ids=lambda path: path.parent.parent.name)
def test_each_redis_that_is_there_can_be_used(program: Path) -> None:
    """Which one a machine has must not decide which tests run."""
    with RedisServer(program=program) as server:
        assert server.command("PUBLISH", "channel", b"1") == 0
        assert server.command("CONFIG", "GET", "save") == [b"save", b""]
        assert server.url == f"redis://127.0.0.1:{server.port}"
        assert len(server.socket) < 100
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"


def test_it_comes_back_where_it_was_after_every_kind_of_end() -> None:
    """Clients that reconnect must find it."""
    with RedisServer() as server:
        for end in (server.stop, server.kill):
            before = (server.port, server.socket)
            pid = server.pid
            assert pid is not None
            end()
            assert (server.pid, is_running(pid)) == (None, False)
            server.start()

            assert (server.port, server.socket) == before
            assert server.command("PING") == b"PONG"


def test_a_paused_server_keeps_connections_and_answers_later() -> None:
    """As one whose machine has stopped."""
    with RedisServer() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            server.pause()
            connection.sendall(b"PING\r\n")
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(100)
            server.go_on()
            connection.settimeout(60)

            assert connection.recv(100) == b"+PONG\r\n"
        server.pause()
        server.stop()


def test_clients_are_listed_and_can_be_cut_off() -> None:
    """By their id, so that a test can cut one connection of several."""
    with RedisServer() as server, socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"CLIENT SETNAME somebody\r\n")
        assert connection.recv(100) == b"+OK\r\n"
        (client,) = server.clients()

        assert client["name"] == "somebody"
        assert server.kill_client(client["id"])
        assert connection.recv(100) == b""
        assert server.clients() == []
        with pytest.raises(hiredis.ReplyError):
            server.command("NO-SUCH-COMMAND")


def test_a_password_is_asked_for_and_is_not_among_the_arguments() -> None:
    """Arguments can be read by everybody on the machine."""
    with RedisServer(password="a very secret one") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100).startswith(b"-NOAUTH")
        if Path("/proc/self").exists():
            assert b"secret" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()

        assert server.command("PING") == b"PONG"


def test_arguments_and_directories_are_taken(tmp_path: Path) -> None:
    """What a test needs beyond the usual; a directory that was given stays."""
    # Its socket would have too long a path in the usual directory of pytest.
    where = Path(os.path.relpath(tmp_path)) if len(str(tmp_path)) > 90 else tmp_path
    with RedisServer(where, arguments=["--maxclients", "7"]) as server:
        assert server.command("CONFIG", "GET", "maxclients") == [b"maxclients", b"7"]
        assert "Ready to accept connections" in server.log
    assert tmp_path.exists()


def test_a_server_that_cannot_start_says_why() -> None:
    """The log is all that there is to go by."""
    with pytest.raises(RuntimeError, match="no-such-setting"):
        RedisServer(arguments=["--no-such-setting", "1"]).start()


def test_a_sentinel_knows_its_master() -> None:
    """Also behind a password of its own."""
    with RedisServer() as master, SentinelServer(master, password="hush") as sentinel:
        assert sentinel.command("SENTINEL", "get-master-addr-by-name", sentinel.service) == [
            b"127.0.0.1",
            str(master.port).encode(),
        ]


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
    pid, path = done.stdout.split()
    home = Path(path).parent

    until = time.monotonic() + 20
    while (is_running(int(pid)) or home.exists()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(int(pid))
    assert not home.exists()
    assert done.returncode == {"": 0, "r": 1}.get(end[:1], -signal.SIGKILL)
