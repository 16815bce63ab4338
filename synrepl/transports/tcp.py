"""Replication over TCP, or anything else that Twisted has an endpoint for."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from twisted.internet import defer
from twisted.internet.interfaces import IAddress, IPushProducer, IStreamClientEndpoint
from twisted.internet.protocol import Factory, ReconnectingClientFactory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.ports.access import LOCAL, Access, Keyring, Right
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import FollowerSession, Publisher
from synrepl.replication.serve_strategy import serving
from synrepl.transports.peers import certified_name, is_local
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.commands import Error, Name, Ping
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.lines import LineBuffer
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import KEEPALIVE, Action, Close, Deliver, Keepalive, Send, Session
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # A daemon follows nobody, and need not have it in memory.
    from synrepl.replication.follower.follower import Follower
    from synrepl.replication.relay import ReplicaRegistry
    from synrepl.replication.relay.relay import Relay

__all__ = ["MAX_CONNECTIONS", "ConnectionOwner", "FollowerFactory", "PublisherFactory", "ReplicationProtocol"]

ABORT_SECONDS: Final = 25.0
"""A connection that we closed, and whose peer does not take the rest, is cut after this."""

STALLED_SECONDS: Final = 300.0
"""A client that asks and does not take the answers is read no further; after this it is closed. Its silence
cannot tell that it is dead, as it is not read."""


MAX_CONNECTIONS: Final = 10_000
"""Connections of one listener: far more than the largest deployment has workers, and few enough to leave file
descriptors and memory (some 3 kB each) for the rest of the daemon."""


class ConnectionOwner(Protocol):
    """Who the connection is for: a follower, or the publisher's side of one."""

    def dialect_known(self, dialect: Dialect) -> None: ...

    def received(self, commands: Sequence[Command | RdataRun]) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def lost(self, why: str) -> None: ...


@implementer(IPushProducer)
class ReplicationProtocol(LineOnlyReceiver):
    """Carries lines between a transport and a `Session`, which does the thinking. The same on both sides."""

    delimiter = b"\n"
    MAX_LENGTH = MAX_LENGTH
    transport: Any  # what endpoints give: an ITransport that is an IConsumer, and most often more
    _logger = Logger()

    def __init__(
        self,
        session: Session,
        make_end: Callable[["ReplicationProtocol"], ConnectionOwner],
        clock: IClock,
        metrics: Metrics,
        *,
        logger: LimitedLogger,
        on_established: Callable[[], None] | None = None,
        on_lost: Callable[["ReplicationProtocol", Failure], None] | None = None,
    ) -> None:
        self.session = session
        self.access: Access | None = LOCAL
        """What a client may do; None if its certificate is no key."""
        self.logger = logger
        """For lines that the peer causes; shared by all connections of a listener."""
        self._make_end = make_end
        self._clock = clock
        self._metrics = metrics
        self._on_established = on_established
        self._on_lost = on_lost
        self._lines = LineBuffer()
        # Whether the line that is not whole yet is known to be ASCII without CR.
        self._is_rest_clean = True
        self._end: ConnectionOwner | None = None
        self._dialect_told = False
        self._reading = True
        self._stopped_at = 0.0
        self._why = "connection lost"
        self._timer: Any = None
        self._abort: Any = None

    # -- Twisted's side ------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self._metrics.connections.inc()
        # Rows come in small writes: waiting to fill a packet would cost each of them tens of milliseconds.
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self.transport.registerProducer(self, True)
        self._do(self.session.connected())
        self._end = self._make_end(self)
        self._tell_dialect()
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        """All lines of what arrived go to the session at once, unless `lineReceived` is overridden.

        `LineOnlyReceiver` would hand them over one by one, which alone costs more than reading a row.
        """
        self._metrics.bytes_in.inc(len(data))
        lines, too_long = self._lines.feed(data)
        if getattr(self.lineReceived, "__func__", None) is ReplicationProtocol.lineReceived:
            clean = data.isascii() and b"\r" not in data
            self._do(self.session.receive(lines, clean=clean and self._is_rest_clean))
            self._is_rest_clean = clean and (bool(lines) or self._is_rest_clean)
        else:
            for line in lines:
                if self.session.closed:
                    return
                self.lineReceived(line)
        if too_long:
            self._do(self.session.line_too_long())

    def lineReceived(self, line: bytes) -> None:
        """One line goes to the session. A subclass that overrides this sees each line, and reads rows at
        about a ninth of the speed.
        """
        self._do(self.session.receive([line]))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._metrics.connections.dec()
        self.session.closed = True
        for timer in (self._timer, self._abort):
            if timer is not None and timer.active():
                timer.cancel()
        if self._end is not None:
            why = self._why if self._why != "connection lost" else reason.getErrorMessage()
            self._end.lost(why)
        if self._on_lost is not None:
            self._on_lost(self, reason)

    def pauseProducing(self) -> None:
        if self._end is not None:
            self._end.pause()

    def resumeProducing(self) -> None:
        if self._end is not None:
            self._end.resume()

    def stopProducing(self) -> None:
        self.transport.loseConnection()

    # -- our side (`reader.Connection`, `follower.FollowerConnection`) -------------------------------------

    @property
    def is_local(self) -> bool:
        """Whether the peer is on this machine."""
        return is_local(self.transport.getPeer())

    @property
    def certified_name(self) -> str | None:
        """The common name of the peer's TLS certificate; None if it showed none."""
        return certified_name(self.transport)

    def write(self, data: bytes) -> None:
        """Send ready-made lines."""
        if not self.session.closed:
            self.session.sent()
            self._metrics.bytes_out.inc(len(data))
            self.transport.write(data)

    def send(self, command: Command) -> None:
        """Send one command. Raises LocalProtocolError if it is not ours to send here."""
        self.write(self.session.lines([command]))

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""
        self._do(self.session.fail(why))

    def close(self) -> None:
        """Close without a word, once what was written is sent."""
        self._why = "closed here"
        self._lose()

    def authenticated(self) -> None:
        """The peer is a replica that has said who it is."""
        self.session.authenticated()

    def established(self) -> None:
        """The first POSITION was applied."""
        if self._on_established is not None:
            self._on_established()

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now."""
        self._reading = False
        self._stopped_at = self._clock.seconds()
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Go on."""
        self._reading = True
        if not self.session.closed:
            self.transport.resumeProducing()

    # -- between them --------------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    self._metrics.bytes_out.inc(len(data))
                    self.transport.write(data)
                case Deliver(commands):
                    self._deliver(commands)
                case Close(why):
                    self._metrics.errors_sent.inc()
                    self.logger.warn("closing {peer}: {why}", peer=self._peer(), why=why)
                    self._why = why
                    self._lose()

    def _deliver(self, commands: Sequence[Command | RdataRun]) -> None:
        self._tell_dialect()
        if self._end is None or not commands:
            return
        self._metrics.count_commands(commands)
        try:
            self._end.received(commands)
        except RemoteProtocolError as error:
            self._do(self.session.fail(error.why))
        except LocalProtocolError as error:
            self._logger.failure("a rule of the wire was broken here")
            self._do(self.session.fail(f"internal error: {error.why}"))

    def _tell_dialect(self) -> None:
        if not self._dialect_told and self._end is not None and self.session.dialect is not None:
            self._dialect_told = True
            self._end.dialect_known(self.session.dialect)

    def _arm(self) -> None:
        delay = max(0.0, self.session.deadline() - self._clock.seconds())
        self._timer = self._clock.callLater(delay, self._tick)

    def _tick(self) -> None:
        if not self._reading:
            self.session.not_listening()
            if self.session.side is SERVER and self._clock.seconds() - self._stopped_at >= STALLED_SECONDS:
                self.fail(f"the answers to your commands were not taken for {STALLED_SECONDS:g} seconds")
        self._do(self.session.tick())
        if not self.session.closed:
            self._arm()

    def _lose(self) -> None:
        self.session.closed = True
        self.transport.unregisterProducer()
        self.transport.loseConnection()
        if self._abort is None:
            self._abort = self._clock.callLater(ABORT_SECONDS, self.transport.abortConnection)

    def _peer(self) -> str:
        name = self.session.peer_name
        return f"{name} at {self.transport.getPeer()}" if name else str(self.transport.getPeer())


class _ServerSide:
    """A server's side of a connection: a follower's, until it turns out to be a replica's."""

    def __init__(
        self,
        publisher: Publisher,
        relays: Callable[[], "ReplicaRegistry"] | None,
        protocol: ReplicationProtocol,
    ) -> None:
        self._publisher = publisher
        self._relays = relays
        self._protocol = protocol
        self._end: FollowerSession | Relay = publisher.attach(protocol, protocol.access or LOCAL)

    def dialect_known(self, dialect: Dialect) -> None:
        if not serving(dialect).is_replica:
            assert isinstance(self._end, FollowerSession)
            if why := self._refusal():
                self._protocol.fail(why)
            else:
                self._end.dialect_known(dialect)
        elif self._relays is None:
            self._protocol.fail("replicas are not served here")
        else:
            self._end.lost("it is a replica")
            self._end = self._relays().attach(self._protocol)

    def _refusal(self) -> str:
        """Why this follower is not served; empty if it is."""
        protocol = self._protocol
        if protocol.access is not None:
            return protocol.access.lacks(Right.READ) or self._publisher.holdings.unreadable()
        name = printable(protocol.certified_name or "")
        return f"the certificate of {name} is not in keys_file, or was revoked"

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        session = self._protocol.session
        if session.closed:
            return
        # A replica greets with these and proves its key later. Any other line is that of a follower.
        is_follower = session.dialect is None and not all(
            isinstance(one, Name | Ping | Error) for one in commands
        )
        if is_follower and (why := self._refusal()):
            self._protocol.fail(why)
        else:
            self._end.received(commands)

    def pause(self) -> None:
        self._end.pause()

    def resume(self) -> None:
        self._end.resume()

    def lost(self, why: str) -> None:
        self._end.lost(why)


class PublisherFactory(Factory):
    """Serves followers, and replicas if there are `relays` for them. `dialect` None is found out, connection
    by connection. Beyond `max_connections` a new one gets an ERROR line and is closed.
    """

    noisy = False
    protocol: type[ReplicationProtocol] = ReplicationProtocol
    _logger = Logger()

    def __init__(
        self,
        publisher: Publisher,
        *,
        server_name: str,
        dialect: Dialect | None,
        clock: IClock,
        metrics: Metrics,
        keepalive: Keepalive = KEEPALIVE,
        relays: Callable[[], "ReplicaRegistry"] | None = None,
        max_connections: int = MAX_CONNECTIONS,
        keys: Keyring | None = None,
    ) -> None:
        self._relays = relays
        self._keys = keys if keys is not None else Keyring()
        self._max_connections = max_connections
        self._limited = LimitedLogger(self._logger, clock)
        self._publisher = publisher
        self._server_name = server_name
        self._dialect = dialect
        self._clock = clock
        self._metrics = metrics
        self._keepalive = keepalive
        self.protocols: set[ReplicationProtocol] = set()

    def buildProtocol(self, addr: IAddress | None) -> TwistedProtocol:
        if len(self.protocols) >= self._max_connections:
            return self._turn_away(addr)
        session = Session(
            SERVER,
            self._dialect,
            name=self._server_name,
            seconds=self._clock.seconds,
            keepalive=self._keepalive,
        )
        protocol = self.protocol(
            session,
            self._attach,
            self._clock,
            self._metrics,
            logger=self._limited,
            on_lost=lambda lost, reason: self.protocols.discard(lost),
        )
        protocol.factory = self
        return protocol

    def _turn_away(self, addr: IAddress | None) -> "_TurnedAway":
        why = f"this listener has {self._max_connections} connections, which is its bound: try again later"
        self._metrics.errors_sent.inc()
        self._limited.warn("turning {peer} away: {why}", peer=str(addr), why=why)
        turned = _TurnedAway(why)
        turned.factory = self
        return turned

    def stopFactory(self) -> None:
        self._limited.stop()

    def _attach(self, protocol: ReplicationProtocol) -> ConnectionOwner:
        self.protocols.add(protocol)
        protocol.access = self._access(protocol)
        return _ServerSide(self._publisher, self._relays, protocol)

    def _access(self, protocol: ReplicationProtocol) -> Access | None:
        """What a follower may do: all, unless its listener wants certificates. None if its own is no key."""
        name = protocol.certified_name
        return LOCAL if name is None else self._keys.certified(name)

    def recheck(self) -> None:
        """Close the connections of followers whose certificate was revoked, or allows something else now."""
        for protocol in list(self.protocols):
            if protocol.access != self._access(protocol):
                protocol.fail("its key was revoked or changed")

    def close(self, why: str) -> None:
        """Tell every follower ERROR, and close."""
        for protocol in list(self.protocols):
            protocol.fail(why)
        self._limited.stop()


class _TurnedAway(TwistedProtocol):
    """A connection for which there is no room."""

    transport: Any

    def __init__(self, why: str) -> None:
        self._why = why

    def connectionMade(self) -> None:
        self.transport.write(f"ERROR {self._why}\n".encode())
        self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """Whatever it says is too much."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """It was never counted."""


class _ClientSide:
    """A follower's side of a connection."""

    def __init__(self, follower: "Follower", protocol: ReplicationProtocol) -> None:
        self._follower = follower
        self._protocol = protocol

    def dialect_known(self, dialect: Dialect) -> None:
        self._follower.connected(self._protocol, dialect)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self._follower.received(commands)

    def pause(self) -> None:
        """A follower says little: nothing to pause."""

    def resume(self) -> None:
        """Nor to resume."""

    def lost(self, why: str) -> None:
        self._follower.disconnected(why)


class FollowerFactory(ReconnectingClientFactory):
    """Keeps one follower connected, for ever.

    The delay between attempts grows until a connection has proved good by a first POSITION (not when the
    socket opens: a peer that accepts and drops must not be hammered).
    """

    initialDelay = 0.2
    maxDelay = 10.0  # type: ignore[assignment]  # Twisted says int, and means any number
    factor = 2.0
    # The standard deviation of a normal distribution, as a share of the delay. A large one draws a negative
    # delay now and then: a reactor raises for it, and the follower would never be connected again.
    jitter = 0.1
    noisy = False
    protocol: type[ReplicationProtocol] = ReplicationProtocol
    _logger = Logger()

    def __init__(
        self,
        follower: "Follower",
        *,
        dialect: Dialect,
        expected_server: str | None,
        clock: IClock,
        metrics: Metrics,
        keepalive: Keepalive = KEEPALIVE,
    ) -> None:
        self.clock: Any = clock
        self.delay = self.initialDelay
        self._follower = follower
        self._dialect = dialect
        self._expected_server = expected_server
        self._metrics = metrics
        self._keepalive = keepalive
        self._limited = LimitedLogger(self._logger, clock)
        self._connector: EndpointConnector | None = None
        self.current: ReplicationProtocol | None = None

    def connect(self, endpoint: IStreamClientEndpoint) -> None:
        """Begin; go on until `stop`."""
        self._connector = EndpointConnector(endpoint, self)
        self._connector.connect()

    def buildProtocol(self, addr: IAddress | None) -> ReplicationProtocol:
        session = Session(
            CLIENT,
            self._dialect,
            name=self._follower.instance,
            seconds=self.clock.seconds,
            expected_server=self._expected_server,
            keepalive=self._keepalive,
        )
        protocol = self.current = self.protocol(
            session,
            lambda made: _ClientSide(self._follower, made),
            self.clock,
            self._metrics,
            logger=self._limited,
            on_established=self.resetDelay,
            on_lost=self._lost,
        )
        protocol.factory = self
        return protocol

    def resetDelay(self) -> None:
        self.delay = self.initialDelay
        self.retries = 0
        self._callID = None

    def stop(self) -> None:
        """Try no more, and close what is open."""
        self.stopTrying()
        if self._connector is not None:
            self._connector.stopConnecting()
        if self.current is not None:
            self.current.close()
        self._limited.stop()

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self._follower.unreachable(reason.getErrorMessage())
        super().clientConnectionFailed(connector, reason)

    def retry(self, connector: Any = None) -> None:
        self._metrics.reconnects.inc()
        super().retry(connector)

    def _lost(self, protocol: ReplicationProtocol, reason: Failure) -> None:
        self.current = None
        if self._connector is not None:
            self.clientConnectionLost(self._connector, reason)


class EndpointConnector:
    """Lets a `ReconnectingClientFactory`, which is older than endpoints, reconnect through one."""

    def __init__(self, endpoint: IStreamClientEndpoint, factory: FollowerFactory) -> None:
        self._endpoint = endpoint
        self._factory = factory
        self._attempt: defer.Deferred[Any] | None = None

    def connect(self) -> None:
        """Try once; the factory hears of it if that fails."""
        self._attempt = self._endpoint.connect(self._factory)
        self._attempt.addErrback(self._failed)

    def stopConnecting(self) -> None:
        """Give up the attempt under way."""
        if self._attempt is not None:
            self._attempt.cancel()

    def _failed(self, reason: Failure) -> None:
        if not reason.check(defer.CancelledError):
            self._factory.clientConnectionFailed(self, reason)
