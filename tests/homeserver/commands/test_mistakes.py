"""Mistakes at commands that look at a homeserver."""

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
    ("streams --database sqlite:x", USAGE, "--database needs --stuck"),
    ("streams --stuck --database x", USAGE, "the database must be sqlite:PATH or"),
    ("doctor", USAGE, "Missing option '--database'"),
    ("doctor --database sqlite:x --homeserver {folder}/hs.yaml", USAGE, "exclude each other"),
    ("doctor --homeserver {folder}/none.yaml", USAGE, "none.yaml"),
    ("doctor --homeserver {folder}/text --before-start", USAGE, "{folder}/text"),
    ("doctor --homeserver {folder}/open.yaml --before-start", USAGE, "no server_name"),
    ("doctor --homeserver {folder}/hs.yaml --before-start", USAGE, "no database of PostgreSQL, nor"),
    ("doctor --homeserver {folder}/dsn.yaml --before-start", USAGE, "not a PostgreSQL URL"),
    ("doctor --homeserver {folder}/far.yaml --before-start", USAGE, "Connection refused"),
    ("doctor --homeserver {folder}/far.yaml --before-start --apply", USAGE, "Connection refused"),
    ("doctor --homeserver {folder}/far.yaml", FAILURE, "Connection refused"),
    ("doctor --homeserver {folder}/hs.yaml --apply", USAGE, "--apply needs --before-start"),
    ("doctor --homeserver {folder}/hs.yaml --wait 3", USAGE, "--wait needs --before-start"),
    ("doctor --homeserver {folder}/hs.yaml --before-start --wait soon", USAGE, "number of seconds"),
    ("doctor --homeserver {folder}/hs.yaml --before-start --fix", USAGE, "use --apply"),
    ("doctor --homeserver {folder}/hs.yaml --before-start --quick", USAGE, "neither --config nor"),
    ("doctor --database sqlite:x --before-start", USAGE, "--before-start needs --homeserver"),
    ("doctor --database postgresql+psycopg2://ada:SECRET@h/db", USAGE, "leave out what names it"),
    ("doctor --database jdbc:postgresql://h/db", USAGE, "the notation of another library"),
    ("doctor --database host=SECRET", USAGE, "put host, user and dbname into the URL"),
    ("doctor --database x.db", USAGE, "not 'x.db'; did you mean sqlite:x.db?"),
    ("doctor --database sqlite:{folder}/none.db", FAILURE, "none.db"),
    ("doctor --database sqlite:{folder}/text", FAILURE, "not a database"),
    ("doctor --database sqlite:x --config /no/such", USAGE, "cannot read /no/such"),
    ("explain hello", FAILURE, "nothing was recognized; known are the messages that Synapse logs"),
    ("explain Timed out", USAGE, "unexpected extra argument (out)"),
    ("explain ", USAGE, "the text is empty: give it in quotes"),
    ("explain s1_2 -o text", USAGE, "'text' is not one of"),
    ("probe {nobody}", USAGE, "Missing option '--token-file'"),
    ("probe {nobody} --token-file /no/such", FAILURE, "cannot read the token file"),
    ("probe nowhere --token-file {folder}/word", USAGE, "is not an HTTP URL"),
    ("probe {nobody} --token-file {folder}/word --via a", USAGE, "--via must be NAME=URL"),
    ("probe {nobody} --token-file {folder}/word --rounds 0", USAGE, "0 is not in the range"),
    ("probe {nobody} --token-file {folder}/word", FAILURE, "refused"),
    ("inspect", USAGE, "Missing option '--homeserver'"),
    ("inspect --homeserver /no/such", USAGE, "does not exist"),
    ("inspect --homeserver {folder}/text", USAGE, "has no settings at its top"),
    ("inspect --homeserver {folder}/open.yaml", USAGE, "no server_name"),
    ("inspect --homeserver {folder}/hs.yaml --metrics a", USAGE, "--metrics must be NAME=URL"),
    ("inspect --homeserver {folder}/hs.yaml --metrics a=http://b", USAGE, "is no process"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(
    mistake: Mistake, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and nothing is left behind."""
    check_mistake(mistake, addresses, tmp_path, monkeypatch)


def test_junk_in_place_of_a_response_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any other server that says 200: no traceback, and no success that was none."""
    check_junk("streams --stuck", tmp_path, monkeypatch)


COMMANDS: Final = {
    name: command
    for name, command in commands(main)
    if main.places[name.split()[0]][0].startswith("synrepl.homeserver.")
}


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_of_typing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those above at least ten at each command."""
    check_typing(name, COMMANDS[name], MISTAKES, tmp_path, monkeypatch)
