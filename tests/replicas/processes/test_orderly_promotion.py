"""After an orderly promotion everybody knows the new primary, and nobody complains."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes.channel import eventually
from tests.service.processes import Daemon


def ask(daemon: Daemon, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{daemon.url}{path}", data, timeout=60) as answer:
        return json.loads(answer.read())


def is_live(daemon: Daemon) -> bool:
    upstream = ask(daemon, "/v1/status")["upstream"]
    return bool(upstream and upstream["state"] == "live")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.story)])
def test_an_orderly_promotion_leaves_no_errors(host: str, tmp_path: Path) -> None:
    """Whatever name the settings of the replica have for its upstream: the new primary must notify it."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    with Daemon(folders[0], options=("--server-name", "a")) as first:
        port = first.follow.rpartition(":")[2]
        with (
            Daemon(folders[1], options=("--upstream", f"tcp:{host}:{port}")) as second,
            Daemon(
                folders[2], options=("--upstream", f"tcp:{host}:{port}", "--upstream", second.url)
            ) as third,
        ):
            eventually(lambda: is_live(second) and is_live(third), "both replicas are live")
            assert "primary" == ask(second, "/v1/promote", {})["role"]
            eventually(lambda: ask(first, "/v1/status")["role"] == "fenced", "the first one is fenced")
            eventually(lambda: is_live(third), "the third one follows")
            assert "replica" == ask(first, "/v1/resync", {})["role"]
            eventually(lambda: is_live(first), "the first one follows")
            everybody = (first, second, third)

            def complaints() -> list[Any]:
                states = [ask(one, "/v1/status") for one in everybody]
                kinds = ("errors", "warnings", "unnotified")
                return [state[kind] for state in states for kind in kinds if state[kind]]

            eventually(lambda: not complaints(), lambda: str(complaints()))
            for daemon in everybody:
                assert not [line for line in daemon.lines if "cannot notify" in line]
