"""Replication over TCP or any other Twisted endpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet import defer
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, ReconnectingClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.access import LOCAL, Access, Keyring
from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.rights import command_operation, missing_right
from synrepl.base.time import Timer
from synrepl.base.turn_queue import TurnQueue
from synrepl.replication.connection import ConnectionOwner
from synrepl.replication.hooks import IHello, NoHello, ReadRefusal
from synrepl.replication.serving.forks import is_later
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.strategies import following, serving
from synrepl.transports.connection import ReplicationProtocol, failure_code
from synrepl.transports.failures import PEER_CLOSED, address_text, describe_failure
from synrepl.transports.limits import MAX_CONNECTIONS, RejectedConnection
from synrepl.wire.address_list import AddressList, Fault, fault_of
from synrepl.wire.commands import Error, Moved, Name, Ping, Replicate
from synrepl.wire.dialect import Dialect
from synrepl.wire.extension import FollowerName
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.keepalive import KEEPALIVE, Keepalive
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Session
from synrepl.wire.text import MAX_ADDRESS, printable

if TYPE_CHECKING:
    # Imported for types only: a daemon without followers should not load these modules.
    from synrepl.replication.follower.follower import Follower

PATIENCE_SECONDS: Final = 3.0
"""How long a follower with several addresses waits for a server to greet before it tries the next one."""

ONLY: Final = "the server"
"""The address of a follower's only server, which is given as an endpoint."""


class _ServerSide(ConnectionOwner):
    """Server side of a connection: serves a follower. A replica is handed over to its relay."""

    def __init__(self, factory: "PublisherFactory", protocol: ReplicationProtocol) -> None:
        self._factory = factory
        self._protocol = protocol
        self._follower = factory.publisher.attach(protocol, protocol.access or LOCAL)
        self._dialect: Dialect | None = None
        self._is_served = False

    def dialect_known(self, dialect: Dialect) -> None:
        self._dialect = dialect
        if not serving(dialect).is_replica:
            if self._refusal() is None:
                self._serve()
            # Otherwise `received` refuses: a follower of synrepl gives its mark first.
        else:
            self.handed_over()

    def handed_over(self) -> None:
        self._follower.closed("the peer is a replica")
        self._protocol.owner = self._factory.hello.serve(self._protocol)

    def _serve(self) -> None:
        assert self._dialect is not None
        self._is_served = True
        self._follower.dialect_known(self._dialect)

    def _refusal(self) -> ReadRefusal | None:
        protocol = self._protocol
        if protocol.access is not None:
            if why := missing_right(protocol.access, command_operation(Replicate)):
                return ReadRefusal("", why)
            return self._factory.publisher.read_gate.unreadable()
        name = printable(protocol.certified_name or "")
        return ReadRefusal("", f"the certificate of {name} is not in keys_file, or was revoked")

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        if self._protocol.session.closed:
            return
        if not self._is_served:
            refusal = self._refusal()
            for command in commands:
                if isinstance(command, Name) and refusal is None:
                    refusal = self._too_late(FollowerName.parse(command.name))
            if refusal is not None and self._is_follower(commands):
                is_synrepl = any(
                    isinstance(one, Name) and FollowerName.parse(one.name).is_synrepl for one in commands
                )
                self._leave(refusal, is_synrepl=is_synrepl)
                return
            if refusal is None and self._dialect is not None:
                self._serve()
        self._follower.received(commands)

    def _is_follower(self, commands: Sequence[Command | RdataRun]) -> bool:
        """Whether the peer is certainly a follower.

        A replica sends NAME (without the mark), PING and ERROR before its handshake, which proves its key
        later.
        """
        return self._dialect is not None or not all(
            isinstance(one, Ping | Error)
            or (isinstance(one, Name) and not FollowerName.parse(one.name).is_synrepl)
            for one in commands
        )

    def _too_late(self, given: FollowerName) -> ReadRefusal | None:
        """Return why a follower of a later primary is not served; None for any other."""
        log = self._factory.publisher.log
        if given.epoch is None or not is_later(log, given.epoch):
            return None
        theirs, ours = given.epoch.epoch, log.head.epoch
        why = f"you have followed epoch {theirs} of this log, which is in epoch {ours} here"
        return ReadRefusal("other_epoch", f"{why}: another daemon was promoted")

    def retire(self, why: ReadRefusal) -> None:
        """Let a follower leave."""
        if not self._protocol.session.closed:
            self._leave(why, is_synrepl=self._follower.is_synrepl)

    def _leave(self, why: ReadRefusal, *, is_synrepl: bool) -> None:
        """Send a follower of synrepl the primary's address, then ERROR, and close."""
        if why.code and is_synrepl:
            primary = self._factory.publisher.read_gate.primary()
            native, http = (part if " " not in part else "" for part in (primary.native, primary.http))
            self._protocol.send(Moved(code=why.code, native=native or None, http=http or None))
        self._protocol.fail(why.message)

    def half_closed(self) -> bool:
        return self._follower.half_closed(self._protocol.close)

    def pause(self) -> None:
        self._follower.pause()

    def resume(self) -> None:
        self._follower.resume()

    def closed(self, why: str) -> None:
        self._follower.closed(why)


@dataclass(eq=False, repr=False)
class PublisherFactory(Factory):
    """Serves followers, and peers that say HELLO as `hello` does.

    With `dialect` None, each connection's dialect is detected. A connection beyond `max_connections` gets an
    ERROR line and is closed. `server_name` is the name to greet with; a function gives the current one.
    With a `queue`, received lines take turns with the work of other connections. `retire` is for the
    subscribers of a `ReadGate` that may close.
    """

    publisher: Publisher
    _: KW_ONLY
    server_name: str | Callable[[], str]
    dialect: Dialect | None
    clock: IClock
    metrics: Metrics
    keepalive: Keepalive = KEEPALIVE
    hello: IHello = field(default_factory=NoHello)
    max_connections: int = MAX_CONNECTIONS
    queue: TurnQueue | None = None
    keys: Keyring = field(default_factory=Keyring)
    noisy = False
    protocol: type[ReplicationProtocol] = field(default=ReplicationProtocol, init=False)
    _logger: ClassVar = Logger()

    def __post_init__(self) -> None:
        self._limited_logger = LimitedLogger(self._logger, self.clock)
        # In the order of their connections, in which they are told things: a simulation can be repeated.
        self.protocols: dict[ReplicationProtocol, None] = {}
        self._lingering: set[RejectedConnection] = set()

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        if len(self.protocols) >= self.max_connections:
            return self._reject(addr)
        session = Session(
            SERVER,
            self.dialect,
            name=self.server_name if isinstance(self.server_name, str) else self.server_name(),
            seconds=self.clock.seconds,
            keepalive=self.keepalive,
            opening=self.hello.opening,
        )
        protocol = self.protocol(
            session,
            self._attach,
            self.clock,
            self.metrics,
            logger=self._limited_logger,
            queue=self.queue,
            on_lost=lambda lost, reason: self.protocols.pop(lost, None),
        )
        protocol.factory = self
        return protocol

    def _reject(self, addr: IAddress | None) -> RejectedConnection:
        why = f"this listener has {self.max_connections} connections, its limit: try again later"
        self.metrics.errors_sent.inc()
        self._limited_logger.warn("rejecting {peer}: {why}", peer=address_text(addr), why=why)
        rejected = RejectedConnection(f"ERROR {why}\n".encode(), self.clock, self._lingering)
        rejected.factory = self
        return rejected

    def stopFactory(self) -> None:
        self._limited_logger.stop()

    def _attach(self, protocol: ReplicationProtocol) -> ConnectionOwner:
        self.protocols[protocol] = None
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

    def retire(self, why: ReadRefusal) -> None:
        """Let all followers leave; those of synrepl are told where the primary is. Replicas stay."""
        for protocol in list(self.protocols):
            if isinstance(protocol.owner, _ServerSide):
                protocol.owner.retire(why)

    def close(self, why: str) -> None:
        """Send ERROR to every peer, then close."""
        for protocol in list(self.protocols):
            protocol.fail(why)
        self._limited_logger.stop()


class _ClientSide(ConnectionOwner):
    """Client side of a connection: delivers commands to a follower.

    A follower sends too little to need backpressure.
    """

    def __init__(self, factory: "FollowerFactory", protocol: ReplicationProtocol) -> None:
        self._factory = factory
        self._follower = factory.follower
        self._protocol = protocol
        self._has_received = False

    def dialect_known(self, dialect: Dialect) -> None:
        self._follower.server.connected(self._protocol, dialect)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        if not self._has_received:
            self._has_received = True
            self._factory.greeted()
        self._follower.server.received(commands)

    def closed(self, why: str) -> None:
        if why == PEER_CLOSED and not self._has_received and not self._protocol.is_encrypted:
            why += " before it sent anything; if it listens with TLS, use tls: in place of tcp:"
        self._follower.server.disconnected(why, self._protocol.failure_code)


@dataclass(eq=False, repr=False)
class FollowerFactory(ReconnectingClientFactory):
    """Keeps one follower connected to one of several servers, until `stop`.

    The pauses between its attempts are those of Twisted's `ReconnectingClientFactory`: from `initialDelay` on
    each is `factor` times the one before, up to `maxDelay` seconds, with its `jitter`. `AddressList` only
    chooses the address. In a round each address is tried once, without a pause.

    >>> class PatientFactory(FollowerFactory):
    ...     maxDelay = 60.0
    >>> FollowerFactory.initialDelay, round(FollowerFactory.factor, 2), FollowerFactory.maxDelay
    (0.4, 2.72, 10)

    An address works once the first POSITION is applied, not when the socket opens: a peer that accepts and
    then drops connections must not be flooded with new ones, as by workers of 1.66
    (docs/reference/peers.md#tcp-reconnecting). With several addresses, each has `PATIENCE_SECONDS` to greet.
    A server that says where the primary is (MOVED) decides only among these addresses. `on_attempt` is called
    with each address before it is tried.
    """

    initialDelay = delay = 0.4
    # Twisted's own, an hour, is meant for clients that nobody waits for.
    maxDelay = 10
    noisy = False
    _logger = Logger()

    follower: "Follower"
    _: KW_ONLY
    dialect: Dialect
    expected_server: str | None
    clock: Any
    metrics: Metrics
    keepalive: Keepalive = KEEPALIVE
    on_attempt: Callable[[str], object] = lambda address: None
    protocol: type[ReplicationProtocol] = field(default=ReplicationProtocol, init=False)

    def __post_init__(self) -> None:
        self._limited_logger = LimitedLogger(self._logger, self.clock)
        self.addresses = AddressList([ONLY])
        self.current: ReplicationProtocol | None = None
        self._endpoints: Mapping[str, IStreamClientEndpoint] = {}
        self._names: dict[str, str] = {}
        """The address by each of its names in MOVED."""
        self._moved: Moved | None = None
        self._patience_timer = Timer(self.clock, self._give_up)
        self.follower.on_command(Moved)(self._on_moved)

    def connect(
        self,
        endpoints: "IStreamClientEndpoint | Mapping[str, IStreamClientEndpoint]",
        urls: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Connect through an endpoint, or the first that works of `endpoints`; reconnect until `stop`.

        The keys of `endpoints` are their addresses. `urls` has the HTTP addresses of the same servers.
        """
        self._endpoints = endpoints if isinstance(endpoints, Mapping) else {ONLY: endpoints}
        self.addresses = AddressList(list(self._endpoints))
        self._names = {address: address for address in self._endpoints}
        self._names |= {url.rstrip("/"): address for address, url in urls.items()}
        self.connector = EndpointConnector(self._endpoints, self)
        self.connector.connect()

    def begin_attempt(self) -> None:
        """Prepare for an attempt at the current address."""
        self._moved = None
        self.on_attempt(self.addresses.current)
        if len(self._endpoints) > 1:
            self._patience_timer.restart(PATIENCE_SECONDS)

    def buildProtocol(self, addr: IAddress | None) -> ReplicationProtocol:
        # A server that pushes has no names of writers, so that REWIND would mean nothing to this follower.
        epoch = None if following(self.dialect).pushed else self.follower.server.epoch
        session = Session(
            CLIENT,
            self.dialect,
            name=str(FollowerName(self.follower.instance, is_synrepl=True, epoch=epoch)),
            seconds=self.clock.seconds,
            expected_server=self.expected_server,
            keepalive=self.keepalive,
        )
        protocol = self.current = self.protocol(
            session,
            lambda made: _ClientSide(self, made),
            self.clock,
            self.metrics,
            logger=self._limited_logger,
            logs_closing=False,  # the follower's events have the reason
            on_established=self.resetDelay,
            on_lost=self._lost,
        )
        protocol.factory = self
        return protocol

    def greeted(self) -> None:
        """Stop the timer that tries the next address: the server has answered."""
        self._patience_timer.stop()

    def resetDelay(self) -> None:
        """Note that the current address works: its first POSITION is applied."""
        # After `stop` Twisted's own would begin to try again.
        if self.continueTrying:
            self.addresses.succeeded()
            super().resetDelay()

    def stop(self) -> None:
        """Stop reconnecting, and close the current connection."""
        self._patience_timer.stop()
        self.stopTrying()
        if self.current is not None:
            self.current.close()
        self._limited_logger.stop()

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.current = None
        self._patience_timer.stop()
        if self.continueTrying:
            is_silent = reason.check(defer.CancelledError) is not None
            why = f"{self.addresses.current} does not respond" if is_silent else describe_failure(reason)
            self.follower.server.unreachable(why, failure_code(reason.value))
        super().clientConnectionFailed(connector, reason)

    def retry(self, connector: Any = None) -> None:
        if not self.continueTrying:
            return
        fault = Fault.UNREACHABLE if self._moved is None else fault_of(self._moved.code)
        moved_to = [self._names[one] for one in self._named_addresses() if one in self._names]
        self.metrics.reconnects.inc()
        if self.addresses.failed(fault, moved_to=moved_to):
            super().retry(connector)
        else:
            self._callID = self.clock.callLater(0, self._try_next, connector or self.connector)

    def _try_next(self, connector: Any) -> None:
        """Try the next address of this round."""
        self._callID = None
        connector.connect()

    def _lost(self, protocol: ReplicationProtocol, reason: Failure) -> None:
        self.current = None
        self._patience_timer.stop()
        if self.connector is not None:
            self.clientConnectionLost(self.connector, reason)

    def _give_up(self) -> None:
        """The server has not greeted in time, or not completed the TLS handshake."""
        if self.current is not None and self.current.connected:
            self.current.abort()
        elif self.connector is not None:
            self.connector.stopConnecting()

    def _named_addresses(self) -> list[str]:
        moved = self._moved
        return [] if moved is None else [one.rstrip("/") for one in (moved.native, moved.http) if one]

    def _on_moved(self, command: Moved) -> None:
        self._moved = command
        server = "the server" if len(self._endpoints) < 2 else self.addresses.current
        why = f"{server} is not to be followed now ({printable(command.code)})"
        if named := self._named_addresses():
            where = " ".join(printable(one, limit=MAX_ADDRESS) for one in named)
            why += f": the primary is now at {where}"
            if not any(one in self._names for one in named):
                why += ", which is not in this worker's list; only the addresses of the list are tried"
        self.follower.server.moved(why, printable(command.code))


class EndpointConnector:
    """Connector for `ReconnectingClientFactory`, whose API predates endpoints: tries the current address."""

    def __init__(self, endpoints: Mapping[str, IStreamClientEndpoint], factory: FollowerFactory) -> None:
        self._endpoints = endpoints
        self._factory = factory
        self._attempt: defer.Deferred[Any] | None = None

    def connect(self) -> None:
        """Try once; a failure is reported to the factory."""
        self._factory.begin_attempt()
        self._attempt = self._endpoints[self._factory.addresses.current].connect(self._factory)
        self._attempt.addErrback(lambda reason: self._factory.clientConnectionFailed(self, reason))

    def stopConnecting(self) -> None:
        """Cancel the current attempt."""
        if self._attempt is not None:
            self._attempt.cancel()
