"""Real workers behind a hole in our daemon's log: rows that a process published, and nobody can read."""

import socket
from pathlib import Path

import pytest

from tests.interop.harness import Daemon, peer_client, tail
from tests.servers.ports import free_port

LINES = (
    "POSITION account_data w5 0 0",
    'RDATA account_data w5 1 ["@a:hs","!r:hs","one"]',
    'RDATA account_data w5 2 ["@a:hs","!r:hs",NaN]',
    r'RDATA account_data w5 3 ["@a:hs","!r:hs","x\ud800y"]',
    'RDATA account_data w5 4 ["@a:hs","!r:hs","four"]',
)


def publish(port: int, *lines: str) -> None:
    """As a process of the homeserver does it on Redis. Returns once the daemon has all of them."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as channel:
        for line in lines:
            words = [b"PUBLISH", b"interop.test", line.encode()]
            channel.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        answers = b""
        while answers.count(b"\n") < len(lines):
            answers += channel.recv(4096)
    assert b"-" not in answers, answers


@pytest.mark.only_release("legacy", "current")
def test_a_worker_goes_on_behind_lost_facts(release: str, tmp_path: Path) -> None:
    """It fetches once at most, as its own rules ask, and reaches the head; and so does a tail of ours."""
    resp = free_port()
    with Daemon(tmp_path, "--resp", f"tcp:{resp}:interface=127.0.0.1") as daemon:
        http = ("--http", f"127.0.0.1:{daemon.http_port}", "--writer", "w5")
        with (
            peer_client(release, daemon.port, *http) as worker,
            tail(daemon.port, "--stream", "account_data", "--http", daemon.url) as ours,
        ):
            worker.expect("position", stream="account_data")
            ours.expect("position", stream="account_data")

            publish(resp, *LINES)

            worker.expect("rdata", stream="account_data", token=4)
            ours.expect("rdata", stream="account_data", token=4)

            assert [1, 4] == [event["token"] for event in worker.all("rdata", stream="account_data")]
            assert len(worker.all("missing", stream="account_data")) <= 2
            assert [] == worker.all("trouble")
            assert [] == worker.all("connection_lost")
            assert [1, 4] == [event["token"] for event in ours.all("rdata", stream="account_data")]
            lost = {event["token"] for event in ours.all("error")}
            assert {2, 3} == lost
