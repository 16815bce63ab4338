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
from tests.cli.test_targets import json_server

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
    ("--url {nobody} --context a", USAGE, "contexts are gone: set $SYNREPL_URL"),
]
"""Mistakes at each of them."""

MISTAKES: Final = [
    ("dance", USAGE, "No such command 'dance'"),
    ("statsu", USAGE, "No such command 'statsu'; did you mean status?"),
    ("context list", USAGE, "contexts are gone: set $SYNREPL_URL"),
    ("pipeline watch --url {nobody}", USAGE, "watch is gone: use the alert rules"),
    ("pipeline archiv", USAGE, "did you mean archive?"),
    ("--nope", USAGE, "No such option '--nope'"),
    ("status --sevret-file x", USAGE, "--secret-file"),
    ("status -o yaml", USAGE, "'yaml' is not one of"),
    ("status --interval never --watch", USAGE, "number of seconds"),
    ("status extra", USAGE, "unexpected extra argument"),
    ("top --url {nobody}", USAGE, "top needs a terminal"),
    ("promote", USAGE, "Missing option '--url'"),
    ("resync", USAGE, "Missing option '--url'"),
    ("append x", USAGE, "add for example --url http://127.0.0.1:9093, or set $SYNREPL_URL"),
    ("append --url {nobody}", USAGE, "Missing argument 'STREAM'"),
    ("append x --url {nobody} --batch 0", USAGE, "0 is not in the range"),
    ("append x --url {nobody} --acks 1,paris", USAGE, "must be a number of replicas, or their names"),
    ("leases add --url {nobody}", USAGE, "add takes the name of a replica"),
    ("leases give", USAGE, "'give' is not one of"),
    ("streams craete x", USAGE, "did you mean create?; see synrepl streams --help"),
    ("serve --server-name", USAGE, "requires an argument; see synrepl serve --help"),
    ("serve --server-name x --database log.db", USAGE, "not 'log.db'; did you mean sqlite:log.db?"),
    ("serve --server-name x --log-level debg", USAGE, "did you mean debug?"),
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
    ("doctor --database x.db", USAGE, "not 'x.db'; did you mean sqlite:x.db?"),
    ("doctor --database sqlite:{folder}/none.db", FAILURE, "none.db"),
    ("doctor --database sqlite:{folder}/text", FAILURE, "not a database"),
    ("doctor --database sqlite:x --config /no/such", USAGE, "cannot read /no/such"),
    ("explain hello", FAILURE, "nothing was recognized; known are the messages that Synapse logs"),
    ("explain Timed out", USAGE, "unexpected extra argument (out)"),
    ("explain ", USAGE, "the text is empty: give it in quotes"),
    ("explain s1_2 -o text", USAGE, "'text' is not one of"),
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
    ("probe {nobody}", USAGE, "Missing option '--token-file'"),
    ("probe {nobody} --token-file /no/such", FAILURE, "cannot read the token file"),
    ("archive", USAGE, "did you mean pipeline archive?"),
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
    ("caches lint nope", USAGE, "is not MODULE:ATTRIBUTE"),
    ("caches lint nope:nope", USAGE, "cannot import nope:nope"),
    ("caches lint json:loads", USAGE, "not CacheRegistry"),
    ("pipeline archive --archive x", USAGE, "Missing option '--url'"),
    ("pipeline archive --url {nobody}", USAGE, "Missing option '--archive'"),
    ("pipeline archive --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline archive --url {nobody} --archive x --conf x", USAGE, "--conf must be KEY=VALUE"),
    ("pipeline replay --url {nobody} --archive {folder}/x", FAILURE, "Connection refused"),
    ("pipeline audit --archive x --master nope", FAILURE, "nope is not the URL of a Spark master"),
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
    assert said.format(**addresses) in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


JUNK_COMMANDS: Final = (
    *("status", "status --json", "who", "replicas --check", "leases", "leases add x", "leases drop x"),
    *("streams", "streams --stuck", "streams create x --untyped", "promote", "promote --force --yes"),
    *("resync --yes", "append x", "append x --writer w", "replay {facts}", "pipeline archive --archive x"),
)

JUNK: Final = (
    *(b"", b"text", b"<html>", b"\xff\xfe\0\1" * 9, b"null", b"7", b'"x"', b"[]", b"{}"),
    *(b"[" * 5_000, b'{"a":' * 3_000),
    b'{"leases":7,"streams":7,"serial":"x","tokens":3,"first_serial":[],"role":{},"state":[],"errors":5}',
    b'{"leases":[1],"streams":{"a":1},"followers":[1],"replicas":[1],"role":"fenced","state":"x","serial":1}',
    b'{"error":"busy","message":"a refusal with status 200"}',
)


@pytest.mark.parametrize("command", JUNK_COMMANDS)
def test_junk_in_place_of_a_response_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any other server that says 200: no traceback, and no success that was none."""
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


COMMANDS: Final = dict(commands(main))

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
