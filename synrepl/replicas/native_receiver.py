"""Receives the bytes of a native connection, and splits them into lines and the blocks between them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from twisted.protocols.basic import LineReceiver

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.wire.blocks import HEAD, BlockParser, Payload
from synrepl.replicas.wire.native_codec import native_codec
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.grammar import BOTH
from synrepl.wire.session import LINE_TOO_LONG

if TYPE_CHECKING:
    from synrepl.transports.connection import ReplicationProtocol


class INativeConnection(Protocol):
    """The connection whose bytes are taken (`ReplicationProtocol`)."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is read."""

    def take_lines(self, lines: list[bytes]) -> None:
        """Handle received lines."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""


class NativeReceiver(LineReceiver):
    """Takes the bytes of a connection from the peer's HELLO on.

    Lines go to the connection, those of a read together. A block follows the line that announces it: its
    bytes are taken raw, and the complete block is given to `on_block`. Only a replica takes blocks; without
    `on_block` the announcement is a line as any other.
    """

    delimiter = b"\n"
    MAX_LENGTH = MAX_LENGTH

    def __init__(self, connection: INativeConnection, on_block: Callable[[Payload], object] | None) -> None:
        self._connection = connection
        self._on_block = on_block
        self._blocks = BlockParser()
        self._lines: list[bytes] = []
        """Received lines that are not handled yet."""

    def dataReceived(self, data: bytes) -> Any:
        """Take bytes, which may end anywhere. Raises RemoteProtocolError for a malformed block or line."""
        super().dataReceived(data)
        self._flush()

    def lineReceived(self, line: bytes) -> None:
        """Keep a line for the end of this read, or take the announcement of a block."""
        if self._on_block is None or not line.startswith(HEAD):
            if line:
                self._lines.append(line)
            return
        self._flush()
        if self._connection.is_closed:
            return
        empty = self._blocks.announce(line)
        if empty is None:
            self.setRawMode()
        else:
            self._on_block(empty)

    def rawDataReceived(self, data: bytes) -> None:
        """Take bytes of a block."""
        if self._connection.is_closed:
            return
        payload, rest = self._blocks.receive(data)
        if payload is not None:
            assert self._on_block is not None
            self._on_block(payload)
            self.setLineMode(rest)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a line, after those before it."""
        self._flush()
        self.clearLineBuffer()
        if self._on_block is not None:
            raise RemoteProtocolError(f"line too long: a line has at most {MAX_LENGTH} bytes")
        self._connection.fail(LINE_TOO_LONG)

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines and not self._connection.is_closed:
            self._connection.take_lines(lines)


def speak_native(
    connection: "ReplicationProtocol", on_block: Callable[[Payload], object] | None = None
) -> None:
    """Speak the native dialect on this connection from now on; `on_block` is called with each block."""
    side = connection.session.side
    connection.session.speak(native_codec(ours=side, theirs=BOTH & ~side))
    connection.receive_by(NativeReceiver(connection, on_block))
