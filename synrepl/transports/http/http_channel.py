"""A connection of an HTTP client: bounds of requests, their turns, and deadlines of their progress."""

import re
from typing import Any, Final, Protocol

from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.base.turn_queue import TurnQueue
from synrepl.transports.http.api_error import ApiError, encode_response

LENGTH: Final = b"content-length:"
TRANSFER: Final = b"transfer-encoding:"
MAX_LENGTH_LINE: Final = 64
"""Limit for the Content-Length line in bytes; its number has 19 digits at most."""

_absolute_target: Final = re.compile(rb"(?i:https?)://([^/?#]*)(.*)", re.DOTALL)

PROGRESS_SECONDS: Final = 30.0
"""A head must be complete within this time, and of a body `PROGRESS_BYTES` must arrive in it."""

PROGRESS_BYTES: Final = 16 * 1024


class ISite(Protocol):
    """What a connection needs of its site."""

    clock: IClock
    queue: TurnQueue
    """The turns that the requests of all connections take."""


class ApiChannel(HTTPChannel):
    """A connection whose requests take turns, and whose peer must get on with each of them.

    Twisted handles all requests that a peer has sent ahead in one turn of the reactor. Here, one request of a
    connection is handled in a turn, and none while the peer does not read the answers; meanwhile nothing is
    read from it. Twisted's own timeout restarts with each byte, so a head or a body could take for ever:
    here it must progress (`PROGRESS_SECONDS`). Time in which we do not read, or answer, does not count.

    Overlong Content-Length values are refused: Python raises for a number of 5,000 digits, and Twisted would
    close without a response.
    """

    maxHeaders = 100
    site: ISite
    transport: Any
    _abortingCall: Any

    _has_transfer_encoding = False
    """Whether the head that is being received has one."""
    _is_waiting = False
    """Whether bytes wait for their turn, in `_buffer`: they are not parsed, and no more are read."""
    _is_queued = False
    _is_in_body = False
    _is_body_paused = False
    _progress: Timer
    _received = 0
    _least_bytes = PROGRESS_BYTES
    """The bytes of a body that must arrive within `PROGRESS_SECONDS`."""
    _was_held_up = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self._progress = Timer(self.site.clock, self._check_progress)
        self._progress.start(PROGRESS_SECONDS)

    def dataReceived(self, data: bytes) -> None:
        self.resetTimeout()
        self._received += len(data)
        if self.paused or self._handlingRequest:
            # Not parsed now. What follows a request in progress is kept by Twisted, up to a limit.
            LineReceiver.dataReceived(self, data)
            return
        self._buffer += data
        if self.site.queue.has_time and not self._waitingForTransport:
            self.site.queue.run(self._parse)
        else:
            self._wait()

    def _parse(self) -> None:
        """Parse what has been received, up to the end of a request, and handle that."""
        LineReceiver.dataReceived(self, b"")
        # A request that arrives whole needs no deadline.
        if (self._buffer or self.requests) and not (self._handlingRequest or self.paused):
            self._progress.start(PROGRESS_SECONDS)

    def _wait(self) -> None:
        """Parse what is in the buffer in a later turn, and not before the peer has read the answers."""
        self._is_waiting = self.paused = self._was_held_up = True
        self._networkProducer.pauseProducing()
        if not self._is_queued and not self._waitingForTransport:
            self._is_queued = True
            self.site.queue.run_later(self._go_on)

    def _go_on(self) -> None:
        self._is_queued = False
        if not self._is_waiting or self._waitingForTransport or not self.connected:
            return
        self._is_waiting = self.paused = False
        try:
            self._parse()
        except Exception:
            # In the poll, Twisted would do the same.
            self._log.failure("the connection of {peer} failed", peer=self.transport.getPeer())
            self.transport.abortConnection()
        else:
            self._read_on()

    def _read_on(self) -> None:
        """Read from the peer, unless something is in the way."""
        is_full = sum(map(len, self._dataBuffer)) > self._optimisticEagerReadSize
        is_blocked = self._is_waiting or self._is_body_paused or self.transport.disconnecting
        if not (is_blocked or self._waitingForTransport or is_full):
            self._networkProducer.resumeProducing()

    def expect_slow_body(self) -> None:
        """Let the body of this request take as long as its sender likes, as long as something arrives."""
        self._least_bytes = 1

    def pause_body(self) -> None:
        """Read no more of a body: it cannot be stored as fast."""
        self._is_body_paused = self._was_held_up = True
        self._networkProducer.pauseProducing()

    def resume_body(self) -> None:
        """Read the body again."""
        self._is_body_paused = False
        self._was_held_up = True
        self._read_on()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self._is_waiting:
            self._wait()

    def requestDone(self, request: Any) -> None:
        self._is_in_body = self._is_body_paused = False
        # The parser stops here, with what follows in its buffer.
        self.paused = True
        # The handler says that nothing else is served after this answer.
        is_last = bool(self.persistent) and request.responseHeaders.getRawHeaders(b"connection") == [b"close"]
        if is_last:
            self.persistent = False
        super().requestDone(request)
        if self._buffer and not self.transport.disconnecting:
            self._wait()
        else:
            self.paused = False
        if is_last:
            # It closes once the answer is sent, which a peer that does not read would put off for ever.
            self._abortingCall = self.callLater(PROGRESS_SECONDS, self.forceAbortClient)

    def allHeadersReceived(self) -> None:
        self._progress.stop()
        self._read_absolute_target()
        self._has_transfer_encoding = False
        self._is_in_body = True
        self._received, self._least_bytes, self._was_held_up = 0, PROGRESS_BYTES, False
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        self._progress.stop()
        super().allContentReceived()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.connected = 0
        self._progress.stop()
        super().connectionLost(reason)

    def timeoutConnection(self) -> None:
        # Either deadline may come first.
        self._progress.stop()
        self.setTimeout(None)
        # Twisted logs each of these connections: a peer could fill the log.
        self._abortingCall = self.callLater(self.abortTimeout, self.forceAbortClient)
        self.loseConnection()

    def forceAbortClient(self) -> None:
        self._abortingCall = None
        self.transport.abortConnection()

    def _read_absolute_target(self) -> None:
        """Take ``http://host/path`` as a request target, as proxies send it (RFC 9112, 3.2.2).

        The host in it counts, whatever ``Host`` says.
        """
        if found := _absolute_target.fullmatch(self._path):
            host, path = found.groups()
            self._path = path if path.startswith(b"/") else b"/" + path
            self.requests[-1].requestHeaders.setRawHeaders(b"host", [host])

    def headerReceived(self, line: bytes) -> bool:
        if len(line) > MAX_LENGTH_LINE and line[: len(LENGTH)].lower() == LENGTH:
            self._respondToBadRequestAndDisconnect()
            return False
        if line[: len(TRANSFER)].lower() == TRANSFER:
            if self._has_transfer_encoding or self._version == b"HTTP/1.0":
                # Twisted would take the one that it knows; a proxy before us, perhaps the other one, or none
                # in HTTP/1.0, which has no such header (RFC 9112, 6.1).
                self._respondToBadRequestAndDisconnect()
                return False
            self._has_transfer_encoding = True
        accepted: bool = super().headerReceived(line)
        return accepted

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        self.loseConnection()

    def _check_progress(self) -> None:
        """Close the connection if its request has not progressed for `PROGRESS_SECONDS`."""
        is_held_up = self._was_held_up or self._is_body_paused
        if self._is_in_body and (is_held_up or self._received >= self._least_bytes):
            self._received, self._was_held_up = 0, False
            self._progress.start(PROGRESS_SECONDS)
            return
        what = "the body progresses too slowly" if self._is_in_body else "the head is not complete"
        error = ApiError("too_slow", f"{what} after {PROGRESS_SECONDS:g} seconds")
        # Twisted's parser has no other way to ignore what comes.
        self.paused = True
        # The answer to a streamed body has begun, and breaks off.
        if not any(request.startedWriting for request in self.requests):
            self.transport.write(encode_response(error))
        self.timeoutConnection()
