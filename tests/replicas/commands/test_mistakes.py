"""Mistakes at the commands of replicas."""

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
from tests.cli.test_mistakes import DAEMON_MISTAKES

__all__ = ["addresses"]

DAEMON_COMMANDS: Final = ("replicas", "leases", "promote", "resync --yes")
"""Commands that ask a daemon."""

MISTAKES: Final[list[Mistake]] = [
    ("promote", USAGE, "Missing option '--url'"),
    ("resync", USAGE, "Missing option '--url'"),
    ("leases add --url {nobody}", USAGE, "add takes the name of a replica"),
    ("leases give", USAGE, "'give' is not one of"),
    ("backup verify", USAGE, "Missing argument 'DIR'"),
    ("backup verify .", FAILURE, ". is no backup: it has no backup.json (name the folder of a backup)"),
    ("backup verify missing", FAILURE, "missing is no backup: it has no backup.json"),
    ("backup verify {folder}", FAILURE, "{folder} is no backup: it has no backup.json"),
    ("backup run", USAGE, "Missing argument 'DIR'"),
    ("backup --follow", USAGE, "Missing argument 'DIR'"),
    ("backup D --name=", USAGE, "--name must be one word"),
    ("backup D --upstream nope:1", USAGE, "--upstream"),
    ("backup /proc/nothing", FAILURE, "/proc/nothing: "),
    ("restore D", USAGE, "Missing option '--database'"),
    ("restore D --database sqlite:x.db", FAILURE, "D is no backup: it has no backup.json"),
    ("restore D --database sqlite:x.db --until noon", USAGE, "must be a serial, or a time with its offset"),
    ("restore D --database x.db", FAILURE, "the database must be sqlite:PATH or postgresql://"),
]


@pytest.mark.parametrize(
    "mistake",
    [
        *MISTAKES,
        *(
            (f"{command} {mistake}", code, said)
            for command in DAEMON_COMMANDS
            for mistake, code, said in DAEMON_MISTAKES
        ),
    ],
)
def test_a_mistake_is_one_line(
    mistake: Mistake, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and nothing is left behind."""
    check_mistake(mistake, addresses, tmp_path, monkeypatch)


JUNK_COMMANDS: Final = (
    *("replicas --check", "leases", "leases add x", "leases drop x"),
    *("promote", "promote --force --yes", "resync --yes"),
)


@pytest.mark.parametrize("command", JUNK_COMMANDS)
def test_junk_in_place_of_a_response_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any other server that says 200: no traceback, and no success that was none."""
    check_junk(command, tmp_path, monkeypatch)


COMMANDS: Final = {
    name: command
    for name, command in commands(main)
    if main.places[name.split()[0]][0].startswith("synrepl.replicas.")
}


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_of_typing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those above at least ten at each command."""
    check_typing(name, COMMANDS[name], MISTAKES, tmp_path, monkeypatch)
