"""The log of a daemon holds what happened to it, and not each connection that Twisted opens and closes."""

import json
import urllib.request
from pathlib import Path

from tests.service.processes import Daemon

ROW = ["!room:hs.example", "m.read", "@ada:hs.example", "$event", None, {"ts": 1}]
NOISE = ("Starting factory", "Stopping factory", "_HTTP11ClientFactory", "HTTPConnectionPool", "ApiSite")


def post(daemon: Daemon, count: int) -> None:
    """Post so many facts, each in a request of its own."""
    for _ in range(count):
        asked = urllib.request.Request(
            f"{daemon.url}/v1/streams/receipts/facts",
            json.dumps({"facts": [[ROW]]}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()


def test_requests_leave_no_lines_of_twisted_in_the_log(tmp_path: Path) -> None:
    """A replica forwards writes to its primary over HTTP: that was two lines a connection on it."""
    (tmp_path / "primary").mkdir()
    (tmp_path / "replica").mkdir()
    with Daemon(tmp_path / "primary") as primary:
        options = ("--upstream", primary.url, "--replica-name", "replica")
        with Daemon(tmp_path / "replica", options=options) as replica:
            post(replica, 5)
            replica.terminate()
        primary.terminate()

    for daemon in (primary, replica):
        assert [line for line in daemon.lines if any(word in line for word in NOISE)] == []
        assert len(daemon.lines) < 40, daemon.lines
