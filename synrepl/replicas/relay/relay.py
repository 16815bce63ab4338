"""Relay: the upstream's side of one replica's native connection, from the handshake to its end."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import CancelledError

from synrepl.base.history import BEGINNING, LogSnapshot
from synrepl.base.rights import command_operation, is_told, missing_right
from synrepl.base.time import Timer
from synrepl.daemon.other_daemons import IChannelDownlink
from synrepl.errors import RemoteProtocolError, StorageError
from synrepl.replicas.issued_keys import keys_block
from synrepl.replicas.relay.authenticator import Authenticator, make_welcome
from synrepl.replicas.relay.block_encoder import OPEN, BlockEncoder
from synrepl.replicas.relay.interfaces import RelayConnection
from synrepl.replicas.relay.relay_states import TRANSITIONS, RelayEvent, RelayState
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.relay.snapshot_codec import snapshot_block
from synrepl.replicas.relay.snapshot_start import start_snapshot
from synrepl.replicas.wire import native
from synrepl.replicas.wire.blocks import MAX_BLOCK, encode_block
from synrepl.replication.connection import ConnectionOwner
from synrepl.replication.machine import Machine, states_of
from synrepl.replication.serving.feed import EphemeralMode, Feed, Stop
from synrepl.replication.serving.log_waiters import Interest
from synrepl.replication.serving.sender import Sender
from synrepl.wire.commands import Error, Name, Ping
from synrepl.wire.filter import ALL
from synrepl.wire.grammar import Command
from synrepl.wire.position import LogPosition
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

LEASE_ENDING: Final = frozenset({"trimmed", "ahead", "fork", "other_history"})
"""Codes of refusals of SUBSCRIBE that end the replica's lease: this log cannot continue its copy."""

MAX_DIGESTS: Final = 200
"""How many serials one DIGESTS may name: the response to more does not fit in a line."""

REQUESTS: Final = (native.Join, native.Subscribe, native.Digests)
"""Commands that wait while the transport has no space for their responses."""


class Relay(ConnectionOwner):
    """Serves one replica. `relay_states.py` says what is possible when.

    The log itself is the send buffer: a `Sender` reads from it, or from the ring of the newest facts, only
    when the connection has space, so that a slow replica costs little memory. While a request has to wait,
    for space or for digests, the connection is not read.
    """

    def __init__(self, registry: ReplicaRegistry, connection: RelayConnection) -> None:
        self.connection = connection
        self.uuid = ""
        self.name = ""
        self.why = ""
        self.acknowledged = 0
        self._logger = connection.logger
        self._registry = registry
        self._log = registry.log
        self._machine = Machine("relay", TRANSITIONS, RelayState.GREETING)
        self._authenticator = Authenticator(registry, connection)
        self._filter = ALL
        self._at: LogPosition = BEGINNING
        """The position from which the log is sent, as long as it is not."""
        self._sender: Sender | None = None
        self._log_sender: Sender | None = None
        """The sender of what is in the log, not of a snapshot."""
        self._beat_serial = 0
        self._is_paused = False
        self._heartbeat_timer = Timer(registry.clock, self._tick)
        self._sent_peers: list[str] = []
        self._sent_linked: bool | None = None
        self._work: Any = None
        self._commands: deque[Command | RdataRun] = deque()
        """Commands that were received, and not processed yet."""
        self._is_processing = False
        self._forward_ack: native.Taken | None = None
        """The acknowledgement of forwarded commands, sent once all received commands are processed."""
        self._is_sending_digests = False
        self._has_paused_reading = False
        self._downlink: IChannelDownlink | None = None
        """What the replica's served channel is here, once it has asked for this one."""

    @property
    def state(self) -> RelayState:
        """What the relay does."""
        return self._machine.state

    @property
    def is_known(self) -> bool:
        """Whether the handshake is complete, and the replica neither refused nor disconnected since."""
        return self._machine.accepts(native.Up)

    @property
    def is_serving(self) -> bool:
        """Whether a copy or subscription was requested, and not refused, and the connection is up."""
        return self.is_known and self.state is not RelayState.READY

    @property
    def is_subscribed(self) -> bool:
        """Whether the replica has subscribed, and is still connected."""
        return self._machine.accepts(native.Ack)

    @property
    def is_whole_copy(self) -> bool:
        """Whether the replica copies all streams and writers."""
        return self._filter.is_open

    def holds(self, stream: str, writer: str) -> bool:
        """Whether the replica copies this writer's facts of this stream."""
        return self._filter.passes(stream, writer)

    @property
    def sent(self) -> LogPosition:
        """Everything selected up to this position was sent."""
        if self._log_sender is None:
            return self._at
        at = self._log_sender.position
        return LogPosition(at.epoch, at.serial, at.digest or "")

    # -- events of the connection --------------------------------------------------------------------------

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Process commands, or queue those that must wait. Raises RemoteProtocolError on an invalid one."""
        self._commands.extend(commands)
        self._process_commands()

    def _process_commands(self) -> None:
        if self._is_processing:
            return
        self._is_processing = True
        try:
            while self._commands and not self._must_wait(self._commands[0]):
                self._process(self._commands.popleft())
        except RemoteProtocolError:
            self._commands.clear()
            raise
        finally:
            self._is_processing = False
        forward_ack, self._forward_ack = self._forward_ack, None
        if forward_ack is not None and self.is_known:
            self.connection.send(forward_ack)
        if bool(self._commands) is not self._has_paused_reading:
            self._has_paused_reading = not self._has_paused_reading
            if self._has_paused_reading:
                self.connection.pause_reading()
            else:
                self.connection.resume_reading()

    def _resume_processing(self) -> None:
        if self._commands:
            try:
                self._process_commands()
            except RemoteProtocolError as error:
                self.connection.fail(error.why)

    def _must_wait(self, command: Command | RdataRun) -> bool:
        return self._is_sending_digests or (self._is_paused and isinstance(command, REQUESTS))

    def _process(self, command: Command | RdataRun) -> None:
        if self.state in (RelayState.REFUSED, RelayState.GONE):
            return
        match command:
            case native.Hello():
                self._greet(command)
            case native.Join():
                self._must_accept(command)
                self._start_work(self._join(command))
            case native.Subscribe():
                self._must_accept(command)
                if command.check and command.check != native.subscribe_check(command):
                    raise RemoteProtocolError("corrupted SUBSCRIBE: its check does not match")
                self._start_work(self._subscribe(command))
            case native.Ack():
                self._on_ack(command)
            case native.Up():
                self._on_forwarded(command)
            case native.Channel() | native.Publish() | native.PublishTo() | native.PublisherLost():
                self._must_accept(command)
                self._machine.move(type(command))
                self._on_channel(command)
            case native.Digests():
                self._must_accept(command)
                self._machine.move(native.Digests)
                self._is_sending_digests = True
                self._registry.tasks.start(
                    self._guarded(self._send_digests(command.serials)), "sending digests"
                )
            case Name() | Ping() | Error():
                pass  # handled by the session
            case _:
                name = type(command).__name__
                raise RemoteProtocolError(
                    f"{name} is not a command of replicas; only replicas are served here"
                )

    def pause(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self._is_paused = True
        if self._sender is not None:
            self._sender.pause()
        if self._downlink is not None:
            self._downlink.pause()

    def resume(self) -> None:
        """Send again: the transport's buffer has room."""
        self._is_paused = False
        self._resume_processing()
        if self._downlink is not None:
            self._downlink.resume()
        if self._sender is not None:
            self._sender.resume()

    def closed(self, why: str) -> None:
        """End all work: the connection has ended."""
        self._registry.detach(self)
        self._commands.clear()
        if self.state is not RelayState.REFUSED:
            self.why = why
        self._machine.move(RelayEvent.LOST, None if self.state is RelayState.REFUSED else RelayState.GONE)
        self._heartbeat_timer.stop()
        if self._downlink is not None:
            self._downlink.stop()
            self._downlink = None
        if self._work is not None:
            self._work.cancel()

    # -- handshake -----------------------------------------------------------------------------------------

    def _greet(self, greeting: native.Hello) -> None:
        self._must_accept(greeting)
        self.name = printable(greeting.listed_name)
        if (refused := self._authenticator.admit(greeting)) is not None:
            self._refuse(refused)
            return
        self.uuid, self.name = greeting.uuid, greeting.listed_name
        self._machine.move(native.Hello, RelayState.READY)
        self.connection.send(make_welcome(self._registry, self._authenticator.access))
        self.connection.authenticated()

    @property
    def has_lost_key(self) -> bool:
        """Whether the keys have changed so that the replica must authenticate again."""
        return self._authenticator.has_lost_key

    def _refuse(self, refused: native.Refused) -> None:
        self._machine.move(RelayEvent.REFUSE, RelayState.REFUSED)
        self.why = f"{refused.code}: {refused.message}"
        self._logger.info("{name} is refused: {why}", name=self.name, why=self.why)
        self.connection.send(refused)
        self.connection.close()

    def _must_accept(self, command: Command) -> None:
        """Raises `RemoteProtocolError` unless the command is possible now."""
        if not self._machine.accepts(type(command)):
            states = " or ".join(states_of(TRANSITIONS, type(command)))
            why = f"{command.NAME} is valid only in the state {states}, not in {self.state}"
            raise RemoteProtocolError(why)

    def _start_work(self, work: Any) -> None:
        self._work = self._registry.tasks.start(self._guarded(work), f"relaying to {self.name}")

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except CancelledError:
            raise
        except RemoteProtocolError as error:
            self.connection.fail(error.why)
        except Exception as error:
            if self.state is not RelayState.GONE:
                self.connection.fail("the log cannot be read now; try again later")
            # The log says itself why it cannot be read.
            if not isinstance(error, StorageError) and not getattr(error, "retryable", False):
                raise

    async def _send_digests(self, serials: Sequence[int]) -> None:
        try:
            if len(serials) > MAX_DIGESTS:
                why = f"DIGESTS names {len(serials)} serials; it may name {MAX_DIGESTS} at most"
                raise RemoteProtocolError(why)
            found: dict[str, str | None] = {}
            for serial in serials:
                found[str(serial)] = await self._log.reads.digest(serial)
                if self.state is RelayState.GONE:
                    return
            self.connection.send(native.DigestsAre(found))
        finally:
            self._is_sending_digests = False
            self._resume_processing()

    # -- joining -------------------------------------------------------------------------------------------

    async def _join(self, request: native.Join) -> None:
        registry, replica, access = self._registry, self._authenticator.greeting, self._authenticator.access
        refused = registry.join_refusal(replica, request.filter, access, relay=self)
        if refused is not None:
            self._refuse(refused)
            return
        self._machine.move(native.Join, RelayState.SNAPSHOT)
        self._filter = request.filter
        start = await start_snapshot(registry, replica, request, access)
        if self.state is RelayState.GONE:
            return
        self._log_sender, self._at = None, start.at
        self.connection.send(start.joining)
        self._start_heartbeats()
        if start.snapshot is not None:
            if not await self._send_snapshot_facts(start.snapshot):
                self._refuse_trimmed()
                return
            self.connection.write(snapshot_block(start.snapshot))
            self._at = start.snapshot.position
        self._machine.move(RelayEvent.SNAPSHOT_SENT, RelayState.MEANWHILE)
        if await self._send_log(EphemeralMode.NONE, on_head=lambda: False):
            self._machine.move(RelayEvent.AT_HEAD, RelayState.JOINED)
            registry.leases.advance(self.uuid, self.sent.serial)
            self.connection.send(native.Joined(self.sent))

    async def _send_snapshot_facts(self, snapshot: LogSnapshot) -> bool:
        """Send the facts of a snapshot. False if some were trimmed, or the log was replaced, meanwhile."""
        log = self._log

        def stop_if_trimmed() -> None:
            if log.head.trimmed_upto != snapshot.trimmed_upto:
                sender.finish()

        feed = Feed(
            log,
            None,
            after=self._at.serial,
            upto=snapshot.position.serial,
            filter=self._filter,
            compacted=True,
        )
        sender = Sender(
            log, feed, self._encoder, self.connection, on_sent=stop_if_trimmed, on_head=lambda: False
        )
        return await self._run(sender) is Stop.DONE

    def _refuse_trimmed(self) -> None:
        """Refuse a replica, as the log was trimmed or replaced while being sent: the rest may have gaps."""
        trimmed_upto = self._log.head.trimmed_upto.serial
        why = f"the log no longer has facts that the replica needs: it begins after serial {trimmed_upto}"
        self._refuse(native.refusal("trimmed", why, serial=trimmed_upto))

    # -- subscription --------------------------------------------------------------------------------------

    async def _subscribe(self, request: native.Subscribe) -> None:
        registry, replica, access = self._registry, self._authenticator.greeting, self._authenticator.access
        self._machine.move(native.Subscribe, RelayState.ADMITTING)
        self._log_sender, self._at = None, request.position
        refused = await registry.subscription_refusal(replica, request, access, relay=self)
        if self.state is RelayState.GONE:
            return
        if refused is not None:
            # A replica that cannot be served keeps no lease.
            is_over = refused.code in LEASE_ENDING and not refused.retryable
            if is_over and (lease := registry.leases[self.uuid]) is not None:
                registry.leases.end(lease, refused.code)
            self._refuse(refused)
            return
        await registry.retain(replica, request.position.serial, access)
        if not self._machine.accepts(RelayEvent.ADMIT):
            return
        self._machine.move(RelayEvent.ADMIT, RelayState.CATCHING_UP)
        self._filter = request.filter
        self.acknowledged = request.position.serial
        self.connection.send(native.Subscribed(position=self._log.position))
        self._start_heartbeats()
        self._send_linked()
        self._send_heartbeat()
        for relay in registry.connected:
            relay.send_peers()
        if registry.issued.digest != replica.keys:
            self.send_keys(keys_block(registry.issued.all))
        held = EphemeralMode.HELD if self._supports("ephemeral") else EphemeralMode.NONE
        await self._send_log(held, on_head=self._reach_head)

    def _on_ack(self, command: native.Ack) -> None:
        if not self.is_subscribed:
            return
        self._machine.move(native.Ack)
        if not self.acknowledged <= command.serial <= self.sent.serial:
            before, sent = self.acknowledged, self.sent.serial
            why = f"ACK of serial {command.serial}; valid are {before} (the last ACK) to {sent} (sent)"
            self._refuse(native.refusal("bad_ack", why))
            self._work.cancel()
            return
        self.acknowledged = command.serial
        self._registry.leases.advance(self.uuid, command.serial)
        self._registry.acknowledgements.advanced()

    def _on_forwarded(self, command: native.Up) -> None:
        if not self.is_known:
            raise RemoteProtocolError("UP is not valid before WELCOME")
        self._machine.move(native.Up)
        number, since = self._registry.command_receiver.receive(
            command.origin,
            [(command.number, command.line.encode())],
            source=self,
            access=self._authenticator.access,
        )
        self._forward_ack = native.Taken(origin=command.origin, number=number, since=since)

    def _on_channel(
        self, command: native.Channel | native.Publish | native.PublishTo | native.PublisherLost
    ) -> None:
        access = self._authenticator.access
        if why := missing_right(access, command_operation(type(command))):
            raise RemoteProtocolError(why)
        if isinstance(command, native.Channel):
            downlink = None
            if self._downlink is None:
                downlink = self._registry.channel().downlink(
                    self._send_messages, most=MAX_BLOCK, name=self.name, access=access, logger=self._logger
                )
            if downlink is None:
                raise RemoteProtocolError("this daemon passes no channel, or does so already")
            self._downlink = downlink
            downlink.start(is_full=self._is_paused)
        elif self._downlink is None:
            raise RemoteProtocolError(f"{command.NAME} is valid only after CHANNEL")
        elif isinstance(command, native.PublisherLost):
            self._downlink.publisher_lost(command.publisher)
        else:
            channel = command.channel if isinstance(command, native.PublishTo) else ""
            self._downlink.published(command.publisher, channel, command.line)

    def _send_messages(self, data: bytes) -> None:
        self.connection.write(encode_block("channel", 0, data))

    # -- sending -------------------------------------------------------------------------------------------

    @property
    def _encoder(self) -> BlockEncoder:
        return OPEN if self._filter.is_open else BlockEncoder(self._filter)

    async def _send_log(self, ephemeral: EphemeralMode, *, on_head: Callable[[], bool]) -> bool:
        """Send what follows the replica's position, until `on_head` ends it. False if that cannot be done."""
        publisher = self._registry.publisher
        feed = Feed(
            self._log,
            publisher.ring,
            after=self._at.serial,
            epoch=self._at.epoch,
            filter=self._filter,
            epochs=True,
            receipts=True,
            seen=self._authenticator.access.streams,
            ephemeral=ephemeral,
        )
        sender = Sender(
            self._log,
            feed,
            self._encoder,
            self.connection,
            waiters=publisher.waiters,
            # A filtered replica is also sent its position.
            interest=Interest(ephemeral=ephemeral is not EphemeralMode.NONE),
            on_sent=self._on_sent,
            on_head=on_head,
            needs_digests=True,
            digest=self._at.digest,
        )
        self._log_sender = sender
        stop = await self._run(sender)
        if stop is Stop.TRIMMED:
            self._refuse_trimmed()
        return stop is Stop.WAIT

    async def _run(self, sender: Sender) -> Stop:
        self._sender = sender
        if self._is_paused:
            sender.pause()
        return await sender.run()

    def _on_sent(self) -> None:
        assert self._log_sender is not None
        assert self._log_sender.feed is not None
        if self.is_subscribed and self._log_sender.feed.cursor.is_live:
            self._reach_head()
        if not self._filter.is_open and self.sent.serial > self._beat_serial:
            self._send_heartbeat()

    def _reach_head(self) -> bool:
        self._machine.move(RelayEvent.AT_HEAD, RelayState.LIVE)
        return True

    # -- peers and commands --------------------------------------------------------------------------------

    def _supports(self, capability: str) -> bool:
        return capability in self._authenticator.greeting.capabilities

    def send_peers(self) -> None:
        """Send a subscribed replica the addresses of others, if they changed and it supports `peers`."""
        if self.is_subscribed and self._supports("peers"):
            peers = self._registry.peers(excluding=self.uuid)
            if peers != self._sent_peers:
                self._sent_peers = peers
                self.connection.send(native.Peers(addresses=peers))

    def send_keys(self, block: bytes) -> None:
        """Send a subscribed replica this block with all issued keys, if it supports that."""
        if self.is_subscribed and self._supports(native.KEYS):
            self.connection.write(block)

    def send_down(self, command: type[Command], line: bytes) -> bool:
        """Send a command for all processes, if the replica has subscribed and supports that.

        False if there is no space: the replica misses the command, as a disconnected follower would.
        """
        if not self.is_subscribed or not self._supports(native.COMMANDS):
            return True
        if not is_told(self._authenticator.access.streams, command):
            return True
        if self._is_paused:
            return False
        self.connection.send(native.Down(line=line.decode()))
        return True

    # -- heartbeats ----------------------------------------------------------------------------------------

    def _start_heartbeats(self) -> None:
        self._heartbeat_timer.start(self._registry.settings.heartbeat_seconds)

    def _tick(self) -> None:
        self._start_heartbeats()
        # A full transport has data to send, which shows liveness as well.
        if self.is_serving and not self._is_paused:
            self._send_linked()
            self._send_heartbeat()

    def _send_linked(self) -> None:
        """Send a subscribed replica whether the primary is reached, if that changed and it supports that."""
        is_linked = self._registry.roles.is_linked
        if self.is_subscribed and self._supports(native.LINKED) and is_linked is not self._sent_linked:
            self._sent_linked = is_linked
            self.connection.send(native.Linked(int(is_linked)))

    def _send_heartbeat(self) -> None:
        sent = self.sent
        self._beat_serial = sent.serial
        at_ms = int(self._registry.clock.seconds() * 1000)
        head = self._log.head.serial
        check = native.heartbeat_check(sent.epoch, sent.serial, sent.digest, head, at_ms)
        self.connection.send(
            native.Heartbeat(
                epoch=sent.epoch, serial=sent.serial, digest=sent.digest, head=head, at_ms=at_ms, check=check
            )
        )


def attach(registry: ReplicaRegistry, connection: RelayConnection) -> Relay:
    """Make the relay of a new connection."""
    relay = Relay(registry, connection)
    registry.connected.append(relay)
    return relay
