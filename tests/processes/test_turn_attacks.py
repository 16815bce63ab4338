"""Peers that send much, or slowly, over HTTP and at the RESP port, with the least rights that it takes.

No turn of the reactor is long, so everybody else is served, and what they filled is free once they are gone.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from synrepl.channel.resp_codec import MAX_PUBLISHED
from synrepl.channel.served_channel import MAX_BATCH_LINES
from synrepl.transports.http.channel import PROGRESS_SECONDS
from tests.processes.channel import eventually
from tests.processes.loading import MIB, NO_HEADERS, Asker, Refused, memory, report
from tests.processes.test_flood_attacks import LIVE_SECONDS, SEND_SECONDS, TURN_SECONDS, longest_turn, send
from tests.service.processes import Daemon

SECRET = {"Authorization": "Bearer s3cret-of-the-tests"}


def connected(daemon: Daemon) -> socket.socket:
    """A connection to the HTTP port that takes little in advance."""
    host, _, port = daemon.url.removeprefix("http://").rpartition(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.settimeout(SEND_SECONDS)
    made.connect((host, int(port)))
    return made


def get(path: str) -> bytes:
    """A request without a secret."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def judge(daemon: Daemon, attack: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """/livez is answered at once, during an attack, and no turn was long."""
    with Asker(daemon.url) as asker:
        slowest = 0.0
        for _ in range(5):
            started = time.monotonic()
            asker.ask("GET", "/livez")
            slowest = max(slowest, time.monotonic() - started)
    turn = longest_turn(daemon, headers)
    report(f"{attack}: /livez at worst {slowest:.2f} s, longest turn {turn * 1000:.0f} ms")
    assert slowest < LIVE_SECONDS
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
            assert send(one, get("/livez") * 20)
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
        refused = http.client.HTTPConnection(host, timeout=20)
        refused.request("GET", "/livez")
        answer = refused.getresponse()
        assert (503, "out_of_descriptors") == (answer.status, json.loads(answer.read())["error"])

        started = time.monotonic()
        status = 0
        while status != 200:
            assert time.monotonic() - started < PROGRESS_SECONDS + 20, "they are still connected"
            for one in sockets:
                # A byte is no progress. The pause is that of an attacker, who has all the time.
                with suppress(OSError):
                    one.send(b"x")
            again = http.client.HTTPConnection(host, timeout=20)
            with suppress(OSError, http.client.HTTPException):
                again.request("GET", "/livez")
                status = again.getresponse().status
            again.close()
        judge(daemon, f"83 slow heads, away after {time.monotonic() - started:.0f} s")


KEYS = {"none": "", "reader": "read", "writer": "write", "other": "write"}
"""Secrets are the names, and ADMIN has every right."""

ADMIN = {"Authorization": "Bearer admin"}


@contextmanager
def resp_daemon(folder: Path) -> Iterator[tuple[Daemon, str]]:
    """A daemon with keys and a RESP port; gives that port's HOST:PORT too."""
    keys = folder / "keys"
    lines = [f"{name} {name} {rights}" for name, rights in KEYS.items() if rights]
    keys.write_text("\n".join(["admin admin all", *lines, ""]))
    keys.chmod(0o600)
    options = ("--server-name", "hs", "--resp", "tcp:0:interface=127.0.0.1", "--keys-file", str(keys))
    with Daemon(folder, options=options) as daemon:
        yield daemon, next(line for line in daemon.lines if "RESP: listening" in line).split("at tcp:")[1]


def array(*words: bytes) -> bytes:
    """A request of RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def publish(*lines: bytes) -> bytes:
    """Requests that publish these lines."""
    return b"".join(array(b"PUBLISH", b"hs", line) for line in lines)


def client(stack: ExitStack, address: str, key: str) -> socket.socket:
    """A connection to the RESP port that takes little in advance, with this key."""
    host, _, port = address.rpartition(":")
    made = stack.enter_context(socket.socket())
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.settimeout(SEND_SECONDS)
    made.connect((host, int(port)))
    if KEYS[key]:
        made.sendall(array(b"AUTH", key.encode()))
        assert made.recv(5) == b"+OK\r\n"
    return made


def answered(one: socket.socket, data: bytes) -> None:
    """Send this, and read until a PING after it is answered, or the daemon closes."""
    one.settimeout(60.0)
    sender = threading.Thread(target=send, args=(one, data + array(b"PING")), daemon=True)
    sender.start()
    end = b""
    with suppress(ConnectionError):
        # A subscriber is answered in another form.
        while b"pong\r\n" not in end.lower() and (some := one.recv(65_536)):
            end = end[-20:] + some
    sender.join()


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


STREAMS = ["events", "backfill", "account_data", "receipts", "push_rules", "pushers", "device_lists"]
STREAMS += ["caches", "groups", "to_device"]


def fill(stack: ExitStack, address: str, count: int) -> None:
    """So many streams and writers are there, of two keys, and subscribers are told of them."""
    reader = client(stack, address, "reader")
    answered(reader, array(b"SUBSCRIBE", b"hs"))
    sources = [(stream, writer) for stream in STREAMS for writer in range(1_000)][:count]
    for number, first in enumerate(range(0, count, 1_000)):
        lines = [
            b"POSITION %b w%d 0 1" % (stream.encode(), at) for stream, at in sources[first : first + 1_000]
        ]
        answered(client(stack, address, ("writer", "other")[number % 2]), publish(*lines))
    told, tail = 0, b""
    while told < count:
        tail += reader.recv(65_536)
        told += tail.count(b"POSITION ")
        tail = tail[-8:]


def test_requests_at_the_resp_port_stop_nothing(tmp_path: Path) -> None:
    """600 kB of AUTH without a key, or of INFO, took 0.3 seconds of one turn."""
    with resp_daemon(tmp_path) as (daemon, address), ExitStack() as stack:
        attack(daemon, "AUTH", [client(stack, address, "none")], array(b"AUTH", b"wrong") * 24_000)
        readers = [client(stack, address, "reader") for _ in range(3)]
        attack(daemon, "INFO", readers, array(b"INFO") * 43_000)
        attack(daemon, "PING", readers, b"PING\r\n" * 100_000)
        attack(daemon, "NUMSUB", readers, array(b"PUBSUB", b"NUMSUB", *[b"hs"] * 60) * 1_000)
        attack(daemon, "MGET", readers, array(b"MGET", *[b"key"] * 62) * 1_000)
        attack(daemon, "COMMAND DOCS", readers, array(b"COMMAND", b"DOCS") * 20_000)
        attack(daemon, "CLIENT LIST", readers, array(b"CLIENT", b"LIST") * 20_000)


@pytest.mark.parametrize("sources", [1_000, 10_000])
def test_subscribing_again_and_again_stops_nothing(tmp_path: Path, sources: int) -> None:
    """62 kB took 8.6 seconds of one turn, with 1,000 streams and writers."""
    with resp_daemon(tmp_path) as (daemon, address), ExitStack() as stack:
        fill(stack, address, sources)
        for count in (1, 5):
            readers = [client(stack, address, "reader") for _ in range(count)]
            data = b"SUBSCRIBE hs\r\nUNSUBSCRIBE hs\r\n" * 2_400
            attack(daemon, f"SUBSCRIBE with {sources:,} sources", readers, data)


def test_lines_at_the_resp_port_stop_nothing(tmp_path: Path) -> None:
    """Many, in batches, and as long as they may be; with subscribers of both protocols."""
    with resp_daemon(tmp_path) as (daemon, address), ExitStack() as stack:
        for number in range(20):
            reader = client(stack, address, "reader")
            answered(reader, array(b"HELLO", b"3" if number % 2 else b"2"))
            answered(reader, array(b"SUBSCRIBE", b"hs"))
        row = b'RDATA push_rules w%d %d ["@u%d:hs"]'
        lines = [row % (0, number, number) for number in range(2, 20_002)]
        writers = [client(stack, address, "writer") for _ in range(3)]
        attack(daemon, "rows", writers[:1], publish(b"POSITION push_rules w0 0 1", *lines))
        attack(daemon, "commands", writers, publish(*[b"REMOTE_SERVER_UP x"] * 20_000))
        for size in (1, 700):
            user = b"u" * size
            batch = [b'RDATA push_rules w1 batch ["%b"]' % user] * (MAX_BATCH_LINES - 10)
            end = row % (1, 2 + size, 2)
            attack(daemon, "a batch", writers[1:2], publish(b"POSITION push_rules w1 0 1", *batch, end))
        writer = client(stack, address, "writer")
        answered(writer, publish(b"POSITION push_rules w2 0 1"))
        for size in (MAX_PUBLISHED - 100, 60 * MIB):
            user = b"u" * size
            attack(daemon, "a line", [writer], publish(b'RDATA push_rules w2 2 ["%b"]' % user))
            writer = client(stack, address, "writer")


def test_pieces_of_a_line_of_appends_stop_nothing(tmp_path: Path) -> None:
    """60 kB of pieces of one byte, after 7.8 MB of one line, took 42 seconds."""
    with resp_daemon(tmp_path) as (daemon, _), ExitStack() as stack:
        one = stack.enter_context(connected(daemon))
        head = b"POST /v1/appends HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        head += b"Content-Type: application/x-ndjson\r\nAuthorization: Bearer writer\r\n\r\n"
        assert send(one, head + b"%x\r\n%b\r\n" % (7_800_000, b"x" * 7_800_000))
        attack(daemon, "a line in pieces of one byte", [one], b"1\r\nx\r\n" * 10_000)


def test_what_clients_of_the_resp_port_filled_is_free_again(tmp_path: Path) -> None:
    """Names of channels, sources and unfinished requests stayed, some of them for ever: 640 MiB."""
    with resp_daemon(tmp_path) as (daemon, address):
        with ExitStack() as stack:
            answered(client(stack, address, "reader"), array(b"SUBSCRIBE", b"hs"))
        before = memory(daemon.pid)
        with ExitStack() as stack:
            reader = client(stack, address, "reader")
            for number in range(60):
                name = b"hs/%d" % number + b"x" * (10 * MIB if number % 2 else 200)
                send(reader, array(b"SUBSCRIBE", name) + array(b"UNSUBSCRIBE", name))
            for key in ("reader", "writer"):
                for _ in range(8):
                    send(
                        client(stack, address, key),
                        b"*2\r\n$7\r\nPUBLISH\r\n$60000000\r\n" + bytes(60_000_000),
                    )
            for number in range(8):
                one = client(stack, address, "writer")
                row = b"RDATA push_rules b%d batch [%d]" % (number, 10**4_000)
                send(one, publish(*[row] * 8_000))
            fill(stack, address, 10_000)
            liar = client(stack, address, "writer")
            send(liar, publish(*[b"POSITION s%d w%d 0 1" % (number, number) for number in range(10_010)]))
            during = memory(daemon.pid)
        with ExitStack() as stack:
            honest = client(stack, address, "writer")
            honest.sendall(publish(b"POSITION events honest 0 1"))
            assert honest.recv(100).startswith(b":")
        eventually(lambda: memory(daemon.pid) < before + 40 * MIB, "the memory is free again")
        judge(daemon, "clients that fill what they can", ADMIN)
        report(f"RSS {before / MIB:.0f}, {during / MIB:.0f}, then {memory(daemon.pid) / MIB:.0f} MiB")
    assert during < before + 150 * MIB
