"""What web pages on this machine, and names that strangers choose, can do to a daemon without a secret."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts.chromium import find_chromium
from tests.replicas.processes.replica_line import open_line
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
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=60)
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
        'HELLO {"name":%s,"uuid":"u","version":3}' % json.dumps(evil),  # noqa: UP031  # JSON has braces
        "ERROR \x1b[2J",
        "NONSENSE \x1b[2J",
    ):
        with socket.create_connection((host, int(port)), timeout=60) as peer:
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


PROGRAM = find_chromium()

ATTACK = """<!doctype html><meta charset=utf-8><script>
const row = '["@evil:example"]', end = '\\r\\n';
const bytes = (...words) =>
    `*${words.length}${end}` + words.map(word => `$${word.length}${end}${word}${end}`).join('');
const lines = [
    'POSITION push_rules evil 0 5', `RDATA push_rules evil 6 ${row}`, 'REMOTE_SERVER_UP evil.example'
];
const body = end + lines.map(line => bytes('PUBLISH', 'example.org', line)).join('')
    + bytes('SET', 'evil', 'value') + lines.join('\\n') + '\\n';

function form(url, enctype) {
    return new Promise(done => {
        const frame = document.createElement('iframe'), made = document.createElement('form');
        frame.name = url + enctype;
        document.body.append(frame, made);
        frame.onload = done;
        Object.assign(made, {method: 'POST', action: url, enctype: enctype, target: frame.name});
        const field = document.createElement('textarea');
        field.name = 'x';
        field.value = body;
        made.append(field);
        made.submit();
    });
}

function socket(url) {
    return new Promise(done => {
        const made = new WebSocket(url);
        made.onopen = () => made.send(body);
        made.onclose = done;
    });
}

async function attack(host) {
    const url = path => `http://${host}/${path}`, post = {method: 'POST', body: body};
    const plain = {'Content-Type': 'text/plain'}, json = {'Content-Type': 'application/json'};
    for (const one of [
        () => fetch(url('simple'), {...post, headers: plain}),
        () => fetch(url('no-cors'), {...post, mode: 'no-cors'}),
        () => fetch(url('preflight'), {...post, headers: json}),
        () => fetch(url('method'), {...post, method: 'SET'}),
        () => fetch(url('get'), {mode: 'no-cors'}),
        () => form(url('form-plain'), 'text/plain'),
        () => form(url('form-multipart'), 'multipart/form-data'),
        () => socket(`ws://${host}/socket`),
    ]) await one().catch(() => null);
    return true;
}
</script><body>"""


class Page(BaseHTTPRequestHandler):
    """Serves the page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(ATTACK.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Logger(BaseHTTPRequestHandler):
    """In the place of a port: records what comes, and lets a page do what it asks for first."""

    heard: list[tuple[str, str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.heard.append((self.command, self.path, body))
        self.send_response(200)
        for name in ("Origin", "Headers", "Methods"):
            self.send_header(f"Access-Control-Allow-{name}", "*")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_OPTIONS = do_SET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve at a port of loopback; gives HOST:PORT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
