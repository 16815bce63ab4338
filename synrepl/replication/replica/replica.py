"""Replica: connects to the upstream, joins if needed, follows, and reconnects with backoff."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError, ReplicationError
from synrepl.ports.interfaces import IClock
from synrepl.ports.settings import UNNAMED
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import doubling, sleep
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import CommandForwarder, command_of
from synrepl.replication.holdings import held
from synrepl.replication.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    IConversation,
    IUpstream,
    RefusedByUpstream,
    SnapshotMeta,
)
from synrepl.replication.replica.join import FactBatcher, JoinAttempt, Progress, facts_after, last_common
from synrepl.replication.settings import CopySettings
from synrepl.storage.log import Log
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire import native
from synrepl.wire.address_list import AddressList, Fault, fault_of
from synrepl.wire.grammar import Command
from synrepl.wire.text import MAX_ADDRESS, is_address, printable

FLUSH_FACTS: Final = 8_000
"""Received facts are committed once there are this many, or when no more have arrived yet."""

FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 10.0
MAX_WHY: Final = 1_000
"""How many characters of an error are shown."""
MAX_NAME: Final = 255
"""How many characters a server name may have, as in Matrix identifiers."""
MAX_PEERS: Final = 100
"""How many addresses of other replicas are remembered; an upstream sends at most 50."""
MAX_CLOCK_BYTES: Final = 8_000
"""A vector clock of more bytes of JSON is left out of SUBSCRIBE, which must fit in a line."""

STATES: Final = {
    "connecting": "connecting to its upstream",
    "ready": "connected; the handshake is complete",
    "snapshot": "joining: receiving the snapshot",
    "meanwhile": "joining: receiving the facts committed since the snapshot",
    "adopting": "joining: replacing the old copy with the complete new one",
    "catching up": "receiving missing facts",
    "live": "up to date; receiving new facts as they are committed",
    "disconnected": "disconnected from its upstream; will retry",
    "refused": "refused by its upstream for now; will retry",
    "stopped": "its upstream cannot serve this copy: an operator must decide",
    "off": "follows no upstream",
}
"""The states of a replica. Operators see these words."""

KeepLeftovers = Callable[[AsyncIterator[Sequence[Fact]]], Awaitable[Any]]
"""Writes facts that only this copy has to a file; returns its path, or None without facts."""

RESYNC: Final = "synrepl resync writes the facts that only this copy has to a file, and joins again"

WAYS_OUT: Final = {
    "fork": RESYNC,
    "ahead": f"{RESYNC}; if this copy is right, and unfiltered, synrepl promote --force makes it primary",
    "other_history": f"if --upstream is wrong, restart with the right one; if it is right, {RESYNC}",
}
"""What an operator can do with a stopped replica, by the code of the refusal that stopped it."""

DIVERGED: Final = frozenset(WAYS_OUT)
"""Codes of refusals after which only an operator (or `resync_on_fork`) may give up facts of this copy."""


@dataclass(eq=False, repr=False)
class Replica:
    """Makes and keeps a log a copy of an upstream's log, or of the facts that the settings select.

    `upstream` is the one in use, of `upstreams`, which are daemons of one log in order of preference.

    When the upstream has trimmed facts that this copy is missing, the replica joins again by itself, and
    serves the old copy until then. When this copy is ahead of its upstream, or has another or a diverged
    history, the replica stops until `resync` is called, unless the setting `resync_on_fork` lets it join.
    Facts that only this copy has are first given to `keep_leftovers`, if that is set. `ephemeral` names the
    ephemeral streams. `on_primary_moved` is called with the primary's address in a refusal, `on_command` with
    each command for all processes.
    """

    _logger = Logger()
    log: Log
    upstreams: Sequence[IUpstream]
    clock: IClock
    settings: CopySettings
    _: KW_ONLY
    ephemeral: Collection[str] = ()
    keep_leftovers: KeepLeftovers | None = None
    jitter: Callable[[], float] = lambda: 1.0
    on_primary_moved: Callable[[str], None] = lambda where: None
    on_change: Callable[[], None] = lambda: None
    commands: CommandForwarder | None = None
    on_command: Callable[[Command], None] = lambda command: None

    def __post_init__(self) -> None:
        self.name = self.settings.name_of(self.log.uuid)
        self.query = self.settings.query
        self.state = "off"
        self.why = ""
        self.since = self.clock.seconds()
        self.refusal: native.Refused | None = None
        self.welcome: native.Welcome | None = None
        self.progress: Progress | None = None
        self.head = 0
        self.leftover_paths: list[str] = []
        self._tasks = Tasks(self._logger, "replica")
        self._must_join = ""
        self._resync_waiter: Deferred[None] | None = None
        self._is_resync_requested = False
        self.upstream = self.upstreams[0]
        self._by_address = {str(one.where): one for one in self.upstreams}
        delays = doubling(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        self._addresses = AddressList(list(self._by_address), delays, jitter=self.jitter)
        self._fresh_at = self.clock.seconds()
        self._contact_at: float | None = None
        self._heartbeat: native.Heartbeat | None = None
        self._conversation: IConversation | None = None

    # -- start and stop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to follow."""
        if self.log.notes.get("resync") is not None:
            self._is_resync_requested = True
        self._tasks.start(self._reconnect_forever(), "following the upstream")

    def stop(self) -> None:
        """Stop following."""
        self._tasks.cancel_all()
        if self._conversation is not None:
            self._conversation.close()
        self._set_state("off")

    def resync(self) -> bool:
        """Write the facts that only this copy has to a file, and join again, on an operator's request.

        Returns False if the replica is not stopped. Unless it is following now (`catching up`, `live`), it
        then joins again without stopping if the upstream refuses its copy.
        """
        if self.state != "stopped":
            self._is_resync_requested = self.state not in ("catching up", "live")
            return False
        # Saved: after a kill the operator need not request it again.
        self._tasks.start(self.log.note(resync="yes"), "saving the request to join again")
        waiter, self._resync_waiter = self._resync_waiter, None
        if waiter is not None:
            waiter.callback(None)
        return True

    async def _reconnect_forever(self) -> None:
        while True:
            fault, moved_to = Fault.UNREACHABLE, ""
            try:
                self._set_state("connecting", self.why)
                conversation = await self.upstream.connect(self.log.uuid, self.name)
                self._conversation = conversation
                try:
                    await self._run_conversation(conversation)
                finally:
                    if self.commands is not None:
                        self.commands.disconnected()
                    self._conversation = None
                    conversation.close()
            except RefusedByUpstream as error:
                fault, moved_to = fault_of(error.refusal.code), error.refusal.moved_to
                await self._on_refused(error.refusal)
            except CancelledError:
                raise
            except ReplicationError as error:
                # Errors may quote unprintable text of the upstream.
                self._set_state("disconnected", printable(str(error), limit=MAX_WHY))
            if self._addresses.failed_rounds == 0:
                where = str(self.upstream.where)
                self._logger.info("not following {where}, will retry: {why}", where=where, why=self.why)
            pause = self._addresses.failed(fault, moved_to=self._listed(moved_to))
            if len(self.upstreams) > 1:
                self.upstream = self._by_address[self._addresses.current]
            await sleep(self.clock, pause)

    def _listed(self, address: str) -> list[str]:
        """Return the upstreams that are reached at this address."""
        where = Address.parse(address)
        return [text for text, one in self._by_address.items() if where.is_same(one.where)]

    async def _run_conversation(self, conversation: IConversation) -> None:
        welcome = conversation.welcome
        await self._check_server_name(welcome.server_name)
        self.welcome = welcome
        self._contact_at = self.clock.seconds()
        self.head = welcome.position.serial
        self._set_state("ready")
        why = self._must_join or self._why_join(welcome)
        if why:
            self._logger.info("joining {address}: {why}", address=self.upstream.where.words, why=why)
            if why in DIVERGED:
                await self._save_diverged(conversation)
            join = JoinAttempt(
                self.log, conversation, self.clock, self.query, on_progress=self._on_join_progress
            )
            try:
                await join.run()
            finally:
                if join.made_progress:
                    self._addresses.succeeded()
            self._must_join = ""
            self.progress = None
            self._addresses.succeeded()
            position = self.log.position
            self._logger.info(
                "joined at serial {serial} of epoch {epoch}", serial=position.serial, epoch=position.epoch
            )
        await self._follow(conversation)

    async def _check_server_name(self, found: str) -> None:
        """Refuse the upstream of another homeserver; store the upstream's name in a log without one."""
        if not found.isprintable() or found.split() != [found] or len(found) > MAX_NAME:
            raise RemoteProtocolError(f"the upstream sent an invalid server_name: {printable(found)}")
        expected = self.settings.expected_name(self.log.notes)
        if expected not in (None, found):
            why = f"the upstream belongs to {found}, and not to {expected} as this daemon"
            message = f"{why}; correct --upstream or --server-name"
            raise RefusedByUpstream(native.Refused(code="wrong_server", message=message, retryable=False))
        if found != UNNAMED and "server_name" not in self.log.notes:
            await self.log.note(server_name=found)

    def _why_join(self, welcome: native.Welcome) -> str:
        """Return why to join before SUBSCRIBE; empty if the upstream shall check this log."""
        log = self.log
        if log.history == welcome.history:
            return "" if held(log.notes) == self.query else "the filter has changed"
        return "" if log.serial or log.trimmed_upto.serial else "the log is empty"

    def _on_join_progress(self, state: str, progress: Progress) -> None:
        self.progress = progress
        self._contact_at = self.clock.seconds()
        self._set_state(state)

    async def _save_diverged(self, conversation: IConversation) -> None:
        if self.keep_leftovers is None:
            return
        is_ours = self.log.history == conversation.welcome.history
        common = await last_common(self.log, conversation) if is_ours else 0
        path = await self.keep_leftovers(facts_after(self.log, common))
        if path is not None:
            self.leftover_paths.append(str(path))
            self._logger.warn(
                "wrote the facts that only this copy had, from serial {first} on, to {path}",
                first=common + 1,
                path=path,
            )

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(self, conversation: IConversation) -> None:
        log = self.log
        position = log.position
        epoch_start = log.epoch_starts[-1] if log.epoch_starts else None
        clock = log.positions_by_stream()
        for name in self.ephemeral:
            clock.pop(name, None)
        request = native.Subscribe(
            history=log.history,
            position=position,
            filter=self.query,
            clock=clock if len(msgspec.json.encode(clock)) <= MAX_CLOCK_BYTES else {},
            epoch_start=None if epoch_start is None else epoch_start.position,
            began_ms=0 if epoch_start is None else epoch_start.at_ms,
            lost_stream="" if epoch_start is None else epoch_start.stream,
            lost_upto=0 if epoch_start is None else epoch_start.token,
        )
        conversation.subscribe(msgspec.structs.replace(request, check=native.subscribe_check(request)))
        batcher = FactBatcher(log, is_filtered=not self.query.is_open)
        while True:
            event: Event | None = await conversation.next()
            self._contact_at = self.clock.seconds()
            while event is not None:
                match event:
                    case Facts() | SnapshotMeta() | native.Heartbeat():
                        await batcher.add(event)
                        if batcher.pending >= FLUSH_FACTS:
                            await batcher.flush()
                    case Ephemeral(facts, is_all):
                        self._add_ephemeral(facts, is_all=is_all)
                    case native.Peers(addresses):
                        self._tasks.start(self._save_peers(addresses), "saving peers")
                    case native.Taken(origin, number, since):
                        if self.commands is not None:
                            self.commands.acknowledged(origin, number, since)
                    case native.Down(line):
                        self.on_command(command_of(line.encode()))
                    case native.Subscribed(at):
                        self._addresses.succeeded()
                        self._is_resync_requested = False
                        self.refusal = None
                        # A former primary need not join: its log is a copy already, even an empty one.
                        if self.log.notes.get("resync") is not None or not self.is_whole:
                            await self.log.note(resync=None, joined="yes")
                        self.head = at.serial
                        serial = log.serial
                        self.progress = Progress(serial, self.head, self.clock.seconds(), serial)
                        self._set_state("catching up")
                        if self.commands is not None and native.COMMANDS in conversation.welcome.capabilities:
                            self.commands.connected(conversation)
                    case _:
                        why = f"the upstream sent an unexpected {type(event).__name__} after SUBSCRIBED"
                        raise RemoteProtocolError(why)
                event = conversation.ready()
            await batcher.flush()
            self._check_progress(batcher.heartbeat)
            conversation.acknowledge(
                log.position, self._heartbeat.at_ms if self._heartbeat is not None else 0
            )

    def _check_progress(self, heartbeat: native.Heartbeat | None) -> None:
        position = self.log.position
        if heartbeat is not None and heartbeat is not self._heartbeat:
            self._heartbeat = heartbeat
            self.head = heartbeat.head
            if heartbeat.position.serial == position.serial and heartbeat.position.digest != position.digest:
                why = f"the upstream has another digest at serial {position.serial} than this copy"
                raise RemoteProtocolError(f"the histories differ: {why}")
        self.head = max(self.head, position.serial)
        if self.progress is not None:
            self.progress.done, self.progress.total = position.serial, self.head
        if position.serial >= self.head:
            self._fresh_at = self.clock.seconds()
            if self.state == "catching up":
                self.progress = None
                self._set_state("live")

    async def _save_peers(self, addresses: Sequence[str]) -> None:
        known = [address for address in addresses[:MAX_PEERS] if is_address(address)]
        encoded = msgspec.json.encode(known).decode()
        if encoded != self.log.notes.get("peers"):
            await self.log.note(peers=encoded)

    def _add_ephemeral(self, facts: Sequence[Fact], *, is_all: bool) -> None:
        """Add ephemeral facts to memory, and reset writers that restarted at the upstream."""
        facts = [fact for fact in facts if fact.stream in self.ephemeral]
        if is_all:
            # The writers' positions come last, and show who restarted before the held facts.
            for fact in facts:
                self._reset_if_lower(fact)
            listed = {(fact.stream, fact.writer) for fact in facts}
            for stream in sorted(self.ephemeral):
                for writer, token in self.log.positions(stream).items():
                    if token and (stream, writer) not in listed:
                        self.log.reset_writer(stream, writer)
        for fact in facts:
            self._reset_if_lower(fact)
            if fact.token:
                self.log.append_assigned(fact.stream, [(fact.writer, fact.token, fact.rows)])

    def _reset_if_lower(self, fact: Fact) -> None:
        if fact.rows == NO_ROWS and fact.token < self.log.positions(fact.stream).get(fact.writer, 0):
            self.log.reset_writer(fact.stream, fact.writer)

    # -- refused -------------------------------------------------------------------------------------------

    async def _on_refused(self, refusal: native.Refused) -> None:
        self.refusal = refusal
        self._logger.warn("the upstream refuses: {code}: {why}", code=refusal.code, why=refusal.message)
        self._set_state("refused", f"{refusal.code}: {refusal.message}")
        if refusal.moved_to and not self._listed(refusal.moved_to):
            self.on_primary_moved(refusal.moved_to)
        if refusal.code == "trimmed":
            self._must_join = refusal.code
        elif refusal.code in DIVERGED:
            self._must_join = refusal.code
            if not self.settings.resync_on_fork and not self._is_resync_requested:
                self._set_state("stopped", f"{self.why}; {WAYS_OUT[refusal.code]}")
                self._logger.error("this replica has stopped: {why}", why=self.why)
                self._resync_waiter = Deferred()
                await self._resync_waiter
        elif not refusal.retryable:
            # An operator may fix the cause at the upstream: retry, but seldom.
            self._addresses.exhaust()

    # -- status --------------------------------------------------------------------------------------------

    def lag_rows(self) -> int:
        """By how many serials the upstream is known to be ahead of this copy."""
        return max(0, self.head - self.log.serial)

    def lag_seconds(self) -> float:
        """Seconds since this copy was last known to be up to date, or since the start; 0.0 while it is."""
        now = self.clock.seconds()
        if self.state == "live" and not self.lag_rows():
            return 0.0
        return max(0.0, now - self._fresh_at)

    def silence(self) -> float:
        """Seconds since the last message of the upstream, or since the start if there was none."""
        return self.clock.seconds() - (self._fresh_at if self._contact_at is None else self._contact_at)

    @property
    def is_whole(self) -> bool:
        """Whether there is a complete copy to serve, even a stale one."""
        return bool(self.log.serial) or self.log.notes.get("joined") is not None

    @property
    def rejoin_reason(self) -> str:
        """A text on why this replica joins again while it serves the old copy; empty if it does not."""
        is_joining = bool(self._must_join) or self.state in ("snapshot", "meanwhile", "adopting")
        if not is_joining or not self.is_whole or self.state == "stopped":
            return ""
        why = f" ({self._must_join})" if self._must_join else ""
        return f"joining again{why}: the old copy is served until the new one is complete"

    @property
    def primary(self) -> Address:
        """The primary's address, as the upstream reports it; before it does, the upstream's own."""
        where = self.upstream.where
        if self.welcome is None:
            return where
        if self.welcome.role == "primary":
            reported = Address.parse(self.welcome.address)
            return Address(native=where.native or reported.native, http=where.http or reported.http)
        return Address.parse(self.welcome.primary)

    @property
    def upstream_http(self) -> str:
        """The upstream's HTTP address; empty if it has none, or until it is known."""
        reported = Address.parse(self.welcome.address).http if self.welcome is not None else ""
        return self.upstream.where.http or reported

    def status(self) -> dict[str, Any]:
        """The replica's part of the status."""
        now = self.clock.seconds()
        welcome = self.welcome
        return {
            "address": str(self.upstream.where),
            "state": self.state,
            "means": STATES[self.state],
            "why": self.why,
            "since": round(self.since, 3),
            "heard_seconds_ago": None if self._contact_at is None else round(now - self._contact_at, 3),
            "serial": self.head,
            "epoch": self._heartbeat.position.epoch
            if self._heartbeat
            else welcome.position.epoch
            if welcome
            else None,
            "instance": None if welcome is None else printable(welcome.instance),
            "primary": printable(str(self.primary), limit=MAX_ADDRESS),
            "refusal": None if self.refusal is None else msgspec.to_builtins(self.refusal),
            "join": None if self.progress is None else self.progress.describe(now),
            "only_here": list(self.leftover_paths),
        }

    def _set_state(self, state: str, why: str = "") -> None:
        if state != self.state:
            self.since = self.clock.seconds()
        self.state, self.why = state, why
        self.on_change()
