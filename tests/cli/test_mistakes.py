"""Mistakes at each command: one line on standard error, the right exit code, and nothing else."""

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

DAEMON_COMMANDS: Final = (
    "status",
    "who",
    "streams",
    "append x",
)
"""Commands that ask a daemon."""

DAEMON_MISTAKES: Final[list[Mistake]] = [
    ("--url {nobody}", FAILURE, "Connection refused"),
    ("--url nowhere", FAILURE, "is not the address of a daemon"),
    ("--url http://127.0.0.1:99999", FAILURE, "is not the address of a daemon"),
    ("--url ftp://127.0.0.1", FAILURE, "is not the address of a daemon"),
    ("--url {lines}", FAILURE, "this is the port of the line protocol; use that of HTTP"),
    ("--url {lines_tls}", FAILURE, "does not speak TLS"),
    ("--url {other}", FAILURE, ""),
    ("--url {nobody} --secret-file /no/such", FAILURE, "cannot read the secret file"),
    ("--url {nobody} --nope", USAGE, "No such option '--nope'"),
    ("--url {nobody} --timeout soon", USAGE, "a number of seconds above 0, such as"),
    ("--url {nobody} --context a", USAGE, "contexts are gone: set $SYNREPL_URL"),
]
"""Mistakes at each of them."""

MISTAKES: Final = [
    ("dance", USAGE, "No such command 'dance'"),
    ("statsu", USAGE, "No such command 'statsu'; did you mean status?"),
    ("context list", USAGE, "contexts are gone: set $SYNREPL_URL"),
    ("--nope", USAGE, "No such option '--nope'"),
    ("status --sevret-file x", USAGE, "--secret-file"),
    ("status -o yaml", USAGE, "'yaml' is not one of"),
    ("status --interval never --watch", USAGE, "number of seconds"),
    ("status extra", USAGE, "unexpected extra argument"),
    ("top --url {nobody}", USAGE, "top needs a terminal"),
    ("append x", USAGE, "add for example --url http://127.0.0.1:9093, or set $SYNREPL_URL"),
    ("append --url {nobody}", USAGE, "Missing argument 'STREAM'"),
    ("append x --url {nobody} --batch 0", USAGE, "0 is not in the range"),
    ("append x --url {nobody} --acks 1,paris", USAGE, "must be a number of replicas, or their names"),
    ("streams craete x", USAGE, "did you mean create?; see synrepl streams --help"),
    ("serve --server-name", USAGE, "requires an argument; see synrepl serve --help"),
    ("serve --server-name x --database log.db", USAGE, "not 'log.db'; did you mean sqlite:log.db?"),
    ("serve --server-name x --log-level debg", USAGE, "did you mean debug?"),
    ("replay /no/such --url {nobody}", FAILURE, "cannot read /no/such"),
    ("replay {folder}/text --url {nobody}", FAILURE, "contains no rows"),
    ("replay {folder}/text --url {nobody} --dialect curent", USAGE, "did you mean current?"),
    ("replay {folder}/text --url {nobody} --speed fast", USAGE, "not a valid float"),
    ("tail", USAGE, "Missing argument 'TARGET'"),
    ("tail nonsense:a:b", USAGE, "TARGET is not host:port or a URL"),
    ("tail 127.0.0.1:1 --dialect native", USAGE, "native is the protocol of replicas"),
    ("tail 127.0.0.1:1 --dialect 9.9.9.9", USAGE, "--dialect"),
    ("tail 127.0.0.1:1 --dialect 9.9", USAGE, "there is no Synapse 9.9; the newest known release is 1.163"),
    ("tail 127.0.0.1:1 --from middle", USAGE, "'middle' is not one of"),
    ("tail 127.0.0.1:1 --exit-after none", USAGE, "not a valid int"),
    ("tail 127.0.0.1:1 --name a\xa0b", USAGE, "--name must be one word"),
    ("tail 127.0.0.1:1 --secret-file /no/such", FAILURE, "cannot read the secret file"),
    ("tail 127.0.0.1:1 --state {folder}/text", FAILURE, "not a file of positions"),
    ("tail 127.0.0.1:1 --state {folder}/none/s", FAILURE, "none"),
    ("caches lint nope", USAGE, "is not MODULE:ATTRIBUTE"),
    ("caches lint nope:nope", USAGE, "cannot import nope:nope"),
    ("caches lint json:loads", USAGE, "not CacheRegistry"),
    ("completion tcsh", USAGE, "'tcsh' is not one of"),
    ("config check /no/such", USAGE, "cannot read /no/such"),
    ("config check {folder}/open.yaml", USAGE, "reachable from other machines"),
    ("config check", USAGE, "Missing argument 'FILE'"),
    ("demo --port many", USAGE, "not a valid int"),
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
    *("status", "status --json", "who", "streams", "streams create x --untyped"),
    *("append x", "append x --writer w", "replay {facts}"),
)


@pytest.mark.parametrize("command", JUNK_COMMANDS)
def test_junk_in_place_of_a_response_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any other server that says 200: no traceback, and no success that was none."""
    check_junk(command, tmp_path, monkeypatch)


OTHERS: Final = ("files",)
"""Commands of rooms whose mistakes are here."""
COMMANDS: Final = {
    name: command
    for name, command in commands(main)
    if main.places[first := name.split()[0]][0].startswith("synrepl.cli.") or first in OTHERS
}


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_of_typing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those above at least ten at each command."""
    check_typing(name, COMMANDS[name], MISTAKES, tmp_path, monkeypatch)
