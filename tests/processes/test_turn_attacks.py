"""Peers that send much, or slowly, over HTTP, with the least rights that it takes.

No turn of the reactor is long, so everybody else is served, and what they filled is free once they are gone.
"""

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from synrepl.transports.http.http_channel import PROGRESS_SECONDS
from tests.processes.loading import MIB, NO_HEADERS, PATIENCE_SECONDS, Asker, Refused, report
from tests.processes.test_flood_attacks import TURN_SECONDS, is_taken, longest_turn, send
from tests.service.processes import Daemon

SECRET = {"Authorization": "Bearer s3cret-of-the-tests"}


def connected(daemon: Daemon) -> socket.socket:
    """A connection to the HTTP port that takes little in advance."""
    host, _, port = daemon.url.removeprefix("http://").rpartition(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.settimeout(PATIENCE_SECONDS)
    made.connect((host, int(port)))
    return made


def get(path: str) -> bytes:
    """A request without a secret."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def judge(daemon: Daemon, attack: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """/livez is answered during an attack, and no turn was long."""
    with Asker(daemon.url) as asker:
        slowest = 0.0
        for _ in range(5):
            started = time.monotonic()
            asker.ask("GET", "/livez")
            slowest = max(slowest, time.monotonic() - started)
    turn = longest_turn(daemon, headers)
    report(f"{attack}: /livez at worst {slowest:.2f} s, longest turn {turn * 1000:.0f} ms")
    assert turn <= TURN_SECONDS


def pipeline(daemon: Daemon, path: str, count: int, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """Send many requests on one connection, and read no answer."""
    with connected(daemon) as one:
        sender = threading.Thread(target=send, args=(one, get(path) * count), daemon=True)
        sender.start()
        judge(daemon, f"{count:,} x GET {path} unread", headers)
        sender.join()


def test_requests_sent_ahead_stop_nothing(tmp_path: Path) -> None:
    """252 kB of them stopped a daemon for 16 seconds, 164 kB for 38."""
    with Daemon(tmp_path) as daemon:
        pipeline(daemon, "/metrics", 6_000)
        pipeline(daemon, "/v1/openapi.json", 1_000)
        pipeline(daemon, "/status", 4_000)
        pipeline(daemon, "/livez", 20_000)


def test_requests_of_a_peer_without_a_secret_stop_nothing(tmp_path: Path) -> None:
    """The public routes need none."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET["Authorization"].removeprefix("Bearer "))
    secret.chmod(0o600)
    with Daemon(tmp_path, options=("--secret-file", str(secret))) as daemon:
        pipeline(daemon, "/metrics", 6_000, SECRET)
        pipeline(daemon, "/v1/openapi.json", 1_000, SECRET)
        pipeline(daemon, "/v1/status", 20_000, SECRET)


def test_many_connections_share_a_turn(tmp_path: Path) -> None:
    """Each has its request answered, a slice of them in a turn."""
    with Daemon(tmp_path) as daemon, ExitStack() as stack:
        sockets = [stack.enter_context(connected(daemon)) for _ in range(100)]
        for one in sockets:
            assert is_taken(one, get("/livez") * 20)
        judge(daemon, "100 connections x 20 requests")


def test_small_facts_in_a_large_body_stop_nothing(tmp_path: Path) -> None:
    """60 MiB of empty facts stopped a daemon for 12 seconds."""
    body = b'{"facts":[' + b"[]," * (20 * MIB) + b"[]]}"
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker:
        with pytest.raises(Refused, match="413"):
            asker.ask("POST", "/v1/streams/push_rules/facts", body)
        judge(daemon, "60 MiB of empty facts")


def test_slow_heads_do_not_keep_others_out_for_long(tmp_path: Path) -> None:
    """83 connections that sent a byte in 5 seconds kept everybody out for as long as they wanted."""
    with Daemon(tmp_path, limit=200) as daemon, ExitStack() as stack:
        sockets = [stack.enter_context(connected(daemon)) for _ in range(83)]
        for one in sockets:
            send(one, b"GET / HT")
        host = daemon.url.removeprefix("http://")
        refused = http.client.HTTPConnection(host, timeout=60)
        refused.request("GET", "/livez")
        answer = refused.getresponse()
        assert (503, "out_of_descriptors") == (answer.status, json.loads(answer.read())["error"])

        started = time.monotonic()
        status = 0
        while status != 200:
            assert time.monotonic() - started < 4 * PROGRESS_SECONDS, "they are still connected"
            # A byte in a second is no progress. One that is answered or closed ends the pause.
            for one in select.select(sockets, [], [], 1)[0]:
                sockets.remove(one)
            for one in sockets:
                with suppress(OSError):
                    one.send(b"x")
            again = http.client.HTTPConnection(host, timeout=60)
            with suppress(OSError, http.client.HTTPException):
                again.request("GET", "/livez")
                status = again.getresponse().status
            again.close()
        judge(daemon, f"83 slow heads, away after {time.monotonic() - started:.0f} s")


KEYS = {"none": "", "reader": "read", "writer": "write", "other": "write"}
"""Secrets are the names, and ADMIN has every right."""

ADMIN = {"Authorization": "Bearer admin"}


@contextmanager
def keyed_daemon(folder: Path, *options: str) -> Iterator[Daemon]:
    """A daemon with keys."""
    keys = folder / "keys"
    lines = [f"{name} {name} {rights}" for name, rights in KEYS.items() if rights]
    keys.write_text("\n".join(["admin admin all", *lines, ""]))
    keys.chmod(0o600)
    with Daemon(folder, options=("--server-name", "hs", "--keys-file", str(keys), *options)) as daemon:
        yield daemon


def attack(daemon: Daemon, what: str, sockets: Sequence[socket.socket], data: bytes) -> None:
    """Each of them sends this, and reads no answer."""
    senders = [threading.Thread(target=send, args=(one, data), daemon=True) for one in sockets]
    for one in senders:
        one.start()
    what = f"{what}, {len(sockets)} x {len(data) / 1000:,.0f} kB"
    judge(daemon, f"{what}, meanwhile", ADMIN)
    for one in senders:
        one.join()
    judge(daemon, what, ADMIN)


def test_pieces_of_a_line_of_appends_stop_nothing(tmp_path: Path) -> None:
    """60 kB of pieces of one byte, after 7.8 MB of one line, took 42 seconds."""
    with keyed_daemon(tmp_path) as daemon, ExitStack() as stack:
        one = stack.enter_context(connected(daemon))
        head = b"POST /v1/appends HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        head += b"Content-Type: application/x-ndjson\r\nAuthorization: Bearer writer\r\n\r\n"
        assert is_taken(one, head + b"%x\r\n%b\r\n" % (7_800_000, b"x" * 7_800_000))
        attack(daemon, "a line in pieces of one byte", [one], b"1\r\nx\r\n" * 10_000)
