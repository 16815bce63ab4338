"""Mistakes at each command: one line on standard error, the right exit code, and nothing else."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from synrepl.cli import main

NOBODY: Final = "http://127.0.0.1:1"

USAGE, FAILURE = 2, 1

LONGEST_SECONDS: Final = 2.0

DAEMON_COMMANDS: Final = (
    "status",
    "who",
    "replicas",
    "leases",
    "streams",
    "promote",
    "resync --yes",
    "append x",
)
"""Commands that ask a daemon."""

DAEMON_MISTAKES: Final = [
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
    ("--url {nobody} --context a", USAGE, "exclude each other"),
    ("--context nope", FAILURE, "there is no context 'nope'"),
]
"""Mistakes at each of them."""

MISTAKES: Final = [
    ("dance", USAGE, "No such command 'dance'"),
    ("--nope", USAGE, "No such option '--nope'"),
    ("status --sevret-file x", USAGE, "--secret-file"),
    ("status -o yaml", USAGE, "'yaml' is not one of"),
    ("status --interval never --watch", USAGE, "number of seconds"),
    ("status extra", USAGE, "unexpected extra argument"),
    ("top --url {nobody}", USAGE, "top needs a terminal"),
    ("promote", USAGE, "Missing option '--url'"),
    ("resync", USAGE, "Missing option '--url'"),
    ("append x", USAGE, "Missing option '--url'"),
    ("append --url {nobody}", USAGE, "Missing argument 'STREAM'"),
    ("append x --url {nobody} --batch 0", USAGE, "0 is not in the range"),
    ("leases add --url {nobody}", USAGE, "add takes the name of a replica"),
    ("leases give", USAGE, "'give' is not one of"),
    ("streams --database sqlite:x", USAGE, "--database needs --stuck"),
    ("streams --stuck --database x", USAGE, "the database must be sqlite:PATH or"),
    ("doctor", USAGE, "Missing option '--database'"),
    ("doctor --database x", USAGE, "the database must be sqlite:PATH or"),
    ("doctor --database sqlite:{folder}/none.db", FAILURE, "none.db"),
    ("doctor --database sqlite:{folder}/text", FAILURE, "not a database"),
    ("doctor --database sqlite:x --config /no/such", USAGE, "cannot read /no/such"),
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
    ("pipeline archive --archive x", USAGE, "Missing option '--url'"),
    ("pipeline archive --url {nobody}", USAGE, "Missing option '--archive'"),
    ("pipeline archive --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline archive --url {nobody} --archive x --conf x", USAGE, "--conf must be KEY=VALUE"),
    ("pipeline replay --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline watch --url {nobody} --stall-seconds 0s", USAGE, "number of seconds"),
    ("pipeline watch --url {nobody}", FAILURE, "Connection refused"),
    ("pipeline audit --archive x --master nope", FAILURE, "nope is not the URL of a Spark master"),
    ("context use nope", FAILURE, "there is no context 'nope'"),
    ("context add a", USAGE, "Missing option '--url'"),
    ("context add a --url nowhere", FAILURE, "is not the address of a daemon"),
    ("context add a.b --url {nobody}", FAILURE, "letters, digits, - and _"),
    ("completion tcsh", USAGE, "'tcsh' is not one of"),
    ("config check /no/such", USAGE, "cannot read /no/such"),
    ("config check {folder}/open.yaml", USAGE, "reachable from other machines"),
    ("config check", USAGE, "Missing argument 'FILE'"),
    ("demo --port many", USAGE, "not a valid int"),
]


class _OtherServer(BaseHTTPRequestHandler):
    """A web server that is not a daemon."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The words in braces: servers that are no daemons, and files that are not what they should be."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "text").write_text("this is a text, of some length, and has nothing to do with synrepl\n" * 9)
    (folder / "open.yaml").write_text("http: tcp:9093\n")
    lines = socket.create_server(("127.0.0.1", 0))
    web = ThreadingHTTPServer(("127.0.0.1", 0), _OtherServer)

    def greet() -> None:
        while True:
            try:
                connection, _ = lines.accept()
            except OSError:
                return
            connection.sendall(b"SERVER example.org\n")

    for work in (greet, web.serve_forever):
        threading.Thread(target=work, daemon=True).start()
    port = lines.getsockname()[1]
    yield {
        "nobody": NOBODY,
        "lines": f"http://127.0.0.1:{port}",
        "lines_tls": f"https://127.0.0.1:{port}",
        "other": f"http://127.0.0.1:{web.server_port}",
        "folder": str(folder),
    }
    lines.close()
    web.shutdown()
    web.server_close()


@pytest.mark.parametrize(
    ("command", "code", "said"),
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
    command: str,
    code: int,
    said: str,
    addresses: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, and nothing is left behind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SYNREPL_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    words = [word.format(**addresses) for word in command.split(" ")]
    # With retries a refused connection is transient: the limit ends them.
    words += ["--no-retry"] if words[0] == "append" and "--no-retry" not in words else []
    before = time.monotonic()

    result = CliRunner().invoke(main, words, prog_name="synrepl", input='["@a:b"]\n')

    assert time.monotonic() - before < LONGEST_SECONDS
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert (code, "", 1) == (result.exit_code, result.stdout, len(result.stderr.splitlines())), result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, with the words that name them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS: Final = dict(commands(main))

FEWEST: Final = 10
FEW: Final = {"completion": 6, "context use": 6}
"""Commands without an option have fewer mistakes."""


def typing_mistakes(command: click.Command) -> Iterator[str]:
    """The mistakes of typing that the parameters of a command allow."""
    yield from ("--nope", "-Z", "--help=yes", "--hlep")
    if all(one.nargs == 1 for one in command.params if isinstance(one, click.Argument)):
        yield " ".join("abcdef")
    for one in command.params:
        if not isinstance(one, click.Option) or one.hidden:
            continue
        name = max(one.opts, key=len)
        yield f"{name}z"
        if one.is_flag:
            yield f"{name}=yes"
        else:
            yield name
            if isinstance(one.type, click.Choice | click.types.IntParamType | click.types.FloatParamType):
                yield f"{name} @"


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_of_typing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those above at least ten at each command."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    mistakes = list(typing_mistakes(COMMANDS[name]))
    for mistake in mistakes:
        began = time.monotonic()
        result = CliRunner().invoke(main, [*name.split(), *mistake.split()], prog_name="synrepl")
        assert time.monotonic() - began < LONGEST_SECONDS, mistake
        shown = (result.exit_code, result.stdout, len(result.stderr.splitlines()))
        assert (USAGE, "", 1) == shown, (mistake, result.output)
        assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
    shown_above = sum(command == name or command.startswith(f"{name} ") for command, _, _ in MISTAKES)
    assert len(mistakes) + shown_above >= FEW.get(name, FEWEST), (mistakes, shown_above)
