"""Files by their names, on the command line, against a real daemon."""

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.test_processes import run
from tests.service.processes import Daemon

HELLO = b"hello\n"
SHA = hashlib.sha256(HELLO).hexdigest()


def send(daemon: Daemon, method: str, path: str, body: bytes) -> None:
    """Send a request, which must succeed."""
    request = urllib.request.Request(
        daemon.url + path, body, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def put(daemon: Daemon, name: str, data: bytes) -> None:
    """Store a file, and give it a name."""
    sha256 = hashlib.sha256(data).hexdigest()
    send(daemon, "PUT", f"/v1/files/sha256/{sha256}", data)
    row = ["create", name, sha256, len(data)]
    send(daemon, "POST", "/v1/streams/files/facts", json.dumps({"facts": [[row]]}).encode())


@pytest.mark.story
def test_a_named_file_is_listed_and_fetched(tmp_path: Path) -> None:
    """To its last name here, to a path, or to standard output; a failure leaves no file."""
    big = b"0123456789" * 100_000
    with Daemon(tmp_path) as daemon:
        put(daemon, "media/hello world.txt", HELLO)
        put(daemon, "media/big", big)
        url = ("--url", daemon.url)
        listed = run(tmp_path, "files", "list", "media/h", *url, "--json")
        table = run(tmp_path, "files", "list", *url)
        here = run(tmp_path, "files", "get", "media/hello world.txt", *url)
        there = run(tmp_path, "files", "get", "media/big", "--to", "copy", "--json", *url)
        out = run(tmp_path, "files", "get", "media/hello world.txt", "--to", "-", *url)
        absent = run(tmp_path, "files", "get", "media/none", *url)
        nowhere = run(tmp_path, "files", "get", "media/big", "--to", "absent/copy", *url)

    assert [{"name": "media/hello world.txt", "sha256": SHA, "size": 6, "serial": 1}] == json.loads(
        listed.stdout
    )
    assert ["media/big", "media/hello"] == [line.split()[0] for line in table.stdout.splitlines()[1:]]
    assert (0, f"hello world.txt: 6 B, sha256 {SHA}\n") == (here.returncode, here.stdout)
    assert HELLO == (tmp_path / "hello world.txt").read_bytes()
    assert big == (tmp_path / "copy").read_bytes()
    assert (len(big), "copy") == (json.loads(there.stdout)["size"], json.loads(there.stdout)["path"])
    assert (0, HELLO.decode()) == (out.returncode, out.stdout)
    assert (1, True) == (absent.returncode, "the name media/none" in absent.stderr)
    assert (1, True) == (nowhere.returncode, "cannot write to absent" in nowhere.stderr)
    assert not (tmp_path / "none").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("get", "media/.."), "say where to store it with --to"),
        (("get", "media/.bashrc"), "say where to store it with --to"),
        (("get", "media/-rf"), "say where to store it with --to"),
        (("get", "media/\x1b[2J"), "say where to store it with --to"),
        (("get", "media/a\u202eb"), "say where to store it with --to"),
        (("get", "a", "--to", "-", "--json"), "exclude each other"),
        (("get",), "Missing argument"),
        (("fetch", "a"), "No such command"),
    ],
)
def test_wrong_usage_is_said(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """In a line, with exit code 2."""
    ended = run(tmp_path, "files", *arguments)

    assert 2 == ended.returncode
    assert why in ended.stderr


@contextmanager
def merging_proxy(daemon: Daemon) -> Iterator[str]:
    """The URL of a proxy that merges the slashes of paths, as nginx does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(daemon.url + re.sub("//+", "/", self.path), timeout=60) as answer:
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_file_of_another_name_is_not_kept(tmp_path: Path) -> None:
    """Whoever changed the name on the way: the bytes have a right checksum all the same."""
    with Daemon(tmp_path) as daemon, merging_proxy(daemon) as proxy:
        put(daemon, "a/b.txt", b"other")
        put(daemon, "a//b.txt", HELLO)
        wrong = run(tmp_path, "files", "get", "a//b.txt", "--url", proxy)
        plain = run(tmp_path, "files", "get", "a/b.txt", "--url", proxy, "--to", "plain")
        right = run(tmp_path, "files", "get", "a//b.txt", "--url", daemon.url, "--to", "right")

    assert 1 == wrong.returncode
    assert "the answer is of the file a/b.txt, not a//b.txt: a proxy on the way" in wrong.stderr
    assert not (tmp_path / "b.txt").exists()
    assert (0, b"other") == (plain.returncode, (tmp_path / "plain").read_bytes())
    assert (0, HELLO) == (right.returncode, (tmp_path / "right").read_bytes())
