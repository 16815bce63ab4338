"""A replica's connection to its upstream, over TCP or anything else that Twisted has an endpoint for."""

from collections import deque
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
    DownstreamCommand,
    Ephemeral,
    Event,
    Facts,
    JoinFinished,
    JoinStarted,
    KnownPeers,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
    SubscriptionStarted,
    TakenUpTo,
    UpstreamHeartbeat,
)
from synrepl.replication.wire_positions import log_position
from synrepl.streams.ndjson import decode_facts
from synrepl.transports.credentials import Credentials
from synrepl.wire import native
from synrepl.wire.blocks import BlockReader, Payload
from synrepl.wire.commands import Error, Ping, Server
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, Command
from synrepl.wire.native import WirePosition, decode_body, encode_body
from synrepl.wire.session import KEEPALIVE, MAX_TEXT, Close, Deliver, Keepalive, Send, Session
from synrepl.wire.text import printable

__all__ = ["NativeUpstream", "UpstreamConnection"]

CONNECT_SECONDS: Final = 30.0
"""For the greeting too."""

HELD_BYTES: Final = 4 * 1024 * 1024
"""Of blocks and lines that wait to be taken; then the connection is read no further."""

EVENT_BYTES: Final = 500
"""What an event costs besides its block: many of them have none."""


class UpstreamConnection(Protocol):
    """One conversation (`replica.IConversation`)."""

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
        self._silence = keepalive.timeout_seconds
        self._reader = BlockReader()
        self._snapshot = SnapshotReader()
        self._events: deque[tuple[int, Any]] = deque()
        self._held = 0
        self._is_paused = False
        self._end: Exception | None = None
        self._waiter: Deferred[None] | None = None
        self._timer: Any = None
        self._heard = clock.seconds()
        self.is_open = False

    # -- Twisted's side ------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.is_open = True
        self._metrics.connections.inc()
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self._do(self.session.connected())
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        self._metrics.bytes_in.inc(len(data))
        self._heard = self._clock.seconds()
        if self._end is not None:
            return
        wrong: str | None = None
        try:
            lines: list[bytes] = []
            for found in self._reader.feed(data):
                if isinstance(found, bytes):
                    lines.append(found)
                    continue
                self._lines(lines)
                lines = []
                event = self._event(found)
                if event is not None:
                    self._put(len(found.data), event)
            self._lines(lines)
        except RemoteProtocolError as error:
            wrong = error.why
        if wrong is not None:
            # A new error, raised in no context: the traceback of the first one holds the whole block.
            self._do(self.session.fail(wrong))
            self._finish(RemoteProtocolError(wrong))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.is_open:
            self.is_open = False
            self._metrics.connections.dec()
        self.session.closed = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._finish(NotConnected(f"the connection was lost: {reason.getErrorMessage()}"))

    def _lines(self, lines: Sequence[bytes]) -> None:
        self._do(self.session.receive(lines))

    def _do(self, actions: Any) -> None:
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
                position = LogPosition(command.epoch, command.serial, command.digest)
                told = (position.epoch, position.serial, position.digest, command.head, command.at_ms)
                if command.check != native.heartbeat_check(*told):
                    raise RemoteProtocolError("a HEARTBEAT was changed on its way here")
                self._put(0, UpstreamHeartbeat(position, command.head, command.at_ms))
            case native.Refused():
                self._put(0, RefusedByUpstream(_shown(decode_body(native.Refusal, command.body))))
            case native.Joining():
                said = decode_body(native.JoiningBody, command.body)
                self._put(
                    0,
                    JoinStarted(
                        said.join,
                        said.history,
                        log_position(said.position),
                        log_position(said.trimmed_upto),
                        said.resumed,
                    ),
                )
            case native.Joined():
                joined = decode_body(native.JoinedBody, command.body)
                self._put(0, JoinFinished(log_position(joined.position)))
            case native.Subscribed():
                self._put(0, SubscriptionStarted(log_position(decode_body(WirePosition, command.body))))
            case native.Challenge():
                self._put(0, decode_body(native.ChallengeBody, command.body))
            case native.Welcome():
                self._put(0, _checked(decode_body(native.WelcomeBody, command.body)))
            case native.DigestsAre():
                self._put(0, decode_body(native.DigestsBody, command.body))
            case native.Peers():
                addresses = decode_body(_Peers, b'{"addresses":%b}' % command.body).addresses
                _check_shown(*addresses)
                self._put(0, KnownPeers(addresses))
            case native.Taken():
                self._put(0, TakenUpTo(command.origin, command.number, command.since))
            case native.Down():
                self._put(0, DownstreamCommand(command.line.encode()))
            case Error():
                self._finish(NotConnected(f"the upstream says: {command.text}"))
            case Ping() | Server():
                pass
            case _:
                raise RemoteProtocolError(f"{type(command).__name__} is not said to replicas")

    def _arm(self) -> None:
        delay = max(0.0, min(self.session.deadline() - self._clock.seconds(), self._silence))
        self._timer = self._clock.callLater(delay, self._tick)

    def _tick(self) -> None:
        if self._is_paused:
            self._heard = self._clock.seconds()
            self.session.not_listening()
        self._do(self.session.tick())
        if self._clock.seconds() - self._heard >= self._silence:
            self._finish(NotConnected(f"the upstream was silent for {self._silence:g} seconds"))
            self.transport.abortConnection()
        if not self.session.closed:
            self._arm()

    # -- events --------------------------------------------------------------------------------------------

    def _event(self, payload: Payload) -> Event | None:
        """What a block says; None for a part of a snapshot that goes on."""
        if payload.kind == "snapshot":
            snapshot = self._snapshot.feed(payload.data)
            return None if snapshot is None else SnapshotFacts(snapshot)
        return _event(payload)

    def _put(self, size: int, event: Any) -> None:
        size += EVENT_BYTES
        self._events.append((size, event))
        self._held += size
        if self._held > HELD_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pauseProducing()
        self._wake()

    def _take(self) -> Any:
        size, event = self._events.popleft()
        self._held -= size
        if self._is_paused and self._held <= HELD_BYTES // 2:
            self._is_paused = False
            if self.is_open:
                self.transport.resumeProducing()
        if isinstance(event, Exception):
            raise event
        return event

    def _finish(self, error: Exception) -> None:
        if self._end is None:
            self._end = error
            # What is unfinished will not be finished, and may be large.
            self._reader, self._snapshot = BlockReader(), SnapshotReader()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    async def _next(self) -> Any:
        while not self._events:
            if self._end is not None:
                raise self._end
            self._waiter = Deferred()
            await self._waiter
        return self._take()

    async def next(self) -> Event:
        """The next event, once there is one."""
        event: Event = await self._next()
        return event

    def ready(self) -> Event | None:
        """The next event, if it is here."""
        if not self._events or isinstance(self._events[0][1], Exception):
            return None
        event: Event = self._take()
        return event

    # -- what is said --------------------------------------------------------------------------------------

    async def greet(
        self, uuid: str, name: str, secret: str | None, address: str, *, registered: bool
    ) -> None:
        """Be known to the upstream, and know that it is the one that knows the secret."""
        mine = nonce()
        greeting = native.Greeting(
            uuid=uuid,
            name=name,
            nonce=mine,
            registered=registered,
            address=address,
            capabilities=native.SPOKEN,
        )
        self.send(native.Hello(body=encode_body(greeting)))
        known: native.ChallengeBody = await self._expect(native.ChallengeBody)
        if known.proof and secret is None:
            raise NotConnected("the upstream wants a proof of the secret, and none is set here (secret_file)")
        nonces = (known.nonce, mine)
        shown = "" if secret is None else proof(secret, REPLICA, nonces, uuid, name)
        self.send(native.Auth(body=encode_body(native.Proof(shown))))
        self.welcome = await self._expect(native.WelcomeBody)
        if secret is not None and not proves(self.welcome.proof, secret, PRIMARY, nonces, uuid, name):
            raise NotConnected("the upstream could not prove that it knows the secret: is it the right one?")

    async def _expect(self, shape: Any) -> Any:
        said = await self._next()
        if not isinstance(said, shape):
            raise RemoteProtocolError(f"{type(said).__name__} came where {shape.__name__} was to come")
        return said

    def join(self, asked: native.JoinRequest) -> None:
        """Ask for a copy."""
        self.send(native.Join(body=encode_body(asked)))

    def subscribe(self, asked: native.Subscription) -> None:
        """Ask for what comes after a place."""
        self.send(native.Subscribe(body=encode_body(asked)))

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Everything up to there is held."""
        if not self.session.closed:
            self.send(native.Ack(epoch=position.epoch, serial=position.serial, at_ms=at_ms))

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Say what followers sent up; what does not fit into a line is left out."""
        if self.session.closed:
            return
        lines: list[bytes] = []
        for number, line in commands:
            try:
                lines.append(
                    self.session.lines([native.Up(origin=origin, number=number, line=line.decode())])
                )
            except LocalProtocolError as error:
                self._metrics.commands_dropped.labels(line.partition(b" ")[0].decode()).inc()
                self._logger.warn("a command cannot be passed up: {why}", why=error.why)
        self._write(b"".join(lines))

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """The upstream's digests there."""
        self.send(native.Digests(body=msgspec.json.encode(list(serials))))
        said: native.DigestsBody = await self._expect(native.DigestsBody)
        try:
            return {int(serial): digest for serial, digest in said.digests.items()}
        except ValueError as error:
            raise RemoteProtocolError("the upstream told a digest at what is no serial") from error

    def send(self, command: Command) -> None:
        """Send one command."""
        if self.session.closed:
            raise NotConnected("the connection to the upstream is closed")
        try:
            self._write(self.session.lines([command]))
        except LocalProtocolError as error:
            raise RemoteProtocolError(f"what is to be said does not fit: {error.why}") from error

    def _write(self, data: bytes) -> None:
        self._metrics.bytes_out.inc(len(data))
        self.transport.write(data)

    def close(self) -> None:
        """End it."""
        self.session.closed = True
        if self.is_open:
            self.transport.abortConnection()


class NativeUpstream:
    """An upstream that is spoken to natively (`replica.IUpstream`)."""

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
        """Reach it, and be known to it."""
        factory = _Factory(self, name)
        connecting: Deferred[Any] = self._endpoint.connect(factory)
        connecting.addTimeout(CONNECT_SECONDS, self._clock)  # type: ignore[arg-type]
        try:
            connection: UpstreamConnection = await connecting
        except TimedOut:
            raise NotConnected(f"{self.where} has not answered in {CONNECT_SECONDS:g} seconds") from None
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
                f"{self.where} has not said who it is in {CONNECT_SECONDS:g} seconds: no daemon of ours?"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def build(self, name: str) -> UpstreamConnection:
        """A protocol for a new connection."""
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
        made = self._upstream.build(self._name)
        made.factory = self
        return made


class _Peers(msgspec.Struct):
    addresses: list[str]


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
    raise RemoteProtocolError(f"a block of {printable(payload.kind)} is not known here")


def _shown(refused: native.Refusal) -> native.Refusal:
    """A refusal whose text is safe to show: it stands in the status and in the log."""
    return msgspec.structs.replace(
        refused,
        code=printable(refused.code),
        message=printable(refused.message, limit=MAX_TEXT),
        moved_to=printable(refused.moved_to, limit=MAX_TEXT),
    )


def _checked(welcome: native.WelcomeBody) -> native.WelcomeBody:
    """A welcome whose names and addresses can be shown. Raises RemoteProtocolError for others."""
    _check_shown(
        welcome.uuid,
        welcome.history,
        welcome.instance,
        welcome.server_name,
        welcome.role,
        welcome.address,
        welcome.primary,
    )
    return welcome


def _check_shown(*texts: str) -> None:
    for text in texts:
        if len(text) > MAX_TEXT or not text.isprintable():
            raise RemoteProtocolError(f"the upstream tells a name or address that is none: {printable(text)}")
