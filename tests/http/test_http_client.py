"""Bodies as they come, and what is made of those that do not come to their end."""

from typing import Any

import pytest
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone, ResponseFailed

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.ports.history import LogPosition
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact, decode_facts, encode_fact
from synrepl.transports.http.http_client import BodyLines, collect_body
from synrepl.transports.http.upstream import _check

BROKEN = [ConnectionLost(), ResponseFailed([Failure(ConnectionLost())])]


class Response:
    """A body that comes piece by piece."""

    def __init__(self) -> None:
        self.reader: Any = None

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
def test_lines_that_break_off_are_told(end: Exception) -> None:
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


def test_a_fact_that_was_changed_on_the_way_is_noticed() -> None:
    """Of a log with holes no digest proves a fact; a checksum of its own does."""
    at = LogPosition(1, 7, "d" * 64)
    fact = Fact(at.serial, at.epoch, "receipts", "w", 3, 4, b'[["x"]]', 5, at.digest)
    text = encode_fact(fact).rstrip(b"}\n") + b',"checksum":"' + checksum(fact).encode() + b'"}'

    _check(decode_facts(text), text)
    for old, new in ((b'"x"', b'"y"'), (b'"token":4', b'"token":5'), (b'"writer":"w"', b'"writer":"v"')):
        changed = text.replace(old, new)
        with pytest.raises(RemoteProtocolError, match="corrupted fact 7"):
            _check(decode_facts(changed), changed)
