"""A request body that the handler reads while it arrives."""

from collections import deque
from typing import Final

from synrepl.base.gate import Gate
from synrepl.transports.http.http_channel import ApiChannel

MAX_BUFFERED_BYTES: Final = 256 * 1024
"""Reading from the connection pauses when more than this many bytes wait for the handler."""


class BodyStream:
    """The body of one request, in place of Twisted's file; `channel` pauses while the handler is slow."""

    def __init__(self, channel: ApiChannel) -> None:
        self._channel = channel
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._is_paused = False
        self._is_ended = False
        self._arrived = Gate(is_open=False)
        """Open while there is something to take, or nothing can follow."""

    async def next(self) -> bytes:
        """Return the bytes that have arrived; wait for some. Empty at the end."""
        await self._arrived.wait_open()
        if not self._parts:
            return b""
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if not self._is_ended:
            self._arrived.close()
            if self._is_paused:
                self._is_paused = False
                self._channel.resume_body()
        return data

    def end(self) -> None:
        """Nothing follows."""
        self._is_ended = True
        self._arrived.open()

    # Methods that Twisted calls on a request's body.

    def write(self, data: bytes) -> None:
        """Keep bytes for the handler."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._channel.pause_body()
        self._arrived.open()

    def tell(self) -> int:
        return 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0

    def read(self, count: int = -1) -> bytes:
        return b""

    def close(self) -> None:
        """Drop the parts that were not read."""
        self._parts.clear()
