"""`synrepl serve`: the daemon in the foreground, and whose log it serves."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.service.processes import ROOT, Daemon, Process

ANY_PORTS = ("--listen", "tcp:0:interface=127.0.0.1", "--http", "tcp:0:interface=127.0.0.1")


def serve(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A start that fails."""
    return subprocess.run(
        [sys.executable, "-m", "synrepl", "serve", *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def status(url: str) -> Any:
    """The status of a daemon."""
    with urllib.request.urlopen(f"{url}/v1/status", timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_runs_until_a_signal(number: int, tmp_path: Path) -> None:
    """With its log on standard error, and exit code 0. SIGHUP reloads."""
    command = ("-m", "synrepl", "serve", "--server-name", "example.org", *ANY_PORTS)
    with Process(*command, cwd=tmp_path) as process:
        process.wait_for("ready: example.org as master")
        os.kill(process.pid, signal.SIGHUP)
        process.wait_for("reloaded secrets, keys and certificates")
        os.kill(process.pid, number)
        assert 0 == process.wait()
        assert any("followers: listening at" in line for line in process.lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nope",), "No such option"),
        (("--sever-name", "x"), "--server-name"),
        (("extra",), "unexpected extra argument"),
        (("--config", "missing.yaml"), "cannot read"),
        (("--config", "typo.yaml"), "did you mean server_name?"),
        (("--secret-file", "missing"), "cannot read the secret file"),
        (("--http", "9093"), "use tcp:9093:interface=127.0.0.1"),
        (("--listen", "tcp:9092"), "is reachable from other machines"),
        (("--retain-seconds", "soon"), "a number of seconds above 0"),
        (("--server-name", "x", "--http", "tcp:BUSY:interface=127.0.0.1"), "Address already in use"),
        (("--server-name", "x", "--database", "sqlite:/no/such/folder/a.db"), "/no/such/folder"),
        ((), "is new: set --server-name"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """On standard error, whether it is in the options, in a file, or found when the daemon starts."""
    (tmp_path / "typo.yaml").write_text("servername: example.org\n")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        answer = serve(tmp_path, *(one.replace("BUSY", port) for one in options))

    assert (2, "", 1) == (answer.returncode, answer.stdout, len(answer.stderr.splitlines())), answer.stderr
    assert said in answer.stderr


def test_a_refused_start_leaves_no_database(tmp_path: Path) -> None:
    """The next start may name another one."""
    assert "is new: set --server-name" in serve(tmp_path, *ANY_PORTS).stderr

    assert [] == list(tmp_path.iterdir())


def test_a_log_keeps_its_name(tmp_path: Path) -> None:
    """A later start need not give it."""
    with Daemon(tmp_path, options=("--server-name", "example.org")) as daemon:
        request = urllib.request.Request(
            f"{daemon.url}/v1/streams/push_rules/facts", b'{"facts": [[["@ada:example.org"]]]}', method="POST"
        )
        urllib.request.urlopen(request, timeout=60).close()
        daemon.terminate()
    with Daemon(tmp_path) as daemon:
        assert "example.org" == status(daemon.url)["server_name"]
