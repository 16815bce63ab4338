"""Replication over TCP or any other Twisted endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet import defer
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, ReconnectingClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.ports.access import LOCAL, Access, Keyring, Right
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import FollowerSession, Publisher
from synrepl.replication.strategies import serving
from synrepl.transports.connection import ConnectionOwner, ReplicationProtocol, failure_code
from synrepl.transports.limits import RejectedConnection
from synrepl.wire.commands import Error, Name, Ping
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import KEEPALIVE, Keepalive, Session
from synrepl.wire.text import printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without followers should not load these modules.
    from synrepl.replication.follower.follower import Follower
    from synrepl.replication.relay.registry import ReplicaRegistry
    from synrepl.replication.relay.relay import Relay

MAX_CONNECTIONS: Final = 10_000
"""Limit of connections per listener: far more than the largest deployment has workers, and few enough to
leave file descriptors and memory (some 3 kB each) for the rest of the daemon.
"""


class _ServerSide(ConnectionOwner):
    """Server side of a connection: a follower's session, or a relay once the peer identifies as a replica."""

    def __init__(self, factory: "PublisherFactory", protocol: ReplicationProtocol) -> None:
        self._factory = factory
        self._protocol = protocol
        self._owner: FollowerSession | Relay = factory.publisher.attach(protocol, protocol.access or LOCAL)

    def dialect_known(self, dialect: Dialect) -> None:
        if not serving(dialect).is_replica:
            assert isinstance(self._owner, FollowerSession)
            if why := self._refusal():
                self._protocol.fail(why)
            else:
                self._owner.dialect_known(dialect)
        elif self._factory.relays is None:
            self._protocol.fail("this daemon serves no replicas")
        else:
            self._owner.lost("the peer is a replica")
            self._owner = self._factory.relays().attach(self._protocol)

    def _refusal(self) -> str:
        protocol = self._protocol
        if protocol.access is not None:
            return protocol.access.lacks(Right.READ) or self._factory.publisher.holdings.unreadable()
        name = printable(protocol.certified_name or "")
        return f"the certificate of {name} is not in keys_file, or was revoked"

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        session = self._protocol.session
        if session.closed:
            return
        # These lines may come before a replica's handshake, which proves its key later. Any other line is a
        # follower's.
        is_follower = session.dialect is None and not all(
            isinstance(command, Name | Ping | Error) for command in commands
        )
        if is_follower and (why := self._refusal()):
            self._protocol.fail(why)
        else:
            self._owner.received(commands)

    def pause(self) -> None:
        self._owner.pause()

    def resume(self) -> None:
        self._owner.resume()

    def lost(self, why: str) -> None:
        self._owner.lost(why)


@dataclass(eq=False, repr=False)
class PublisherFactory(Factory):
    """Serves followers, and replicas if there is a registry (`relays`) for them.

    With `dialect` None, each connection's dialect is detected. A connection beyond `max_connections` gets an
    ERROR line and is closed. `server_name` is the name to greet with; a function gives the current one.
    """

    publisher: Publisher
    _: KW_ONLY
    server_name: str | Callable[[], str]
    dialect: Dialect | None
    clock: IClock
    metrics: Metrics
    keepalive: Keepalive = KEEPALIVE
    relays: "Callable[[], ReplicaRegistry] | None" = None
    max_connections: int = MAX_CONNECTIONS
    keys: Keyring = field(default_factory=Keyring)
    noisy = False
    protocol: type[ReplicationProtocol] = field(default=ReplicationProtocol, init=False)
    _logger: ClassVar = Logger()

    def __post_init__(self) -> None:
        self._limited_logger = LimitedLogger(self._logger, self.clock)
        self.protocols: set[ReplicationProtocol] = set()

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        if len(self.protocols) >= self.max_connections:
            return self._reject(addr)
        session = Session(
            SERVER,
            self.dialect,
            name=self.server_name if isinstance(self.server_name, str) else self.server_name(),
            seconds=self.clock.seconds,
            keepalive=self.keepalive,
        )
        protocol = self.protocol(
            session,
            self._attach,
            self.clock,
            self.metrics,
            logger=self._limited_logger,
            on_lost=lambda lost, reason: self.protocols.discard(lost),
        )
        protocol.factory = self
        return protocol

    def _reject(self, addr: IAddress | None) -> RejectedConnection:
        why = f"this listener has {self.max_connections} connections, its limit: try again later"
        self.metrics.errors_sent.inc()
        self._limited_logger.warn("rejecting {peer}: {why}", peer=str(addr), why=why)
        rejected = RejectedConnection(f"ERROR {why}\n".encode())
        rejected.factory = self
        return rejected

    def stopFactory(self) -> None:
        self._limited_logger.stop()

    def _attach(self, protocol: ReplicationProtocol) -> ConnectionOwner:
        self.protocols.add(protocol)
        protocol.access = self._access(protocol)
        return _ServerSide(self, protocol)

    def _access(self, protocol: ReplicationProtocol) -> Access | None:
        """The rights of a follower: all without a certificate; None for one that is not a key."""
        name = protocol.certified_name
        return LOCAL if name is None else self.keys.access_by_certificate(name)

    def recheck(self) -> None:
        """Close connections of clients whose certificate has lost its key, or has other rights now."""
        for protocol in list(self.protocols):
            if protocol.access != self._access(protocol):
                protocol.fail("your key was revoked or changed")

    def close(self, why: str) -> None:
        """Send ERROR to every peer, then close."""
        for protocol in list(self.protocols):
            protocol.fail(why)
        self._limited_logger.stop()


class _ClientSide(ConnectionOwner):
    """Client side of a connection: delivers commands to a follower.

    A follower sends too little to need backpressure.
    """

    def __init__(self, follower: "Follower", protocol: ReplicationProtocol) -> None:
        self._follower = follower
        self._protocol = protocol

    def dialect_known(self, dialect: Dialect) -> None:
        self._follower.engine.connected(self._protocol, dialect)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self._follower.engine.received(commands)

    def lost(self, why: str) -> None:
        self._follower.engine.disconnected(why, self._protocol.failure_code)


@dataclass(eq=False, repr=False)
class FollowerFactory(ReconnectingClientFactory):
    """Keeps one follower connected; retries with backoff until `stop`.

    The backoff resets when the first POSITION is applied, not when the socket opens: a peer that accepts and
    then drops connections must not be flooded with new ones, as by workers of 1.66
    (docs/reference/peers.md#tcp-reconnecting).
    """

    initialDelay = 0.2
    maxDelay = 10.0  # type: ignore[assignment]  # the stubs say int; Twisted accepts any number
    factor = 2.0
    # The standard deviation of a normal distribution, as a share of the delay. A large one can draw a
    # negative delay: the reactor raises for it, and the follower would never reconnect.
    jitter = 0.1
    noisy = False
    _logger = Logger()

    follower: "Follower"
    _: KW_ONLY
    dialect: Dialect
    expected_server: str | None
    clock: Any
    metrics: Metrics
    keepalive: Keepalive = KEEPALIVE
    protocol: type[ReplicationProtocol] = field(default=ReplicationProtocol, init=False)

    def __post_init__(self) -> None:
        self.delay = self.initialDelay
        self._limited_logger = LimitedLogger(self._logger, self.clock)
        self._connector: EndpointConnector | None = None
        self.current: ReplicationProtocol | None = None

    def connect(self, endpoint: IStreamClientEndpoint) -> None:
        """Connect through this endpoint, and reconnect until `stop`."""
        self._connector = EndpointConnector(endpoint, self)
        self._connector.connect()

    def buildProtocol(self, addr: IAddress | None) -> ReplicationProtocol:
        session = Session(
            CLIENT,
            self.dialect,
            name=self.follower.instance,
            seconds=self.clock.seconds,
            expected_server=self.expected_server,
            keepalive=self.keepalive,
        )
        protocol = self.current = self.protocol(
            session,
            lambda made: _ClientSide(self.follower, made),
            self.clock,
            self.metrics,
            logger=self._limited_logger,
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
        """Stop reconnecting, and close the current connection."""
        self.stopTrying()
        if self._connector is not None:
            self._connector.stopConnecting()
        if self.current is not None:
            self.current.close()
        self._limited_logger.stop()

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.follower.engine.unreachable(reason.getErrorMessage(), failure_code(reason.value))
        super().clientConnectionFailed(connector, reason)

    def retry(self, connector: Any = None) -> None:
        self.metrics.reconnects.inc()
        super().retry(connector)

    def _lost(self, protocol: ReplicationProtocol, reason: Failure) -> None:
        self.current = None
        if self._connector is not None:
            self.clientConnectionLost(self._connector, reason)


class EndpointConnector:
    """Connector through an endpoint for `ReconnectingClientFactory`, whose API predates endpoints."""

    def __init__(self, endpoint: IStreamClientEndpoint, factory: FollowerFactory) -> None:
        self._endpoint = endpoint
        self._factory = factory
        self._attempt: defer.Deferred[Any] | None = None

    def connect(self) -> None:
        """Try once; a failure is reported to the factory."""
        self._attempt = self._endpoint.connect(self._factory)
        self._attempt.addErrback(self._failed)

    def stopConnecting(self) -> None:
        """Cancel the current attempt."""
        if self._attempt is not None:
            self._attempt.cancel()

    def _failed(self, reason: Failure) -> None:
        if not reason.check(defer.CancelledError):
            self._factory.clientConnectionFailed(self, reason)
