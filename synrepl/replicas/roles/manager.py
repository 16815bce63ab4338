"""Roles of a daemon: primary, replica or fenced, and the transitions between them."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from synrepl.base.history import EpochStart
from synrepl.base.interfaces import IClock
from synrepl.base.tasks import Tasks
from synrepl.base.time import Backoff, doubling, sleep
from synrepl.errors import StorageError
from synrepl.replicas.replica.replica_states import ReplicaState
from synrepl.replicas.roles.claims import Claims
from synrepl.replicas.roles.handover import HandOverPrimary
from synrepl.replicas.roles.messages import CannotPromote, IPeerClient, plausible_epoch
from synrepl.replicas.roles.metrics import RoleMetrics
from synrepl.replicas.roles.notifier import PrimaryNotifier
from synrepl.replicas.roles.record import RoleRecord, RoleStore
from synrepl.replicas.roles.rivals import INQUIRY_SECONDS, Rivals
from synrepl.replicas.roles.role_states import TRANSITIONS, Role, RoleEvent
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import ReadRefusal
from synrepl.replication.machine import Machine
from synrepl.storage.append_errors import ReadOnlyHere
from synrepl.storage.log import Log

if TYPE_CHECKING:
    from synrepl.replicas.replica.replica import Replica

FOLLOW_AGAIN: Final = (
    "synrepl resync makes this daemon a replica of the other one (with an unknown address: restart with"
    " --upstream)"
)
LEAD_AGAIN: Final = "if the other is not primary, synrepl promote --force makes this one primary again"

MAX_SAVE_RETRY_SECONDS: Final = 60.0

EXPLAINED: Final = (ReplicaState.DISCONNECTED, ReplicaState.REFUSED, ReplicaState.STOPPED)
"""States of a replica whose reason is reported while its copy is awaited."""


class Unreadiness(NamedTuple):
    """A state of the room (`ReplicasRoom.states`), an explanation, and since when in Unix seconds."""

    state: str
    why: str
    since: float


class IRoleOwner(Protocol):
    """The daemon that has a role: it answers what its roles ask, and is told what they change."""

    def follow(self, where: Address | None) -> "Replica":
        """Make a replica that follows this address; with None the upstream in the settings."""

    def may_follow(self, where: Address) -> bool:
        """Whether an address that a peer has told may be followed."""

    def known_daemons(self) -> Sequence[Address]:
        """All daemons known locally: they are notified when this one becomes primary."""

    def listed_daemons(self) -> Sequence[Address]:
        """The daemons that the operator has listed, where they can be asked (`claims.py`)."""

    def replica_address(self, uuid: str) -> Address | None:
        """Where the replica with this uuid can be reached by its lease; None without one."""

    def role_changed(self) -> None:
        """Called after every change of the role, of what it permits, and of which daemons know it."""


@dataclass(eq=False, repr=False)
class RoleManager:
    """The role of this daemon, and its transitions (`role_states.py`). `Promotion` makes it primary.

    `owner` is the daemon, `address` returns where other daemons reach it, and `has_upstream` tells whether
    its settings name an upstream. A copy that is older than `stale_seconds` is stale, and with
    `refuses_stale_reads` refuses reads.
    """

    _logger = Logger()
    log: Log
    clock: IClock
    _: KW_ONLY
    name: str
    has_upstream: bool
    stale_seconds: float
    refuses_stale_reads: bool = False
    address: Callable[[], Address]
    owner: IRoleOwner
    peers: IPeerClient
    metrics: RoleMetrics

    def __post_init__(self) -> None:
        self._machine = Machine("role", TRANSITIONS, Role.PRIMARY)
        self.why = ""
        self.subscribers: list[Callable[[], object]] = []
        self.since = self.clock.seconds()
        self.replica: Replica | None = None
        self._primary = Address()
        self.store = RoleStore(self.log, own=self.address, local=self.owner.known_daemons)
        self._tasks = Tasks(self._logger, "roles")
        self.claims = Claims(self)
        self.rivals = Rivals(self, self._tasks, self.metrics)
        self.notifier = PrimaryNotifier(
            self.clock,
            self.peers,
            self._tasks,
            claim=self.claims.current,
            complete=self.store.complete,
            save=self._save_unnotified,
            on_superseded=self.rivals.superseded,
        )
        self.handover = HandOverPrimary(
            self.log,
            self.clock,
            self.peers,
            role=lambda: self.role,
            find_replica=self._find_replica,
            on_change=self.update_gate,
        )
        self._is_stopped = False
        self.changing = DeferredLock()
        """Held while the role changes, until that is saved."""

    @property
    def role(self) -> Role:
        """The role of this daemon."""
        return self._machine.state

    @property
    def is_primary(self) -> bool:
        """Whether this daemon is the primary."""
        return self.role == Role.PRIMARY

    @property
    def is_fenced(self) -> bool:
        """Whether another daemon is primary, and this one serves nobody."""
        return self.role == Role.FENCED

    @property
    def has_met_upstream(self) -> bool:
        """Whether this daemon is a replica with a complete copy, or one whose upstream has said who it is."""
        replica = self.replica
        return replica is not None and (replica.is_whole or replica.welcome is not None)

    def staleness(self) -> str:
        """Return why reads are refused until this daemon is up to date; empty if they are not."""
        unreadiness = self.unreadiness() if self.refuses_stale_reads else None
        return "" if unreadiness is None else f"{unreadiness.state}: {unreadiness.why}"

    def state(self) -> str:
        """Return which of the states of the room this daemon is in; empty if in none."""
        if self.role != Role.FENCED and self.handover.is_active:
            return "handing over"
        unreadiness = self.unreadiness()
        return "" if unreadiness is None else unreadiness.state

    def unreadiness(self) -> Unreadiness | None:
        """Return why this daemon may lack facts; None if it lacks none that it knows of."""
        if self.role == Role.FENCED:
            return Unreadiness("fenced", self.why, self.since)
        replica = self.replica
        if replica is None:
            return None
        if not replica.is_whole:
            why = f": {replica.why}" if replica.state in EXPLAINED and replica.why else ""
            return Unreadiness("joining", f"this replica has no complete copy yet{why}", replica.since)
        if replica.state is ReplicaState.STOPPED:
            return Unreadiness("stopped", replica.why, replica.since)
        if why := replica.staleness(self.stale_seconds):
            return Unreadiness("stale", why, self.clock.seconds() - replica.lag_seconds())
        return None

    @property
    def ways_out(self) -> str:
        """What an operator can do with this daemon once it is fenced."""
        return FOLLOW_AGAIN if "filter" in self.log.notes else f"{FOLLOW_AGAIN}; {LEAD_AGAIN}"

    def lag_seconds(self) -> float:
        """Return the seconds since this copy was last caught up; 0 if this daemon is no replica."""
        return self.replica.lag_seconds() if self.replica is not None else 0.0

    def lag_rows(self) -> int:
        """Return the number of facts that this copy is known to lack; 0 if this daemon is no replica."""
        return self.replica.freshness.lag_rows() if self.replica is not None else 0

    @property
    def primary(self) -> Address:
        """The primary's address; empty if this daemon does not know it."""
        if self.role == Role.PRIMARY:
            return self.address()
        upstream_primary = self.replica.primary if self.replica is not None else None
        return upstream_primary or self._primary

    @property
    def is_whole(self) -> bool:
        """False for a replica that has no complete copy yet; else True."""
        return self.replica is None or self.replica.is_whole

    @property
    def is_linked(self) -> bool:
        """Whether this daemon is the primary, or follows it, directly or through other replicas."""
        if self.role == Role.PRIMARY:
            return not self.rivals.is_asking
        return self.replica is not None and self.replica.is_linked

    @property
    def is_settled(self) -> bool:
        """False while a replica neither has compared its copy since the start, nor knows why it cannot."""
        return self.replica is None or self.replica.is_settled

    # -- start and stop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Assume the role that the log remembers, or else that of the settings: an upstream, or none.

        A fenced daemon with an upstream in its settings becomes a replica. A replica whose primary is
        unknown, or that is started without its upstream, is fenced.
        A primary refuses facts until the daemons that it lists had time to say that they are primary
        (`started`).
        """
        record, notes = self.store.load(), self.log.notes
        epoch = self.log.head.epoch
        copied = notes.get("primary_at") or notes.get("upstream_at") or ""
        if self.has_upstream and record is not None and record.role == Role.PRIMARY:
            self._logger.warn(
                "this daemon was promoted in epoch {epoch}, and stays primary: the upstream in its settings"
                " is not followed",
                epoch=record.epoch,
            )
            self._become_primary(RoleEvent.START)
        elif (
            record is not None
            and record.role == Role.FENCED
            and record.epoch >= epoch
            and not self.has_upstream
        ):
            # Also in the same epoch: of two primaries the one with the higher uuid stayed primary.
            self.become_fenced(RoleEvent.START, record)
        elif self.has_upstream or (record is not None and record.role == Role.REPLICA and record.address):
            self.become_replica(RoleEvent.START, self.store.primary)
        elif record is not None and record.role == Role.REPLICA:
            # It was a replica, and nobody says of whom: to be primary it takes a promotion.
            self.become_fenced(RoleEvent.START, record)
        elif record is None and (copied or "filter" in notes):
            # A copy, started without its upstream: as a primary it would write serials that another one has.
            self.become_fenced(RoleEvent.START, RoleRecord(Role.FENCED, epoch, address=copied))
        else:
            self._become_primary(RoleEvent.START)
        self.handover.resume()
        unnotified = [Address.parse(text) for text in record.unnotified] if record is not None else []
        self.notifier.unnotified = unnotified
        self.rivals.start()
        self.update_gate()
        self.notifier.notify(self.store.others(unnotified))

    async def started(self) -> None:
        """Return once the inquiry of a starting primary has ended; at once in another role."""
        await self.rivals.asked()

    def stop(self) -> None:
        """Stop following, notifying and asking."""
        self._is_stopped = True
        self.rivals.stop()
        self._tasks.cancel_all()
        self.handover.stop()
        self._stop_replica()

    def _stop_replica(self) -> None:
        replica, self.replica = self.replica, None
        if replica is not None:
            replica.stop()

    def _become_primary(self, event: RoleEvent) -> None:
        self._machine.move(event, Role.PRIMARY)
        self._stop_replica()
        self.why = ""
        self.rivals.clear()
        self.update_gate()

    def update_gate(self) -> None:
        """Accept facts as a primary, unless another daemon may be one."""
        if self.role != Role.PRIMARY:
            return
        if self.handover.is_active or self.rivals.is_asking:
            self.log.gate.close(self._write_refusal)
        else:
            self.log.gate.open()
        self.owner.role_changed()

    def become_replica(self, event: RoleEvent, where: Address | None) -> "Replica":
        """Follow this address; with None the upstream in the settings."""
        self._machine.move(event, Role.REPLICA)
        self._stop_replica()
        self.why = ""
        self._primary = where or Address()
        self.log.gate.close(self._write_refusal)
        replica = self.replica = self.owner.follow(where)
        if not self._is_stopped:
            replica.start()
        self.owner.role_changed()
        return replica

    def become_fenced(self, event: RoleEvent, record: RoleRecord) -> None:
        """Serve nobody from now on: the record names the primary."""
        self._machine.move(event, Role.FENCED)
        self._stop_replica()
        self.handover.stop()
        self._primary = Address.parse(record.address)
        self.since = self.clock.seconds()
        where = str(self.primary) if self.primary else "its address is unknown"
        self.why = f"another daemon is primary since epoch {record.epoch}: {where}"
        self.log.gate.close(self._write_refusal)
        self._logger.warn("fenced: {why}; {ways_out}", why=self.why, ways_out=self.ways_out)
        self.owner.role_changed()

    def forwarding_refusal(self, stream: str) -> ReadOnlyHere | None:
        """Return why this replica forwards no facts to its primary; None if it does, or is no replica.

        A stopped replica may follow the wrong primary, and would never receive the facts that it forwarded.
        """
        replica = self.replica
        if replica is None or replica.state is not ReplicaState.STOPPED:
            return None
        why = f"nothing was stored: this replica has stopped: {replica.why}"
        return ReadOnlyHere("stopped", why, stream=stream, moved_to=str(self.primary), retryable=False)

    def reading_refusal(self) -> ReadRefusal | None:
        """Return why no reader is served; None if readers are.

        The facts of a fenced daemon or a stopped replica may be lost: its readers must read from the primary.
        """
        if self.role == Role.FENCED:
            return ReadRefusal("fenced", f"this daemon is fenced: {self.why}")
        if self.replica is not None and self.replica.state is ReplicaState.STOPPED:
            return ReadRefusal("stopped", f"this replica has stopped: {self.replica.why}")
        return None

    def file_refusal(self) -> ReadOnlyHere | None:
        """Return why this daemon accepts no file upload; None if it does.

        A replica forwards uploads to its primary.
        """
        return self._write_refusal("files") if self.role == Role.FENCED else self.forwarding_refusal("files")

    def _write_refusal(self, stream: str) -> ReadOnlyHere:
        if self.role == Role.PRIMARY:
            if self.handover.is_active:
                return ReadOnlyHere(
                    "handing_over", "another daemon is about to become primary: try again", stream=stream
                )
            why = (
                "this primary has just started, and asks the daemons in --upstream which one is primary;"
                f" that takes {INQUIRY_SECONDS:g} seconds at most: try again"
            )
            return ReadOnlyHere("starting", why, stream=stream)
        moved_to = str(self.primary)
        if self.role == Role.FENCED:
            why = f"{self.why}; {self.ways_out}"
            return ReadOnlyHere("fenced", why, stream=stream, moved_to=moved_to, retryable=False)
        why = "this daemon is a replica: write to the primary"
        stopped = self.forwarding_refusal(stream)
        return stopped or ReadOnlyHere("replica", why, stream=stream, moved_to=moved_to)

    async def begin_as_primary(self, before: Sequence[Address], *, check: Callable[[], object]) -> EpochStart:
        """Begin a new epoch as primary; `before` are those that were, or may have been. `changing` is held.

        `check` raises an error if that must not be: it is called now, and again right before the epoch
        begins. Raises `StorageError` if the epoch cannot begin. In both cases a replica is one again then.
        """
        check()
        # From here on no fact of the old history is accepted.
        record, was_fenced = self.store.load(), self.role == Role.FENCED
        self._stop_replica()
        try:
            if record is not None and not plausible_epoch(record.epoch):
                self._logger.warn(
                    "ignoring the stored epoch {epoch}: an epoch must be from 1 to 2**53", epoch=record.epoch
                )
            epoch = self.store.seen_epoch + 1
            others = self.store.all(*before, *self.notifier.unnotified)
            unnotified = tuple(map(str, others))
            knows = self.store.to_remember(others)
            new_record = RoleRecord(Role.PRIMARY, epoch, self.log.uuid, "", unnotified, knows)
            at_ms = int(self.clock.seconds() * 1000)
            # Save first: a kill between the two steps would leave an epoch without a primary.
            await self.store.save_promotion(new_record, at_ms)
            epoch_start = await self.log.epochs.begin_next("promoted", epoch=epoch, at_ms=at_ms, check=check)
        except Exception:
            if not was_fenced:
                self.become_replica(RoleEvent.FOLLOW, self.store.primary)
            raise
        self._logger.info(
            "promoted: primary in epoch {epoch}, which begins after serial {serial}",
            epoch=epoch_start.epoch,
            serial=epoch_start.serial,
        )
        # Primary whatever fails now: a restart would find the epoch. The old primary must hear of it soon.
        self._become_primary(RoleEvent.PROMOTE)
        self.notifier.notify(others)
        self._tasks.start(self._save_promoted(new_record), "saving the role")
        return epoch_start

    async def _save_promoted(self, record: RoleRecord) -> None:
        """Save the role after a promotion. Until that works, a restart finds what `save_promotion` saved."""
        backoff = Backoff(doubling(1.0, MAX_SAVE_RETRY_SECONDS))
        while self.role == Role.PRIMARY and self.log.notes.get("promoting") is not None:
            known = self.store.load()
            try:
                await self.store.save(record if known is None or known.epoch < record.epoch else known)
            except StorageError as error:
                self._logger.warn("cannot save the role of this daemon yet: {error}", error=str(error))
                await sleep(self.clock, backoff.next())

    async def _save_unnotified(self, unnotified: Sequence[Address]) -> None:
        try:
            await self.store.save_unnotified(unnotified)
        except StorageError as error:
            text = f"cannot save which daemons know the new epoch: {error}"
            self._logger.warn("{text}; after a restart all are notified again", text=text)
        self.owner.role_changed()

    # -- requests and claims of peers ----------------------------------------------------------------------

    def listed(self) -> Sequence[Address]:
        """The daemons that the operator has listed, as far as they can be asked."""
        return self.store.others(self.owner.listed_daemons())

    def _find_replica(self, uuid: str, told: Address) -> Address | None:
        """Where a replica can be asked: by its lease, or where it is listed, if that is what it has told."""
        return self.owner.replica_address(uuid) or next(
            (one for one in self.listed() if told.is_same(one)), None
        )

    def on_primary_moved(self, address: str) -> None:
        """If this daemon is a replica, follow the primary at this address, which its upstream sent."""
        where = Address.parse(address)
        is_other = where and not where.is_same(self.address())
        if self.role == Role.REPLICA and is_other and self.owner.may_follow(where):
            self._tasks.start(self._follow_primary(where), "following the primary")

    async def _follow_primary(self, where: Address) -> None:
        await sleep(self.clock, 0)
        replica = self.replica
        if self.role == Role.REPLICA and replica is not None and not where.is_same(replica.upstream.where):
            self._logger.info("the upstream reports that the primary is {where}", where=str(where))
            self.become_replica(RoleEvent.FOLLOW, where)

    async def resync(self) -> bool:
        """Give up the facts that only this copy has, on an operator's request.

        A fenced daemon becomes a replica of the primary that it knows, else of its configured upstream. False
        if the daemon is neither fenced nor a stopped replica. Raises `CannotPromote` if both are unknown.
        """
        # A fencing under way must be saved first: the record names the primary to follow.
        async with self.changing:
            if self.role == Role.FENCED:
                await self._follow_again()
                return True
        return self.replica.resync() if self.replica is not None else False

    async def _follow_again(self) -> None:
        where = self.primary
        if not where and not self.has_upstream:
            raise CannotPromote(
                "primary_unknown", "the primary's address is unknown; restart with --upstream"
            )
        if not self.has_upstream and not self.owner.may_follow(where):
            at = where.native or where.http
            why = f"only a peer has told the address of the primary: restart with --upstream {at}"
            raise CannotPromote("primary_unknown", why)
        # Facts accepted before the fencing may exist only in this copy.
        await self.log.flush()
        if (record := self.store.load()) is not None:
            await self.store.save(msgspec.structs.replace(record, role=Role.REPLICA))
        self.become_replica(RoleEvent.RESYNC, where or None).resync()
