"""A tail that can never follow its target ends with one line; one that may follow it later waits."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.task import Clock

from synrepl.cli import tail_changelog
from synrepl.cli.tail_changelog import ChangelogTail
from synrepl.cli.tail_lines import MISTYPED_SECONDS, STREAMS_SECONDS, EventPrinter, TargetCheck
from synrepl.errors import GapError
from synrepl.http_api.request_errors import HttpError
from synrepl.replication.follower.updates import FollowerEvent, code_of
from synrepl.streams.facts import Fact, encode_fact
from synrepl.transports.connection import failure_code
from synrepl.transports.http.catch_up import UNAUTHORIZED_500
from synrepl.transports.tls import is_permanent
from synrepl.transports.tls_endpoints import TlsFailed, TlsLost
from synrepl.wire.commands import Position
from tests.cli.test_processes import run
from tests.cli.test_targets import json_server
from tests.service.processes import Daemon


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("unknown stream nope", "unknown_stream"),
        ("the key paris lacks the right read: add it in keys_file", "forbidden"),
        (
            "this takes the right read, which a peer on another machine has only with a secret: ...",
            "forbidden",
        ),
        ("the certificate of paris is not in keys_file, or was revoked", "forbidden"),
        ("server shutting down", ""),
        ("ping timeout", ""),
        ("the log cannot be read at the moment; reconnect later", ""),
    ],
)
def test_the_text_of_an_error_line_has_a_code_if_no_attempt_can_mend_it(text: str, code: str) -> None:
    """Somebody must change the command or the rights first. Lines of ERROR have only their text."""
    assert code == code_of(text)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("certificate verify failed", True),
        ("wrong version number", True),
        ("http request", True),
        ("tlsv13 alert certificate required", True),
        ("tlsv1 alert unknown ca", True),
        ("sslv3 alert bad certificate", True),
        ("unexpected eof while reading", False),
        ("", False),
    ],
)
def test_tls_fails_for_ever_for_a_certificate_or_without_tls(reason: str, expected: bool) -> None:
    """A handshake that breaks off may succeed the next time."""
    assert expected is is_permanent(SSL.Error([("SSL routines", "", reason)] if reason else []))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OverflowError("connect_ex(): port must be 0-65535."), "bad_port"),
        (TlsFailed("TLS: the certificate expired on 2021-03-04", "tls"), "tls"),
        (TlsLost("TLS: the server refuses our certificate: tlsv1 alert unknown ca", "tls"), "tls"),
        (TlsFailed("TLS: the connection was lost during the handshake"), ""),
        (ConnectError(), ""),
        (ConnectionDone(), ""),
        (ConnectionLost(), ""),
        (DNSLookupError("no results for hostname lookup: log.example."), ""),
        (None, ""),
    ],
)
def test_what_passes_by_itself_has_no_code(error: BaseException | None, code: str) -> None:
    """A daemon is restarted, or a network is away for a moment."""
    assert code == failure_code(error)


class FakeOutput:
    """Notes why it was ended."""

    def __init__(self) -> None:
        self.reactor = Clock()
        self.error = ""

    def end(self, error: str = "") -> None:
        """As `TailOutput.end`."""
        self.error = self.error or error


class Setup:
    """A check, and what its follower meets."""

    def __init__(self, *streams: str, announces_all: bool = True) -> None:
        self.output = FakeOutput()
        self.check = TargetCheck(
            self.output,  # type: ignore[arg-type]
            "tcp:h:1",
            streams=streams,
            announces_all=announces_all,
        )

    def greeted(self, *streams: str) -> "Setup":
        """A server greets, and tells its streams."""
        self.check.on_event(FollowerEvent(kind="connected"))
        self.check.on_event(FollowerEvent(kind="server", text="hs"))
        for stream in streams:
            self.check.on_position(Position(stream=stream, instance="master", prev_token=1, token=1))
        return self


def test_a_stream_that_the_server_lacks_ends_the_tail() -> None:
    """It waited in silence for ever."""
    setup = Setup("receipts", "nope").greeted("caches", "receipts")

    setup.output.reactor.advance(STREAMS_SECONDS)

    assert (
        setup.output.error
        == "cannot follow tcp:h:1: there is no stream nope; the server has caches, receipts"
    )


@pytest.mark.parametrize("announces_all", [True, False])
def test_streams_that_are_there_or_cannot_be_known_end_nothing(announces_all: bool) -> None:
    """Old servers push what is missing first, and tell each stream after that."""
    setup = Setup("receipts", *([] if announces_all else ["typing"]), announces_all=announces_all).greeted(
        "receipts"
    )

    setup.output.reactor.advance(STREAMS_SECONDS * 2)

    assert setup.output.error == ""


def test_a_mistyped_stream_ends_the_tail_at_once() -> None:
    """It took four seconds; a name of another release is waited for, as its server may be slow."""
    setup = Setup("push_rulez").greeted("events", "push_rules")

    setup.output.reactor.advance(MISTYPED_SECONDS)

    assert "there is no stream push_rulez; did you mean push_rules?; the server has" in setup.output.error


def test_all_streams_are_waited_for_while_they_come() -> None:
    """The last of many may come late."""
    setup = Setup("own").greeted("events")
    for stream in ("push_rules", "receipts", "typing", "own"):
        setup.output.reactor.advance(MISTYPED_SECONDS * 0.9)
        setup.check.on_position(Position(stream=stream, instance="master", prev_token=1, token=1))
    setup.output.reactor.advance(STREAMS_SECONDS)

    assert setup.output.error == ""


@pytest.mark.parametrize("is_http_known", [False, True])
def test_a_gap_names_the_option_of_the_address_once(is_http_known: bool) -> None:
    """On other ports than the default ones the guess is wrong, and each retry said so again."""
    written: list[tuple[str, dict[str, object]]] = []
    output = SimpleNamespace(write_event=lambda kind, **fields: written.append((kind, fields)))
    options = SimpleNamespace(endpoints=["tcp:h:1"], is_http_known=is_http_known, secret_file=None)
    printer = EventPrinter(output, options)  # type: ignore[arg-type]
    for stream in ("receipts", "receipts", "typing"):
        gap = GapError(stream=stream, writer="master", have=1, want=2, why="no response from http://h:9093")
        printer.show(FollowerEvent(kind="error", stream=stream, writer="master", text=str(gap), error=gap))

    messages = [fields["message"] for _, fields in written]
    assert len(messages) == 2
    assert ["--http URL" in str(message) for message in messages] == [not is_http_known, False]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        (
            f"http://h:9093/x answered 500 M_UNKNOWN: Internal server error ({UNAUTHORIZED_500})",
            "--secret-file",
        ),
        ("no response from https://h:9093: TLS: the certificate expired on 2021-03-04", ""),
    ],
)
def test_a_gap_names_the_option_that_ends_it(why: str, advice: str) -> None:
    """Another address was advised in place of a secret or a certificate."""
    written: list[str] = []
    output = SimpleNamespace(write_event=lambda kind, **fields: written.append(fields["message"]))
    options = SimpleNamespace(endpoints=["tcp:h:1"], is_http_known=False, secret_file=None)
    gap = GapError(stream="receipts", writer="master", have=1, want=2, why=why)

    EventPrinter(output, options).show(FollowerEvent(kind="error", text=str(gap), error=gap))  # type: ignore[arg-type]

    [message] = written
    assert message.startswith(str(gap))
    assert advice in message
    assert "--http" not in message


def test_a_lost_connection_names_its_address() -> None:
    """One of several tails in a log."""
    written: list[object] = []
    output = SimpleNamespace(write_event=lambda kind, **fields: written.append(fields))
    options = SimpleNamespace(endpoints=["redis://h:6379"], is_http_known=True, secret_file=None)
    EventPrinter(output, options).show(FollowerEvent(kind="disconnected", text="no answer"))  # type: ignore[arg-type]

    assert written == [{"address": "redis://h", "reason": "no answer"}]


def test_a_connection_lost_before_all_streams_are_told_ends_nothing() -> None:
    """What is lacking may come with the next connection."""
    setup = Setup("receipts", "typing").greeted("receipts")
    setup.check.on_event(FollowerEvent(kind="disconnected", text="Connection was closed cleanly."))

    setup.output.reactor.advance(STREAMS_SECONDS * 2)

    assert setup.output.error == ""


def test_a_missing_row_says_nothing_of_the_target() -> None:
    """Only what the server itself reports counts."""
    setup = Setup()
    setup.check.on_event(
        FollowerEvent(kind="error", text="gap in receipts: http://h: unknown stream receipts")
    )
    assert setup.output.error == ""

    setup.check.on_event(
        FollowerEvent(kind="error", text="the server reports: unknown stream receipts", code="unknown_stream")
    )

    assert setup.output.error == "cannot follow tcp:h:1: unknown stream receipts; check --stream"


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("wrong_server", "; check TARGET and --server-name"),
        ("bad_port", "; check the port of TARGET, or use a URL for the HTTP API"),
        ("tls", ""),
        ("forbidden", ""),
    ],
)
def test_a_disconnection_with_a_code_ends_the_tail_with_advice(code: str, ending: str) -> None:
    """Some reasons say themselves what to do."""
    setup = Setup()

    setup.check.on_event(FollowerEvent(kind="disconnected", text="the reason", code=code))

    assert setup.output.error == f"cannot follow tcp:h:1: the reason{ending}"


@pytest.mark.parametrize(
    ("prev_token", "token", "rows", "is_told"),
    [
        (3, 3, b"[]", True),
        (2, 3, b"[]", False),  # the writer was silent
        (3, 3, b'[["@a:hs"]]', False),  # a late fact
        (0, 0, b"[]", False),  # the writer has written nothing yet
    ],
)
def test_a_changelog_tells_of_lost_facts(prev_token: int, token: int, rows: bytes, is_told: bool) -> None:
    """An error line comes before the fact, which is printed as any other."""
    written: list[object] = []

    def write_fact(line: dict[str, object]) -> bool:
        written.append(line["token"])
        return True

    output = SimpleNamespace(
        reactor=Clock(),
        write_event=lambda kind, **fields: written.append((kind, fields)),
        write_fact=write_fact,
    )
    options = SimpleNamespace(endpoints=["http://h"], credentials=None, state=None)
    tail = ChangelogTail(output, options)  # type: ignore[arg-type]

    tail._show(encode_fact(Fact(1, 1, "receipts", "w5", prev_token, token, rows, 0, "")))

    why = f"the daemon has lost what w5 wrote to receipts up to token {token}"
    error = ("error", {"message": why, "stream": "receipts", "writer": "w5", "token": token})
    assert written == ([error, token] if is_told else [token])


@pytest.mark.parametrize(("start", "is_compacted"), [("earliest", [True, None]), ("latest", [None, None])])
def test_earliest_begins_with_what_remains_of_a_trimmed_log(
    start: str, is_compacted: list[bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for facts from the first on, and ended where they had been trimmed. Only the first time."""
    asked = []

    async def call(*_: object, **_more: object) -> SimpleNamespace:
        return SimpleNamespace(server_name="hs", epoch=1, serial=10)

    async def pages(*_: object, compacted: bool | None = None, **_more: object) -> int:
        asked.append(compacted)
        return 10

    output = SimpleNamespace(reactor=Clock(), write_event=lambda *_, **_more: None)
    options = SimpleNamespace(
        endpoints=["http://h"], credentials=None, state=None, start=start, server_name=None, streams=()
    )
    tail = ChangelogTail(output, options)  # type: ignore[arg-type]
    tail._http = SimpleNamespace(call=call)  # type: ignore[assignment]
    monkeypatch.setattr(tail_changelog, "read_changelog", pages)

    for step in (tail._connect, tail._read_page, tail._read_page):
        assert Deferred.fromCoroutine(step()).called

    assert asked == is_compacted


def test_facts_that_were_trimmed_name_the_way_on(tmp_path: Path) -> None:
    """The answer names a parameter of HTTP, which the command has not."""
    words = "the log was trimmed up to serial 10; request the remaining facts after 3 with compacted=true"
    output = SimpleNamespace(reactor=Clock(), is_ending=False, ended=[])
    output.end = output.ended.append
    options = SimpleNamespace(endpoints=["http://h"], credentials=None, state=None, secret_file=None)
    tail = ChangelogTail(output, options)  # type: ignore[arg-type]

    async def refuse() -> None:
        body = {"trimmed_upto": 10}
        raise HttpError(410, "trimmed", words, body, url="http://h/x")

    tail._connect = refuse  # type: ignore[method-assign]
    assert Deferred.fromCoroutine(tail._read()).called

    [why] = output.ended
    assert "trimmed up to serial 10" in why
    assert "without the --state file, with --from earliest" in why
    assert "compacted" not in why


@pytest.mark.parametrize("line", [b"junk", b"[]", b'{"serial":"x"}', b'{"serial":1}'])
def test_a_changelog_of_junk_ends_the_tail(line: bytes, tmp_path: Path) -> None:
    """The status was right, and then came something else."""
    status = b'{"server_name":"hs","epoch":1,"serial":0}'
    with json_server(line + b"\n", paths={"/v1/status": status}) as port:
        answer = run(tmp_path, "tail", f"http://127.0.0.1:{port}")

    assert (1, 1) == (answer.returncode, len(answer.stderr.splitlines())), answer.stderr
    assert "does not respond as a synrepl daemon; check TARGET" in answer.stderr


def test_a_real_tail_ends_with_code_1_and_one_line(tmp_path: Path) -> None:
    """At a daemon, over the line protocol and over HTTP."""

    def ended(*arguments: str) -> str:
        answer: subprocess.CompletedProcess[str] = run(tmp_path, "tail", *arguments)
        assert answer.returncode == 1, answer
        assert len(answer.stderr.splitlines()) == 1, answer.stderr
        return answer.stdout + answer.stderr

    with Daemon(tmp_path) as daemon:
        http_port = daemon.url.removeprefix("http://")
        line_url = f"http://{daemon.follow}"

        assert "expected other.org" in ended(daemon.follow, "--server-name", "other.org")
        assert "port must be 0-65535" in ended("127.0.0.1:99999")
        assert "it speaks HTTP" in ended(http_port)
        assert "there is no stream nope" in ended(daemon.follow, "--stream", "receipts,nope")
        assert "unknown stream nope" in ended(daemon.follow, "--stream", "nope", "--dialect", "legacy")
        wrong = ended(daemon.url, "--server-name", "other.org")
        assert "expected other.org" in wrong
        assert "connected" not in wrong
        assert "nope" in ended(daemon.url, "--stream", "nope")
        assert "this is the port of the line protocol: give host:port" in ended(line_url)


def test_a_server_that_is_behind_the_state_is_told_as_an_error_and_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written: list[tuple[str, dict[str, object]]] = []
    output = SimpleNamespace(write_event=lambda kind, **fields: written.append((kind, fields)))
    options = SimpleNamespace(endpoints=["tcp:h:1"], is_http_known=True, secret_file=None)
    event = FollowerEvent(kind="behind", stream="nums", writer="master", token=0, text="the server is behind")
    EventPrinter(output, options).show(event)  # type: ignore[arg-type]

    message = "the server is behind (remove the file of --state)"
    assert written == [("error", {"message": message, "stream": "nums", "writer": "master", "token": 0})]
    assert capsys.readouterr().err == f"warning: {message}\n"
