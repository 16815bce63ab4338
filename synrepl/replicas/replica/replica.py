"""Replica: connects to the upstream, joins if needed, follows, and reconnects with backoff."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.base.access import IssuedKey
from synrepl.base.interfaces import IClock
from synrepl.base.notes import YES
from synrepl.base.settings import UNNAMED
from synrepl.base.tasks import Tasks
from synrepl.base.time import sleep
from synrepl.daemon.other_daemons import IServedChannel, NoChannel
from synrepl.errors import RemoteProtocolError, ReplicationError
from synrepl.html.humanize import counted
from synrepl.replicas.command_forwarder import CommandForwarder, command_of
from synrepl.replicas.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    IConversation,
    IUpstream,
    RefusedByUpstream,
    SnapshotMeta,
    UpstreamKeys,
)
from synrepl.replicas.replica.fact_batcher import FactBatcher
from synrepl.replicas.replica.freshness import Freshness
from synrepl.replicas.replica.join import JoinAttempt, Progress
from synrepl.replicas.replica.own_copies import IKeptEphemeral, IOwnCopy
from synrepl.replicas.replica.replica_states import TRANSITIONS, ReplicaEvent, ReplicaState
from synrepl.replicas.replica.upstreams import Upstreams
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.settings import CopySettings
from synrepl.replicas.wire import native
from synrepl.replication.addresses import Address
from synrepl.replication.machine import Machine
from synrepl.replication.serving.read_gate import copy_filter
from synrepl.storage.token_floor import HIGHEST, floor_of
from synrepl.wire.address_list import Fault, fault_of
from synrepl.wire.grammar import Command
from synrepl.wire.text import MAX_ADDRESS, is_address, printable

FLUSH_FACTS: Final = 8_000
"""Received facts are committed once there are this many, or when no more have arrived yet."""

MAX_WHY: Final = 1_000
"""How many characters of an error are shown."""
MAX_SERVER_NAME: Final = 255
"""How many characters a server name may have, as in Matrix identifiers."""
MAX_REMEMBERED: Final = 100
"""How many addresses of other replicas are remembered; an upstream sends at most 50."""
MAX_CLOCK_BYTES: Final = 8_000
"""A vector clock of more bytes of JSON is left out of SUBSCRIBE, which must fit in a line."""

JOIN_STATES: Final = {
    ReplicaEvent.SNAPSHOT: ReplicaState.SNAPSHOT,
    ReplicaEvent.MEANWHILE: ReplicaState.MEANWHILE,
    ReplicaEvent.COPIED: ReplicaState.ADOPTING,
}
"""The state after each event of a `JoinAttempt`."""

KeepLeftovers = Callable[[IConversation], Awaitable[tuple[int, Any] | None]]
"""Writes the facts that the upstream of this conversation lacks to a file. Returns the first serial and the
path; None without such facts."""

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

    `upstreams` are daemons of one log in order of preference. `replica_states.py` says what is possible when.

    When the upstream has trimmed facts that this copy is missing, the replica joins again by itself, and
    serves the old copy until then. When this copy is ahead of its upstream, or has another or a diverged
    history, the replica stops until `resync` is called, unless the setting `resync_on_fork` lets it join.
    Facts that only this copy has are first saved by `keep_leftovers`, if that is set. `ephemeral` takes the
    facts of ephemeral streams. `on_primary_moved` is called with the primary's address in a refusal,
    `on_command` with each command for all processes. `is_own_replica` tells whether the daemon with a uuid
    follows this one. `take_keys` is called with all issued keys of the upstream. `channel` is that of this
    daemon.
    """

    _logger = Logger()
    log: IOwnCopy
    upstreams: Sequence[IUpstream]
    clock: IClock
    settings: CopySettings
    _: KW_ONLY
    ephemeral: IKeptEphemeral | None = None
    keep_leftovers: KeepLeftovers | None = None
    jitter: Callable[[], float] = lambda: 1.0
    on_primary_moved: Callable[[str], None] = lambda where: None
    on_change: Callable[[], None] = lambda: None
    commands: CommandForwarder | None = None
    channel: IServedChannel = field(default_factory=NoChannel)
    on_command: Callable[[Command], None] = lambda command: None
    is_own_replica: Callable[[str], bool] = lambda uuid: False
    take_keys: Callable[[Sequence[IssuedKey]], Coroutine[Any, Any, None]] | None = None

    def __post_init__(self) -> None:
        self.name = self.settings.name_of(self.log.uuid)
        self.query = self.settings.query
        self.why = ""
        self.since = self.clock.seconds()
        self.refusal: native.Refused | None = None
        self.welcome: native.Welcome | None = None
        self.freshness = Freshness(self.log, self.clock)
        self.leftover_paths: list[str] = []
        self._tasks = Tasks(self._logger, "replica")
        self._must_join = ""
        self._resync_waiter: Deferred[None] | None = None
        self._is_resync_requested = False
        self._machine = Machine("replica", TRANSITIONS, ReplicaState.OFF)
        self._upstreams = Upstreams(self.upstreams, self.jitter)
        self._strangers: set[str] = set()
        """The upstreams that have another log, since this replica followed one."""
        self._conversation: IConversation | None = None
        self._is_upstream_linked: bool | None = None
        """Whether the upstream is linked to the primary; None until it has told since SUBSCRIBED."""

    @property
    def state(self) -> ReplicaState:
        """What the replica does."""
        return self._machine.state

    @property
    def upstream(self) -> IUpstream:
        """The upstream in use."""
        return self._upstreams.current

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
        self._move(ReplicaEvent.STOP, ReplicaState.OFF)

    def resync(self) -> bool:
        """Write the facts that only this copy has to a file, and join again, on an operator's request.

        Returns False if the replica is not stopped. Unless it is following now (`catching up`, `live`), it
        then joins again without stopping if the upstream refuses its copy.
        """
        if self.state is not ReplicaState.STOPPED:
            self._is_resync_requested = not self.state.is_following
            return False
        # Saved: after a kill the operator need not request it again.
        self._tasks.start(self.log.note(resync=YES), "saving the request to join again")
        waiter, self._resync_waiter = self._resync_waiter, None
        if waiter is not None:
            waiter.callback(None)
        return True

    async def _reconnect_forever(self) -> None:
        while True:
            fault, moved_to = Fault.UNREACHABLE, ""
            try:
                self._move(ReplicaEvent.CONNECT, ReplicaState.CONNECTING, self.why)
                conversation = await self.upstream.connect(self.log.uuid, self.name)
                self._conversation = conversation
                try:
                    await self._run_conversation(conversation)
                    # Compared with its upstream; it must join in a conversation of its own.
                    self._move(ReplicaEvent.FAIL, ReplicaState.DISCONNECTED, self._must_join)
                    continue
                finally:
                    if self.commands is not None:
                        self.commands.disconnected()
                    self.channel.disconnected()
                    self._conversation = None
                    conversation.close()
            except RefusedByUpstream as error:
                fault, moved_to = fault_of(error.refusal.code), error.refusal.moved_to
                await self._on_refused(error.refusal)
            except CancelledError:
                raise
            except ReplicationError as error:
                # Errors may quote unprintable text of the upstream.
                why = printable(str(error), limit=MAX_WHY)
                self._move(ReplicaEvent.FAIL, ReplicaState.DISCONNECTED, why)
            if self._upstreams.is_first_failure:
                where = str(self.upstream.where)
                self._logger.info("not following {where}, will retry: {why}", where=where, why=self.why)
            await sleep(self.clock, self._upstreams.failed(fault, moved_to))

    async def _run_conversation(self, conversation: IConversation) -> None:
        """Follow the upstream. Returns if this copy must be joined again, by `_must_join`."""
        welcome = conversation.welcome
        await self._check_server_name(welcome.server_name)
        self._check_path(welcome)
        await self._note_tables(welcome.tables)
        if (floor := min(welcome.floor, HIGHEST)) > floor_of(self.log.notes):
            # For the case that this copy becomes the primary.
            await self.log.note(floor=str(floor))
        self.welcome = welcome
        self.freshness.contacted()
        self.freshness.head = welcome.position.serial
        self._move(ReplicaEvent.WELCOME, ReplicaState.READY)
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
                    self._upstreams.succeeded()
            self._must_join = ""
            self.freshness.progress = None
            self._upstreams.succeeded()
            position = self.log.position
            self._logger.info(
                "joined at serial {serial} of epoch {epoch}", serial=position.serial, epoch=position.epoch
            )
        await self._follow(conversation)

    async def _check_server_name(self, found: str) -> None:
        """Refuse the upstream of another homeserver; store the upstream's name in a log without one."""
        if not found.isprintable() or found.split() != [found] or len(found) > MAX_SERVER_NAME:
            raise RemoteProtocolError(f"the upstream sent an invalid server_name: {printable(found)}")
        expected = self.settings.expected_name(self.log.notes)
        if expected not in (None, found):
            why = f"the upstream belongs to {found}, and not to {expected} as this daemon"
            message = f"{why}; correct --upstream or --server-name"
            raise RefusedByUpstream(native.Refused(code="wrong_server", message=message, retryable=False))
        if found != UNNAMED and "server_name" not in self.log.notes:
            await self.log.note(server_name=found)

    async def _note_tables(self, tables: Sequence[str]) -> None:
        """Note which streams the primary reads from tables; after a restart it may be away."""
        self.log.table_streams = frozenset(tables)
        noted = msgspec.json.encode(sorted(tables)).decode() if tables else None
        if noted != self.log.notes.get("tables"):
            await self.log.note(tables=noted)

    def _why_join(self, welcome: native.Welcome) -> str:
        """Return why to join before SUBSCRIBE; empty if the upstream shall check this log."""
        log = self.log
        if log.history == welcome.history:
            return ""
        return "" if log.head.serial or log.head.trimmed_upto.serial else "the log is empty"

    def _on_join_progress(self, event: ReplicaEvent, progress: Progress) -> None:
        self.freshness.progress = progress
        self.freshness.contacted()
        self._move(event, JOIN_STATES[event])

    async def _save_diverged(self, conversation: IConversation) -> None:
        if self.keep_leftovers is None:
            return
        saved = await self.keep_leftovers(conversation)
        if saved is not None:
            first, path = saved
            self.leftover_paths.append(str(path))
            self._logger.warn(
                "wrote the facts that only this copy had, from serial {first} on, to {path}",
                first=first,
                path=path,
            )

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(self, conversation: IConversation) -> None:
        log = self.log
        position = log.position
        epoch_start = log.head.epoch_starts[-1] if log.head.epoch_starts else None
        ephemeral = self.ephemeral
        names = () if ephemeral is None else ephemeral.names
        has_other_filter = copy_filter(log.notes) != self.query
        clock = {
            # With a new filter, the upstream may have less than this copy.
            name: {writer: token for writer, token in positions.items() if self.query.passes(name, writer)}
            for name, positions in log.positions_by_stream().items()
            if name not in names
        }
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
        batcher = FactBatcher(log.copies, is_filtered=not self.query.is_open)
        while True:
            event: Event | None = await conversation.next()
            self.freshness.contacted()
            while event is not None:
                match event:
                    case Facts() | SnapshotMeta() | native.Heartbeat():
                        await batcher.add(event)
                        if batcher.pending >= FLUSH_FACTS:
                            await batcher.flush()
                    case Ephemeral(facts, is_all):
                        if ephemeral is not None:
                            ephemeral.add(facts, is_all=is_all)
                    case native.Peers(addresses):
                        self._tasks.start(self._save_peers(addresses), "saving peers")
                    case UpstreamKeys(keys):
                        if self.take_keys is not None:
                            self._tasks.start(self.take_keys(keys), "saving issued keys")
                    case native.Taken(origin, number, since):
                        if self.commands is not None:
                            self.commands.acknowledged(origin, number, since)
                    case native.Down(line):
                        self.on_command(command_of(line.encode()))
                    case native.Linked(linked) if self.state.is_following:
                        self._upstream_linked(bool(linked))
                    case native.Subscribed() if has_other_filter:
                        # The upstream has what this copy has: nothing is lost by a copy in its place.
                        self._must_join = "the filter has changed"
                        return
                    case native.Subscribed(at):
                        self._upstreams.succeeded()
                        self._strangers.clear()
                        self._is_resync_requested = False
                        self.refusal = None
                        # A former primary need not join: its log is a copy already, even an empty one.
                        if self.log.notes.get("resync") is not None or not self.is_whole:
                            await self.log.note(resync=None, joined=YES)
                        self.freshness.subscribed(at.serial)
                        self._move(ReplicaEvent.SUBSCRIBED, ReplicaState.CATCHING_UP)
                        self._is_upstream_linked = None
                        if native.LINKED not in conversation.welcome.capabilities:
                            self._upstream_linked(True)
                        if self.commands is not None and native.COMMANDS in conversation.welcome.capabilities:
                            self.commands.connected(conversation)
                        self._join_channel(conversation)
                    case _:
                        why = f"the upstream sent an unexpected {type(event).__name__} after SUBSCRIBED"
                        raise RemoteProtocolError(why)
                event = conversation.ready()
            await batcher.flush()
            if self.freshness.committed(batcher.heartbeat) and self.state is ReplicaState.CATCHING_UP:
                self.freshness.progress = None
                self._move(ReplicaEvent.CAUGHT_UP, ReplicaState.LIVE)
            heartbeat = self.freshness.heartbeat
            conversation.acknowledge(log.position, heartbeat.at_ms if heartbeat is not None else 0)

    def _upstream_linked(self, is_linked: bool) -> None:
        """Note whether the upstream, which has accepted this copy's position, is linked to the primary."""
        self._is_upstream_linked = is_linked
        if is_linked:
            self.freshness.is_compared = True
        self.on_change()

    def _join_channel(self, conversation: IConversation) -> None:
        if native.CHANNEL in conversation.welcome.capabilities:
            self.channel.connected(conversation)

    async def _save_peers(self, addresses: Sequence[str]) -> None:
        known = [address for address in addresses[:MAX_REMEMBERED] if is_address(address)]
        encoded = msgspec.json.encode(known).decode()
        if encoded != self.log.notes.get("peers"):
            await self.log.note(peers=encoded)

    # -- refused -------------------------------------------------------------------------------------------

    async def _on_refused(self, refusal: native.Refused) -> None:
        self.refusal = refusal
        self._logger.warn("the upstream refuses: {code}: {why}", code=refusal.code, why=refusal.message)
        self._move(ReplicaEvent.REFUSE, ReplicaState.REFUSED, f"{refusal.code}: {refusal.message}")
        if refusal.moved_to and not self._upstreams.at(refusal.moved_to):
            self.on_primary_moved(refusal.moved_to)
        if refusal.code == "trimmed":
            self._must_join = refusal.code
        elif refusal.code in DIVERGED and not refusal.retryable:
            if self._may_have_another_upstream(refusal.code):
                return
            self._must_join = refusal.code
            self.freshness.is_compared = False
            if not self.settings.resync_on_fork and not self._is_resync_requested:
                why = f"{self.why}; {WAYS_OUT[refusal.code]}"
                self._move(ReplicaEvent.DIVERGE, ReplicaState.STOPPED, why)
                self._logger.error("this replica has stopped: {why}", why=self.why)
                self._resync_waiter = Deferred()
                await self._resync_waiter
        elif not refusal.retryable:
            # An operator may fix the cause at the upstream: retry, but seldom.
            self._upstreams.retry_seldom()

    def _may_have_another_upstream(self, code: str) -> bool:
        """Whether another upstream in the list may have the log that this one does not have."""
        if code != "other_history":
            return False
        self._strangers.add(str(self.upstream.where))
        return len(self._strangers) < self._upstreams.count

    def _check_path(self, welcome: native.Welcome) -> None:
        """Refuse an upstream that follows this daemon, also through others: neither would get any fact."""
        where, uuid = self.upstream.where.words, self.log.uuid
        if welcome.uuid == uuid:
            why = (
                f"{where} is this daemon itself, or has a copy of its log: a replica begins without a log,"
                " and fills its own"
            )
        elif uuid in welcome.path:
            between = welcome.path.index(uuid)
            through = f", through {counted(between, 'other daemon')}" if between else ""
            why = f"{where} follows this daemon{through}"
        elif self.is_own_replica(welcome.uuid):
            why = f"{where} is a replica of this daemon"
        else:
            return
        message = f"{why}: take it out of --upstream, or promote one of the daemons"
        raise RefusedByUpstream(native.Refused(code="loop", message=message, retryable=True))

    # -- status --------------------------------------------------------------------------------------------

    @property
    def path(self) -> tuple[str, ...]:
        """The uuids of the daemons that this one follows, the nearest first; empty while there is none."""
        if self._conversation is None or self.welcome is None:
            return ()
        return (self.welcome.uuid, *self.welcome.path)[: native.MAX_PATH]

    @property
    def complete_at(self) -> float | None:
        """When this copy last had everything that the primary had; None unless it follows the primary now."""
        follows_primary = self.welcome is not None and self.welcome.role == Role.PRIMARY
        return self.freshness.fresh_at if self.state is ReplicaState.LIVE and follows_primary else None

    def lag_seconds(self) -> float:
        """Seconds since this copy was last known to be up to date, or since the start; 0.0 while it is."""
        is_fresh = self.state is ReplicaState.LIVE and not self.freshness.lag_rows()
        return 0.0 if is_fresh else self.freshness.lag_seconds()

    @property
    def is_linked(self) -> bool:
        """Whether this copy follows the primary now, directly or through other replicas."""
        return self.state.is_following and self._is_upstream_linked is True

    @property
    def is_settled(self) -> bool:
        """Whether this copy was compared with its upstream since the start, or it is known why it was not."""
        return self.freshness.is_compared or bool(self._obstacle)

    @property
    def _obstacle(self) -> str:
        """Why the last attempt to compare this copy has failed; empty while none has."""
        if self.state.is_following and self._is_upstream_linked is False:
            return "the upstream does not reach the primary"
        return self.why

    def staleness(self, stale_seconds: float) -> str:
        """Why this copy may not be what the primary has now; empty if it is, or was `stale_seconds` ago."""
        if not self.freshness.is_compared:
            why = f": {self._obstacle}" if self._obstacle else ""
            return f"this copy was not compared with its upstream since the start{why}"
        lag = self.lag_seconds()
        return f"this copy may lack the facts of the last {lag:.0f} seconds" if lag > stale_seconds else ""

    @property
    def is_whole(self) -> bool:
        """Whether there is a complete copy to serve, even a stale one."""
        return bool(self.log.head.serial) or self.log.notes.get("joined") is not None

    @property
    def rejoin_reason(self) -> str:
        """A text on why this replica joins again while it serves the old copy; empty if it does not."""
        is_joining = bool(self._must_join) or self.state.is_joining
        if not is_joining or not self.is_whole or self.state is ReplicaState.STOPPED:
            return ""
        why = f" ({self._must_join})" if self._must_join else ""
        return f"joining again{why}: the old copy is served until the new one is complete"

    @property
    def primary(self) -> Address:
        """The primary's address, as the upstream reports it; before it does, the upstream's own."""
        where = self.upstream.where
        if self.welcome is None:
            return where
        if self.welcome.role == Role.PRIMARY:
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
        welcome, freshness = self.welcome, self.freshness
        heartbeat, heard = freshness.heartbeat, freshness.heard_seconds_ago
        known = heartbeat or welcome
        return {
            "address": str(self.upstream.where),
            "state": self.state,
            "means": self.state.means,
            "why": self.why,
            "since": round(self.since, 3),
            "heard_seconds_ago": None if heard is None else round(heard, 3),
            "serial": freshness.head,
            "epoch": None if known is None else known.position.epoch,
            "instance": None if welcome is None else printable(welcome.instance),
            "primary": printable(str(self.primary), limit=MAX_ADDRESS),
            "refusal": None if self.refusal is None else msgspec.to_builtins(self.refusal),
            "join": None if freshness.progress is None else freshness.progress.describe(self.clock.seconds()),
            "only_here": list(self.leftover_paths),
        }

    def _move(self, event: ReplicaEvent, state: ReplicaState, why: str = "") -> None:
        if self._machine.move(event, state):
            self.since = self.clock.seconds()
        self.why = why
        self.on_change()
