"""Clients of Redis of other languages, and of other environments, with their defaults at the RESP port.

npm and pip bring them, at these releases. Not tried, since the registries of their languages could not be
reached: jedis, lettuce (Maven) and go-redis (Go).
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.channel.processes.resp_clients import COMMON, SECRETS, run, serving
from tests.interop.harness import PEERS, peer_python

NODE: Final = ("redis@6.3.1", "ioredis@6.0.0")
COREDIS: Final = "coredis==6.9.0"
ANSWERS: Final = {**COMMON, "ping": "PONG", "set": "OK"}


def folder(name: str) -> Path:
    """Where what is fetched is kept, beside the environments of the releases."""
    found = peer_python("legacy").parents[2] / "clients" / name
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


@pytest.fixture(params=SECRETS, ids=["open", "secret"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The arguments of a client: the port of a daemon, its channel, and the password if it has one."""
    with serving(tmp_path, request.param) as arguments:
        yield arguments


def test_node_redis_and_ioredis(place: list[str]) -> None:
    """node-redis greets with HELLO 3 and subscribes on the connection that it asks on; ioredis uses RESP2."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no node and npm on the path")
    modules = folder("-".join(NODE).replace("@", "-"))
    if not modules.exists():
        wanted = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(modules), *NODE]
        subprocess.run(wanted, check=True, capture_output=True)
    found = run([node, PEERS / "resp_clients.js", *place], {"NODE_PATH": str(modules / "node_modules")})

    assert found["node-redis"] == {
        **ANSWERS,
        "exists": 1,
        "ttl": 60,
        "type": "string",
        "name": "tool",
        "protocol": 3,
        "listed": ["tool"],
        "settings": {"databases": "16"},
        "commands": True,
        "arity": 2,
        "subscribed": True,
        "meanwhile": "PONG",
        "message": "REMOTE_SERVER_UP node-redis",
    }
    assert found["ioredis"] == {**ANSWERS, "message": "REMOTE_SERVER_UP ioredis"}


def test_coredis(place: list[str]) -> None:
    """It greets with HELLO 3, and falls back to nothing."""
    packages = folder(COREDIS)
    if not packages.exists():
        wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), COREDIS]
        subprocess.run(wanted, check=True, capture_output=True)
    found = run([sys.executable, PEERS / "resp_coredis.py", *place], {"PYTHONPATH": str(packages)})

    assert found == {**ANSWERS, "set": True, "protocol": "3", "message": "REMOTE_SERVER_UP coredis"}
