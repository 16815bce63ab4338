"""Mistakes at jobs of the pipeline."""

from pathlib import Path
from typing import Final

import pytest

from synrepl.cli import main
from tests.cli.mistakes import (
    FAILURE,
    USAGE,
    Mistake,
    addresses,
    check_junk,
    check_mistake,
    check_typing,
    commands,
)

__all__ = ["addresses"]

MISTAKES: Final[list[Mistake]] = [
    ("pipeline watch --url {nobody}", USAGE, "watch is gone: use the alert rules"),
    ("pipeline archiv", USAGE, "did you mean archive?"),
    ("archive", USAGE, "did you mean pipeline archive?"),
    ("pipeline archive --archive x", USAGE, "Missing option '--url'"),
    ("pipeline archive --url {nobody}", USAGE, "Missing option '--archive'"),
    ("pipeline archive --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline archive --url {nobody} --archive x --conf x", USAGE, "--conf must be KEY=VALUE"),
    ("pipeline replay --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline audit --archive x --master nope", FAILURE, "nope is not the URL of a Spark master"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(
    mistake: Mistake, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and nothing is left behind."""
    check_mistake(mistake, addresses, tmp_path, monkeypatch)


def test_junk_in_place_of_a_response_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any other server that says 200: no traceback, and no success that was none."""
    check_junk("pipeline archive --archive x", tmp_path, monkeypatch)


COMMANDS: Final = {
    name: command
    for name, command in commands(main)
    if main.places[name.split()[0]][0].startswith("synrepl.pipeline.")
}


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_of_typing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those above at least ten at each command."""
    check_typing(name, COMMANDS[name], MISTAKES, tmp_path, monkeypatch)
