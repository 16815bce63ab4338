"""A replica's life: reach the upstream, join if need be, follow, and start over when that ends."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError, ReplicationError
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import CommandForwarder, command_of
from synrepl.replication.holdings import held
from synrepl.replication.replica.batcher import FactBatcher
from synrepl.replication.replica.conversation import (
    DownstreamCommand,
    Ephemeral,
    Facts,
    IConversation,
    IUpstream,
    KnownPeers,
    RefusedByUpstream,
    SnapshotMeta,
    SubscriptionStarted,
    TakenUpTo,
    UpstreamHeartbeat,
)
from synrepl.replication.replica.forks import facts_after, last_common
from synrepl.replication.replica.interfaces import IKeepLeftovers, ReplicaLog
from synrepl.replication.replica.join import JoinAttempt, Progress
from synrepl.replication.replica.states import STATES, WAYS_OUT
from synrepl.replication.wire_positions import wire_position
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import Command
from synrepl.wire.native import COMMANDS, Refusal, Subscription, WelcomeBody, WirePosition, encode_body
from synrepl.wire.peer_names import MAX_ADDRESS, is_address
from synrepl.wire.text import printable

__all__ = ["Replica"]

FLUSH_FACTS: Final = 8_000
"""Facts that are committed together while there is more."""

FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 10.0
MAX_WHY: Final = 1_000
"""Characters of what is wrong that are shown."""
MAX_PEERS: Final = 100
"""Addresses of other replicas that are remembered; an upstream tells 50."""
MAX_CLOCK_BYTES: Final = 8_000
"""A vector clock larger than this would not fit in a line; the digest says the same."""

PARTED: Final = frozenset(WAYS_OUT)
"""Refusals after which only an operator may give up what is here."""


class Replica:
    """Keeps a log a copy of its upstream's.

    `wanted` are the facts it asks for. When the upstream has trimmed away what it lacks it joins again by
    itself, and serves the old copy meanwhile. When it is ahead of its upstream, or their histories have
    parted, it stops until `resync` is called, unless `resync_on_fork`; what only it had is kept in a file
    first (`leftovers`). `moved` is told where the upstream says that the primary is.
    """

    _logger = Logger()

    def __init__(
        self,
        log: ReplicaLog,
        upstream: IUpstream,
        clock: IClock,
        *,
        name: str,
        ephemeral: Sequence[str] = (),
        wanted: Filter | None = None,
        resync_on_fork: bool = False,
        leftovers: IKeepLeftovers | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        moved: Callable[[str], None] = lambda where: None,
        changed: Callable[[], None] = lambda: None,
        commands: CommandForwarder | None = None,
        told_down: Callable[[Command], None] = lambda command: None,
    ) -> None:
        self.upstream = upstream
        self.name = name
        self.wanted = wanted if wanted is not None else ALL
        self.state = "off"
        self.why = ""
        self.since = clock.seconds()
        self.refusal: Refusal | None = None
        self.welcome: WelcomeBody | None = None
        self.progress: Progress | None = None
        self.head = 0
        self.kept_leftovers: list[str] = []
        self._log = log
        self._clock = clock
        self._ephemeral = frozenset(ephemeral)
        self._resync_on_fork = resync_on_fork
        self._leftovers = leftovers
        self._jitter = jitter
        self._moved = moved
        self._changed = changed
        self._commands = commands
        self._told_down = told_down
        self._tasks = Tasks(self._logger, "replica")
        self._must_join = ""
        self._told: Deferred[None] | None = None
        self._is_told = False
        self._attempt = 0
        self._fresh_at = clock.seconds()
        self._heard_at: float | None = None
        self._beat: UpstreamHeartbeat | None = None
        self._conversation: IConversation | None = None

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._is_told = self._is_told or self._log.notes.get("resync") is not None
        self._tasks.start(self._run(), "following the upstream")

    def stop(self) -> None:
        """Follow nobody any more."""
        self._tasks.cancel_all()
        if self._conversation is not None:
            self._conversation.close()
        self._set("off")

    def resync(self) -> bool:
        """An operator gives up what only this copy has: it is written to a file, and joins again. False if it
        is not stopped: it does so if the upstream refuses it before it is served."""
        if self.state != "stopped":
            self._is_told = self.state not in ("catching up", "live")
            return False
        self._must_join = self._must_join or "told to"
        # Whoever is killed before the copy is whole need not be told again.
        self._tasks.start(self._log.note(resync="yes"), "remembering to join again")
        told, self._told = self._told, None
        if told is not None:
            told.callback(None)
        return True

    async def _run(self) -> None:
        while True:
            try:
                self._set("connecting", self.why)
                conversation = await self.upstream.connect(self._log.uuid, self.name)
                self._conversation = conversation
                try:
                    await self._converse(conversation)
                finally:
                    if self._commands is not None:
                        self._commands.disconnected()
                    self._conversation = None
                    conversation.close()
            except RefusedByUpstream as error:
                await self._refused(error.refusal)
            except CancelledError:
                raise
            except ReplicationError as error:
                # Errors quote what the upstream said.
                self._set("disconnected", printable(str(error), limit=MAX_WHY))
            await self._pause()

    async def _pause(self) -> None:
        if self._attempt == 0:
            self._logger.info("{why}; it is tried again", why=self.why)
        delay = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**self._attempt)
        self._attempt = min(self._attempt + 1, 10)
        await deferLater(self._clock, delay * self._jitter())  # type: ignore[arg-type]

    async def _converse(self, conversation: IConversation) -> None:
        welcome = self.welcome = conversation.welcome
        self._heard_at = self._clock.seconds()
        self.head = welcome.position.serial
        self._set("ready")
        why = self._must_join or self._reason_to_join(welcome)
        if why:
            self._logger.info("joining {address}: {why}", address=str(self.upstream.where), why=why)
            if why in PARTED or why == "told to":
                await self._keep_what_only_we_have(conversation)
            joining = JoinAttempt(self._log, conversation, self._clock, self.wanted, tell=self._joining)
            try:
                await joining.run()
            finally:
                if joining.has_come_further:
                    self._attempt = 0
            self._must_join = ""
            self.progress = None
            self._attempt = 0
            position = self._log.position
            self._logger.info(
                "joined at serial {serial} of epoch {epoch}", serial=position.serial, epoch=position.epoch
            )
        await self._follow(conversation)

    def _reason_to_join(self, welcome: WelcomeBody) -> str:
        """Why this log must become a copy first; empty if it is one."""
        log = self._log
        if log.history == welcome.history:
            return "" if held(log.notes) == self.wanted else "another filter is wanted"
        return "" if log.serial or log.trimmed_upto.serial else "nothing is here yet"

    def _joining(self, state: str, progress: Progress) -> None:
        self.progress = progress
        self._heard_at = self._clock.seconds()
        self._set(state)

    async def _keep_what_only_we_have(self, conversation: IConversation) -> None:
        if self._leftovers is None:
            return
        is_ours = self._log.history == conversation.welcome.history
        common = await last_common(self._log, conversation) if is_ours else 0
        kept = await self._leftovers(facts_after(self._log, common))
        if kept is not None:
            self.kept_leftovers.append(str(kept))
            self._logger.warn(
                "what only this copy had, from serial {first} on, is in {path}", first=common + 1, path=kept
            )

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(self, conversation: IConversation) -> None:
        log = self._log
        position = log.position
        epoch_start = log.epoch_starts[-1] if log.epoch_starts else None
        clock = log.positions_by_stream()
        for name in self._ephemeral:
            clock.pop(name, None)
        conversation.subscribe(
            Subscription(
                history=log.history,
                position=wire_position(position),
                filter=self.wanted,
                clock=clock if len(encode_body(clock)) <= MAX_CLOCK_BYTES else {},
                epoch_start=None
                if epoch_start is None
                else WirePosition(epoch_start.epoch, epoch_start.serial, epoch_start.digest),
                began_ms=0 if epoch_start is None else epoch_start.at_ms,
                lost_stream="" if epoch_start is None else epoch_start.stream,
                lost_upto=0 if epoch_start is None else epoch_start.token,
            )
        )
        taking = FactBatcher(log, is_filtered=not self.wanted.is_open)
        while True:
            event = await conversation.next()
            self._heard_at = self._clock.seconds()
            while True:
                match event:
                    case Facts() | SnapshotMeta() | UpstreamHeartbeat():
                        await taking.take(event)
                        if taking.waiting >= FLUSH_FACTS:
                            await taking.flush()
                    case Ephemeral(facts, is_all):
                        self._show(facts, is_all=is_all)
                    case KnownPeers(addresses):
                        self._tasks.start(self._note_peers(addresses), "remembering peers")
                    case TakenUpTo(origin, number, since):
                        if self._commands is not None:
                            self._commands.acknowledged(origin, number, since)
                    case DownstreamCommand(line):
                        self._told_down(command_of(line))
                    case SubscriptionStarted(at):
                        self._attempt = 0
                        self._is_told = False
                        self.refusal = None
                        if self._log.notes.get("resync") is not None:
                            await self._log.note(resync=None)
                        self.head = at.serial
                        serial = log.serial
                        self.progress = Progress(serial, self.head, self._clock.seconds(), serial)
                        self._set("catching up")
                        if self._commands is not None and COMMANDS in conversation.welcome.capabilities:
                            self._commands.connected(conversation)
                    case _:
                        raise RemoteProtocolError(f"{type(event).__name__} came from who was subscribed to")
                following = conversation.ready()
                if following is None:
                    break
                event = following
            await taking.flush()
            self._reached(taking.beat)
            conversation.acknowledge(log.position, self._beat.at_ms if self._beat is not None else 0)

    def _reached(self, beat: UpstreamHeartbeat | None) -> None:
        """Everything that came is kept."""
        position = self._log.position
        if beat is not None and beat is not self._beat:
            self._beat = beat
            self.head = beat.head
            if beat.position.serial == position.serial and beat.position.digest != position.digest:
                raise RemoteProtocolError(f"the upstream has another digest at serial {position.serial}")
        self.head = max(self.head, position.serial)
        if self.progress is not None:
            self.progress.done, self.progress.total = position.serial, self.head
        if position.serial >= self.head:
            self._fresh_at = self._clock.seconds()
            if self.state == "catching up":
                self.progress = None
                self._set("live")

    async def _note_peers(self, addresses: Sequence[str]) -> None:
        known = [address for address in addresses[:MAX_PEERS] if is_address(address)]
        told = msgspec.json.encode(known).decode()
        if told != self._log.notes.get("peers"):
            await self._log.note(peers=told)

    def _show(self, facts: Sequence[Fact], *, is_all: bool) -> None:
        """Facts that nobody keeps: they go into memory here too, and writers that began anew do so here."""
        facts = [fact for fact in facts if fact.stream in self._ephemeral]
        if is_all:
            # Where a writer stands comes last, and tells whether it began anew before what is held.
            for fact in facts:
                self._restart_below(fact)
            told = {(fact.stream, fact.writer) for fact in facts}
            for stream in sorted(self._ephemeral):
                for writer, token in self._log.positions(stream).items():
                    if token and (stream, writer) not in told:
                        self._log.reset_writer(stream, writer)
        for fact in facts:
            self._restart_below(fact)
            if fact.token:
                self._log.append_assigned(fact.stream, [(fact.writer, fact.token, fact.rows)])

    def _restart_below(self, fact: Fact) -> None:
        if fact.rows == NO_ROWS and fact.token < self._log.positions(fact.stream).get(fact.writer, 0):
            self._log.reset_writer(fact.stream, fact.writer)

    # -- refused -------------------------------------------------------------------------------------------

    async def _refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self._logger.warn("the upstream refuses: {code}: {why}", code=refusal.code, why=refusal.message)
        self._set("refused", f"{refusal.code}: {refusal.message}")
        if refusal.moved_to:
            self._moved(refusal.moved_to)
        if refusal.code == "trimmed":
            self._must_join = refusal.code
        elif refusal.code in PARTED:
            self._must_join = refusal.code
            if not self._resync_on_fork and not self._is_told:
                await self._wait_to_be_told(WAYS_OUT[refusal.code])
        elif not refusal.retryable and refusal.code != "other_epoch":
            # An operator may mend it at the other end: it is asked again, but not often.
            self._attempt = 10

    async def _wait_to_be_told(self, way_out: str) -> None:
        self._set("stopped", f"{self.why}; {way_out}")
        self._logger.error("this replica has stopped: {why}", why=self.why)
        self._told = Deferred()
        await self._told

    # -- what to know about it -----------------------------------------------------------------------------

    def lag_rows(self) -> int:
        """How many serials the upstream is known to be ahead."""
        return max(0, self.head - self._log.serial)

    def lag_seconds(self) -> float:
        """How long ago this copy was known to have everything; 0.0 while it is."""
        now = self._clock.seconds()
        if self.state == "live" and not self.lag_rows():
            return 0.0
        return max(0.0, now - self._fresh_at)

    def silence(self) -> float:
        """Seconds since the upstream was last heard; since the start if it never was."""
        return self._clock.seconds() - (self._fresh_at if self._heard_at is None else self._heard_at)

    @property
    def is_whole(self) -> bool:
        """Whether there is a copy to serve, be it a stale one."""
        return bool(self._log.serial) or self._log.notes.get("joined") is not None

    @property
    def joining_anew(self) -> str:
        """Why a new copy is on its way while an old one is served, in words; empty if none is."""
        is_joining = bool(self._must_join) or self.state in ("snapshot", "meanwhile", "adopting")
        if not is_joining or not self.is_whole or self.state == "stopped":
            return ""
        why = f" ({self._must_join})" if self._must_join else ""
        return f"joining anew{why}: the copy that is here is served until the new one is whole"

    @property
    def primary(self) -> Address:
        """Where the primary is, as its upstream says."""
        where = self.upstream.where
        if self.welcome is None:
            return where
        if self.welcome.role == "primary":
            told = Address.parse(self.welcome.address)
            return Address(native=where.native or told.native, http=where.http or told.http)
        return Address.parse(self.welcome.primary)

    @property
    def upstream_http(self) -> str:
        """Where the upstream's HTTP is; empty while that is not known."""
        told = Address.parse(self.welcome.address).http if self.welcome is not None else ""
        return self.upstream.where.http or told

    def status(self) -> dict[str, Any]:
        """As the status has it."""
        now = self._clock.seconds()
        welcome = self.welcome
        return {
            "address": str(self.upstream.where),
            "state": self.state,
            "means": STATES[self.state],
            "why": self.why,
            "since": round(self.since, 3),
            "heard_seconds_ago": None if self._heard_at is None else round(now - self._heard_at, 3),
            "serial": self.head,
            "epoch": self._beat.position.epoch if self._beat else welcome.position.epoch if welcome else None,
            "instance": None if welcome is None else printable(welcome.instance),
            "primary": printable(str(self.primary), limit=MAX_ADDRESS),
            "refusal": None if self.refusal is None else msgspec.to_builtins(self.refusal),
            "join": None if self.progress is None else self.progress.status(now),
            "only_here": list(self.kept_leftovers),
        }

    def _set(self, state: str, why: str = "") -> None:
        if state != self.state:
            self.since = self._clock.seconds()
        self.state, self.why = state, why
        self._changed()
