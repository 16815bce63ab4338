"""A daemon that has met no other one: what it has loaded, and that nobody can tell."""

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.replicas.alone import OPENING, is_alone
from synrepl.replicas.native_receiver import OPENING as OPENING_OF_REPLICAS
from synrepl.replicas.settings import ReplicasSettings
from synrepl.wire.acks import Acks
from tests.idle import unwanted
from tests.service.processes import Daemon

DECLARATIONS = {
    "synrepl.replicas",
    "synrepl.replicas.alone",
    "synrepl.replicas.file_copies",
    "synrepl.replicas.listed_states",
    "synrepl.replicas.metrics",
    "synrepl.replicas.roles",
    "synrepl.replicas.roles.states",
    "synrepl.replicas.room",
    "synrepl.replicas.routes",
    "synrepl.replicas.settings",
    "synrepl.replicas.shapes",
}
"""The modules of the room that every daemon has."""


def fetched(daemon: Daemon, path: str) -> Any:
    """The JSON at this path."""
    with urllib.request.urlopen(f"{daemon.url}{path}", timeout=20) as answer:
        return json.load(answer)


OURS = "role state why name address primary upstream replicas leases unnotified errors warnings"
"""The keys of the status on which this room has a say."""


def described(daemon: Daemon) -> dict[str, Any]:
    """What the status and the metrics say of this room."""
    found = fetched(daemon, "/v1/status")
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    ours = ("synrepl_role", "synrepl_replicas", "synrepl_lease", "synrepl_catchup", "synrepl_claims")
    return {
        **{name: found.get(name) for name in OURS.split()},
        "metrics": [line for line in lines if line.startswith(ours)],
    }


def test_it_has_imported_the_declarations_of_the_room_alone() -> None:
    """Relays, leases and roles come with the first daemon that it meets."""
    assert unwanted(["synrepl.replicas"], but=DECLARATIONS) == {}


def test_replicas_show_themselves_by_the_same_commands() -> None:
    """They are listed twice: the one list is made of the commands, which are not loaded yet."""
    assert OPENING == OPENING_OF_REPLICAS


def test_nobody_can_tell_whether_it_has_met_another_one(tmp_path: Path) -> None:
    """A question about leases is enough to load the room, and the status stays as it was."""
    with Daemon(tmp_path) as daemon:
        before = described(daemon)
        assert {"leases": []} == fetched(daemon, "/v1/leases")

        assert before == described(daemon)
        assert "primary" == before["role"]


@pytest.mark.parametrize(
    ("settings", "notes", "leases", "expected"),
    [
        ({}, {}, [], True),
        ({}, {"uuid": "u", "history": "h", "server_name": "hs"}, [], True),
        ({"upstream": ("http://a:1",)}, {}, [], False),
        ({"acks": {"push_rules": Acks(1)}}, {}, [], False),
        ({}, {}, ["paris"], False),
        ({}, {"role": "{}"}, [], False),
        ({}, {"keys": "[]"}, [], False),
        ({}, {"primary_at": "- http://a:1"}, [], False),
        ({}, {"a note of a later release": ""}, [], False),
    ],
)
def test_whoever_has_settings_leases_or_notes_of_others_is_not_alone(
    settings: dict[str, Any], notes: dict[str, str], leases: list[str], *, expected: bool
) -> None:
    """It was a replica, or has some: what it must do at its start cannot wait for the first question."""
    daemon: Any = SimpleNamespace(log=SimpleNamespace(notes=notes, leases=dict.fromkeys(leases)))

    assert expected == is_alone(daemon, ReplicasSettings(**settings))
