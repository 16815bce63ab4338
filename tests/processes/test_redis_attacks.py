"""Made-up lines on a real Redis must not stop a daemon, or be stored as its own."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes.channel import (
    Speaker,
    eventually,
    kept,
    metric,
    on_redis,
    status,
    wait_until_writing,
)
from tests.processes.deployment import rows_of
from tests.processes.loading import MIB, Asker, memory
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

WRITERS = 3_000
CONFLICTS = [
    f"another process on the channel writes push_rules as {writer}" for writer in ("synrepl1", "evil")
]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


def post(daemon: Daemon, number: int) -> None:
    with Asker(daemon.url) as asker:
        asker.post("push_rules", [rows_of("push_rules", number)])


def test_made_up_lines_stop_no_append(tmp_path: Path, redis: RedisServer) -> None:
    """Under the daemon's name, under another one in its stream, and with a token that leaves no room."""
    with (
        on_redis(tmp_path, redis, "synrepl1", writes="push_rules") as daemon,
        Speaker(redis) as speaker,
    ):
        wait_until_writing(daemon)
        post(daemon, 1)
        speaker.say(
            'RDATA push_rules synrepl1 999999 ["@evil:hs"]',
            'RDATA push_rules evil 999999 ["@evil:hs"]',
            f'RDATA receipts evil {2**63 - 1} ["!r","m.read","@evil:hs","$e",null,{{}}]',
        )
        eventually(
            lambda: metric(daemon.url, "synrepl_channel_conflicts_total") == 2, lambda: "the conflicts"
        )
        post(daemon, 2)
        eventually(
            lambda: all(conflict in str(status(daemon.url)) for conflict in CONFLICTS),
            lambda: f"the conflicts in {status(daemon.url)}",
        )
        stored = kept(daemon.url)

    assert 2 == len(stored)
    assert "@evil:hs" not in str(stored)


def test_invented_writers_cost_little(tmp_path: Path, redis: RedisServer) -> None:
    """20,000 of them made a scrape of 669 kB."""
    with (
        on_redis(tmp_path, redis, "synrepl1", writes="push_rules") as daemon,
        Speaker(redis) as speaker,
    ):
        wait_until_writing(daemon)
        speaker.say(*(f"POSITION events invented{number} 1 1" for number in range(WRITERS)))
        speaker.say('RDATA push_rules synrepl1 999999 ["@evil:hs"]')
        eventually(
            lambda: metric(daemon.url, "synrepl_channel_conflicts_total") == 1, lambda: "the last line"
        )

        assert len(status(daemon.url)["redis"]["writers"]) <= 1_000
        post(daemon, 1)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"*2147483647\r\n", "a reply has 2147483647 items"),
        (b"|1000000000\r\n", "an attribute came"),
        (b"$2147483647\r\n", "a reply has more than"),
    ],
    ids=["array", "attribute", "endless value"],
)
def test_what_answers_as_redis_takes_no_memory(tmp_path: Path, reply: bytes, why: str) -> None:
    """An endless value took 4 GB in 8 seconds, of a daemon and of ``synrepl inspect``."""
    received = threading.Event()

    class Hostile(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(1_000)
                self.request.sendall(reply)
                while reply.startswith(b"$"):
                    self.request.sendall(bytes(MIB))
            received.set()

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hostile) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"redis://127.0.0.1:{server.server_address[1]}"
        options = ("--server-name", "hs", "--redis", address)
        with Daemon(tmp_path, options=options) as daemon:
            before = memory(daemon.pid)
            daemon.wait_for(why)
            assert received.wait(60)
            assert memory(daemon.pid) < before + 20 * MIB
            assert Asker(daemon.url).ask("GET", "/livez")
        server.shutdown()
