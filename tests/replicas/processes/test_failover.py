"""An arbiter promotes: contrib/failover with two daemons, and PostgreSQL's lock between them."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.channel import eventually
from tests.servers.postgres import PostgresServer
from tests.service.processes import ROOT, Daemon, Process

GRACE: Final = 4
PROGRAM: Final = ROOT / "contrib/failover/failover.py"
HOLDERS: Final = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7396711 AND granted"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """The arbiter."""
    with PostgresServer() as server:
        yield server


class Site:
    """A daemon, and the program beside it."""

    def __init__(self, stack: ExitStack, folder: Path, arbiter: str, upstream: str = "") -> None:
        folder.mkdir()
        more = ("--upstream", upstream) if upstream else ()
        self.daemon = stack.enter_context(Daemon(folder, options=more))
        self.agent = Process(
            str(PROGRAM),
            *("--database", arbiter, "--url", self.daemon.url, "--grace", str(GRACE)),
            *("--stop", f"kill -9 {self.daemon.pid}", "--synrepl", f"{sys.executable} -m synrepl"),
            cwd=folder,
        )
        stack.callback(lambda: print("\n".join(self.agent.lines)))
        stack.callback(self.agent.kill)

    def status(self) -> dict[str, Any]:
        """The daemon's; empty if it is gone."""
        with suppress(OSError), urllib.request.urlopen(f"{self.daemon.url}/v1/status", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
        return {}

    def wait_for_role(self, role: str) -> None:
        """Until the daemon has it."""
        eventually(lambda: self.status().get("role") == role, f"the role {role}", seconds=60)


def sites(stack: ExitStack, folder: Path, server: PostgresServer) -> tuple[Site, Site]:
    """A primary that has the lock, and a replica that is up to date."""
    arbiter = server.new_database()
    primary = Site(stack, folder / "a", arbiter)
    primary.agent.wait_for("has the lock")
    replica = Site(stack, folder / "b", arbiter, upstream=primary.daemon.url)
    replica.wait_for_role("replica")
    eventually(lambda: replica.status()["state"] == "serving", "a complete copy")
    return primary, replica


def test_a_replica_is_promoted_when_its_primary_is_killed(server: PostgresServer, tmp_path: Path) -> None:
    """Its program gives the lock back, and the other one waits until no primary can be left."""
    with ExitStack() as stack:
        primary, replica = sites(stack, tmp_path, server)
        primary.daemon.kill()

        replica.agent.wait_for("has the lock")
        replica.wait_for_role("primary")
        assert 2 == replica.status()["epoch"]


def test_a_primary_that_loses_the_lock_is_stopped_before_another_begins(
    server: PostgresServer, tmp_path: Path
) -> None:
    """PostgreSQL ended the connection, as after a cut: there is never more than one primary."""
    with ExitStack() as stack:
        primary, replica = sites(stack, tmp_path, server)
        ((holder,),) = server.execute(HOLDERS)
        server.execute(f"SELECT pg_terminate_backend({holder})")

        eventually(lambda: not primary.status(), "the end of the old primary", seconds=60)
        assert "replica" == replica.status()["role"]
        replica.wait_for_role("primary")


def test_without_an_arbiter_no_primary_stays(server: PostgresServer, tmp_path: Path) -> None:
    """Nobody can know whether there is another one."""
    with ExitStack() as stack:
        primary, replica = sites(stack, tmp_path, server)
        server.kill()
        try:
            eventually(lambda: not primary.status(), "the end of the primary", seconds=60)
            assert "replica" == replica.status()["role"]
        finally:
            server.start()
