"""Bodies of responses: whole, by chunks or by lines, with backpressure, bounds and a limit of silence."""

from typing import Any, Final, Self

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.transports.failures import describe_error
from synrepl.transports.http.headers import CONTENT_DIGEST, matches_digest
from synrepl.wire.codec import LineBuffer
from synrepl.wire.sizes import MAX_HELD

MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""Reading from the connection pauses while more bytes than this are queued."""
LINE_BYTES: Final = 64
"""Memory that a queued line counts in addition to its text."""
MAX_LINE_BYTES: Final = MAX_HELD
"""Bytes of a line: one fact of the largest size, or all ephemeral facts, as in a ``held`` block."""


async def verified_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Read a body and verify its Content-Digest, if it has one."""
    body = await collect_body(response, max_bytes, url)
    if not matches_digest(body, response.headers.getRawHeaders(CONTENT_DIGEST)):
        raise NotConnected(f"{url} sent a corrupted response: its Content-Digest does not match")
    return body


class BodyChunks(Protocol):
    """A body in chunks, queued until they are taken; pauses the connection while too many bytes are queued.

    `end` is set when the response has ended. A wait fails after `silence` seconds without data (None: never).
    The time in which the caller processes data does not count.
    """

    def __init__(self, url: str, *, clock: IClock | None = None, silence: float | None = None) -> None:
        self.end: Failure | None = None
        self.url = url
        self._clock = clock
        self._silence = silence
        self._queued: list[bytes] = []
        self._buffered = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    @classmethod
    def of(cls, response: Any, url: str, **options: Any) -> Self:
        body = cls(url, **options)
        response.deliverBody(body)
        return body

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
        """Queue what arrived; return the bytes that count towards `MAX_BUFFERED_BYTES`."""
        self._queued.append(data)
        return len(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def take(self) -> list[bytes]:
        taken, self._queued = self._queued, []
        self._buffered = 0
        if self._is_paused and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return taken

    async def next(self) -> list[bytes]:
        """Wait until something is queued, and return all of it; an empty list at the end.

        Raises `NotConnected` after the time of silence.
        """
        while not self._queued and self.end is None:
            await self._wait()
        return self.take()

    async def _wait(self) -> None:
        waiter: Deferred[None] = Deferred()
        self._waiter = waiter
        if self._silence is None or self._clock is None:
            return await waiter
        error = NotConnected(f"{self.url} was silent for {self._silence:g} seconds")
        timer = Timer(self._clock, lambda: waiter.errback(error))
        timer.start(self._silence)
        try:
            await waiter
        finally:
            timer.stop()

    def check_complete(self) -> None:
        """Raises `NotConnected` unless the response is complete."""
        assert self.end is not None
        if not self._is_whole():
            raise NotConnected(f"{self.url}: the response ended early: {describe_error(self.end.value)}")

    def _is_whole(self) -> bool:
        return self.end is not None and _is_complete(self.end)

    def stop(self) -> None:
        self._is_stopped = True
        if self.end is None:
            self._abort()

    def _abort(self) -> None:
        transport: Any = self.transport
        if transport is not None:
            getattr(transport, "abortConnection", transport.loseConnection)()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


class BodyLines(BodyChunks):
    """A body in lines."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._buffer = LineBuffer(MAX_LINE_BYTES)
        self._is_too_long = False

    def _queue(self, data: bytes) -> int:
        lines = self._buffer.receive(data)
        size = sum(map(len, lines))
        if size > MAX_LINE_BYTES and max(map(len, lines)) > MAX_LINE_BYTES:
            self._is_too_long, self._is_stopped = True, True
            self._abort()
            return 0
        self._queued += lines
        return size + LINE_BYTES * len(lines)

    async def next(self) -> list[bytes]:
        """Wait for lines, and return all that have arrived; an empty list at the end of a complete response.

        Raises `NotConnected` if the response ends early, `RemoteProtocolError` after a line over the limit.
        """
        if not (lines := await super().next()):
            self.check_complete()
        return lines

    def check_complete(self) -> None:
        if self._is_too_long:
            raise RemoteProtocolError(f"{self.url} sent a line of more than {MAX_LINE_BYTES} bytes")
        super().check_complete()

    def _is_whole(self) -> bool:
        return not self._buffer.size and super()._is_whole()


async def collect_body(response: Any, max_bytes: int, url: str) -> bytes:
    """Return the body. Raises `RemoteProtocolError` over `max_bytes`, or the error that ended it early."""
    chunks, parts, size = BodyChunks.of(response, url), [], 0
    try:
        while more := await chunks.next():
            parts += more
            size += sum(map(len, more))
            if size > max_bytes:
                raise RemoteProtocolError(f"{url} sent a response of more than {max_bytes} bytes")
    finally:
        chunks.stop()
    assert chunks.end is not None
    if not _is_complete(chunks.end):
        chunks.end.raiseException()
    return b"".join(parts)


def _is_complete(reason: Failure) -> bool:
    # Imported here: a follower over TCP has this module, and needs nothing of twisted.web.
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None
