"""`synrepl keys`: what it asks the daemon for, and how it lists what there is."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main
from synrepl.cli.options import DaemonTarget
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.routes import ADD_KEY

NOW = 1_000.0


class Daemon:
    """Makes and lists keys, and notes the bodies that it is sent."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.keys: list[dict[str, Any]] = []

    def ask(self, request: HttpRequest, body: bytes | None = None) -> Any:
        """Answer as the routes of keys do."""
        if body is None:
            return {"keys": self.keys, "lost": []}
        sent = json.loads(body)
        self.bodies.append(sent)
        key = {"rights": ["read"], "streams": None, "instances": None, "made": NOW, "revoked": None} | sent
        self.keys.append(key)
        return {"key": key, "secret": f"{sent['name']}.secret"}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """The daemon that the commands ask."""
    daemon = Daemon()
    monkeypatch.setattr(DaemonTarget, "ask", lambda self, *request: daemon.ask(*request))
    monkeypatch.setattr("time.time", lambda: NOW + 120)
    return daemon


def run(*words: str) -> Result:
    """``synrepl keys``, in this process."""
    return CliRunner().invoke(main, ["keys", *words])


def test_limits_of_a_key_are_lists_in_the_request(daemon: Daemon) -> None:
    """What is not given is left to the daemon; it alone knows bad names."""
    answers = [
        run("add", "x"),
        run("add", "y", "--instances", "w1,w2", "--streams", "events"),
        run("add", "z", "--instances", "w1,"),
    ]

    assert ["x.secret\n", "y.secret\n", "z.secret\n"] == [one.stdout for one in answers]
    assert [
        {"name": "x"},
        {"name": "y", "streams": ["events"], "instances": ["w1", "w2"]},
        {"name": "z", "instances": ["w1", ""]},
    ] == daemon.bodies


def test_the_list_shows_the_instances(daemon: Daemon) -> None:
    run("add", "x")
    run("add", "y", "--instances", "w1,w2", "--streams", "events")
    daemon.ask(ADD_KEY.request(), b'{"name": "z", "instances": []}')
    shown = run("list")
    found = json.loads(run("list", "--json").stdout)

    assert [
        ["name", "rights", "streams", "instances", "made", "revoked"],
        ["x", "read", "all", "any", "2", "min", "ago", "-"],
        ["y", "read", "events", "w1,w2", "2", "min", "ago", "-"],
        ["z", "read", "all", "none", "2", "min", "ago", "-"],
    ] == [line.split() for line in shown.stdout.splitlines()]
    assert [None, ["w1", "w2"], []] == [one["instances"] for one in found]
