"""Daemons that listen on an address of IPv6 alone, and those who reach them there."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.processes.channel import eventually, status
from tests.processes.loading import Asker, made_rows, report
from tests.service.processes import ROOT, TWISTD, Process

LISTENING = ("--listen", r"tcp6:0:interface=\:\:1", "--http", r"tcp6:0:interface=\:\:1")


class Daemons:
    """Some daemons, which end with their test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, name: str, *options: str) -> str:
        """One more; gives its URL."""
        folder = self._folder / name
        folder.mkdir()
        daemon = self._stack.enter_context(Process(*TWISTD, *LISTENING, *options, cwd=folder))
        daemon.wait_for("ready:")
        [line] = [line for line in daemon.lines if "http: listening at" in line]
        return f"http://[::1]:{line.rpartition(':')[2]}"


def whole(url: str) -> dict[str, Any]:
    """The status of this replica, once it is live."""
    said: dict[str, Any] = eventually(
        lambda: (found := status(url))["upstream"]["state"] == "live" and found, f"{url} follows"
    )
    return said


def run(*command: str) -> Any:
    """What a command prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", *command], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_replicas_and_commands_reach_a_daemon_at_ipv6(tmp_path: Path) -> None:
    """Over HTTP, and at the native address that it tells of itself."""
    begun = time.monotonic()
    with ExitStack() as stack:
        daemons = Daemons(tmp_path, stack)
        primary = daemons.start("primary")
        native, http = status(primary)["address"].split(" ")
        assert http == primary
        over_http = daemons.start("over_http", "--upstream", primary)
        natively = daemons.start("natively", "--upstream", native)
        for url in (over_http, natively):
            assert whole(url)["primary"] == f"{native} {primary}"
        with Asker(over_http) as asker:
            asker.post("events", [made_rows("events", 1)])
        eventually(lambda: status(natively)["serial"] == 1, "what was posted to one is at the other")
        assert run("status", "--json", "--url", over_http)["role"] == "replica"
        assert len(run("replicas", "--json", "--url", primary)) == 2
        assert run("promote", "--json", "--url", over_http)["role"] == "primary"
        eventually(lambda: status(primary)["role"] != "primary", "the old primary hears of it")
        eventually(lambda: over_http in status(natively)["primary"], "the other replica is told")
    report(f"at IPv6: {time.monotonic() - begun:.1f} s")
