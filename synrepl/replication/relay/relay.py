"""One replica's connection: what it asks for, and what it is sent, at the speed at which it takes it."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import RemoteProtocolError
from synrepl.ports.access import LOCAL, REMOTE, Access, Key, Right, access_of
from synrepl.ports.history import BEGINNING, EpochStart, LogPosition, LogSnapshot
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.replication.relay.fact_blocks import KEPT, BlockEncoder, facts_block
from synrepl.replication.relay.interfaces import IReplicaRegistry
from synrepl.replication.relay.proof import PRIMARY, REPLICA, nonce, proof, proves
from synrepl.replication.relay.refusals import refusal
from synrepl.replication.relay.snapshot_codec import meta_block, snapshot_block
from synrepl.replication.relay.snapshot_start import WelcomeBuilder, copy_begins
from synrepl.replication.wire_positions import said_place, standing
from synrepl.streams.facts import Fact
from synrepl.streams.ndjson import encode_fact
from synrepl.wire.blocks import block
from synrepl.wire.commands import Error, Name, Ping
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import Command
from synrepl.wire.native import (
    COMMANDS,
    Ack,
    Auth,
    Challenge,
    ChallengeBody,
    Digests,
    DigestsAre,
    DigestsBody,
    Down,
    Greeting,
    Heartbeat,
    Hello,
    Join,
    Joined,
    JoinedBody,
    Joining,
    JoiningBody,
    JoinRequest,
    Natural64,
    Peers,
    Proof,
    Refusal,
    Refused,
    Subscribe,
    Subscribed,
    Subscription,
    Taken,
    Up,
    Welcome,
    decode_body,
    encode_body,
    heartbeat_check,
)
from synrepl.wire.peer_names import identity_error
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

__all__ = ["Relay", "RelayConnection"]

PAGE_ROWS: Final = 1_000
"""Rows read from the log at a time: a quarter of a megabyte at most, beside one large fact."""

USELESS: Final = frozenset({"trimmed", "ahead", "fork", "other_history"})
"""Refusals after which a replica joins anew, so that what is kept from where it stood helps nobody."""

MAX_DIGESTS: Final = 200
"""Digests asked for at once; more do not fit in a line."""


ANSWERED: Final = (Hello, Auth, Join, Subscribe, Digests)
"""Commands that are answered: while the transport has no room for the answer, they wait."""


class RelayConnection(Protocol):
    """What a relay needs of its connection. `logger` is for lines that the peer causes."""

    logger: LimitedLogger

    @property
    def is_local(self) -> bool:
        """Whether the replica is on this machine."""

    @property
    def certified_name(self) -> str | None:
        """The common name of the replica's TLS certificate; None if it showed none."""

    def write(self, data: bytes) -> None:
        """Send these bytes. May call back `Relay.pause` before it returns."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""

    def close(self) -> None:
        """Close, once what was written is sent."""

    def authenticated(self) -> None:
        """The replica has said who it is, and proved it."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now."""

    def resume_reading(self) -> None:
        """Go on."""


class Relay:
    """The primary's side of one replica.

    The log itself is the buffer: what is sent is read from it, or from the ring of the newest facts, just
    when the connection has room, so that a slow replica costs no memory. What it asks for is answered one by
    one: while an answer has to wait, the connection is not read.
    """

    def __init__(self, relays: IReplicaRegistry, connection: RelayConnection) -> None:
        self.connection = connection
        self._logger = connection.logger
        self.uuid = ""
        self.name = ""
        self.state = "greeting"
        self.why = ""
        self.sent: LogPosition = BEGINNING
        self.acknowledged = 0
        self._relays = relays
        self._log = relays.log
        self._greeting: Greeting | None = None
        self._nonce = nonce()
        self._access = REMOTE
        self._key: Key | None = None
        self._filter = ALL
        self._encoder: BlockEncoder = KEPT
        self._turns_told = 0
        self._paused = False
        self._room: Deferred[None] | None = None
        self._gone = False
        self._beat_timer: Any = None
        self._is_ephemeral_stale = False
        self._peers_told: list[str] = []
        self._work: Any = None
        self._commands: deque[Command | RdataRun] = deque()
        """Received, and not taken yet."""
        self._is_taking = False
        self._taken: Taken | None = None
        """What to say of forwarded commands once all that was received is taken."""
        self._is_telling_digests = False
        self._has_stopped_reading = False

    @property
    def is_known(self) -> bool:
        """Whether it has proved who it is."""
        return self.state not in ("greeting", "authenticating", "refused", "gone")

    @property
    def is_serving(self) -> bool:
        """Whether anything is being sent to it."""
        return self.state in ("snapshot", "meanwhile", "joined", "catching up", "live")

    # -- what the connection says --------------------------------------------------------------------------

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """The replica sent these. Raises RemoteProtocolError at what makes no sense."""
        self._commands.extend(commands)
        self._take_commands()

    def _take_commands(self) -> None:
        """Take what was received, up to the first command that has to wait; while it waits, read no more.
        Raises RemoteProtocolError."""
        if self._is_taking:
            return
        self._is_taking = True
        try:
            while self._commands and not self._must_wait(self._commands[0]):
                self._take(self._commands.popleft())
        except RemoteProtocolError:
            self._commands.clear()
            raise
        finally:
            self._is_taking = False
        taken, self._taken = self._taken, None
        if taken is not None and not self._gone:
            self.connection.send(taken)
        if bool(self._commands) is not self._has_stopped_reading:
            self._has_stopped_reading = not self._has_stopped_reading
            if self._has_stopped_reading:
                self.connection.pause_reading()
            else:
                self.connection.resume_reading()

    def _go_on(self) -> None:
        """Take what had to wait."""
        if self._commands:
            try:
                self._take_commands()
            except RemoteProtocolError as error:
                self.connection.fail(error.why)

    def _must_wait(self, command: Command | RdataRun) -> bool:
        return self._is_telling_digests or (self._paused and isinstance(command, ANSWERED))

    def _take(self, command: Command | RdataRun) -> None:
        """Do what the replica asks for. Raises RemoteProtocolError."""
        if self._gone or self.state == "refused":
            return
        match command:
            case Hello():
                self._hello(decode_body(Greeting, command.body))
            case Auth():
                self._auth(decode_body(Proof, command.body))
                if self.is_known:
                    self.connection.authenticated()
            case Join():
                self._begin(self._join(decode_body(JoinRequest, command.body)), "ready", "joined")
            case Subscribe():
                self._begin(self._subscribe(decode_body(Subscription, command.body)), "ready", "joined")
            case Ack():
                self._ack(command)
            case Up():
                self._forwarded(command)
            case Digests():
                self._must_be("ready", "joined")
                asked = decode_body(AskedSerials, b'{"serials":%b}' % command.body).serials
                self._is_telling_digests = True
                self._relays.tasks.start(self._guarded(self._tell_digests(asked)), "telling digests")
            case Name() | Ping() | Error():
                pass  # these concern the session
            case _:
                said = type(command).__name__
                raise RemoteProtocolError(f"{said} is not said by replicas, and only these are served here")

    def pause(self) -> None:
        """The transport has enough for now."""
        self._paused = True

    def resume(self) -> None:
        """The transport can take more."""
        self._paused = False
        self._go_on()
        room, self._room = self._room, None
        if room is not None and not room.called:
            room.callback(None)
        if self._is_ephemeral_stale and self.state == "live":
            self._relays.wake_soon()

    def lost(self, why: str) -> None:
        """The connection has ended."""
        self._relays.detach(self)
        self._gone = True
        self._commands.clear()
        if self.state != "refused":
            self.state, self.why = "gone", why
        if self._beat_timer is not None and self._beat_timer.active():
            self._beat_timer.cancel()
        if self._work is not None:
            self._work.cancel()

    # -- who it is -----------------------------------------------------------------------------------------

    def _hello(self, greeting: Greeting) -> None:
        self._must_be("greeting")
        self.name = printable(greeting.name or greeting.uuid)
        if greeting.version < 1 or not greeting.uuid or not greeting.nonce:
            self._refuse(refusal("version", "it does not say who it is as daemons do"))
            return
        if why := identity_error(greeting.uuid, greeting.name, greeting.address):
            self._refuse(refusal("bad_name", why))
            return
        self._greeting = greeting
        self.uuid, self.name = greeting.uuid, greeting.name or greeting.uuid
        self.state = "authenticating"
        known = ChallengeBody(
            nonce=self._nonce, proof=self._certified is None and self._relays.keys.are_wanted
        )
        self.connection.send(Challenge(body=encode_body(known)))

    @property
    def has_lost_key(self) -> bool:
        """Whether the key that it proved to have is not the one that is wanted now."""
        keys, greeting = self._relays.keys, self._greeting
        if self._key is not None and greeting is not None:
            return self._key != keys.of(greeting.name)
        return keys.are_wanted and self._access != self._certified

    @property
    def _certified(self) -> Access | None:
        """What the replica's TLS certificate lets it do; None if it must prove a secret."""
        name = self.connection.certified_name
        return None if name is None else self._relays.keys.certified(name)

    def _auth(self, shown: Proof) -> None:
        self._must_be("authenticating")
        greeting, keys = self._greeting, self._relays.keys
        assert greeting is not None
        key = keys.of(greeting.name)
        secret = None if key is None else key.secret
        nonces = (self._nonce, greeting.nonce)
        if (certified := self._certified) is not None:
            self._access = certified
        elif not keys.are_wanted:
            self._access = LOCAL if self.connection.is_local else REMOTE
        elif key is None:
            why = f"there is no key {printable(greeting.name)} here, or it was revoked"
            self._refuse(refusal("no_rights", why))
            return
        elif not proves(shown.proof, secret, REPLICA, nonces, greeting.uuid, greeting.name):
            self._refuse(refusal("no_rights", "the proof does not fit: the secret is another one here"))
            return
        else:
            self._access, self._key = access_of(key), key
        if why := self._access.lacks(Right.REPLICATE):
            self._refuse(refusal("no_rights", why))
            return
        self.state = "ready"
        mine = proof(secret, PRIMARY, nonces, greeting.uuid, greeting.name) if secret is not None else ""
        welcome = WelcomeBuilder(self._relays).welcome(proof=mine)
        self.connection.send(Welcome(body=encode_body(welcome)))

    def _refuse(self, refused: Refusal) -> None:
        self.state, self.why = "refused", f"{refused.code}: {refused.message}"
        self._logger.info("{name} is refused: {why}", name=self.name, why=self.why)
        self.connection.send(Refused(body=encode_body(refused)))
        self.connection.close()

    def _must_be(self, *states: str) -> None:
        if self.state not in states:
            raise RemoteProtocolError(f"that is not said in the state {self.state!r}")

    def _begin(self, work: Any, *states: str) -> None:
        try:
            self._must_be(*states)
        except RemoteProtocolError:
            work.close()
            raise
        self._work = self._relays.tasks.start(self._guarded(work), f"relaying to {self.name}")

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except CancelledError:
            raise
        except RemoteProtocolError as error:
            self.connection.fail(error.why)
        except Exception as error:
            if not self._gone:
                self.connection.fail("the log cannot be read just now; come again")
            if not getattr(error, "retryable", False):
                raise

    async def _tell_digests(self, serials: Sequence[int]) -> None:
        try:
            if len(serials) > MAX_DIGESTS:
                raise RemoteProtocolError(f"up to {MAX_DIGESTS} digests are told at once")
            found: dict[str, str | None] = {}
            for serial in serials:
                found[str(serial)] = await self._log.digest_at(serial)
                if self._gone:
                    return
            self.connection.send(DigestsAre(body=encode_body(DigestsBody(found))))
        finally:
            self._is_telling_digests = False
            self._go_on()

    # -- joining -------------------------------------------------------------------------------------------

    async def _join(self, asked: JoinRequest) -> None:
        greeting, relays, log = self._greeting, self._relays, self._log
        assert greeting is not None
        refused = relays.refuses_join(
            self.uuid, self.name, asked.filter, self._access, registered=greeting.registered
        )
        if refused is None and (other := relays.duplicate_of(self)) is not None:
            refused = refusal("duplicate", f"{self.name} is connected already, and {other.state}")
        if refused is not None:
            self._refuse(refused)
            return
        self.state = "snapshot"
        self._use(asked.filter)
        begins = await copy_begins(
            relays,
            self.uuid,
            self.name,
            asked,
            registered=greeting.registered,
            address=greeting.address,
        )
        if self._gone:
            return
        told = JoiningBody(
            join=begins.join,
            history=log.history,
            position=standing(begins.of),
            trimmed_upto=standing(begins.trimmed_upto),
            after=begins.at.serial,
            resumed=begins.resumed,
        )
        self.connection.send(Joining(body=encode_body(told)))
        self._start_beating()
        self.sent = begins.at
        if begins.snapshot is not None:
            if not await self._send_snapshot_facts(begins.snapshot):
                self._refuse_trimmed()
                return
            self.connection.write(snapshot_block(begins.snapshot))
            self.sent = begins.snapshot.position
        self._turns_told = self.sent.epoch
        self.state = "meanwhile"
        await self._feed(upto_head=True)
        if not self.is_serving:
            return
        self.state = "joined"
        relays.leases.moved(self.uuid, self.sent.serial)
        self.connection.send(Joined(body=encode_body(JoinedBody(standing(self.sent)))))

    async def _send_snapshot_facts(self, snapshot: LogSnapshot) -> bool:
        """Whether all of them are sent: none was trimmed meanwhile."""
        after, upto = self.sent.serial, snapshot.position.serial
        while after < upto:
            await self._has_room()
            facts, after = await self._log.read(
                after=after,
                upto=upto,
                limit=PAGE_ROWS,
                filter=self._filter,
            )
            if self._log.trimmed_upto != snapshot.trimmed_upto:
                return False
            self.connection.write(facts_block("facts", facts))
        return True

    def _refuse_trimmed(self) -> None:
        """Its lease ended while it was served, so that what is read now may have holes."""
        trimmed_upto = self._log.trimmed_upto.serial
        why = f"its lease has ended, and this log begins after {trimmed_upto} now"
        self._refuse(refusal("trimmed", why, serial=trimmed_upto))

    # -- subscribed ----------------------------------------------------------------------------------------

    async def _subscribe(self, asked: Subscription) -> None:
        greeting, relays, log = self._greeting, self._relays, self._log
        assert greeting is not None
        self.state = "catching up"
        refused = await relays.judge(
            self.uuid,
            self.name,
            asked,
            self._access,
            registered=greeting.registered,
            address=greeting.address,
        )
        if refused is None and (other := relays.duplicate_of(self)) is not None:
            refused = refusal("duplicate", f"{self.name} is connected already, and {other.state}")
        if self._gone:
            return
        if refused is not None:
            # Nothing is kept for one who cannot be served.
            if refused.code in USELESS and (lease := relays.leases[self.uuid]) is not None:
                relays.leases.end(lease, refused.code)
            self._refuse(refused)
            return
        relays.leases.make(
            self.uuid,
            self.name,
            registered=greeting.registered,
            serial=asked.position.serial,
            address=greeting.address,
        )
        self._use(asked.filter)
        self.sent = said_place(asked.position)
        self.acknowledged = asked.position.serial
        self._turns_told = asked.position.epoch
        self.connection.send(Subscribed(body=encode_body(standing(log.position))))
        self._start_beating()
        self._beat()
        for relay in relays.connected:
            relay.tell_peers()
        await self._feed(upto_head=False)

    def _ack(self, command: Ack) -> None:
        if self.state not in ("catching up", "live"):
            return
        if not self.acknowledged <= command.serial <= self.sent.serial:
            had, sent = self.acknowledged, self.sent.serial
            why = f"it acknowledged serial {command.serial} after {had}, and was sent up to {sent}"
            self._refuse(refusal("bad_ack", why))
            self._work.cancel()
            return
        self.acknowledged = command.serial
        self._relays.leases.moved(self.uuid, command.serial)

    def _forwarded(self, command: Up) -> None:
        """A follower of the replica sent this up."""
        if not self.is_known:
            raise RemoteProtocolError("UP is not said before WELCOME")
        number, since = self._relays.feeding.command_receiver.receive(
            command.origin,
            [(command.number, command.line.encode())],
            source=self,
            access=self._access,
        )
        self._taken = Taken(origin=command.origin, number=number, since=since)

    # -- sending -------------------------------------------------------------------------------------------

    def _use(self, wanted: Filter) -> None:
        self._filter = wanted
        self._encoder = KEPT if wanted.is_open else BlockEncoder("facts", wanted)

    async def _feed(self, *, upto_head: bool) -> None:
        """Send what comes after `sent`: up to where the log stands, or for ever."""
        while self.is_serving:
            await self._has_room()
            head = self._log.position
            epoch_start = next(
                (
                    epoch_start
                    for epoch_start in self._log.epoch_starts
                    if epoch_start.epoch > self._turns_told
                ),
                None,
            )
            if self.sent.serial < (
                head.serial if epoch_start is None else min(epoch_start.serial, head.serial)
            ):
                await self._send_some(head, epoch_start)
            elif epoch_start is not None:
                self.connection.write(meta_block([epoch_start]))
                self._turns_told = epoch_start.epoch
                self.sent = LogPosition(epoch_start.epoch, epoch_start.serial, epoch_start.digest)
            elif upto_head:
                return
            else:
                await self._wait_for_more()

    async def _send_some(self, head: LogPosition, epoch_start: EpochStart | None) -> None:
        upto = head.serial if epoch_start is None else epoch_start.serial
        after = self.sent.serial
        ring = self._relays.feeding.ring
        number = ring.first_after(after)
        group = ring.get(number) if number is not None else None
        if group is not None and group.serial_before == after:
            data, last = ring.lines(group, self._encoder, None)
            if last.serial <= upto:
                await self._wrote(after, await self._place_at(last.serial, head), data)
                return
        facts, reached = await self._log.read(
            after=after,
            upto=upto,
            limit=PAGE_ROWS,
            filter=self._filter,
        )
        if facts and facts[-1].serial == reached:
            position = LogPosition(self._turns_told, reached, facts[-1].digest)
        else:
            position = await self._place_at(reached, head)
        await self._wrote(after, position, facts_block("facts", facts))

    async def _place_at(self, serial: int, head: LogPosition) -> LogPosition:
        """A place between two turns: the epoch that begins there, if one does, was not told yet."""
        digest = head.digest if serial == head.serial else await self._log.digest_at(serial) or ""
        return LogPosition(self._turns_told, serial, digest)

    async def _wrote(self, after: int, position: LogPosition, data: bytes) -> None:
        """Send this page, with who got which answer for it, and for a filtered one where it ends."""
        if self._log.receipts_upto > after:
            receipts = await self._log.receipts_between(after, position.serial)
            if receipts:
                data = meta_block(receipts=receipts) + data
        if self._gone:
            return
        if self._log.trimmed_upto.serial > after:
            self._refuse_trimmed()
            return
        self.sent = position
        if data:
            self.connection.write(data)
        if not self._filter.is_open:
            self._beat()

    async def _wait_for_more(self) -> None:
        if self.state != "live":
            self.state = "live"
            self._is_ephemeral_stale = True
        if self._is_ephemeral_stale and self._can("ephemeral"):
            self._is_ephemeral_stale = False
            self._say_ephemeral()
        await self._relays.news()

    async def _has_room(self) -> None:
        while self._paused and not self._gone:
            self._room = Deferred()
            await self._room

    # -- what nobody keeps ---------------------------------------------------------------------------------

    def show_ephemeral(self, facts: Sequence[Fact], block: bytes) -> None:
        """Facts that nobody keeps have come; `block` holds them all."""
        if self.state != "live" or not self._can("ephemeral"):
            return  # it is told all that is held once it is live
        if self._paused:
            self._is_ephemeral_stale = True
        elif self._filter.is_open:
            self.connection.write(block)
        else:
            passing = BlockEncoder("ephemeral", self._filter)
            self.connection.write(passing.lines(facts))

    def _say_ephemeral(self) -> None:
        """All that is held of streams that nobody keeps, and where their writers are."""
        lines = [encode_fact(fact) for fact in self._log.ephemeral_snapshot() if self._encoder.passes(fact)]
        # Also if there is nothing: a writer that is not named has begun anew.
        self.connection.write(block("held", len(lines), b"".join(lines)))

    def _can(self, what: str) -> bool:
        """Whether the replica has said that it understands this."""
        return self._greeting is not None and what in self._greeting.capabilities

    def tell_peers(self) -> None:
        """Say where the other replicas are, if that has changed."""
        if self.state in ("catching up", "live") and self._can("peers"):
            peers = self._relays.peers(but=self.uuid)
            if peers != self._peers_told:
                self._peers_told = peers
                self.connection.send(Peers(body=encode_body(peers)))

    def tell_down(self, line: bytes) -> bool:
        """Pass on a line for all processes. False if there is no room for it: the replica misses it, as a
        follower that was away would."""
        if self.state not in ("catching up", "live") or not self._can(COMMANDS):
            return True
        if self._paused:
            return False
        self.connection.send(Down(line=line.decode()))
        return True

    # -- signs of life -------------------------------------------------------------------------------------

    def _start_beating(self) -> None:
        if self._beat_timer is None:
            self._beat_timer = self._relays.clock.callLater(self._relays.heartbeat_seconds, self._tick)

    def _tick(self) -> None:
        self._beat_timer = self._relays.clock.callLater(self._relays.heartbeat_seconds, self._tick)
        # What waits in a transport that has no room says the same, later.
        if self.is_serving and not self._paused:
            self._beat()

    def _beat(self) -> None:
        sent = self.sent
        at_ms = int(self._relays.clock.seconds() * 1000)
        head = self._log.serial
        check = heartbeat_check(sent.epoch, sent.serial, sent.digest, head, at_ms)
        self.connection.send(
            Heartbeat(
                epoch=sent.epoch, serial=sent.serial, digest=sent.digest, head=head, at_ms=at_ms, check=check
            )
        )


class AskedSerials(msgspec.Struct):
    serials: list[Natural64]
