"""What web pages on this machine, and names that strangers choose, can do to a daemon without a secret."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.replica_line import open_line
from tests.service.processes import ROOT, Daemon

FACTS = "/v1/streams/push_rules/facts"
BODY = '{"facts":[[["@evil:example"]]]}'
PAGE = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as made:
        yield made


def ask(daemon: Daemon, method: str, path: str, headers: dict[str, str], body: str = "") -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": "localhost", "Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if data.startswith(b"{") else {}


def state(daemon: Daemon) -> tuple[Any, ...]:
    """What a page may not change."""
    status = ask(daemon, "GET", "/v1/status", {})[1]
    return tuple(status[name] for name in ("role", "state", "serial", "leases", "replicas"))


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", FACTS, {**PAGE, "Content-Type": "text/plain"}, BODY),
        ("POST", "/v1/facts", {**PAGE, "Content-Type": "multipart/form-data; boundary=x"}, "--x--"),
        ("POST", "/v1/handover", {**PAGE, "Content-Type": "text/plain"}, '{"seconds":300}'),
        ("POST", "/v1/leases", {"Origin": "null", "Content-Type": "text/plain"}, '{"name":"evil"}'),
        ("POST", "/v1/native", PAGE, ""),
        ("POST", "/v1/native/bytes", {**PAGE, "Content-Type": "text/plain"}, 'HELLO {"uuid":"x"}'),
        (
            "POST",
            "/v1/claim",
            {**PAGE, "Content-Type": "text/plain"},
            '{"epoch":999999,"uuid":"z","address":"","history":""}',
        ),
        ("POST", FACTS, {"Origin": "http://localhost:3000", "Content-Type": "application/json"}, BODY),
        (
            "GET",
            "/v1/changelog?reader=evil",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
            "",
        ),
    ],
    ids=["append", "facts", "handover", "lease", "native", "bytes", "claim", "other port", "image"],
)
def test_a_cross_site_request_changes_nothing(
    daemon: Daemon, method: str, path: str, headers: dict[str, str], body: str
) -> None:
    """As browsers send them without asking first: no preflight."""
    before = state(daemon)

    status, said = ask(daemon, method, path, headers, body)

    assert (status, said["error"]) == (403, "foreign_origin")
    assert "\n" not in said["message"]
    assert state(daemon) == before


@pytest.mark.story
def test_a_rebound_name_reads_nothing(daemon: Daemon) -> None:
    """A page of evil.example, whose name points to 127.0.0.1 by now, is of the same origin to its browser."""
    for path in ("/v1/status", "/status", "/v1/changelog", "/metrics", "/readyz", "/v1/leases"):
        status, said = ask(daemon, "GET", path, {"Host": "evil.example:9093"})
        assert (status, said["error"]) == (403, "foreign_host"), path
        assert "allowed_hosts" in said["message"]
    headers = {"Host": "evil.example", "Content-Type": "application/json"}
    assert ask(daemon, "POST", FACTS, headers, BODY)[1]["error"] == "foreign_host"


def test_names_of_strangers_reach_no_terminal_raw(daemon: Daemon, tmp_path: Path) -> None:
    """A name could clear the operator's screen, set its title, or forge a line of the log."""
    evil = "a\u001b[2J\nFORGED \u001b]0;pwn\u0007"
    host, port = daemon.follow.split(":")
    for line in (
        "NAME \x1b]0;pwn\x07",
        'HELLO {"name":%s,"uuid":"u","nonce":"n"}' % json.dumps(evil),  # noqa: UP031  # JSON has braces
        "ERROR \x1b[2J",
        "NONSENSE \x1b[2J",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as peer:
            peer.sendall(line.encode() + b"\nREPLICATE\n")
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass
    ask(daemon, "POST", "/v1/leases", {"Content-Type": "application/json"}, json.dumps({"name": evil}))
    with open_line(daemon, over_http=True) as replica:
        replica.greet(name=evil)
        assert replica.refusal()["code"] == "bad_name"

    shown = "\n".join(daemon.lines)
    for command in (["status"], ["replicas"], ["leases", "list"], ["streams"], ["status", "--json"]):
        shown += run(tmp_path, *command, "--url", daemon.url)

    assert not any(character in shown for character in "\x1b\x07\x9b")
    assert "\nFORGED" not in shown


def run(folder: Path, *words: str) -> str:
    """All that this command says."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_unix_socket_is_private(tmp_path: Path) -> None:
    """It counts as closed to other users of the machine, and was open to all of them."""
    position = tmp_path / "followers.sock"
    with Daemon(tmp_path, options=("--listen", f"unix:{position}")):
        assert position.stat().st_mode & 0o777 == 0o600
    shared = tmp_path / "shared.sock"
    with Daemon(tmp_path, options=("--listen", f"unix:{shared}:mode=660")):
        assert shared.stat().st_mode & 0o777 == 0o660
