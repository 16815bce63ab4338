"""Peers that send much at the RESP port, with the least rights that it takes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from synrepl.channel.resp_codec import MAX_PUBLISHED
from synrepl.channel.served_channel import MAX_BATCH_LINES
from tests.processes.channel import eventually
from tests.processes.loading import MIB, PATIENCE_SECONDS, memory, report
from tests.processes.test_flood_attacks import send
from tests.processes.test_turn_attacks import ADMIN, KEYS, attack, judge, keyed_daemon
from tests.service.processes import Daemon

FLOOD_SECONDS = 600.0
"""The bound on a wait for a daemon that has much to do first, beside others that take its processor."""


@contextmanager
def resp_daemon(folder: Path) -> Iterator[tuple[Daemon, str]]:
    """A daemon with keys and a RESP port; gives that port's HOST:PORT too."""
    with keyed_daemon(folder, "--resp", "tcp:0:interface=127.0.0.1") as daemon:
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
    made.settimeout(PATIENCE_SECONDS)
    made.connect((host, int(port)))
    if KEYS[key]:
        made.sendall(array(b"AUTH", key.encode()))
        assert made.recv(5) == b"+OK\r\n"
    return made


def answered(one: socket.socket, data: bytes) -> None:
    """Send this, and read until a PING after it is answered, or the daemon closes."""
    one.settimeout(FLOOD_SECONDS)
    sender = threading.Thread(target=send, args=(one, data + array(b"PING")), daemon=True)
    sender.start()
    end = b""
    with suppress(ConnectionError):
        # A subscriber is answered in another form.
        while b"pong\r\n" not in end.lower() and (some := one.recv(65_536)):
            end = end[-20:] + some
    sender.join()


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
    reader.settimeout(FLOOD_SECONDS)
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
