"""The head of a response is bounded: a server that never ends it must not fill the client's memory."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.web._newclient import Request, ResponseFailed
from twisted.web.http_headers import Headers

from synrepl.errors import RemoteProtocolError
from synrepl.transports.http.response_head import MAX_HEAD_BYTES, BoundedHeadFactory, BoundedHeadProtocol


def requested() -> tuple[StringTransport, BoundedHeadProtocol, list[Any]]:
    """A connection that has sent a request, and what comes of it."""
    protocol = BoundedHeadFactory(lambda connection: None, None).buildProtocol(None)
    transport = StringTransport()
    protocol.makeConnection(transport)
    return transport, protocol, requested_again(protocol)


def requested_again(protocol: BoundedHeadProtocol) -> list[Any]:
    """What comes of another request on it."""
    found: list[Any] = []
    request = Request(b"GET", b"/", Headers({b"host": [b"h"]}), None, persistent=True)
    protocol.request(request).addBoth(found.append)
    return found


def headers() -> Iterator[bytes]:
    """Another header each."""
    return (b"X-%d: %b\r\n" % (number, b"a" * 1_000) for number in count())


def folded() -> Iterator[bytes]:
    """One header of many lines."""
    yield b"X: a\r\n"
    while True:
        yield b" " + b"a" * 1_000 + b"\r\n"


def interim() -> Iterator[bytes]:
    """Responses before the response."""
    while True:
        yield b"\r\nHTTP/1.1 100 Continue\r\n" * 40


@pytest.mark.parametrize("attack", [headers, folded, interim])
def test_a_head_without_an_end_ends_the_request(attack: Any) -> None:
    """800 MiB of headers took 1,250 MiB of memory, and each interim response a line of the log."""
    transport, protocol, found = requested()
    sent = 0
    with capturedLogs() as events:
        protocol.dataReceived(b"HTTP/1.1 100 Continue\r\n")
        for data in islice(attack(), 1_000):
            if found:
                break
            protocol.dataReceived(data)
            sent += len(data)

    (failure,) = found
    assert isinstance(failure, Failure)
    assert isinstance(failure.value, ResponseFailed)
    (why,) = failure.value.reasons
    assert why.check(RemoteProtocolError)
    assert f"has more than {MAX_HEAD_BYTES} bytes" in str(why.value)
    assert MAX_HEAD_BYTES - 2_000 < sent < MAX_HEAD_BYTES + 2_000
    assert transport.disconnecting
    assert [] == events


class Body:
    """Takes a body."""

    def __init__(self) -> None:
        self.data = b""
        self.transport: Any = None

    def makeConnection(self, transport: Any) -> None:
        """It begins."""

    def dataReceived(self, data: bytes) -> None:
        """More of it."""
        self.data += data

    def connectionLost(self, reason: Failure) -> None:
        """It ends."""


def test_a_body_does_not_count() -> None:
    """Also if it comes with its head; and each response of a connection has the whole room."""
    transport, protocol, found = requested()
    body = b"x" * (3 * MAX_HEAD_BYTES)
    for _ in range(3):
        padding = b"a" * (MAX_HEAD_BYTES - 20_000)
        lines = b"".join(b"X: %b\r\n" % padding[at : at + 8_000] for at in range(0, len(padding), 8_000))
        head = b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: %d\r\n\r\n" % len(body)
        protocol.dataReceived(head + body)
        (response,) = found
        taken = Body()
        response.deliverBody(taken)

        assert body == taken.data
        assert not transport.disconnecting
        found = requested_again(protocol)
