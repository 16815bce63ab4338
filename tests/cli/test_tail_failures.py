"""A tail that can never follow its target ends with one line; one that may follow it later waits."""

import subprocess
from pathlib import Path

import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.task import Clock

from synrepl.cli.tail_lines import SILENT_SECONDS, STREAMS_SECONDS, TargetCheck
from synrepl.replication.follower.updates import FollowerEvent, code_of
from synrepl.transports.connection import failure_code
from synrepl.transports.tls import is_permanent
from synrepl.transports.tls_endpoints import TlsFailed, TlsLost
from synrepl.wire.commands import Position
from tests.cli.test_processes import run
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


class Story:
    """A check, and what its follower meets."""

    def __init__(self, *streams: str, announces_all: bool = True, is_http: bool = False) -> None:
        self.output = FakeOutput()
        self.probes = 0
        self.check = TargetCheck(
            self.output,  # type: ignore[arg-type]
            "tcp:h:1",
            streams=streams,
            announces_all=announces_all,
            probe=lambda: self._probe(is_http),
        )

    def _probe(self, is_http: bool) -> "Deferred[bool]":
        self.probes += 1
        return succeed(is_http)

    def greeted(self, *streams: str) -> "Story":
        """A server greets, and tells its streams."""
        self.check.on_event(FollowerEvent(kind="connected"))
        self.check.on_event(FollowerEvent(kind="server", text="hs"))
        for stream in streams:
            self.check.on_position(Position(stream=stream, instance="master", prev_token=1, token=1))
        return self


def test_a_stream_that_the_server_lacks_ends_the_tail() -> None:
    """It waited in silence for ever."""
    story = Story("receipts", "nope").greeted("caches", "receipts")

    story.output.reactor.advance(STREAMS_SECONDS)

    assert (
        story.output.error
        == "cannot follow tcp:h:1: there is no stream nope; the server has caches, receipts"
    )


@pytest.mark.parametrize("announces_all", [True, False])
def test_streams_that_are_there_or_cannot_be_known_end_nothing(announces_all: bool) -> None:
    """Old servers push what is missing first, and tell each stream after that."""
    story = Story("receipts", *([] if announces_all else ["typing"]), announces_all=announces_all).greeted(
        "receipts"
    )

    story.output.reactor.advance(STREAMS_SECONDS * 2)

    assert story.output.error == ""


def test_a_connection_lost_before_all_streams_are_told_ends_nothing() -> None:
    """What is lacking may come with the next connection."""
    story = Story("receipts", "typing").greeted("receipts")
    story.check.on_event(FollowerEvent(kind="disconnected", text="Connection was closed cleanly."))

    story.output.reactor.advance(STREAMS_SECONDS * 2)

    assert story.output.error == ""


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_http_server_on_the_line_port_ends_the_tail(is_closed: bool) -> None:
    """It says nothing, as it waits for the end of a request, or it closes; neither ever passes."""
    story = Story(is_http=True)
    story.check.on_event(FollowerEvent(kind="connected"))

    if is_closed:
        story.check.on_event(FollowerEvent(kind="disconnected", text="Connection was closed cleanly."))
    else:
        story.output.reactor.advance(SILENT_SECONDS)

    assert "it speaks HTTP, not the line protocol" in story.output.error


def test_a_server_that_is_only_slow_is_waited_for() -> None:
    """One question whether it speaks HTTP, and none when it greets."""
    story = Story()
    story.check.on_event(FollowerEvent(kind="connected"))
    story.output.reactor.advance(SILENT_SECONDS)
    story.greeted()
    story.output.reactor.advance(SILENT_SECONDS)

    assert (story.output.error, story.probes) == ("", 1)


def test_a_missing_row_says_nothing_of_the_target() -> None:
    """Only what the server itself reports counts."""
    story = Story()
    story.check.on_event(
        FollowerEvent(kind="error", text="gap in receipts: http://h: unknown stream receipts")
    )
    assert story.output.error == ""

    story.check.on_event(
        FollowerEvent(kind="error", text="the server reports: unknown stream receipts", code="unknown_stream")
    )

    assert story.output.error == "cannot follow tcp:h:1: unknown stream receipts; check --stream"


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("wrong_server", "; check TARGET and --server-name"),
        ("bad_port", "; check the port of TARGET"),
        ("tls", ""),
        ("forbidden", ""),
    ],
)
def test_a_disconnection_with_a_code_ends_the_tail_with_advice(code: str, ending: str) -> None:
    """Some reasons say themselves what to do."""
    story = Story()

    story.check.on_event(FollowerEvent(kind="disconnected", text="the reason", code=code))

    assert story.output.error == f"cannot follow tcp:h:1: the reason{ending}"


def test_a_real_tail_ends_with_code_1_and_one_line(tmp_path: Path) -> None:
    """At a daemon, over the line protocol and over HTTP."""

    def ended(*arguments: str) -> str:
        answer: subprocess.CompletedProcess[str] = run(tmp_path, "tail", *arguments)
        assert answer.returncode == 1, answer
        assert len(answer.stderr.splitlines()) == 1, answer.stderr
        return answer.stderr

    with Daemon(tmp_path) as daemon:
        http_port = daemon.url.removeprefix("http://")
        line_url = f"http://{daemon.follow}"

        assert "expected other.org" in ended(daemon.follow, "--server-name", "other.org")
        assert "port must be 0-65535" in ended("127.0.0.1:99999")
        assert "it speaks HTTP" in ended(http_port)
        assert "there is no stream nope" in ended(daemon.follow, "--stream", "nope")
        assert "unknown stream nope" in ended(daemon.follow, "--stream", "nope", "--dialect", "legacy")
        assert "expected other.org" in ended(daemon.url, "--server-name", "other.org")
        assert "nope" in ended(daemon.url, "--stream", "nope")
        assert "it does not speak HTTP" in ended(line_url)
