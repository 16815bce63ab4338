"""The upstream's side of one replica's native connection: handshake, join, subscription, heartbeats."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import RemoteProtocolError
from synrepl.ports.access import LOCAL, REMOTE, Access, Key, access_of
from synrepl.ports.history import BEGINNING, AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.rights import command_operation, is_told, refusal
from synrepl.ports.time import Timer
from synrepl.replication.connection import Connection
from synrepl.replication.encoder import OPEN, BlockEncoder, facts_block
from synrepl.replication.feed import EphemeralMode, EphemeralStep, Feed, PageStep, Stop, read_page
from synrepl.replication.relay.handshake import (
    PRIMARY_SIDE,
    REPLICA_SIDE,
    Greetings,
    line_of_upstream,
    make_welcome,
    nonce,
    proof,
    proves,
    record_key,
    start_snapshot,
)
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.relay.snapshot_codec import meta_block, snapshot_block
from synrepl.replication.ring import RingGroup
from synrepl.streams.facts import encode_fact
from synrepl.wire import native
from synrepl.wire.blocks import encode_block
from synrepl.wire.commands import Error, Name, Ping
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import identity_error, printable

LEASE_ENDING: Final = frozenset({"trimmed", "ahead", "fork", "other_history"})
"""Codes of refusals of SUBSCRIBE that end the replica's lease: this log cannot continue its copy."""

MAX_DIGESTS: Final = 200
"""How many serials one DIGESTS may name: the response to more does not fit in a line."""


REQUESTS: Final = (native.Join, native.Subscribe, native.Digests)
"""Commands that wait while the transport has no room for their responses. HELLO and AUTH never wait: each is
valid once, and how the bytes after AUTH are read depends on its outcome."""


class RelayConnection(Connection, Protocol):
    """A connection to a replica. `logger` logs lines that the peer can cause."""

    logger: LimitedLogger

    @property
    def is_local(self) -> bool:
        """Whether the replica is on this machine."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is a TLS connection."""

    @property
    def certified_name(self) -> str | None:
        """The common name of the replica's TLS certificate; None without a certificate."""

    def received_line(self, command: type[Command]) -> bytes:
        """The line of the received command of the handshake, without its end."""

    def read_records(self, key: bytes) -> None:
        """Take all bytes after the line AUTH out of records with this key."""

    def write_records(self, key: bytes) -> None:
        """Put all bytes that are sent from now on into records with this key."""

    def close(self) -> None:
        """Close, once all written bytes are sent."""

    def authenticated(self) -> None:
        """Note that the replica has completed the handshake."""


class Relay:
    """Serves one replica.

    The log itself is the send buffer: facts are read from it, or from the ring of the newest facts, only when
    the connection has room, so that a slow replica costs little memory. While a request has to wait, for room
    or for digests, the connection is not read.
    """

    def __init__(self, registry: ReplicaRegistry, connection: RelayConnection) -> None:
        self.connection = connection
        self._logger = connection.logger
        self.uuid = ""
        self.name = ""
        self.state = "greeting"
        self.why = ""
        self.sent: LogPosition = BEGINNING
        self.acknowledged = 0
        self._registry = registry
        self._log = registry.log
        self._greeting = native.Hello(uuid="", name="", nonce="")
        self._greetings = Greetings(b"", b"")
        self._access = REMOTE
        self._key: Key | None = None
        self._filter = ALL
        self._encoder: BlockEncoder = OPEN
        self._feed: Feed
        self._is_paused = False
        self._room_waiter: Deferred[None] | None = None
        self._is_gone = False
        self._heartbeat_timer = Timer(registry.clock, self._tick)
        self._sent_peers: list[str] = []
        self._work: Any = None
        self._commands: deque[Command | RdataRun] = deque()
        """Commands that were received, and not processed yet."""
        self._is_processing = False
        self._forward_ack: native.Taken | None = None
        """The acknowledgement of forwarded commands, sent once all received commands are processed."""
        self._is_sending_digests = False
        self._has_paused_reading = False

    @property
    def is_known(self) -> bool:
        """Whether the handshake is complete, and the replica neither refused nor disconnected since."""
        return self.state not in ("greeting", "authenticating", "refused", "gone")

    @property
    def is_serving(self) -> bool:
        """Whether a copy or subscription was requested, and not refused, and the connection is up."""
        return self.state in ("snapshot", "meanwhile", "joined", "catching up", "live")

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
        if forward_ack is not None and not self._is_gone:
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
        if self._is_gone or self.state == "refused":
            return
        match command:
            case native.Hello():
                self._on_hello(command)
            case native.Auth():
                self._on_auth(command)
                if self.is_known:
                    self.connection.authenticated()
            case native.Join():
                self._must_be(command, "ready", "joined")
                self._start_work(self._join(command))
            case native.Subscribe():
                self._must_be(command, "ready", "joined")
                if command.check and command.check != native.subscribe_check(command):
                    raise RemoteProtocolError("corrupted SUBSCRIBE: its check does not match")
                self._start_work(self._subscribe(command))
            case native.Ack():
                self._on_ack(command)
            case native.Up():
                self._on_forwarded(command)
            case native.Digests():
                self._must_be(command, "ready", "joined")
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

    def resume(self) -> None:
        """Send again: the transport's buffer has room."""
        self._is_paused = False
        self._resume_processing()
        waiter, self._room_waiter = self._room_waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    def lost(self, why: str) -> None:
        """End all work: the connection has ended."""
        self._registry.detach(self)
        self._is_gone = True
        self._commands.clear()
        if self.state != "refused":
            self.state, self.why = "gone", why
        self._heartbeat_timer.stop()
        if self._work is not None:
            self._work.cancel()

    # -- handshake -----------------------------------------------------------------------------------------

    def _on_hello(self, greeting: native.Hello) -> None:
        self._must_be(greeting, "greeting")
        self.name = printable(greeting.listed_name)
        if greeting.version < 1 or not greeting.uuid or not greeting.nonce:
            self._refuse(native.refusal("version", "the handshake lacks a version, a uuid or a nonce"))
            return
        if why := identity_error(greeting.uuid, greeting.name, greeting.address):
            self._refuse(native.refusal("bad_name", why))
            return
        self._greeting = greeting
        self.uuid, self.name = greeting.uuid, greeting.listed_name
        self.state = "authenticating"
        challenge = native.Challenge(
            nonce=nonce(), proof=self._certificate_access is None and self._registry.keys.is_required
        )
        self._greetings = Greetings(
            hello=self.connection.received_line(native.Hello), challenge=line_of_upstream(challenge)
        )
        self.connection.send(challenge)

    @property
    def has_lost_key(self) -> bool:
        """Whether the keys have changed so that the replica must authenticate again."""
        keys, greeting = self._registry.keys, self._greeting
        if self._key is not None:
            return self._key != keys.for_name(greeting.name)
        return keys.is_required and self._access != self._certificate_access

    @property
    def _certificate_access(self) -> Access | None:
        name = self.connection.certified_name
        return None if name is None else self._registry.keys.access_by_certificate(name)

    def _on_auth(self, message: native.Auth) -> None:
        self._must_be(message, "authenticating")
        greeting, keys = self._greeting, self._registry.keys
        key = keys.for_name(greeting.name)
        secret = None if key is None else key.secret
        greetings = self._greetings
        if (access := self._certificate_access) is not None:
            self._access = access
        elif not keys.is_required:
            self._access = LOCAL if self.connection.is_local else REMOTE
        elif key is None:
            why = (
                f"there is no key {printable(greeting.name)} in keys_file of the upstream, or it was revoked"
            )
            self._refuse(native.refusal("no_rights", why))
            return
        elif not proves(message.proof, secret, REPLICA_SIDE, greetings):
            self._refuse(native.refusal("no_rights", "the proof is wrong: the upstream has another secret"))
            return
        else:
            self._access, self._key = access_of(key), key
        if why := refusal(self._access, command_operation(native.Auth)):
            self._refuse(native.refusal("no_rights", why))
            return
        # Here already: an authenticated connection counts as the presence of this uuid.
        refused = self._registry.owner_refusal(self.uuid, self._access, name=greeting.listed_name)
        if refused is not None:
            self._refuse(refused)
            return
        self.state = "ready"
        welcome = make_welcome(self._registry, self._access, proof="")
        if secret is not None:
            own_proof = proof(secret, PRIMARY_SIDE, greetings, line_of_upstream(welcome))
            welcome = msgspec.structs.replace(welcome, proof=own_proof)
        self.connection.send(welcome)
        if secret is not None and not self.connection.is_encrypted:
            self.connection.read_records(record_key(secret, REPLICA_SIDE, greetings))
            self.connection.write_records(record_key(secret, PRIMARY_SIDE, greetings))

    def _refuse(self, refused: native.Refused) -> None:
        self.state, self.why = "refused", f"{refused.code}: {refused.message}"
        self._logger.info("{name} is refused: {why}", name=self.name, why=self.why)
        self.connection.send(refused)
        self.connection.close()

    def _must_be(self, command: Command, *states: str) -> None:
        if self.state not in states:
            why = f"{command.NAME} is valid only in the state {' or '.join(states)}, not in {self.state}"
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
            if not self._is_gone:
                self.connection.fail("the log cannot be read now; try again later")
            if not getattr(error, "retryable", False):
                raise

    async def _send_digests(self, serials: Sequence[int]) -> None:
        try:
            if len(serials) > MAX_DIGESTS:
                why = f"DIGESTS names {len(serials)} serials; it may name {MAX_DIGESTS} at most"
                raise RemoteProtocolError(why)
            found: dict[str, str | None] = {}
            for serial in serials:
                found[str(serial)] = await self._log.digest_at(serial)
                if self._is_gone:
                    return
            self.connection.send(native.DigestsAre(found))
        finally:
            self._is_sending_digests = False
            self._resume_processing()

    # -- joining -------------------------------------------------------------------------------------------

    async def _join(self, request: native.Join) -> None:
        registry = self._registry
        refused = registry.join_refusal(self._greeting, request.filter, self._access, relay=self)
        if refused is not None:
            self._refuse(refused)
            return
        self.state = "snapshot"
        self._set_filter(request.filter)
        start = await start_snapshot(registry, self._greeting, request, self._access)
        if self._is_gone:
            return
        self.connection.send(start.joining)
        self._start_heartbeats()
        self.sent = start.at
        if start.snapshot is not None:
            if not await self._send_snapshot_facts(start.snapshot):
                self._refuse_trimmed()
                return
            self.connection.write(snapshot_block(start.snapshot))
            self.sent = start.snapshot.position
        self._make_feed(is_subscribed=False)
        self.state = "meanwhile"
        await self._send_log(upto_head=True)
        if not self.is_serving:
            return
        self.state = "joined"
        registry.leases.advance(self.uuid, self.sent.serial)
        self.connection.send(native.Joined(self.sent))

    async def _send_snapshot_facts(self, snapshot: LogSnapshot) -> bool:
        """Send the facts of a snapshot. False if some were trimmed, or the log was replaced, meanwhile."""
        feed = Feed(
            self._log,
            None,
            after=self.sent.serial,
            upto=snapshot.position.serial,
            filter=self._filter,
            compacted=True,
        )
        while isinstance(step := feed.next(), PageStep):
            await self._wait_for_room()
            page = await read_page(self._log, feed, step)
            if page is None or self._log.trimmed_upto != snapshot.trimmed_upto:
                return False
            self.connection.write(facts_block("facts", page.facts))
        return step is Stop.DONE

    def _refuse_trimmed(self) -> None:
        """Refuse a replica, as the log was trimmed or replaced while being sent: the rest may have gaps."""
        trimmed_upto = self._log.trimmed_upto.serial
        why = f"the log no longer has facts that the replica needs: it begins after serial {trimmed_upto}"
        self._refuse(native.refusal("trimmed", why, serial=trimmed_upto))

    # -- subscription --------------------------------------------------------------------------------------

    async def _subscribe(self, request: native.Subscribe) -> None:
        registry = self._registry
        self.state = "catching up"
        refused = await registry.admission(self._greeting, request, self._access, relay=self)
        if self._is_gone:
            return
        if refused is not None:
            # A replica that cannot be served keeps no lease.
            if refused.code in LEASE_ENDING and (lease := registry.leases[self.uuid]) is not None:
                registry.leases.end(lease, refused.code)
            self._refuse(refused)
            return
        registry.retain(self._greeting, request.position.serial, self._access)
        self._set_filter(request.filter)
        self.sent = request.position
        self.acknowledged = request.position.serial
        self._make_feed(is_subscribed=True)
        self.connection.send(native.Subscribed(position=self._log.position))
        self._start_heartbeats()
        self._send_heartbeat()
        for relay in registry.connected:
            relay.send_peers()
        await self._send_log(upto_head=False)

    def _on_ack(self, command: native.Ack) -> None:
        if self.state not in ("catching up", "live"):
            return
        if not self.acknowledged <= command.serial <= self.sent.serial:
            before, sent = self.acknowledged, self.sent.serial
            why = f"ACK of serial {command.serial}; valid are {before} (the last ACK) to {sent} (sent)"
            self._refuse(native.refusal("bad_ack", why))
            self._work.cancel()
            return
        self.acknowledged = command.serial
        self._registry.leases.advance(self.uuid, command.serial)

    def _on_forwarded(self, command: native.Up) -> None:
        if not self.is_known:
            raise RemoteProtocolError("UP is not valid before WELCOME")
        number, since = self._registry.publisher.command_receiver.receive(
            command.origin, [(command.number, command.line.encode())], source=self, access=self._access
        )
        self._forward_ack = native.Taken(origin=command.origin, number=number, since=since)

    # -- sending -------------------------------------------------------------------------------------------

    def _set_filter(self, query: Filter) -> None:
        self._filter = query
        self._encoder = OPEN if query.is_open else BlockEncoder(query)

    def _make_feed(self, *, is_subscribed: bool) -> None:
        sends_ephemeral = is_subscribed and self._supports("ephemeral")
        self._feed = Feed(
            self._log,
            self._registry.publisher.ring,
            after=self.sent.serial,
            epoch=self.sent.epoch,
            filter=self._filter,
            epochs=True,
            receipts=True,
            seen=self._access.streams,
            ephemeral=EphemeralMode.HELD if sends_ephemeral else EphemeralMode.NONE,
        )

    async def _send_log(self, *, upto_head: bool) -> None:
        """Send the facts after `sent`: up to the head of the log, or until the replica is gone."""
        while self.is_serving:
            if self._is_paused:
                await self._wait_for_room()
                self._feed.resumed()
            match self._feed.next():
                case RingGroup() as group:
                    await self._send_group(group)
                case PageStep() as step:
                    if (page := await read_page(self._log, self._feed, step)) is not None:
                        digest = self._feed.digest or await self._digest()
                        self._write_facts(facts_block("facts", page.facts), page.receipts, digest)
                case EpochStart() as epoch_start:
                    self.connection.write(meta_block([epoch_start]))
                    self._set_sent(epoch_start.digest)
                case EphemeralStep(facts):
                    self.state = "live"
                    # Sent even without facts: a writer that is not listed has restarted.
                    lines = [encode_fact(fact) for fact in facts]
                    self.connection.write(encode_block("held", len(lines), b"".join(lines)))
                case Stop.TRIMMED:
                    self._refuse_trimmed()
                case Stop.WAIT if not upto_head:
                    self.state = "live"
                    await self._registry.publisher.waiters.next_group(ephemeral=self._supports("ephemeral"))
                case _:
                    return

    async def _send_group(self, group: RingGroup) -> None:
        feed = self._feed
        data, last = feed.lines(group, self._encoder)
        receipts: Sequence[AppendReceipt] = ()
        if feed.needs_receipts:
            receipts = await self._log.receipts_between(feed.serial, last.serial, feed.seen)
        feed.sent(last)
        self._write_facts(data, receipts, feed.digest or await self._digest())

    async def _digest(self) -> str:
        return await self._log.digest_at(self._feed.serial) or ""

    def _write_facts(self, data: bytes, receipts: Sequence[AppendReceipt], digest: str) -> None:
        """Send facts, after the receipts of their appends. A filtered replica is also sent its position."""
        if self._is_gone:
            return
        has_moved = self._feed.serial > self.sent.serial
        self._set_sent(digest)
        if receipts:
            data = meta_block(receipts=receipts) + data
        if data:
            self.connection.write(data)
        if has_moved and not self._filter.is_open:
            self._send_heartbeat()

    def _set_sent(self, digest: str) -> None:
        self.sent = LogPosition(self._feed.epoch, self._feed.serial, digest)

    async def _wait_for_room(self) -> None:
        while self._is_paused and not self._is_gone:
            self._room_waiter = Deferred()
            await self._room_waiter

    # -- peers and commands --------------------------------------------------------------------------------

    def _supports(self, capability: str) -> bool:
        return capability in self._greeting.capabilities

    def send_peers(self) -> None:
        """Send a subscribed replica the addresses of others, if they changed and it supports `peers`."""
        if self.state in ("catching up", "live") and self._supports("peers"):
            peers = self._registry.peers(excluding=self.uuid)
            if peers != self._sent_peers:
                self._sent_peers = peers
                self.connection.send(native.Peers(addresses=peers))

    def send_down(self, command: type[Command], line: bytes) -> bool:
        """Send a command for all processes, if the replica has subscribed and supports that.

        False if there is no room: the replica misses the command, as a disconnected follower would.
        """
        if self.state not in ("catching up", "live") or not self._supports(native.COMMANDS):
            return True
        if not is_told(self._access.streams, command):
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
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        sent = self.sent
        at_ms = int(self._registry.clock.seconds() * 1000)
        head = self._log.serial
        check = native.heartbeat_check(sent.epoch, sent.serial, sent.digest, head, at_ms)
        self.connection.send(
            native.Heartbeat(
                epoch=sent.epoch, serial=sent.serial, digest=sent.digest, head=head, at_ms=at_ms, check=check
            )
        )
