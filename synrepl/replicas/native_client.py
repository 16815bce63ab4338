"""A replica's connection to its upstream, over TCP or any other Twisted endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.errors import LocalProtocolError, NotConnected, RemoteProtocolError, ReplicationError
from synrepl.key_rules import exposure
from synrepl.replicas.command_forwarder import Numbered
from synrepl.replicas.error_codes import HANDSHAKE_REFUSALS
from synrepl.replicas.event_queue import EventQueue
from synrepl.replicas.issued_keys import read_keys_block
from synrepl.replicas.native_receiver import speak_native
from synrepl.replicas.relay.snapshot_codec import SnapshotDecoder, read_meta
from synrepl.replicas.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
    UpstreamKeys,
)
from synrepl.replicas.settings import UpstreamSettings
from synrepl.replicas.wire import native
from synrepl.replicas.wire.blocks import Payload
from synrepl.replication.addresses import Address
from synrepl.replication.connection import ConnectionOwner
from synrepl.streams.facts import decode_facts
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.credentials import Credentials, is_local
from synrepl.wire.commands import Error, Ping, Server
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, Command
from synrepl.wire.position import LogPosition
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Session
from synrepl.wire.text import printable

CONNECT_SECONDS: Final = 30.0
"""Timeout for connecting, and another for the handshake."""

MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of queued blocks and lines at which reading from the connection pauses."""

OLDER: Final = f"the upstream may be of an older release: update it first, to {native.VERSION_NEEDED}"

EVENT_BYTES: Final = 500
"""Bytes that each queued event counts, besides those of its block if it has one."""


class NativeConversation(ConnectionOwner, EventQueue):
    """A replica's end of a connection to its upstream (`replica.IConversation`)."""

    _logger = Logger()

    def __init__(self, connection: ReplicationProtocol, metrics: Metrics) -> None:
        self.welcome: native.Welcome
        self.has_received = False
        """Whether the upstream has sent anything."""
        self.is_full = False
        """Whether the transport's buffer is full."""
        self.on_channel: Callable[[bytes], None] = lambda data: None
        self.on_space: Callable[[], None] = lambda: None
        EventQueue.__init__(
            self, MAX_QUEUED_BYTES, on_full=connection.pause_reading, on_space=connection.resume_reading
        )
        self._connection = connection
        self._metrics = metrics
        self._snapshot = SnapshotDecoder()
        self._is_welcome = False

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self.has_received = True
        for command in commands:
            self._receive(command)

    def pause(self) -> None:
        self.is_full = True

    def resume(self) -> None:
        self.is_full = False
        self.on_space()

    def block(self, payload: Payload) -> None:
        """Handle a received block. Raises `RemoteProtocolError`."""
        if not self._is_welcome:
            raise RemoteProtocolError("a block is not valid before WELCOME")
        if payload.kind == "channel":
            # At once: messages of the channel need no place among the facts.
            self.on_channel(payload.data)
            return
        event = self._event(payload)
        if event is not None:
            self.put(event, len(payload.data) + EVENT_BYTES)

    def failed(self, why: str) -> None:
        hint = f"; {OLDER}" if "CHALLENGE" in why and not self._is_welcome else ""
        self._end(RemoteProtocolError(f"{why}{hint}"))

    def closed(self, why: str) -> None:
        self._end(NotConnected(f"the connection was lost: {why}"))

    def _receive(self, command: Any) -> None:
        match command:
            case native.Heartbeat():
                position = command.position
                fields = (position.epoch, position.serial, position.digest, command.head, command.at_ms)
                if command.check != native.heartbeat_check(*fields):
                    raise RemoteProtocolError("corrupted HEARTBEAT: its check does not match")
            case native.Refused():
                # Some codes would stop the replica: whoever listens there must have said who it is.
                if not self._is_welcome and (command.code not in HANDSHAKE_REFUSALS or command.moved_to):
                    raise RemoteProtocolError(
                        f"REFUSED {printable(command.code)} is not valid before WELCOME"
                    )
                command = RefusedByUpstream(command)
            case native.Welcome():
                command.check()
                if self._is_welcome:
                    raise RemoteProtocolError("the upstream sent WELCOME twice")
                self._is_welcome = True
            case native.Peers():
                command.check()
            case Error():
                hint = "" if self._is_welcome or "HELLO" not in command.text else f"; {OLDER}"
                self._end(NotConnected(f"ERROR from the upstream: {command.text}{hint}"))
                self.close()
                return
            case Ping() | Server():
                return
            case _ if type(command) not in native.NATIVE_COMMANDS:
                raise RemoteProtocolError(f"{type(command).__name__} from the upstream is not for replicas")
        self.put(command, EVENT_BYTES)

    def _event(self, payload: Payload) -> Event | None:
        """Decode a block; None for a part of a snapshot that continues."""
        match payload.kind:
            case "snapshot":
                snapshot = self._snapshot.receive(payload.data)
                if snapshot is None:
                    return None
                self._snapshot = SnapshotDecoder()
                return SnapshotFacts(snapshot)
            case "facts":
                return Facts(decode_facts(payload.data))
            case "ephemeral":
                return Ephemeral(decode_facts(payload.data))
            case "held":
                return Ephemeral(decode_facts(payload.data), is_all=True)
            case "meta":
                return SnapshotMeta(*read_meta(payload.data))
            case "keys":
                return UpstreamKeys(read_keys_block(payload.data))
        raise RemoteProtocolError(f"the upstream sent a block of unknown kind {printable(payload.kind)}")

    def _end(self, error: Exception) -> None:
        # Free an incomplete snapshot, which may be large.
        self._snapshot = SnapshotDecoder()
        self.end(error)

    async def greet(
        self,
        uuid: str,
        name: str,
        secret: str | None,
        address: str,
        *,
        registered: bool,
        keys: str = "",
        capabilities: tuple[str, ...] = native.OWN_CAPABILITIES,
    ) -> None:
        """Say HELLO, with the `secret`, and wait for WELCOME. Raises `NotConnected` and `RefusedByUpstream`.

        `keys` is the digest of the issued keys that are known here.
        """
        self.send(
            native.Hello(
                uuid=uuid,
                name=name,
                version=native.VERSION,
                registered=registered,
                address=address,
                capabilities=capabilities,
                secret=secret or "",
                keys=keys,
            )
        )
        self.welcome = await self._expect(native.Welcome)

    async def _expect(self, expected: Any) -> Any:
        event: Any = await self.next()
        if not isinstance(event, expected):
            raise RemoteProtocolError(f"the upstream sent {type(event).__name__}, not {expected.__name__}")
        return event

    def join(self, request: native.Join) -> None:
        """Request a snapshot."""
        self.send(request)

    def subscribe(self, request: native.Subscribe) -> None:
        """Request the facts after a position."""
        self.send(request)

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Report that everything up to this position is stored durably. Does nothing if already closed."""
        if not self._connection.session.closed:
            self.send(native.Ack(epoch=position.epoch, serial=position.serial, at_ms=at_ms))

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward followers' commands, but for any too long for a line. Does nothing if already closed."""
        session = self._connection.session
        if session.closed:
            return
        lines: list[bytes] = []
        for number, line in commands:
            try:
                lines.append(session.encode([native.Up(origin=origin, number=number, line=line.decode())]))
            except LocalProtocolError as error:
                self._metrics.commands_dropped.labels(line.partition(b" ")[0].decode()).inc()
                self._logger.warn("dropped a command for the upstream: {why}", why=error.why)
        self.write(b"".join(lines))

    def join_channel(self) -> None:
        """Ask the upstream to pass its channel. Does nothing if already closed."""
        if (data := self._encode([native.Channel()])) is not None:
            self.write(data)

    def encode_published(self, publisher: str, channel: str, lines: Sequence[bytes]) -> bytes | None:
        """See `IChannelConversation`."""
        texts = [line.decode("utf-8", "surrogateescape") for line in lines]
        if not channel:
            return self._encode([native.Publish(publisher=publisher, line=text) for text in texts])
        return self._encode(
            [native.PublishTo(publisher=publisher, channel=channel, line=text) for text in texts]
        )

    def encode_lost(self, publisher: str) -> bytes | None:
        """See `IChannelConversation`."""
        return self._encode([native.PublisherLost(publisher)])

    def _encode(self, commands: Sequence[Command]) -> bytes | None:
        """Encode these commands; None if one of them is no line of the native protocol, or after the end."""
        try:
            return self._connection.session.encode(commands)
        except LocalProtocolError:
            return None

    def write(self, data: bytes) -> None:
        """Send encoded commands. Does nothing if already closed."""
        if not self._connection.session.closed:
            self._connection.write(data)

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Fetch the upstream's digests at these serials; None for those that it does not know."""
        self.send(native.Digests(serials=list(serials)))
        response: native.DigestsAre = await self._expect(native.DigestsAre)
        try:
            return {int(serial): digest for serial, digest in response.digests.items()}
        except ValueError as error:
            raise RemoteProtocolError("the upstream sent digests for serials that are not numbers") from error

    def send(self, command: Command) -> None:
        """Send one command. Raises `NotConnected` if the connection is closed."""
        if self._connection.session.closed:
            raise NotConnected("the connection to the upstream is closed")
        try:
            self._connection.send(command)
        except LocalProtocolError as error:
            raise RemoteProtocolError(f"cannot send {command.NAME} to the upstream: {error.why}") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.abort()


@dataclass(eq=False, repr=False)
class NativeUpstream:
    """An upstream that speaks the native protocol (`replica.IUpstream`)."""

    endpoint: IStreamClientEndpoint
    clock: IClock
    metrics: Metrics
    settings: UpstreamSettings
    _: KW_ONLY
    where: Address
    secret: str | Credentials | None = None
    address: Callable[[], str] = lambda: ""
    keys: Callable[[], str] = lambda: ""
    """The digest of the issued keys that are known here."""
    capabilities: tuple[str, ...] = native.OWN_CAPABILITIES
    is_private: Callable[[Any], bool] = is_local
    """Whether nobody else can read a connection to the peer at this address: then the secret is sent."""
    suspicion: str = "is a synrepl daemon there?"
    """What an operator should ask if the peer accepts a connection and does not answer."""
    _logger: ClassVar = Logger()

    async def connect(self, uuid: str, name: str) -> NativeConversation:
        """Connect, and perform the handshake. Raises `NotConnected`, and what `greet` raises."""
        where = self.where.words
        factory = Factory.forProtocol(lambda: self.build(name))
        factory.noisy = False
        connecting: Deferred[Any] = self.endpoint.connect(factory)
        connecting.addTimeout(CONNECT_SECONDS, self.clock)  # type: ignore[arg-type]
        try:
            connection: ReplicationProtocol = await connecting
        except TimedOut:
            why = f"no connection within {CONNECT_SECONDS:g} s"
            raise NotConnected(f"{where}: {why}; {self.suspicion}") from None
        except (CancelledError, ReplicationError):
            raise
        except Exception as error:
            raise NotConnected(f"{where} cannot be reached: {error}") from error
        conversation = connection.owner
        if not isinstance(conversation, NativeConversation):
            raise NotConnected(f"{where}: the connection was lost at once")
        credentials = Credentials.of(self.secret)
        is_safe = credentials.secret is None or self.is_private(connection.transport.getPeer())
        if why := exposure(where, is_private=is_safe, insecure=credentials.insecure):
            conversation.close()
            raise NotConnected(why)
        greeting: Deferred[None] = Deferred.fromCoroutine(
            conversation.greet(
                uuid,
                name,
                credentials.secret,
                self.address(),
                registered=not self.settings.anonymous,
                keys=self.keys(),
                capabilities=self.capabilities,
            )
        )
        greeting.addTimeout(CONNECT_SECONDS, self.clock)  # type: ignore[arg-type]
        try:
            await greeting
        except TimedOut:
            conversation.close()
            why = f"no handshake within {CONNECT_SECONDS:g} s"
            raise NotConnected(f"{where}: {why}; {self.suspicion}") from None
        except RemoteProtocolError as error:
            conversation.close()
            if conversation.has_received:
                raise
            raise NotConnected(f"{where} sent nothing ({error.why}); {self.suspicion}") from error
        except BaseException:
            conversation.close()
            raise
        return conversation

    def _converse(self, connection: ReplicationProtocol) -> NativeConversation:
        conversation = NativeConversation(connection, self.metrics)
        speak_native(connection, conversation.block)
        return conversation

    def build(self, name: str) -> ReplicationProtocol:
        """Make the protocol of a new connection; its owner is the conversation."""
        session = Session(
            CLIENT, NATIVE, name=name, seconds=self.clock.seconds, keepalive=self.settings.keepalive
        )
        return ReplicationProtocol(
            session,
            self._converse,
            self.clock,
            self.metrics,
            logger=LimitedLogger(self._logger, self.clock),
        )
