"""Writes to a socket at once, in the order of all writes."""

import pytest
from twisted.internet.testing import StringTransport

from synrepl.transports.send_buffer import immediate_write, unsent_bytes, write_now


class Socket(StringTransport):
    """A transport whose socket takes so many bytes at a time; 0: it has no room, -1: it is lost."""

    _tempDataLen = 0
    bufferSize = 9

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes
        self.sent = b""
        self.dataBuffer = b""
        self.connected = True
        self.socket = self

    def send(self, data: bytes) -> int:
        if self.takes <= 0:
            raise BlockingIOError if self.takes == 0 else ConnectionResetError
        self.sent += data[: self.takes]
        return min(self.takes, len(data))

    def write(self, data: bytes) -> None:
        self.dataBuffer += data


@pytest.mark.parametrize(
    ("takes", "sent", "left"), [(9, b"abc", b""), (2, b"ab", b"c"), (0, b"", b"abc"), (-1, b"", b"abc")]
)
def test_what_does_not_fit_goes_into_the_buffer(takes: int, sent: bytes, left: bytes) -> None:
    transport = Socket(takes)
    write_now(transport, b"abc")

    assert (sent, left) == (transport.sent, transport.dataBuffer)
    assert len(left) == unsent_bytes(transport)


def test_nothing_overtakes_what_waits() -> None:
    transport = Socket(2)
    write_now(transport, b"abc")
    transport.takes = 9
    write_now(transport, b"def")

    assert (b"ab", b"cdef") == (transport.sent, transport.dataBuffer)


def test_a_large_write_gives_others_their_turn() -> None:
    """A reader that catches up would be sent all at once, as long as it reads as fast."""
    transport = Socket(99)
    write_now(transport, b"a" * 10)

    assert (b"", b"a" * 10) == (transport.sent, transport.dataBuffer)


def test_a_closing_transport_sends_nothing_more() -> None:
    transport = Socket(9)
    transport.disconnecting = True
    write_now(transport, b"abc")

    assert transport.sent == b""


def test_only_a_plain_socket_is_written_to_at_once() -> None:
    """The socket below TLS would send the text as it is."""
    other = StringTransport()
    immediate_write(other)(b"abc")
    assert other.value() == b"abc"
    transport = Socket(9)
    immediate_write(transport)(b"abc")

    assert (b"abc", b"") == (transport.sent, transport.dataBuffer)
