"""Mistakes at a command: what the tests of each room's commands share with those of the core."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from synrepl.cli import main
from tests.cli.test_targets import json_server

NOBODY: Final = "http://127.0.0.1:1"

USAGE, FAILURE = 2, 1

LONGEST_SECONDS: Final = 20.0
"""Shorter than any wait for a daemon, and long beside a busy machine."""

Mistake = tuple[str, int, str]
"""A command line with words in braces (`addresses`), its exit code, and a part of what it says."""


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
    (folder / "word").write_text("word\n")
    (folder / "hs.yaml").write_text("server_name: example.org\n")
    for name, arguments in (("far", "{host: 127.0.0.1, port: 1}"), ("dsn", "{dsn: secret}")):
        database = f"database: {{name: psycopg2, args: {arguments}}}"
        (folder / f"{name}.yaml").write_text(f"server_name: example.org\n{database}\n")
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


def check_mistake(
    mistake: Mistake, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert that a mistake is one line on standard error, at once, and leaves nothing behind."""
    command, code, said = mistake
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
    assert said.format(**addresses) in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


JUNK: Final = (
    *(b"", b"text", b"<html>", b"\xff\xfe\0\1" * 9, b"null", b"7", b'"x"', b"[]", b"{}"),
    *(b"[" * 5_000, b'{"a":' * 3_000),
    b'{"leases":7,"streams":7,"serial":"x","tokens":3,"first_serial":[],"role":{},"state":[],"errors":5}',
    b'{"leases":[1],"streams":{"a":1},"followers":[1],"replicas":[1],"role":"fenced","state":"x","serial":1}',
    b'{"error":"busy","message":"a refusal with status 200"}',
)


def check_junk(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a command tells junk of another server that says 200 from the answer of a daemon."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    facts = tmp_path / "facts"
    facts.write_text('{"stream":"push_rules","writer":"master","token":1,"rows":[["@a:b"]]}\n')
    for junk in JUNK:
        with json_server(junk) as port:
            words = [*command.format(facts=facts).split(), "--url", f"http://127.0.0.1:{port}"]
            result = CliRunner().invoke(main, words, prog_name="synrepl", input='["@a:b"]\n')

        assert result.exception is None or isinstance(result.exception, SystemExit), (junk, result.exception)
        shown = (result.exit_code, result.stdout, len(result.stderr.splitlines()))
        assert (FAILURE, "", 1) == shown, (junk, result.output)
        assert "is not a synrepl daemon" in result.stderr


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


FEWEST: Final = 10
FEW: Final = {"completion": 6}
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


def check_typing(
    name: str,
    command: click.Command,
    shown: Sequence[Mistake],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Assert that mistakes of typing are one line each, and with those `shown` at least ten."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    mistakes = list(typing_mistakes(command))
    for mistake in mistakes:
        began = time.monotonic()
        result = CliRunner().invoke(main, [*name.split(), *mistake.split()], prog_name="synrepl")
        assert time.monotonic() - began < LONGEST_SECONDS, mistake
        outcome = (result.exit_code, result.stdout, len(result.stderr.splitlines()))
        assert (USAGE, "", 1) == outcome, (mistake, result.output)
        assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
    shown_above = sum(one == name or one.startswith(f"{name} ") for one, _, _ in shown)
    assert len(mistakes) + shown_above >= FEW.get(name, FEWEST), (mistakes, shown_above)
