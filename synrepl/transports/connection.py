"""Connections: bytes between a transport and a session, on both sides of every line protocol."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final

from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer, ISSLTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.access import LOCAL, Access
from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.time import Timer
from synrepl.base.turn_queue import TurnQueue
from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replication.connection import ConnectionOwner
from synrepl.transports.credentials import certified_name, is_local
from synrepl.transports.failures import PEER_CLOSED, address_text, describe_failure
from synrepl.transports.send_buffer import immediate_write
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.grammar import SERVER, Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import LINE_TOO_LONG, Action, Close, Deliver, Send, Session, Upgrade

PIECE_BYTES: Final = 2 * 1024
"""Received bytes that are handled at once: a hundred short commands take up to 15 milliseconds."""

ABORT_SECONDS: Final = 25.0
"""Time between our close and the abort of the connection, for a peer that does not read the rest."""

STALLED_SECONDS: Final = 300.0
"""A client that sends commands without reading the responses is paused, and closed after this time. While it
is paused, its silence does not prove that it is dead.
"""


def failure_code(error: BaseException | None) -> str:
    """Return the code of `FollowerEvent` for the error of a connection; empty for most errors."""
    # Twisted raises OverflowError only for a port out of range.
    return "bad_port" if isinstance(error, OverflowError) else getattr(error, "code", "")


@implementer(IPushProducer, IHalfCloseableProtocol)
@dataclass(eq=False, repr=False)
class ReplicationProtocol(LineOnlyReceiver):
    """Passes lines between a transport and a `Session`, which implements the protocol.

    A subclass that overrides `lineReceived` sees each line, as with any `LineOnlyReceiver`. A factory uses it
    as its `protocol`:

    >>> from twisted.internet.testing import StringTransport
    >>> from synrepl.testing import Cluster
    >>> from synrepl.transports.tcp import PublisherFactory
    >>> class Listing(ReplicationProtocol):
    ...     def lineReceived(self, line: bytes) -> None:
    ...         print(line.decode())
    ...         super().lineReceived(line)
    >>> class ListingFactory(PublisherFactory):
    ...     protocol = Listing
    >>> hs = Cluster()
    >>> factory = ListingFactory(
    ...     hs.daemon.publisher, server_name="hs", dialect=None, clock=hs.clock, metrics=hs.daemon.metrics
    ... )
    >>> protocol = factory.buildProtocol(None)
    >>> protocol.makeConnection(StringTransport())
    >>> protocol.dataReceived(b"NAME worker1\\nREPLICATE events NOW\\n")
    NAME worker1
    REPLICATE events NOW

    Where nobody overrides it, all lines of a read go to the session at once, as a call for each line costs
    more than reading a row. A peer that is no follower is handed over (`Upgrade`), and with it the bytes
    from then on: the protocol that receives them (`receive_by`) may find more than lines there.
    """

    session: Session
    make_owner: Callable[["ReplicationProtocol"], ConnectionOwner]
    clock: IClock
    metrics: Metrics
    _: KW_ONLY
    logger: LimitedLogger
    """For messages about a peer's behavior; shared by all connections of a listener."""
    logs_closing: bool = True
    """Whether to log the reason of a close; otherwise only the owner gets it."""
    queue: TurnQueue | None = None
    """Where this connection takes turns with others; None handles everything at once."""
    on_established: Callable[[], None] = lambda: None
    on_lost: Callable[["ReplicationProtocol", Failure], None] = lambda lost, reason: None
    transport: Any = field(default=None, init=False)
    """An ITransport and IConsumer; of most endpoints also an ITCPTransport."""
    delimiter = b"\n"
    MAX_LENGTH = MAX_LENGTH
    _reads_by_line: ClassVar = False
    """Whether a subclass overrides `lineReceived`. It is found once per class, not per read."""
    _logger: ClassVar = Logger()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._reads_by_line = cls.lineReceived is not ReplicationProtocol.lineReceived

    def __post_init__(self) -> None:
        self.access: Access | None = LOCAL
        """Rights of a client; None if it has a certificate that is not registered as a key."""
        self.owner = ConnectionOwner()
        """Receives the events. Before the connection is made and after its loss, they are ignored."""
        self.failure_code = ""
        """Why the connection was lost: the code of `FollowerEvent`, often empty."""
        self._send: Callable[[bytes], object]
        """Writes to the transport, at once if possible: each group of facts is written to each follower."""
        self._is_dialect_reported = False
        self._receiver: IProtocol | None = None
        """The protocol that receives all bytes in place of this object (`receive_by`)."""
        self._is_reading = True
        self._is_half_closed = False
        self._pending: deque[bytes | Failure | None] = deque()
        """Events that wait for their turn: received pieces, their end (None), the loss of the connection."""
        self._paused_at = 0.0
        self._close_reason = ""
        self._timer = Timer(self.clock, self._tick)
        self._abort_timer: Timer | None = None

    def connectionMade(self) -> None:
        self.metrics.connections.inc()
        if self.session.closed:
            # Given up before it was made, as during a handshake: it would read nothing and have no timeout.
            self.transport.abortConnection()
            return
        # Rows are small writes. Nagle's algorithm would delay each of them by tens of milliseconds.
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self.transport.registerProducer(self, True)
        self._send = immediate_write(self.transport)
        self._perform(self.session.connected())
        self.owner = self.make_owner(self)
        self._report_dialect()
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        if self.queue is None:
            self._receive(data)
        else:
            pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
            self._take_turns(self.queue, *pieces)

    def _take_turns(self, queue: TurnQueue, *events: bytes | Failure | None) -> None:
        """Handle these events now, or as much as this turn has time for; nothing is read until it is all."""
        is_waiting = bool(self._pending)
        self._pending += events
        while not is_waiting and self._pending and queue.has_time:
            queue.run(self._handle_next)
        if self._pending and not is_waiting:
            self.transport.pauseProducing()
            queue.run_later(lambda: self._go_on(queue))

    def _go_on(self, queue: TurnQueue) -> None:
        try:
            self._handle_next()
        except Exception:
            # In the poll, Twisted would do the same.
            self._logger.failure("the connection of {peer} failed", peer=self._peer())
            self.transport.abortConnection()
        if self._pending:
            queue.run_later(lambda: self._go_on(queue))
        elif self._is_reading and not self.session.closed:
            self.transport.resumeProducing()

    def _handle_next(self) -> None:
        event = self._pending.popleft()
        try:
            if isinstance(event, bytes):
                self._receive(event)
            elif event is None:
                self._half_close()
            else:
                self._lose(event)
        except Exception:
            # Of a connection that failed only the loss is handled, and that must not wait for the rest.
            self._pending = deque(event for event in self._pending if isinstance(event, Failure))
            self.session.end()
            raise

    def _receive(self, data: bytes) -> None:
        self.metrics.bytes_in.value += len(data)
        violation = ""
        try:
            if self._receiver is None:
                self.take_lines(self.session.split(data))
                if self._receiver is not None:
                    self._receiver.dataReceived(self.session.take_rest())
            else:
                # A large block may take longer than the timeout.
                self.session.restart_timeout()
                self._receiver.dataReceived(data)
        except RemoteProtocolError as error:
            violation = error.why
        if violation:
            # Outside of the handler: the traceback of the error would keep the whole block in memory.
            self.fail(violation)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is read."""
        return self.session.closed

    def receive_by(self, receiver: IProtocol) -> None:
        """Give all bytes to this protocol from now on: it takes them apart, and calls `take_lines`."""
        self._receiver = receiver
        receiver.makeConnection(self.transport)

    def take_lines(self, lines: Sequence[bytes]) -> None:
        """Handle received lines, in order."""
        if not self._reads_by_line:
            self._perform(self.session.receive(lines))
            return
        receiver = self._receiver
        for index, line in enumerate(lines):
            if self.session.closed:
                return
            if self._receiver is not receiver:
                self._pass_on(lines[index:])
                return
            if len(line) > self.MAX_LENGTH:
                self.lineLengthExceeded(line)
            else:
                self.lineReceived(line)

    def _pass_on(self, lines: Iterable[bytes]) -> None:
        if self._receiver is not None and not self.session.closed:
            self._receiver.dataReceived(b"".join([line + self.delimiter for line in lines]))

    def lineReceived(self, line: bytes) -> None:
        """Give a line, without its end, to the session.

        A subclass that overrides this sees each line in order, and calls up to have it handled. Lines after
        one that closed the connection are not seen. Rows are then read several times slower.
        """
        self._perform(self.session.receive([line]))

    def lineLengthExceeded(self, line: bytes) -> None:
        """Send ERROR, and close."""
        self.fail(LINE_TOO_LONG)

    def sendLine(self, line: bytes) -> None:
        """Send a line, given without its end. A closed connection drops it."""
        self.write(line + self.delimiter)

    def readConnectionLost(self) -> None:
        if self.queue is None:
            self._half_close()
        else:
            self._take_turns(self.queue, None)

    def writeConnectionLost(self) -> None:
        """Do nothing: only the peer closes one half of a connection."""

    def _half_close(self) -> None:
        if self._is_half_closed or self.session.closed:
            return
        self._is_half_closed = True
        if not self.owner.half_closed():
            self._close_reason = PEER_CLOSED
            self._disconnect()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.queue is None:
            self._lose(reason)
        else:
            self._take_turns(self.queue, reason)

    def _lose(self, reason: Failure) -> None:
        self.connected = 0
        self.metrics.connections.dec()
        self.session.end()
        self._timer.stop()
        if self._abort_timer is not None:
            self._abort_timer.stop()
        self.failure_code = "wrong_server" if self.session.is_wrong_server else failure_code(reason.value)
        owner, self.owner = self.owner, ConnectionOwner()
        owner.closed(self._close_reason or describe_failure(reason))
        self.on_lost(self, reason)

    def pauseProducing(self) -> None:
        self.owner.pause()

    def resumeProducing(self) -> None:
        self.owner.resume()

    def stopProducing(self) -> None:
        self.transport.loseConnection()

    @property
    def is_local(self) -> bool:
        """Whether the peer is on this machine."""
        return is_local(self.transport.getPeer())

    @property
    def is_encrypted(self) -> bool:
        """Whether this is a TLS connection."""
        return ISSLTransport.providedBy(self.transport)

    @property
    def certified_name(self) -> str | None:
        """The common name of the peer's TLS certificate; None without a certificate."""
        return certified_name(self.transport)

    def write(self, data: bytes) -> None:
        """Send encoded lines. A closed connection drops them."""
        if not self.session.closed:
            self.session.sent()
            self._write(data)

    def send(self, command: Command) -> None:
        """Send one command, as `write` does. Raises `LocalProtocolError` as `Session.encode` does."""
        self.write(self.session.encode([command]))

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""
        self._perform(self.session.fail(why))

    def close(self) -> None:
        """Flush written data, then close without ERROR."""
        self._close_reason = PEER_CLOSED if self._is_half_closed else "closed by this process"
        self._disconnect()

    def abort(self) -> None:
        """Close at once: written data may be lost. Idempotent."""
        self._close_reason = self._close_reason or "closed by this process"
        self.session.end()
        if self.connected:
            self.transport.abortConnection()

    def authenticated(self) -> None:
        """Record that the peer, a replica, has authenticated."""
        self.session.authenticated()

    def established(self) -> None:
        """Record that the first POSITION was applied: the connection works."""
        self.on_established()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        self._is_reading = False
        self._paused_at = self.clock.seconds()
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Read from the peer again."""
        self._is_reading = True
        if not (self.session.closed or self._pending):
            self.transport.resumeProducing()

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    self._write(data)
                case Deliver(commands):
                    self._deliver(commands)
                case Upgrade(lines):
                    self._is_dialect_reported = True
                    self.owner.handed_over()
                    self._pass_on(lines)
                case Close(why):
                    self.metrics.errors_sent.inc()
                    if self.logs_closing:
                        self.logger.warn("closing {peer}: {why}", peer=self._peer(), why=why)
                    self._close_reason = why
                    self._disconnect()
                    self.owner.failed(why)

    def _write(self, data: bytes) -> None:
        self.metrics.bytes_out.value += len(data)
        self._send(data)

    def _deliver(self, commands: Sequence[Command | RdataRun]) -> None:
        self._report_dialect()
        if not commands:
            return
        self.metrics.count_commands(commands)
        try:
            self.owner.received(commands)
        except RemoteProtocolError as error:
            self._perform(self.session.fail(error.why))
        except LocalProtocolError as error:
            self._logger.failure("protocol error of this process: closing {peer}", peer=self._peer())
            self._perform(self.session.fail(f"internal error: {error.why}"))

    def _report_dialect(self) -> None:
        if not self._is_dialect_reported and self.session.dialect is not None:
            self._is_dialect_reported = True
            self.owner.dialect_known(self.session.dialect)

    def _arm(self) -> None:
        delay = max(0.0, self.session.deadline() - self.clock.seconds())
        self._timer.restart(delay)

    def _tick(self) -> None:
        if not self._is_reading:
            self.session.restart_timeout()
            if self.session.side is SERVER and self.clock.seconds() - self._paused_at >= STALLED_SECONDS:
                self.fail(f"the responses to your commands were not read for {STALLED_SECONDS:g} seconds")
        elif self._is_half_closed:
            self.session.restart_timeout()
        self._perform(self.session.tick())
        if not self.session.closed:
            self._arm()

    def _disconnect(self) -> None:
        self.session.end()
        self.transport.unregisterProducer()
        self.transport.loseConnection()
        # Started once: a lost connection may be closed again.
        if self._abort_timer is None:
            self._abort_timer = Timer(self.clock, self.transport.abortConnection)
            self._abort_timer.start(ABORT_SECONDS)

    def _peer(self) -> str:
        name = self.session.peer_name
        where = address_text(self.transport.getPeer())
        return f"{name} at {where}" if name else where
