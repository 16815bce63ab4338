"""Bodies as they come, and what is made of those that do not come to their end."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet import error
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost, DNSLookupError
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone, ResponseFailed
from twisted.web.http_headers import Headers

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.routes import CHANGELOG
from synrepl.transports.http.http_client import HttpClient, PlainAgent
from synrepl.transports.http.response_body import BodyLines, collect_body

BROKEN = [ConnectionLost(), ResponseFailed([Failure(ConnectionLost())])]


class Response:
    """A body that comes piece by piece."""

    def __init__(self) -> None:
        self.reader: Any = None
        self.headers = Headers()

    def deliverBody(self, reader: Any) -> None:
        self.reader = reader
        reader.makeConnection(StringTransport())


def gathered(end: Exception, *parts: bytes, most: int = 100) -> bytes | Exception:
    """What a whole body is, or why it is none."""
    response = Response()
    work = collect_body(response, most, "http://h")
    try:
        work.send(None)
        for part in parts:
            response.reader.dataReceived(part)
        response.reader.connectionLost(Failure(end))
        work.send(None)
    except StopIteration as done:
        found: bytes = done.value
        return found
    except Exception as error:
        return error
    raise AssertionError("it waits")


def test_a_body_is_whole_at_its_proper_end_only() -> None:
    """One that broke off may still be JSON, and say less than it should."""
    assert b"[1, 2]" == gathered(ResponseDone(), b"[1,", b" 2]")
    assert all(isinstance(gathered(end, b"[1]"), type(end)) for end in BROKEN)


def test_a_body_is_bounded() -> None:
    """A server that never ends must not fill our memory."""
    assert b"x" * 100 == gathered(ResponseDone(), b"x" * 100)
    assert isinstance(gathered(ResponseDone(), b"x" * 100, b"x"), RemoteProtocolError)


@pytest.mark.parametrize("end", BROKEN)
def test_lines_that_break_off_are_reported(end: Exception) -> None:
    """After a whole line too: it may not have been the last."""
    lines = BodyLines("http://h")
    lines.makeConnection(StringTransport())
    lines.dataReceived(b"one\ntwo\n")
    lines.connectionLost(Failure(end))

    assert [b"one", b"two"] == lines.take()
    with pytest.raises(NotConnected, match="http://h: the response ended early"):
        lines.check_complete()


def test_lines_come_to_their_proper_end() -> None:
    """But for one that is not whole."""
    for rest, is_whole in ((b"", True), (b"thr", False)):
        lines = BodyLines("http://h")
        lines.makeConnection(StringTransport())
        lines.dataReceived(b"one\n" + rest)
        lines.connectionLost(Failure(ResponseDone()))
        if is_whole:
            lines.check_complete()
        else:
            with pytest.raises(NotConnected):
                lines.check_complete()


class Upstream:
    """An agent whose upstream sends this coding."""

    def __init__(self, *codings: str) -> None:
        self.response = Response()
        self.response.headers = Headers({"content-encoding": list(codings)} if codings else {})
        self.asked: Any = None

    def request(self, method: bytes, uri: bytes, headers: Any, body: Any) -> Deferred[Any]:
        """One request."""
        self.asked = headers
        return succeed(self.response)


def test_a_compressed_response_is_refused_before_it_is_read() -> None:
    """0.4 MB of gzip took 450 MB of a replica."""
    upstream = Upstream("gzip")
    failures: list[Any] = []

    asked = Headers({"accept-encoding": ["gzip"]})
    PlainAgent(upstream).request(b"GET", b"http://h/v1/changelog", asked).addErrback(failures.append)

    assert [b"identity"] == upstream.asked.getRawHeaders(b"accept-encoding")
    assert failures[0].check(RemoteProtocolError)
    assert "http://h/v1/changelog sent a compressed response (gzip)" in str(failures[0].value)
    assert upstream.response.reader.transport.disconnecting


def test_a_plain_response_is_passed_on() -> None:
    """Also one that says so."""
    for upstream in (Upstream(), Upstream("identity")):
        received: list[Any] = []
        PlainAgent(upstream).request(b"GET", b"http://h/", Headers()).addCallback(received.append)

        assert [upstream.response] == received


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (error.ConnectionRefusedError(111), "no response from http://h:9093: connection refused"),
        (
            DNSLookupError("no results for hostname lookup: h."),
            "no response from http://h:9093: no such host",
        ),
        (ConnectionLost(), "no response from http://h:9093/v1/changelog: the connection was lost"),
    ],
)
def test_a_daemon_that_is_away_is_a_few_words(failure: Exception, why: str) -> None:
    """Each retry of a fetch has another random path, so that each was another problem."""

    async def request(*_: Any, **__: Any) -> Any:
        raise failure

    http = HttpClient(Clock(), "http://h:9093", secret=None)
    http.client = SimpleNamespace(request=request)
    work = http.read(CHANGELOG.request())

    with pytest.raises(NotConnected) as raised:
        work.send(None)

    assert str(raised.value) == why
