"""Which daemon a command asks, how it retries, and how it prints."""

import gzip
import itertools
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import click
import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main, options
from synrepl.cli.command import CliError
from synrepl.cli.json_lines import JsonLines, OutputClosed
from synrepl.cli.tables import table
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.http_client import BlockingClient, ConnectError
from tests.certificates import Authority
from tests.cli.test_parts import Daemon, post
from tests.service.processes import ROOT, Process

BERLIN, PARIS, ROME = (f"http://{name}.example:9093" for name in ("berlin", "paris", "rome"))


def test_a_named_ca_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option or by the variable; without both the message names the option."""
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SYNREPL_URL", raising=False)
    with json_server(b'{"facts": [], "more": 0}', context) as port:
        url = f"https://localhost:{port}"
        unknown = run("refused", "list", "--url", url)
        named = run("refused", "list", "--url", url, "--ca-file", str(authority.ca_file))
        monkeypatch.setenv("SYNREPL_CA_FILE", str(authority.ca_file))
        of_variable = run("refused", "list", "--url", url)
        unusable = run("refused", "list", "--url", url, "--ca-file", str(key))
        missing = run("refused", "list", "--url", url, "--ca-file", "/no/such")

    assert "name the CA to trust with --ca-file" in unknown.stderr
    assert [named.stdout, of_variable.stdout] == ["no refused facts\n"] * 2
    assert "must have certificates in PEM" in unusable.stderr
    assert "cannot read the CA file /no/such: No such file or directory" in missing.stderr


@pytest.mark.parametrize("has_secret", [False, True])
def test_a_refused_secret_names_the_option(has_secret: bool, tmp_path: Path) -> None:
    """The daemon speaks of HTTP headers, which nobody gives to a command."""
    secret = tmp_path / "secret"
    secret.write_text("old")
    refusal = {"error": "unauthorized", "message": "no key was sent: send Authorization: Bearer SECRET"}
    with json_server(json.dumps(refusal).encode(), status=401) as port:
        words = ["--url", f"http://localhost:{port}", *(["--secret-file", str(secret)] if has_secret else [])]
        failed = [run("status", *words), run("streams", "create", "a", "--untyped", *words)]

    for one in failed:
        assert ("--secret-file" in one.stderr, "Authorization" in one.stderr) == (True, False)
        assert (f"the secret in {secret} is unknown" in one.stderr) is has_secret


@contextmanager
def json_server(
    body: bytes,
    context: ssl.SSLContext | None = None,
    *,
    status: int = 200,
    paths: Mapping[str, bytes] = MappingProxyType({}),
) -> Iterator[int]:
    """A server that answers every request with this body, or with that of its path; yields its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            content = paths.get(self.path, body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    # The default looks twice a second whether it is to end, and many tests begin one for each answer.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def run(*words: str) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(main, words, prog_name="synrepl")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The addresses and secrets that are used, by a user who has set no variable."""
    seen: list[tuple[str, object]] = []

    def answer(client: BlockingClient, *arguments: object) -> dict[str, object]:
        seen.append((client.url, client._headers.get("Authorization")))
        return {}

    monkeypatch.setattr(BlockingClient, "json", answer)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SYNREPL_URL", raising=False)
    return seen


def test_a_daemon_is_found_by_the_nearest_name(
    asked: list[tuple[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option comes before its variable, and the default last."""
    for name in ("hush", "quiet"):
        (tmp_path / name).write_text(name)
    run("who")
    monkeypatch.setenv("SYNREPL_URL", f"{BERLIN},{PARIS}")
    run("who")
    monkeypatch.setenv("SYNREPL_SECRET_FILE", str(tmp_path / "hush"))
    run("who")
    run("who", "--url", ROME)
    run("who", "--secret-file", str(tmp_path / "quiet"))
    monkeypatch.setenv("SYNREPL_SECRET_FILE", "")
    run("who", "--url", ROME)

    assert asked == [
        ("http://127.0.0.1:9093", None),
        (BERLIN, None),
        (BERLIN, "Bearer hush"),
        (ROME, "Bearer hush"),
        (BERLIN, "Bearer quiet"),
        (ROME, None),
    ]


def test_no_other_daemon_is_asked_than_that_of_an_old_context(
    asked: list[tuple[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of an earlier release asked the context in use: the default address may be another daemon."""
    path = tmp_path / "synrepl" / "contexts.toml"
    path.parent.mkdir()
    path.write_text("current = 'berlin'")

    refused = run("who")
    named = run("who", "--url", PARIS)
    monkeypatch.setenv("SYNREPL_URL", ROME)
    of_variable = run("who")

    assert (2, 1) == (refused.exit_code, len(refused.stderr.splitlines()))
    assert "$SYNREPL_URL" in refused.stderr
    assert f"{path} has what you set" in refused.stderr
    assert (0, 0) == (named.exit_code, of_variable.exit_code)
    assert [(PARIS, None), (ROME, None)] == asked


def test_the_first_request_counts_for_the_time_of_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time runs from the start of the command, not from the first failure."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    delays = options.retry_delays(10)
    now[0] += 9.6

    assert [0.2] == [*itertools.islice(delays, 1)]
    assert [] == [*delays]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectError("away"), 3),
        (ConnectError("this is no daemon", retryable=False), 1),
        (HttpError(503, "not_ready", "not yet"), 3),
        (HttpError(403, "no_rights", "no"), 1),
    ],
)
def test_only_transient_failures_are_retried(
    error: Exception, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that was asked for."""
    attempts: list[str] = []

    def fail(client: BlockingClient, *arguments: object) -> None:
        attempts.append(client.url)
        raise error

    monkeypatch.setattr(BlockingClient, "json", fail)
    monkeypatch.setattr(options, "retry_delays", lambda seconds: iter((0.0, 0.0)))

    retried = run("status", "--url", BERLIN, "--retry")
    assert tries == len(attempts)
    once = run("status", "--url", BERLIN)

    assert tries + 1 == len(attempts)
    assert [1, 1] == [result.exit_code for result in (retried, once)]


def test_an_append_tells_what_it_knows() -> None:
    """Where the primary is, and whether the batch may have been stored."""
    fenced = HttpError(503, "read_only", "fenced", {"moved_to": "tcp:rome:9092 http://rome:9093"})
    with pytest.raises(HttpError, match="the primary is at tcp:rome:9092, http://rome:9093: use its --url"):
        post(Daemon(fenced))
    refused = ConnectError("Connection refused", is_unsent=True)
    with pytest.raises(CliError, match="Connection refused; the last batch was not stored"):
        post(Daemon(refused, HttpError(503, "busy", "too much"), refused))
    with pytest.raises(CliError, match="the last batch may have been stored"):
        post(Daemon(ConnectError("broke off"), refused, refused))


@pytest.mark.parametrize(
    ("status", "code", "is_known"),
    [
        (503, "upstream_away", True),
        (503, "storage_error", False),
        (503, "error", False),
        (500, "internal", False),
        (409, "table_backed", True),
    ],
)
def test_a_batch_is_not_stored_only_if_the_daemon_says_so(status: int, code: str, *, is_known: bool) -> None:
    """A commit can fail after the facts were stored, and a proxy answers 503 for an answer that was lost."""
    error = HttpError(status, code, "no")
    expected = "no" if not error.retryable else "the last batch was not stored"
    with pytest.raises(
        (HttpError, CliError), match=expected if is_known else "the last batch may have been stored"
    ):
        post(Daemon(*[error] * 3))
    # What a later try is told says nothing about the first one.
    with pytest.raises(CliError, match="the last batch may have been stored"):
        post(Daemon(ConnectError("broke off"), *[error] * 2))


def test_every_command_names_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a replica refuses: its answer says where the primary is."""

    def refuse(client: BlockingClient, *arguments: object) -> None:
        raise HttpError(503, "replica", "no", {"moved_to": "tcp:rome:9092 http://rome:9093"})

    monkeypatch.setattr(BlockingClient, "json", refuse)

    result = run("streams", "create", "packages", "--untyped", "--url", BERLIN)
    assert result.exit_code == 1
    assert "the primary is at tcp:rome:9092, http://rome:9093: use its --url" in result.output


def test_a_table_is_never_cut() -> None:
    """However long its texts are; numbers are aligned right, and a style has no width."""
    rows = [("a" * 200, click.style("live", "green"), 5, "x"), ("b", "away", 12_345, "y")]

    lines = [click.unstyle(line) for line in table(("name", "state", "lag", "why"), rows, wide=("why",))]

    assert lines == [
        "name" + " " * 199 + "state" + " " * 6 + "lag",
        "a" * 200 + "   live         5",
        "b" + " " * 202 + "away    12,345",
    ]
    assert "why" in next(table(("name", "why"), [("a", "b")], wide=("why",), is_wide=True))
    assert ["a", "1", "2", "and 3 more"] == [
        click.unstyle(line).strip() for line in table(("a",), [(n,) for n in range(1, 6)], limit=2)
    ]


def test_a_configuration_is_checked(tmp_path: Path) -> None:
    """What would listen where, and what guards it."""
    (tmp_path / "secret").write_text("hush")
    (tmp_path / "secret").chmod(0o600)
    path = tmp_path / "synrepl.yaml"
    path.write_text(
        f"server_name: example.org\nhttp: tcp:9093\ninsecure: true\nsecret_file: {tmp_path}/secret\n"
    )

    found = json.loads(run("config", "check", str(path), "--json").stdout)
    shown = run("config", "check", str(path))

    assert found == {
        "listeners": [
            {
                "kind": "followers",
                "endpoint": "tcp:9092:interface=127.0.0.1",
                "reachable": "this machine",
                "guard": "shared secret (replicas only)",
            },
            {"kind": "http", "endpoint": "tcp:9093", "reachable": "other machines", "guard": "shared secret"},
        ],
        "hindrances": [],
        "warnings": [],
        "notes": [],
    }
    assert 0 == shown.exit_code
    assert "primary; server name example.org; log sqlite:synrepl.db" in shown.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_each_shell(shell: str) -> None:
    """The script asks the program."""
    assert "_SYNREPL_COMPLETE" in run("completion", shell).stdout


@pytest.mark.parametrize("name", ["legacy", "current"])
def test_the_sessions_of_the_demo_are_the_recorded_ones(name: str) -> None:
    packed = ROOT / "synrepl" / "cli" / "sessions" / f"{name}.txt.gz"

    assert (ROOT / "tests" / "golden" / name / "session-all.txt").read_bytes() == gzip.decompress(
        packed.read_bytes()
    )


def test_the_demo_shows_that_everything_comes_out_once(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    answer = subprocess.run(
        [sys.executable, "-m", "synrepl", "demo", "--once", "--port", "0", "--http-port", "0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (0, "") == (answer.returncode, answer.stderr)
    assert "each worker received each row once" in answer.stdout
    assert not list(tmp_path.iterdir())
    host, _, port = answer.stdout.partition("followers at ")[2].partition(" ")[0].partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_a_demo_that_is_stopped_before_its_comparison_ends_with_code_0(tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C end it in the same way."""
    with Process("-m", "synrepl", "demo", "--port", "0", "--http-port", "0", cwd=tmp_path) as demo:
        demo.wait_for("the daemon serves followers")

        assert 0 == demo.terminate(), demo.lines


def test_an_append_whose_output_is_closed_says_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``| head -1``: nobody may believe that all rows are in the log."""
    sent: list[bytes] = []

    def answer(client: BlockingClient, request: HttpRequest, body: bytes) -> object:
        sent.append(body)
        return {"first_serial": 9, "tokens": [8, 9]}

    def close(lines: JsonLines) -> None:
        raise OutputClosed

    monkeypatch.setattr(BlockingClient, "json", answer)
    monkeypatch.setattr(JsonLines, "flush", close)
    result = CliRunner().invoke(
        main, ["append", "receipts", "--url", BERLIN, "--batch", "2"], input="[1]\n" * 5
    )

    assert (1, 1) == (result.exit_code, len(sent))
    assert "no more rows were sent; 2 facts were stored before" in result.stderr


@pytest.mark.parametrize(
    ("writer", "note"),
    [("berlin", ""), ("belin", "note: belin is a new writer of receipts; did you mean berlin?\n")],
)
def test_an_append_notes_a_new_writer(writer: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was mistyped is a writer for ever."""

    def answer(client: BlockingClient, request: HttpRequest, body: bytes | None = None) -> object:
        if body is None:
            return {"streams": {"receipts": {"kept": True, "writers": {"berlin": 7}}}}
        return {"first_serial": 9, "tokens": [8]}

    monkeypatch.setattr(BlockingClient, "json", answer)

    result = CliRunner().invoke(
        main, ["append", "receipts", "--url", BERLIN, "--writer", writer], input="[1]\n"
    )

    assert (0, note) == (result.exit_code, result.stderr)
