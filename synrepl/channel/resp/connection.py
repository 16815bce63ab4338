"""A connection of the RESP port: requests of one client, and messages of the channels it subscribed to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.access import LOCAL, REMOTE, Access
from synrepl.base.time import Timer
from synrepl.channel import resp_codec as resp
from synrepl.channel.resp.client import RespClient
from synrepl.channel.resp.commands import COMMANDS, answer
from synrepl.errors import RemoteProtocolError
from synrepl.transports.credentials import certified_name, is_local
from synrepl.transports.failures import address_text
from synrepl.transports.send_buffer import immediate_write

if TYPE_CHECKING:
    from synrepl.channel.resp.server import RespServer

ABORT_SECONDS: Final = 5.0
"""Time between our close and the abort of the connection, for a client that does not read the rest."""

AUTHENTICATE_SECONDS: Final = 30.0
"""Time within which a client must authenticate, if this daemon has keys."""

REQUESTS_AT_ONCE: Final = 50
"""The most requests that are answered at once; one of them at most is costly."""

REPLY_BYTES: Final = 64 * 1024
"""No more requests are answered at once after replies of so many bytes."""


@implementer(IPushProducer)
class RespConnection(Protocol):
    """Answers the requests of one client, in their order.

    Few of them are answered at once, and none while the client does not read, or the log does not keep up.
    The rest takes turns with other connections, and nothing is read until it is answered.
    """

    transport: Any
    _logger = Logger()

    def __init__(self, server: "RespServer") -> None:
        self.client = RespClient(server, self._write_message, self._confirm, self._first_access)
        self._server = server
        self._parser = resp.RequestParser(COMMANDS)
        self._replies: list[bytes] = []
        self.counted = 0
        """The bytes that the port has counted for this connection; see `held_bytes`."""
        self._has_requests = False
        """Whether there may be complete requests that are not answered."""
        self.certified_name: str | None = None
        """The name in the client's certificate; None without one."""
        self._is_local = False
        self._is_queued = False
        self._is_lost = False
        """Whether the connection is lost, and its last requests are still to be answered."""
        self._is_full = False
        self._is_held = False
        self._send: Callable[[bytes], object]
        """Writes messages to the transport, if possible at once."""
        self._timer = Timer(server.clock, self._on_time)

    # -- the transport -------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        server = self._server
        server.metrics.connections.inc()
        server.connections[self] = None
        self.client.peer = address_text(self.transport.getPeer())
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self.transport.registerProducer(self, True)
        self._send = immediate_write(self.transport)
        self.certified_name = certified_name(self.transport)
        self._is_local = is_local(self.transport.getPeer())
        self.client.log_in()
        self._await_login()

    def _first_access(self) -> Access | None:
        keys = self._server.keys
        if not keys.is_required:
            return LOCAL if self._is_local else REMOTE
        return None if self.certified_name is None else keys.access_by_certificate(self.certified_name)

    def _await_login(self) -> None:
        """A client that has no rights must authenticate in time."""
        if self.client.access is None:
            self._timer.start(AUTHENTICATE_SECONDS)
        else:
            self._timer.stop()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_lost, self._is_full = True, False
        if self._may_answer:
            self._queue_up()
        elif self.client.is_closing or not (self._is_queued or self._has_requests):
            self._end()

    def _end(self) -> None:
        server = self._server
        self.client.is_closing = True
        self._drop()
        server.metrics.connections.dec()
        server.connections.pop(self, None)
        self._timer.stop()
        self.client.end()

    def dataReceived(self, data: bytes) -> None:
        if self.client.is_closing:
            return
        self._server.metrics.bytes_in.value += len(data)
        self.client.active_at = self._server.clock.seconds()
        self._parser.feed(data)
        self._has_requests = True
        queue = self._server.queue
        while self._may_answer and not self._is_queued and queue.has_time:
            queue.run(self._answer_some)
            if self.client.is_costly:
                break
        if self._may_answer:
            self._queue_up()

    # -- turns ---------------------------------------------------------------------------------------------

    @property
    def _may_answer(self) -> bool:
        return self._has_requests and not (self._is_full or self._is_held or self.client.is_closing)

    def _queue_up(self) -> None:
        """Answer what is left in a later turn."""
        if not self._is_queued:
            self._is_queued = True
            if not self._is_lost:
                self.transport.pauseProducing()
            self._server.queue.run_later(self._go_on)

    def _go_on(self) -> None:
        self._is_queued = False
        try:
            if self._may_answer:
                self._answer_some()
        except Exception:
            # In the poll, Twisted would do the same.
            self._logger.failure("the connection of {peer} failed", peer=self.client.peer)
            self.client.is_closing = True
            self.transport.abortConnection()
        self._read_on()

    def _answer_some(self) -> None:
        """Answer the next requests, as many as may be answered at once."""
        self.client.is_costly = False
        size = 0
        try:
            for _ in range(REQUESTS_AT_ONCE):
                self._parser.limits = self.client.limits
                words = self._parser.next()
                if words is None:
                    self._has_requests = False
                    break
                reply = answer(self.client, words)
                self._replies.append(reply)
                size += len(reply)
                if self.client.is_closing or self.client.is_costly or size > REPLY_BYTES:
                    self._has_requests = self._parser.size > 0
                    break
        except RemoteProtocolError as error:
            self._fail(error)
        try:
            # What came before an error too: it was answered.
            self.client.publish()
        except RemoteProtocolError as error:
            self._fail(error)
        self._send_replies()
        if self.client.is_closing:
            self._disconnect()
            return
        self._await_login()
        self._server.account(self)
        if self._server.is_full():
            self.hold()

    @property
    def held_bytes(self) -> int:
        """The bytes that are held of requests and batches that are not complete."""
        return self._parser.size + self.client.publisher.held_bytes

    def _drop(self) -> None:
        """Hold nothing more: the connection ends, and with it what is not complete."""
        self._has_requests = False
        self._parser.clear()
        self.client.publisher.drop_held()
        self._server.account(self)

    def _fail(self, error: RemoteProtocolError) -> None:
        self._server.complain(f"closing {self.client.peer}: {error.why}")
        self._replies.append(resp.error(f"ERR {error.why}"))
        self.client.is_closing = True

    def pauseProducing(self) -> None:
        """The client does not read: messages wait, and no more requests are read."""
        self._is_full = True
        self.client.subscriber.pause()
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """The client reads again."""
        self._is_full = False
        if self._server.channel is not None:
            self._server.channel.resumed(self.client.subscriber)
        self._read_on()

    def stopProducing(self) -> None:
        self.transport.loseConnection()

    def hold(self) -> None:
        """Read no more requests until `release`: the log does not keep up with what is published."""
        self._is_held = True
        if not self._is_lost:
            self.transport.pauseProducing()

    def release(self) -> None:
        """Read requests again."""
        if self._is_held:
            self._is_held = False
            self._read_on()

    def close(self, why: str) -> None:
        """Send an error, and close."""
        if not self.client.is_closing:
            self.client.is_closing = True
            self._write(resp.error(why))
            self._disconnect()

    def _read_on(self) -> None:
        """Answer what is left, or read more, unless something is in the way."""
        if self._may_answer:
            self._queue_up()
        elif self._is_lost and not (self._is_queued or self._is_held or self.client.is_closing):
            self._end()
        elif not (self._is_full or self._is_held or self.client.is_closing or self._is_lost):
            self.transport.resumeProducing()

    def _send_replies(self) -> None:
        replies, self._replies = self._replies, []
        self._write(b"".join(replies))

    def _confirm(self, reply: bytes) -> None:
        self._replies.append(reply)
        self._send_replies()

    def _write(self, data: bytes) -> None:
        if data:
            self._server.metrics.bytes_out.value += len(data)
            self.transport.write(data)

    def _write_message(self, data: bytes) -> None:
        if not self.client.is_closing:
            self._server.metrics.bytes_out.value += len(data)
            self._send(data)

    def _disconnect(self) -> None:
        if self._is_lost:
            self._end()
            return
        self._drop()
        self.transport.unregisterProducer()
        self._timer.restart(ABORT_SECONDS)
        self.transport.loseConnection()

    def _on_time(self) -> None:
        if self.client.is_closing:
            self.transport.abortConnection()
        elif self.client.access is None:
            self.close(f"ERR authenticate within {AUTHENTICATE_SECONDS:g} seconds")
