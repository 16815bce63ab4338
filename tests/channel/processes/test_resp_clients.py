"""Clients of this year with their defaults at the RESP port of a real daemon.

Those that need other registries than PyPI's or other environments are in tests/interop/test_resp_clients.py.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synrepl.channel.resp.commands import COMMANDS
from tests.channel.processes.resp_clients import COMMON, SECRETS, run, serving

PROGRAM = (sys.executable, "-m")


@pytest.fixture(params=SECRETS, ids=["open", "secret"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The arguments of a client: the port of a daemon, its channel, and the password if it has one."""
    with serving(tmp_path, request.param) as arguments:
        yield arguments


@pytest.mark.story
def test_redis_py(place: list[str]) -> None:
    """It greets with HELLO 3, which was refused (redis-py#4089): nothing worked without `protocol=2`."""
    found = run([*PROGRAM, "tests.channel.processes.resp_clients.redis_py", *place], {})

    assert found.pop("asyncio") == {
        "ping": True,
        "set": True,
        "get": "v",
        "message": "REMOTE_SERVER_UP asyncio",
    }
    assert found == {
        **COMMON,
        "ping": True,
        "set": True,
        "exists": 1,
        "ttl": 60,
        "type": "string",
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
    assert run([*PROGRAM, "tests.channel.processes.resp_clients.txredis", *place], {}) == {
        **COMMON,
        "ping": "PONG",
        "set": "OK",
        "exists": 1,
        "ttl": 60,
        "message": "REMOTE_SERVER_UP txredisapi",
    }
