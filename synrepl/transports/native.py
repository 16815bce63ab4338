"""A replica's connection to its upstream, over TCP or any other Twisted endpoint."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.errors import LocalProtocolError, NotConnected, RemoteProtocolError
from synrepl.ports.history import LogPosition
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.replication.relay.proof import PRIMARY, REPLICA, nonce, proof, proves
from synrepl.replication.relay.snapshot_codec import SnapshotReader, read_meta
from synrepl.replication.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
)
from synrepl.streams.facts import decode_facts
from synrepl.transports.credentials import Credentials
from synrepl.transports.event_queue import EventQueue
from synrepl.wire import native
from synrepl.wire.blocks import BlockReader, Payload
from synrepl.wire.commands import Error, Ping, Server
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, Command
from synrepl.wire.session import KEEPALIVE, MAX_TEXT, Close, Deliver, Keepalive, Send, Session
from synrepl.wire.text import printable

__all__ = ["NativeUpstream", "UpstreamConnection"]

CONNECT_SECONDS: Final = 30.0
"""Timeout for connecting, and for the handshake."""

MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of queued blocks and lines at which reading from the connection pauses."""

EVENT_BYTES: Final = 500
"""Memory that a queued event counts in addition to its block; many have none."""


class UpstreamConnection(Protocol):
    """One connection (`replica.IConversation`)."""

    transport: Any
    _logger = Logger()

    def __init__(
        self, clock: IClock, metrics: Metrics, *, name: str, expected_server: str | None, keepalive: Keepalive
    ) -> None:
        self.welcome: native.WelcomeBody
        self.session = Session(
            CLIENT,
            NATIVE,
            name=name,
            seconds=clock.seconds,
            expected_server=expected_server,
            keepalive=keepalive,
        )
        self._clock = clock
        self._metrics = metrics
        self._timeout_seconds = keepalive.timeout_seconds
        self._reader = BlockReader()
        self._snapshot = SnapshotReader()
        self.events = EventQueue(MAX_QUEUED_BYTES, on_full=self._pause, on_room=self._resume)
        self._timer: Any = None
        self._received_at = clock.seconds()
        self.is_open = False

    # -- called by Twisted ---------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.is_open = True
        self._metrics.connections.inc()
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self._perform(self.session.connected())
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        self._metrics.bytes_in.inc(len(data))
        self._received_at = self._clock.seconds()
        if self.events.error is not None:
            return
        violation: str | None = None
        try:
            lines: list[bytes] = []
            for item in self._reader.feed(data):
                if isinstance(item, bytes):
                    lines.append(item)
                    continue
                self._receive_lines(lines)
                lines = []
                event = self._event(item)
                if event is not None:
                    self._enqueue(event, len(item.data))
            self._receive_lines(lines)
        except RemoteProtocolError as error:
            violation = error.why
        if violation is not None:
            # A new error: the traceback of the first one would keep the whole block in memory.
            self._perform(self.session.fail(violation))
            self._finish(RemoteProtocolError(violation))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.is_open:
            self.is_open = False
            self._metrics.connections.dec()
        self.session.closed = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._finish(NotConnected(f"the connection was lost: {reason.getErrorMessage()}"))

    def _receive_lines(self, lines: Sequence[bytes]) -> None:
        self._perform(self.session.receive(lines))

    def _perform(self, actions: Any) -> None:
        for action in actions:
            match action:
                case Send(data):
                    self._write(data)
                case Deliver(commands):
                    for command in commands:
                        self._command(command)
                case Close(why):
                    self._finish(RemoteProtocolError(why))
                    self.close()

    def _command(self, command: Any) -> None:
        match command:
            case native.Heartbeat():
                position = command.position
                fields = (position.epoch, position.serial, position.digest, command.head, command.at_ms)
                if command.check != native.heartbeat_check(*fields):
                    raise RemoteProtocolError("corrupted HEARTBEAT: its check does not match")
            case native.Refused():
                self._enqueue(RefusedByUpstream(_printable_refusal(command.body)))
                return
            case native.Welcome():
                _check_welcome(command.body)
            case native.Peers():
                _check_printable(*command.body)
            case Error():
                self._finish(NotConnected(f"ERROR from the upstream: {command.text}"))
                return
            case Ping() | Server():
                return
            case (
                native.Joining()
                | native.Joined()
                | native.Subscribed()
                | native.Challenge()
                | native.DigestsAre()
                | native.Taken()
                | native.Down()
            ):
                pass
            case _:
                raise RemoteProtocolError(f"{type(command).__name__} is not valid for a replica")
        self._enqueue(command)

    def _arm(self) -> None:
        delay = max(0.0, min(self.session.deadline() - self._clock.seconds(), self._timeout_seconds))
        self._timer = self._clock.callLater(delay, self._tick)

    def _tick(self) -> None:
        if self.events.is_full:
            self._received_at = self._clock.seconds()
            self.session.reading_paused()
        self._perform(self.session.tick())
        if self._clock.seconds() - self._received_at >= self._timeout_seconds:
            self._finish(NotConnected(f"the upstream was silent for {self._timeout_seconds:g} seconds"))
            self.transport.abortConnection()
        if not self.session.closed:
            self._arm()

    # -- events --------------------------------------------------------------------------------------------

    def _event(self, payload: Payload) -> Event | None:
        """Decode a block; None for a part of a snapshot that continues."""
        if payload.kind == "snapshot":
            snapshot = self._snapshot.feed(payload.data)
            return None if snapshot is None else SnapshotFacts(snapshot)
        return _event(payload)

    def _enqueue(self, event: object, size: int = 0) -> None:
        self.events.put(event, size + EVENT_BYTES)

    def _pause(self) -> None:
        self.transport.pauseProducing()

    def _resume(self) -> None:
        if self.is_open:
            self.transport.resumeProducing()

    def _finish(self, error: Exception) -> None:
        if self.events.error is None:
            # Free incomplete blocks, which may be large.
            self._reader, self._snapshot = BlockReader(), SnapshotReader()
        self.events.end(error)

    async def next(self) -> Event:
        """Wait for the next event."""
        return await self.events.next()

    def ready(self) -> Event | None:
        """Return the next event if one is queued."""
        return self.events.ready()

    # -- requests and messages -------------------------------------------------------------------------------

    async def greet(
        self, uuid: str, name: str, secret: str | None, address: str, *, registered: bool
    ) -> None:
        """Perform the handshake: identify this replica, and verify that the upstream knows the secret."""
        own_nonce = nonce()
        greeting = native.Greeting(
            uuid=uuid,
            name=name,
            nonce=own_nonce,
            registered=registered,
            address=address,
            capabilities=native.OWN_CAPABILITIES,
        )
        self.send(native.Hello(body=greeting))
        challenge: native.ChallengeBody = (await self._expect(native.Challenge)).body
        if challenge.proof and secret is None:
            raise NotConnected("the upstream requires a secret: set secret_file")
        nonces = (challenge.nonce, own_nonce)
        own_proof = "" if secret is None else proof(secret, REPLICA, nonces, uuid, name)
        self.send(native.Auth(body=native.Proof(own_proof)))
        self.welcome = (await self._expect(native.Welcome)).body
        if secret is not None and not proves(self.welcome.proof, secret, PRIMARY, nonces, uuid, name):
            raise NotConnected(
                "the upstream could not prove that it knows the secret: check secret_file on both"
            )

    async def _expect(self, expected: Any) -> Any:
        event = await self.events.next()
        if not isinstance(event, expected):
            raise RemoteProtocolError(f"{type(event).__name__} received, {expected.__name__} expected")
        return event

    def join(self, request: native.JoinRequest) -> None:
        """Request a snapshot."""
        self.send(native.Join(body=request))

    def subscribe(self, request: native.Subscription) -> None:
        """Request the facts after a position."""
        self.send(native.Subscribe(body=request))

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Report that everything up to this position is stored durably."""
        if not self.session.closed:
            self.send(native.Ack(epoch=position.epoch, serial=position.serial, at_ms=at_ms))

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward followers' commands; one that does not fit into a line is dropped."""
        if self.session.closed:
            return
        lines: list[bytes] = []
        for number, line in commands:
            try:
                lines.append(
                    self.session.encode([native.Up(origin=origin, number=number, line=line.decode())])
                )
            except LocalProtocolError as error:
                self._metrics.commands_dropped.labels(line.partition(b" ")[0].decode()).inc()
                self._logger.warn("cannot forward a command to the upstream: {why}", why=error.why)
        self._write(b"".join(lines))

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Fetch the upstream's digests at these serials."""
        self.send(native.Digests(body=list(serials)))
        response: native.DigestsBody = (await self._expect(native.DigestsAre)).body
        try:
            return {int(serial): digest for serial, digest in response.digests.items()}
        except ValueError as error:
            raise RemoteProtocolError("the upstream sent a digest for an invalid serial") from error

    def send(self, command: Command) -> None:
        """Send one command."""
        if self.session.closed:
            raise NotConnected("the connection to the upstream is closed")
        try:
            self._write(self.session.encode([command]))
        except LocalProtocolError as error:
            raise RemoteProtocolError(f"cannot send {command.NAME} to the upstream: {error.why}") from error

    def _write(self, data: bytes) -> None:
        self._metrics.bytes_out.inc(len(data))
        self.transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        self.session.closed = True
        if self.is_open:
            self.transport.abortConnection()


class NativeUpstream:
    """An upstream that speaks the native protocol (`replica.IUpstream`)."""

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        clock: IClock,
        metrics: Metrics,
        *,
        where: Address,
        secret: str | Credentials | None = None,
        expected_server: str | None = None,
        registered: bool = True,
        address: Callable[[], str] = lambda: "",
        keepalive: Keepalive = KEEPALIVE,
    ) -> None:
        self.where = where
        self._endpoint = endpoint
        self._clock = clock
        self._metrics = metrics
        self._credentials = Credentials.of(secret)
        self._expected_server = expected_server
        self._registered = registered
        self._address = address
        self._keepalive = keepalive

    async def connect(self, uuid: str, name: str) -> UpstreamConnection:
        """Connect, and perform the handshake."""
        factory = _Factory(self, name)
        connecting: Deferred[Any] = self._endpoint.connect(factory)
        connecting.addTimeout(CONNECT_SECONDS, self._clock)  # type: ignore[arg-type]
        try:
            connection: UpstreamConnection = await connecting
        except TimedOut:
            raise NotConnected(f"{self.where}: no connection within {CONNECT_SECONDS:g} s") from None
        except CancelledError:
            raise
        except Exception as error:
            raise NotConnected(f"{self.where} cannot be reached: {error}") from error
        greeting: Deferred[None] = Deferred.fromCoroutine(
            connection.greet(
                uuid, name, self._credentials.secret, self._address(), registered=self._registered
            )
        )
        greeting.addTimeout(CONNECT_SECONDS, self._clock)  # type: ignore[arg-type]
        try:
            await greeting
        except TimedOut:
            connection.close()
            raise NotConnected(
                f"{self.where}: no handshake within {CONNECT_SECONDS:g} s; is the peer a synrepl daemon?"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def build(self, name: str) -> UpstreamConnection:
        """Make the protocol of a new connection."""
        return UpstreamConnection(
            self._clock,
            self._metrics,
            name=name,
            expected_server=self._expected_server,
            keepalive=self._keepalive,
        )


class _Factory(Factory):
    noisy = False

    def __init__(self, upstream: NativeUpstream, name: str) -> None:
        self._upstream = upstream
        self._name = name

    def buildProtocol(self, addr: IAddress | None) -> UpstreamConnection:
        connection = self._upstream.build(self._name)
        connection.factory = self
        return connection


def _event(payload: Payload) -> Event:
    match payload.kind:
        case "facts":
            return Facts(decode_facts(payload.data))
        case "ephemeral":
            return Ephemeral(decode_facts(payload.data))
        case "held":
            return Ephemeral(decode_facts(payload.data), is_all=True)
        case "meta":
            return SnapshotMeta(*read_meta(payload.data))
    raise RemoteProtocolError(f"unknown block type {printable(payload.kind)}")


def _printable_refusal(refused: native.Refusal) -> native.Refusal:
    """Make a refusal printable: it appears in the status and in the log."""
    return msgspec.structs.replace(
        refused,
        code=printable(refused.code),
        message=printable(refused.message, limit=MAX_TEXT),
        moved_to=printable(refused.moved_to, limit=MAX_TEXT),
    )


def _check_welcome(welcome: native.WelcomeBody) -> None:
    """Raise `RemoteProtocolError` unless the names and addresses of a welcome are printable."""
    _check_printable(
        welcome.uuid,
        welcome.history,
        welcome.instance,
        welcome.server_name,
        welcome.role,
        welcome.address,
        welcome.primary,
    )


def _check_printable(*texts: str) -> None:
    for text in texts:
        if len(text) > MAX_TEXT or not text.isprintable():
            raise RemoteProtocolError(f"the upstream sent an invalid name or address: {printable(text)}")
