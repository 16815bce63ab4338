"""A replica's connection to its upstream, over TCP or any other Twisted endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final

from msgspec import UNSET
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, NotConnected, RemoteProtocolError, ReplicationError
from synrepl.ports.history import LogPosition
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.metrics import Metrics
from synrepl.ports.proofs import IProofs, own_proofs, split_issued
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.replication.issued_keys import read_keys_block
from synrepl.replication.relay.handshake import (
    HANDSHAKE_REFUSALS,
    PRIMARY_SIDE,
    REPLICA_SIDE,
    Greetings,
    line_of_replica,
    nonce,
    proof,
    proves,
    record_key,
    without_proof,
)
from synrepl.replication.relay.snapshot_codec import SnapshotDecoder, read_meta
from synrepl.replication.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
    UpstreamKeys,
)
from synrepl.streams.facts import decode_facts
from synrepl.transports.connection import ConnectionOwner, ReplicationProtocol
from synrepl.transports.credentials import Credentials
from synrepl.transports.event_queue import EventQueue
from synrepl.transports.settings import UpstreamSettings
from synrepl.wire import native
from synrepl.wire.blocks import Payload
from synrepl.wire.commands import Error, Ping, Server
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Session
from synrepl.wire.text import printable

CONNECT_SECONDS: Final = 30.0
"""Timeout for connecting, and another for the handshake."""

MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of queued blocks and lines at which reading from the connection pauses."""

UNPROVEN: Final = "the upstream could not prove that it knows the secret: check secret_file on both daemons"

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
        self.on_room: Callable[[], None] = lambda: None
        EventQueue.__init__(
            self, MAX_QUEUED_BYTES, on_full=connection.pause_reading, on_room=connection.resume_reading
        )
        self._connection = connection
        self._metrics = metrics
        self._snapshot = SnapshotDecoder()
        self._must_prove = False
        """Whether the upstream must prove that it knows our secret."""
        self._proofs: IProofs | None = None
        self._greetings: Greetings | None = None
        """HELLO and CHALLENGE, once AUTH is sent."""
        self._is_welcome = False

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self.has_received = True
        for command in commands:
            self._receive(command)

    def pause(self) -> None:
        self.is_full = True

    def resume(self) -> None:
        self.is_full = False
        self.on_room()

    def block(self, payload: Payload) -> None:
        if payload.kind == "channel":
            # At once: messages of the channel need no place among the facts.
            self.on_channel(payload.data)
            return
        event = self._event(payload)
        if event is not None:
            self.put(event, len(payload.data) + EVENT_BYTES)

    def failed(self, why: str) -> None:
        self._end(RemoteProtocolError(why))

    def lost(self, why: str) -> None:
        self._end(NotConnected(f"the connection was lost: {why}"))

    def _receive(self, command: Any) -> None:
        match command:
            case native.Heartbeat():
                position = command.position
                fields = (position.epoch, position.serial, position.digest, command.head, command.at_ms)
                if command.check != native.heartbeat_check(*fields):
                    raise RemoteProtocolError("corrupted HEARTBEAT: its check does not match")
            case native.Refused():
                # Nothing authenticates it before WELCOME, and some codes would stop the replica.
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
                if not self._is_proven(command):
                    self._end(NotConnected(UNPROVEN))
                    self.close()
                    return
            case native.Peers():
                command.check()
            case Error():
                self._end(NotConnected(f"ERROR from the upstream: {command.text}"))
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
    ) -> None:
        """Perform the handshake. Raises `NotConnected`, also if the upstream cannot prove the `secret`.

        `keys` is the digest of the issued keys that are known here.
        """
        greeting = native.Hello(
            uuid=uuid,
            name=name,
            nonce=nonce(),
            registered=registered,
            address=address,
            capabilities=native.OWN_CAPABILITIES,
            key="" if secret is None else split_issued(secret)[0],
            keys=keys,
        )
        self._must_prove = secret is not None
        self.send(greeting)
        challenge: native.Challenge = await self._expect(native.Challenge)
        if challenge.proof and secret is None:
            raise NotConnected("the upstream requires a secret: set secret_file")
        connection = self._connection
        greetings = Greetings(
            hello=line_of_replica(greeting), challenge=connection.received_line(native.Challenge)
        )
        self._greetings = greetings
        proofs = self._proofs = None if secret is None else _proofs_of(secret, challenge)
        self.send(native.Auth("" if proofs is None else proof(proofs, REPLICA_SIDE, greetings)))
        if proofs is not None and not connection.is_encrypted:
            connection.write_records(record_key(proofs, REPLICA_SIDE, greetings))
        self.welcome = await self._expect(native.Welcome)

    def _is_proven(self, welcome: native.Welcome) -> bool:
        """Whether WELCOME proves the secret, if there is one. From then on, records are read."""
        proofs, greetings, connection = self._proofs, self._greetings, self._connection
        if not self._must_prove:
            return True
        if proofs is None or greetings is None:
            return False
        line = without_proof(connection.received_line(native.Welcome), welcome.proof)
        if not proves(welcome.proof, proofs, PRIMARY_SIDE, greetings, line):
            return False
        if not connection.is_encrypted:
            connection.read_records(record_key(proofs, PRIMARY_SIDE, greetings))
        return True

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

    def encode(self, commands: Sequence[Command]) -> bytes | None:
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


def _proofs_of(secret: str, challenge: native.Challenge) -> IProofs:
    salt = "" if challenge.salt is UNSET else challenge.salt
    try:
        return own_proofs(secret, salt)
    except ValueError as error:
        raise RemoteProtocolError(
            f"the upstream sent a salt that cannot be used: {printable(str(error))}"
        ) from error


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
        greeting: Deferred[None] = Deferred.fromCoroutine(
            conversation.greet(
                uuid,
                name,
                Credentials.of(self.secret).secret,
                self.address(),
                registered=not self.settings.anonymous,
                keys=self.keys(),
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

    def build(self, name: str) -> ReplicationProtocol:
        """Make the protocol of a new connection; its owner is the conversation."""
        session = Session(
            CLIENT, NATIVE, name=name, seconds=self.clock.seconds, keepalive=self.settings.keepalive
        )
        return ReplicationProtocol(
            session,
            lambda connection: NativeConversation(connection, self.metrics),
            self.clock,
            self.metrics,
            logger=LimitedLogger(self._logger, self.clock),
        )
