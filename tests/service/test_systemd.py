"""What the daemon tells systemd, on a socket of the test's own, and ports that it inherits."""

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.daemon.process import EXTEND_SECONDS, Systemd
from tests.service.processes import PATIENCE_SECONDS, Process

ANY_PORTS = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The socket of a service manager, and its address as in the environment."""
    path = str(tmp_path / "notify")
    if request.param == "abstract":
        path = f"@synrepl-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path.replace("@", "\0"))
        listening.settimeout(60)
        yield SimpleNamespace(socket=listening, address=path)


def received(manager: Any) -> list[list[str]]:
    """Every message until now."""
    found = []
    manager.socket.setblocking(False)
    try:
        while True:
            found.append(manager.socket.recv(4096).decode().split("\n"))
    except BlockingIOError:
        return found


def made(manager: Any, clock: Clock, **environ: str) -> tuple[Any, Systemd]:
    daemon: Any = SimpleNamespace(has_started=False, failure="", describe=lambda: "starting")
    return daemon, Systemd(daemon, clock, {"NOTIFY_SOCKET": manager.address, **environ})


def test_it_is_ready_once_it_has_its_copy(manager: Any) -> None:
    """Until then it asks for more time. The status is sent when it changes."""
    clock = Clock()
    daemon, systemd = made(manager, clock)
    systemd.start()
    extend = f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS}000000"
    assert [["STATUS=starting", extend]] == received(manager)

    daemon.describe = lambda: "replica of a, epoch 1;\n joining"
    clock.advance(1)
    assert [["STATUS=replica of a, epoch 1; joining", extend]] == received(manager)

    daemon.has_started = True
    clock.advance(1)
    clock.advance(1)
    assert [["READY=1"]] == received(manager)

    systemd.reloading()
    systemd.reloaded()
    systemd.stopping()
    [reloading, reloaded, stopping] = received(manager)
    assert "RELOADING=1" == reloading[0]
    assert reloading[1].removeprefix("MONOTONIC_USEC=").isdigit()
    assert ["READY=1"] == reloaded
    assert ["STOPPING=1", "STATUS=stopping"] == stopping


@pytest.mark.parametrize(
    ("environ", "pings"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "400000"}, 5),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())}, 5),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "60000000"}, 1),
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_the_watchdog_hears_from_it_twice_in_its_time(
    environ: dict[str, str], pings: int, manager: Any
) -> None:
    """Also while the daemon stops, since a drain may last longer than the watchdog's time."""
    clock = Clock()
    daemon, systemd = made(manager, clock, **environ)
    daemon.has_started = True
    systemd.start()
    clock.pump([0.2] * 3)
    systemd.stopping()
    clock.pump([0.1, 0.1])

    assert pings == sum("WATCHDOG=1" in lines for lines in received(manager))


def test_without_a_manager_nothing_is_sent_and_a_lost_one_does_no_harm(tmp_path: Path) -> None:
    """A daemon in a terminal has none."""
    clock = Clock()
    daemon: Any = SimpleNamespace(has_started=True, failure="", describe=lambda: "x")
    Systemd(daemon, clock, {}).start()
    assert [] == clock.getDelayedCalls()
    Systemd(daemon, clock, {"NOTIFY_SOCKET": str(tmp_path / "gone")}).start()


def next_with(manager: Any, text: str) -> str:
    """The next message that holds this."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if text in (found := manager.socket.recv(4096).decode()):
            return str(found)
    raise AssertionError(f"no {text}")


@pytest.mark.story
def test_a_daemon_from_its_start_to_its_stop(
    manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its log in JSON."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    command = ("-m", "synrepl", "serve", "--server-name", "example.org", "--log-format", "json", *ANY_PORTS)
    with Process(*command, cwd=tmp_path) as process:
        next_with(manager, "READY=1")
        next_with(manager, "WATCHDOG=1")
        os.kill(process.pid, signal.SIGHUP)
        next_with(manager, "RELOADING=1")
        next_with(manager, "READY=1")
        process.terminate()
        next_with(manager, "STOPPING=1")

    lines = [json.loads(line) for line in process.lines]
    [ready] = [line for line in lines if line["message"].startswith("ready: ")]
    assert ("info", "synrepl.daemon.service.Daemon") == (ready["level"], ready["logger"])
    assert ready["time"].startswith("20")


INHERIT = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.environ.update(LISTEN_FDS="2", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="synrepl.socket:synrepl.socket")
os.execv(sys.executable, [sys.executable, "-m", "synrepl", "serve", *sys.argv[3:]])
"""


@pytest.mark.story
def test_a_daemon_serves_on_inherited_ports(tmp_path: Path) -> None:
    """A connection that came before the daemon is served."""
    with socket.create_server(("127.0.0.1", 0)) as followers, socket.create_server(("127.0.0.1", 0)) as http:
        os.set_inheritable(followers.fileno(), True)
        os.set_inheritable(http.fileno(), True)
        options = ("--listen", "systemd:domain=INET:index=0", "--http", "systemd:domain=INET:index=1")
        with socket.create_connection(followers.getsockname(), 20) as early:
            command = ["-c", INHERIT, str(followers.fileno()), str(http.fileno()), *options, "--insecure"]
            with Process(*command, "--server-name", "example.org", cwd=tmp_path, close_fds=False) as process:
                process.wait_for("ready:")
                assert b"SERVER example.org\n" == early.makefile("rb").readline()
                url = f"http://127.0.0.1:{http.getsockname()[1]}/readyz"
                with urllib.request.urlopen(url, timeout=60) as answer:
                    assert 200 == answer.status
                assert 0 == process.terminate()


def test_a_log_file_is_reopened_and_filtered(tmp_path: Path) -> None:
    """As logrotate needs it. The level leaves out what is below."""
    log = tmp_path / "log" / "d.log"
    options = ("--server-name", "a", "--log-file", str(log), "--log-format", "json", *ANY_PORTS)
    with Process("-m", "synrepl", "serve", *options, cwd=tmp_path) as process:
        assert 2 == process.wait()
        said = f"Error: cannot open --log-file {log}: No such file or directory; see synrepl serve --help"
        assert [said] == process.lines
    log.parent.mkdir()
    with Process("-m", "synrepl", "serve", *options, cwd=tmp_path) as process:
        wait_for(process, log, "ready:")
        log.rename(tmp_path / "old.log")
        os.kill(process.pid, signal.SIGHUP)
        wait_for(process, log, "reloaded secrets")
        process.terminate()
    assert 0o640 == log.stat().st_mode & 0o777
    assert all(json.loads(line)["message"] for line in log.read_text().splitlines())
    log.unlink()
    with Process("-m", "synrepl", "serve", *options, "--log-level", "warn", cwd=tmp_path) as process:
        until = time.monotonic() + PATIENCE_SECONDS
        while not log.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        process.terminate()
    assert "ready:" not in log.read_text()


def wait_for(process: Process, log: Path, text: str) -> None:
    """Until the file says so."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < until, process.lines
        time.sleep(0.02)
