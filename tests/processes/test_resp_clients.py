"""Clients of this year with their defaults at the RESP port of a real daemon.

Those that need other registries than PyPI's or other environments are in tests/interop/test_resp_clients.py.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synrepl.transports.resp.commands import COMMANDS
from tests.service.processes import ROOT, Daemon

SECONDS = 60.0
SECRET = "s3cret"


@pytest.fixture(params=["", SECRET], ids=["open", "secret"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The arguments of a client: the port of a daemon, its channel, and the password if it has one."""
    options = ["--server-name", "example.org", "--resp", "tcp:0:interface=127.0.0.1"]
    if request.param:
        (tmp_path / "secret").write_text(request.param)
        (tmp_path / "secret").chmod(0o600)
        options += ["--secret-file", str(tmp_path / "secret")]
    with Daemon(tmp_path, options=tuple(options)) as daemon:
        line = next(line for line in daemon.lines if "RESP: listening at tcp:" in line)
        yield [line.rsplit(":", 1)[1], "example.org", *([request.param] if request.param else [])]


def run(name: str, arguments: list[str]) -> Any:
    """What the program of this client prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.processes.resp_clients.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.story
def test_redis_py(place: list[str]) -> None:
    """It greets with HELLO 3, which was refused (redis-py#4089): nothing worked without `protocol=2`."""
    found = run("redis_py", place)

    assert found.pop("asyncio") == {
        "ping": True,
        "set": True,
        "get": "v",
        "message": "REMOTE_SERVER_UP asyncio",
    }
    assert found == {
        "ping": True,
        "set": True,
        "get": "v",
        "none": None,
        "several": ["v", None],
        "exists": 1,
        "ttl": 60,
        "type": "string",
        "deleted": 1,
        "name": "tool",
        "protocol": "3",
        "listed": ["tool"],
        "settings": {"databases": "16"},
        "count": len(COMMANDS),
        "commands": len(COMMANDS),
        "pipeline": [True, "1"],
        "message": "REMOTE_SERVER_UP redis-py",
        "reset": "RESET",
    }


@pytest.mark.story
def test_txredisapi(place: list[str]) -> None:
    """As Synapse, in RESP2."""
    assert run("txredis", place) == {
        "ping": "PONG",
        "set": "OK",
        "get": "v",
        "none": None,
        "several": ["v", None],
        "exists": 1,
        "ttl": 60,
        "deleted": 1,
        "message": "REMOTE_SERVER_UP txredisapi",
    }
