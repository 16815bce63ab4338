"""Records: the bytes of a connection, each part authenticated with a key that both ends share.

Between two daemons with a secret, the bytes that follow AUTH and WELCOME travel in records, unless the
connection is one of TLS between the two. Over HTTP none is: TLS may end at a proxy.

::

    record   length    4 bytes, big-endian: the bytes of the payload, 1 to 65,536
             payload   a part of the lines and blocks, cut anywhere
             tag       16 bytes: the first of the HMAC-SHA256 over number, length and payload

The number (8 bytes, big-endian) counts the records of one direction from 0. It is not sent, so a record that
is lost, repeated or moved has a wrong tag. Each direction has its own key, so a record that is sent back to
its writer has one too. Records are not encrypted.
"""

import hmac
from collections.abc import Callable, Iterator
from typing import Any, Final

from synrepl.errors import RemoteProtocolError
from synrepl.wire.blocks import BlockBuffer, Payload
from synrepl.wire.codec import LineBuffer

MAX_PAYLOAD: Final = 64 * 1024
"""The most bytes in the payload of a record. A reader buffers one record, as it delivers only whole ones."""

LENGTH_BYTES: Final = 4
NUMBER_BYTES: Final = 8
TAG_BYTES: Final = 16

ALTERED: Final = "the connection was altered or is out of step"


class _Tags:
    """The tags of the records of one direction, in order."""

    def __init__(self, key: bytes) -> None:
        self._number = 0
        # A copy of an HMAC that has its key already takes less time than a new one.
        self._keyed: Any = hmac.new(key, digestmod="sha256")

    def next(self, length: bytes, payload: bytes) -> bytes:
        tag = self._keyed.copy()
        tag.update(self._number.to_bytes(NUMBER_BYTES) + length)
        tag.update(payload)
        self._number += 1
        return bytes(tag.digest()[:TAG_BYTES])


class RecordWriter:
    """Puts the bytes of one direction of a connection into records."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)

    def write(self, data: bytes) -> bytes:
        """Return `data` as records: one, unless it has more bytes than `MAX_PAYLOAD`."""
        parts: list[bytes] = []
        for at in range(0, len(data), MAX_PAYLOAD):
            payload = data[at : at + MAX_PAYLOAD]
            length = len(payload).to_bytes(LENGTH_BYTES)
            parts += (length, payload, self._tags.next(length, payload))
        return b"".join(parts)


class RecordBuffer:
    """Takes the bytes of one direction of a connection out of records, received in chunks of any size.

    Buffers at most one unfinished record and the chunk with it. Work is linear in the received bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._held = bytearray()
        self._needed = LENGTH_BYTES

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads of the records that are now complete, each once its tag is verified.

        Raises `RemoteProtocolError` for a length or tag that is wrong; do not use it after that.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data, self._held = bytes(self._held), bytearray()
        at = 0
        while True:
            start = at + LENGTH_BYTES
            self._needed = LENGTH_BYTES
            if len(data) < start:
                break
            length = data[at:start]
            size = int.from_bytes(length)
            if not 0 < size <= MAX_PAYLOAD:
                raise RemoteProtocolError(
                    f"{ALTERED}: the peer must send records of 1 to {MAX_PAYLOAD} bytes after the handshake"
                )
            self._needed = LENGTH_BYTES + size + TAG_BYTES
            end = at + self._needed
            if len(data) < end:
                break
            payload = data[start : end - TAG_BYTES]
            if not hmac.compare_digest(self._tags.next(length, payload), data[end - TAG_BYTES : end]):
                raise RemoteProtocolError(f"{ALTERED}: the tag of a record is wrong")
            yield payload
            at = end
        self._held += data[at:]


class HandshakeBuffer:
    """Splits received bytes as lines up to the end of the handshake, and then as `after` does.

    `last` begins the line that ends the handshake. The connection's owner handles that line before the bytes
    after it are read. If the owner then calls `read_records`, they are records; otherwise they are as they
    were before.
    """

    def __init__(self, last: bytes, after: Callable[[], LineBuffer | BlockBuffer]) -> None:
        self._last = last
        self._lines = LineBuffer()
        self._make_after = after
        self._after: LineBuffer | BlockBuffer | None = None
        self._records: RecordBuffer | None = None

    def read_records(self, key: bytes) -> None:
        """Take all bytes after the handshake out of records with this key."""
        self._records = RecordBuffer(key)

    def runs(self, data: bytes) -> Iterator[list[bytes] | Payload]:
        """Yield runs of complete lines, and blocks. Raises `RemoteProtocolError` for malformed input."""
        if self._after is None:
            at = 0
            while at < len(data) and self._after is None:
                end = self._next_end(data, at)
                lines = self._lines.receive(data[at:end])
                at = end
                if lines and lines[-1].startswith(self._last):
                    self._after = self._make_after()
                if lines:
                    yield lines
            data = data[at:]
        if self._after is not None and data:
            for part in (data,) if self._records is None else self._records.receive(data):
                yield from self._after.runs(part)

    def _next_end(self, data: bytes, at: int) -> int:
        """Return the end of the next lines: none of them ends the handshake, except the last one."""
        if self._lines.size or data.startswith(self._last, at):
            end = data.find(b"\n", at) + 1
        else:
            end = data.find(b"\n" + self._last, at) + 1
        return end or len(data)
