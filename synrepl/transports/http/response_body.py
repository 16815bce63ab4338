"""Bodies of responses: whole, by chunks, or by lines, with backpressure."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.wire.blocks import MAX_HELD
from synrepl.wire.codec import LineBuffer
from synrepl.wire.text import printable

__all__ = ["BodyChunks", "BodyLines", "collect_body", "describe_error", "is_complete", "iterate_lines"]

MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""Queued bytes at which reading from the connection pauses."""
LINE_BYTES: Final = 64
"""Memory that a queued line counts in addition to its text."""
MAX_LINE_BYTES: Final = MAX_HELD
"""Limit for a line, as for a block: one fact of the largest size, or all ephemeral facts."""


class _PacedBody(Protocol):
    """A body that is queued until it is taken; pauses the connection while too many bytes are queued.

    `end` is set when the response has ended. Subclasses queue what arrives.
    """

    def __init__(self) -> None:
        self.end: Failure | None = None
        self._buffered = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        self._buffered += self._queue(data)
        if self._buffered > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        self._wake()

    def _queue(self, data: bytes) -> int:
        """Queue what arrived; return its size in bytes."""
        raise NotImplementedError

    def _took(self, size: int) -> None:
        """Note that so many queued bytes were taken."""
        self._buffered -= size
        if self._is_paused and self._buffered <= MAX_BUFFERED_BYTES // 2 and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    async def wait(self) -> None:
        """Wait for more of the body, or its end."""
        self._waiter = Deferred()
        await self._waiter

    async def wait_within(self, seconds: float, clock: IClock) -> bool:
        """Wait like `wait`; False after so many seconds of silence."""
        waiter: Deferred[None] = Deferred()
        self._waiter = waiter
        timer = clock.callLater(seconds, waiter.errback, TimedOut())
        try:
            await waiter
        except TimedOut:
            return False
        finally:
            if timer.active():
                timer.cancel()
        return True

    def check_complete(self, url: str) -> None:
        """Raises `NotConnected` unless the response is complete."""
        assert self.end is not None
        if not is_complete(self.end):
            raise _broken_off(url, self.end)

    def stop(self) -> None:
        """Stop reading, and abort the response."""
        self._is_stopped = True
        if self.end is None:
            _abort(self.transport)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


class BodyChunks(_PacedBody):
    """A body in chunks as they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def _queue(self, data: bytes) -> int:
        self._parts.append(data)
        return len(data)

    async def next_chunk(self, silence: float, clock: IClock, url: str) -> bytes | None:
        """Return the bytes since the last call; None at the end.

        Raises `NotConnected` after `silence` seconds without bytes.
        """
        # The timer runs only while a read waits: a slow disk pauses the sender, too.
        if not self._parts and self.end is None and not await self.wait_within(silence, clock):
            raise NotConnected(f"{url} sent nothing for {silence:g} seconds")
        if not self._parts:
            return None
        data = b"".join(self._parts)
        self._parts.clear()
        self._took(len(data))
        return data


class BodyLines(_PacedBody):
    """A body in lines."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = LineBuffer(MAX_LINE_BYTES)
        self._is_too_long = False
        self._lines: deque[bytes] = deque()

    def _queue(self, data: bytes) -> int:
        lines = self._buffer.feed(data)
        size = sum(map(len, lines))
        if size > MAX_LINE_BYTES and max(map(len, lines)) > MAX_LINE_BYTES:
            self._is_too_long, self._is_stopped = True, True
            _abort(self.transport)
            return 0
        self._lines += lines
        return size + LINE_BYTES * len(lines)

    def pop_line(self) -> bytes | None:
        """Return the next line; None if none is queued."""
        if not self._lines:
            return None
        text = self._lines.popleft()
        self._took(len(text) + LINE_BYTES)
        return text

    def pop_lines(self) -> list[bytes]:
        """Return all queued lines."""
        lines: list[bytes] = []
        while (text := self.pop_line()) is not None:
            lines.append(text)
        return lines

    def check_complete(self, url: str) -> None:
        """Raises `NotConnected` unless the response is complete; `RemoteProtocolError` after a line over the
        limit.
        """
        if self._is_too_long:
            raise RemoteProtocolError(f"{url} sent a line of more than {MAX_LINE_BYTES} bytes")
        super().check_complete(url)
        if self._buffer.size:
            assert self.end is not None
            raise _broken_off(url, self.end)


async def iterate_lines(lines: BodyLines, url: str) -> AsyncIterator[bytes]:
    """Yield the lines of a whole response. Raises `NotConnected` and `RemoteProtocolError`."""
    while True:
        while (text := lines.pop_line()) is not None:
            yield text
        if lines.end is not None:
            break
        await lines.wait()
    lines.check_complete(url)


async def collect_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Return the whole body. Raises `RemoteProtocolError` if it has more than `max_bytes`."""
    collecting = _Collector(max_bytes, url)
    response.deliverBody(collecting)
    return await collecting.done


class _Collector(Protocol):
    """Collects a body, up to a limit."""

    def __init__(self, max_bytes: int, url: str) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: _abort(self.transport))
        self._room = max_bytes
        self._max_bytes = max_bytes
        self._url = url
        self._parts: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)
        elif not self.done.called:
            self._parts.clear()
            self.done.errback(RemoteProtocolError(f"{self._url} sent more than {self._max_bytes} bytes"))
            _abort(self.transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if is_complete(reason):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)


def is_complete(reason: Failure) -> bool:
    """Whether a response ended properly."""
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None


def describe_error(error: BaseException | None) -> str:
    """Describe an error in one line; unwraps Twisted's lists of reasons."""
    reasons = getattr(error, "reasons", None)
    if reasons and isinstance(reasons[0], Failure):
        return (
            describe_error(reasons[0].value) if isinstance(reasons[0].value, Exception) else str(reasons[0])
        )
    return printable(" ".join(str(error).split()), limit=1_000) or type(error).__name__


def _broken_off(url: str, end: Failure) -> NotConnected:
    return NotConnected(f"{url}: the response ended early: {describe_error(end.value)}")


def _abort(transport: Any) -> None:
    """Close a connection without flushing or reading the rest."""
    if transport is not None:
        getattr(transport, "abortConnection", transport.loseConnection)()
