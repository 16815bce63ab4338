"""Primary, replica or fenced: what a daemon is, and how it becomes another thing."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import ReplicationError, StorageError
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.roles.errors import CannotPromote, ClaimRefused, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.handover_budget import HandOverBudget
from synrepl.replication.roles.inquiry import INQUIRY_SECONDS, Inquiry
from synrepl.replication.roles.interfaces import (
    Claim,
    HandOver,
    IFollowingReplica,
    IPeerClient,
    PeerStatus,
    RoleLog,
)
from synrepl.replication.roles.later_epochs import LaterEpochs
from synrepl.replication.roles.record import PromotionRecord, RoleRecord
from synrepl.replication.roles.verification import MAX_EPOCH, ClaimVerifier, believable, checked_address
from synrepl.wire.text import printable

__all__ = ["FENCED", "HANDOVER_SECONDS", "MAX_HANDOVER_SECONDS", "PRIMARY", "REPLICA", "RoleManager"]

PRIMARY: Final = "primary"
REPLICA: Final = "replica"
FENCED: Final = "fenced"

HANDOVER_SECONDS: Final = 15.0
"""How long a primary that is asked to hand over takes no writes, unless it is asked again or another one
takes over: so long nobody can write if who asked has died."""

MAX_HANDOVER_SECONDS: Final = 30.0
"""The longest hand-over that can be asked for at once."""

AGAIN_SECONDS: Final = 5.0
"""After so long it is asked again; the rest is the time for beginning the epoch."""

CATCH_UP_SECONDS: Final = 30.0
"""How long a promotion waits for the last facts of the primary that hands over."""

TELL_SECONDS: Final = 5.0
"""How soon somebody who could not be reached is told of a new epoch again; later and later."""

MAX_TELL_SECONDS: Final = 60.0


MAX_KNOWN: Final = 20
MAX_UUID: Final = 200

LOG_SECONDS: Final = 60.0
"""A refused claim is logged once in so many seconds for each reason."""

WAYS_OUT: Final = (
    "synrepl resync makes this daemon a replica of that one; if that one is not primary,"
    " synrepl promote --force makes this one primary again"
)
"""What an operator can do with a fenced daemon."""


class RoleManager:
    """What this daemon is.

    `follow` makes a replica of whoever is at an address (None: of the upstream that was configured).
    `others` are the addresses of all daemons known here, who are told when this one becomes primary.
    `is_leased` says whether the replica with a uuid is connected, or has a lease. `missing` gives the files
    that are not here. `changed` is called after every change, `count_refused` with the code of each claim
    that is refused, `count_later_epoch` for each replica that knows a later epoch.
    """

    _logger = Logger()

    def __init__(
        self,
        log: RoleLog,
        clock: IClock,
        *,
        name: str,
        has_upstream: bool,
        address: Callable[[], Address],
        follow: Callable[[Address | None], IFollowingReplica],
        tell: IPeerClient,
        others: Callable[[], Sequence[Address]] = lambda: (),
        is_leased: Callable[[str], bool] = lambda uuid: False,
        missing: Callable[[int], Awaitable[Sequence[Any]]] | None = None,
        changed: Callable[[], None] = lambda: None,
        count_refused: Callable[[str], None] = lambda code: None,
        count_later_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        self.role = PRIMARY
        self.why = ""
        self.since = clock.seconds()
        self.replica: IFollowingReplica | None = None
        self._primary = Address()
        self.untold: list[Address] = []
        self._log = log
        self._clock = clock
        self._name = name
        self._has_upstream = has_upstream
        self._address = address
        self._follow = follow
        self._tell = tell
        self._others = others
        self._is_leased = is_leased
        self._missing = missing
        self._changed = changed
        self._count_refused = count_refused
        self._count_later_epoch = count_later_epoch
        self._verifier = ClaimVerifier(log, clock, tell, is_known=self._is_known)
        self._tasks = Tasks(self._logger, "roles")
        self._inquiry = Inquiry(
            clock, tell, self._tasks, answered=self._heard_at_start, ended=self._inquiry_ended
        )
        self._later_epochs = LaterEpochs(clock)
        self._logged: dict[str, float] = {}
        self._handover_timer: Any = None
        self._handover_to = ""
        self._budget = HandOverBudget(clock)
        self._is_asking_to_hand_over = False
        self._asking_about_epoch: set[bool] = set()
        self._is_stopped = False
        self._is_promoting = False
        self._changing = DeferredLock()
        self._is_telling = False
        self._tell_seconds = TELL_SECONDS
        self._news: Deferred[None] | None = None

    @property
    def primary(self) -> Address:
        """Where the primary is, as far as that is known."""
        if self.role == PRIMARY:
            return self._address()
        told = self.replica.primary if self.replica is not None else None
        return told or self._primary

    @property
    def is_promoting(self) -> bool:
        """Whether this daemon needs its primary to hand over, and to go on doing so."""
        return self._is_asking_to_hand_over

    @property
    def problems(self) -> list[tuple[str, float]]:
        """Signs, not verified, that another daemon is primary; each with the time at which it began."""
        return self._later_epochs.problems() if self.role == PRIMARY else []

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Be what the settings say, or what happened since they were written.

        A primary takes no facts before the daemons that it knows had time to say that another one is
        (`started`).
        """
        noted = self._noted()
        epoch = self._log.epoch
        if self._has_upstream and noted is not None and noted.role == PRIMARY:
            self._logger.warn(
                "this daemon was promoted in epoch {epoch}, and stays primary: the upstream in its settings"
                " is not followed",
                epoch=noted.epoch,
            )
            self._be_primary()
        elif noted is not None and noted.role == FENCED and noted.epoch >= epoch and not self._has_upstream:
            # In the same epoch too: of two the one with the higher uuid stayed.
            self._be_fenced(noted)
        elif self._has_upstream or (noted is not None and noted.role == REPLICA and noted.address):
            self._be_replica(self._moved_to())
        else:
            self._be_primary()
        until, _, uuid = self._log.notes.get("handover", "0").partition(" ")
        left = float(until) - self._clock.seconds()
        if self.role == PRIMARY and 0 < left <= MAX_HANDOVER_SECONDS:
            self._seal_for(left, uuid)
        told = [Address.parse(text) for text in noted.told] if noted is not None else []
        if self.role == PRIMARY:
            known = self._to_tell([*told, *self._known(), *self._others()])
            if known:
                self._logger.info("asking {count} known daemons who is primary", count=len(known))
            self._inquiry.start(known)
            self._seal_as_primary()
        self._must_tell(self._to_tell(told))

    async def started(self) -> None:
        """Returns once the daemons that this primary knows have answered, or had time to."""
        await self._inquiry.over()

    def stop(self) -> None:
        """Follow nobody, tell nobody."""
        self._is_stopped = True
        self._inquiry.stop()
        self._tasks.cancel_all()
        self._verifier.stop()
        self._stop_handover_timer()
        if self.replica is not None:
            self.replica.stop()
            self.replica = None

    def _moved_to(self) -> Address | None:
        """Where the upstream went, as far as it is remembered; None for the one in the settings."""
        noted = self._noted()
        known = noted is not None and noted.role != PRIMARY
        return (Address.parse(noted.address) or None) if noted is not None and known else None

    def _noted(self) -> RoleRecord | None:
        begun = self._begun()
        if begun is not None:
            return begun
        text = self._log.notes.get("role")
        return None if text is None else msgspec.json.decode(text, type=RoleRecord)

    def _begun(self) -> RoleRecord | None:
        """What this daemon had just become when it was killed: its epoch had begun, and that was all."""
        text = self._log.notes.get("promoting")
        if text is None or not self._log.epoch_starts:
            return None
        meant, epoch_start = msgspec.json.decode(text, type=PromotionRecord), self._log.epoch_starts[-1]
        is_ours = (epoch_start.epoch, epoch_start.at_ms) == (meant.noted.epoch, meant.at_ms)
        return meant.noted if is_ours and self._log.epoch == epoch_start.epoch else None

    async def _note(self, noted: RoleRecord) -> None:
        await self._log.note(role=msgspec.json.encode(noted).decode(), promoting=None)

    def _be_primary(self) -> None:
        if self.replica is not None:
            self.replica.stop()
            self.replica = None
        self.role, self.why = PRIMARY, ""
        self._later_epochs.clear()
        self._seal_as_primary()
        self._changed()

    def _seal_as_primary(self) -> None:
        """Take facts, unless somebody may be primary instead."""
        if self.is_handing_over:
            self._log.write_barrier = self._handing_over_refuses
        else:
            self._log.write_barrier = self._starting_refuses if self._inquiry.is_running else None

    def _be_replica(self, where: Address | None) -> IFollowingReplica:
        if self.replica is not None:
            self.replica.stop()
        self.role, self.why = REPLICA, ""
        self._primary = where or Address()
        self._log.write_barrier = self._replica_refuses
        replica = self.replica = self._follow(where)
        if not self._is_stopped:
            replica.start()
        self._changed()
        return replica

    def _be_fenced(self, noted: RoleRecord) -> None:
        if self.replica is not None:
            self.replica.stop()
            self.replica = None
        self._stop_handover_timer()
        self._budget.end()
        self.role = FENCED
        self._primary = Address.parse(noted.address)
        self.since = self._clock.seconds()
        where = str(self.primary) if self.primary else "nobody has said where"
        self.why = f"another daemon is primary since epoch {noted.epoch}: {where}"
        self._log.write_barrier = self._fenced_refuses
        self._logger.warn("fenced: {why}; {ways_out}", why=self.why, ways_out=WAYS_OUT)
        self._changed()

    def refuses_passing(self, stream: str) -> ReadOnlyHere | None:
        """Why this replica passes no facts of this stream on to its primary; None if it does.

        One that has stopped does not know whose primary that is, and would never see what became of them.
        """
        replica = self.replica
        if replica is None or replica.state != "stopped":
            return None
        why = f"nothing was stored: this replica has stopped: {replica.why}"
        return ReadOnlyHere("stopped", why, stream=stream, moved_to=str(self.primary), retryable=False)

    def refuses_file(self) -> ReadOnlyHere | None:
        """Why no file may be brought here; None if it is kept, by a replica for its primary too."""
        return self._fenced_refuses("files") if self.role == FENCED else self.refuses_passing("files")

    def _replica_refuses(self, stream: str) -> StorageError:
        if (stopped := self.refuses_passing(stream)) is not None:
            return stopped
        why = "this daemon is a replica: facts are added at the primary"
        return ReadOnlyHere("replica", why, stream=stream, moved_to=str(self.primary))

    def _fenced_refuses(self, stream: str) -> Fenced:
        return Fenced(
            "fenced", f"{self.why}; {WAYS_OUT}", stream=stream, moved_to=str(self.primary), retryable=False
        )

    def _starting_refuses(self, stream: str) -> StorageError:
        why = (
            "this primary has just started, and asks the daemons that it knows who is primary;"
            f" that takes {INQUIRY_SECONDS:g} seconds at most: try again"
        )
        return ReadOnlyHere("starting", why, stream=stream)

    def _handing_over_refuses(self, stream: str) -> StorageError:
        return HandingOver("handing_over", "another daemon is about to become primary", stream=stream)

    # -- becoming primary ----------------------------------------------------------------------------------

    async def promote(self, *, force: bool = False) -> EpochStart:
        """Become primary, in a new epoch. Raises `CannotPromote`.

        In order, the primary first takes no more facts, and all it has must be here, files included. With
        `force` nobody is asked, and what is not here is left behind; it is named when the other one comes
        back (its tail is written to a file there). With `force` a fenced daemon becomes primary as well: the
        operator says that no other one is.
        """
        if self.role == FENCED:
            return await self._promote_fenced(force=force)
        replica = self.replica
        if self.role != REPLICA or replica is None:
            raise CannotPromote("not_a_replica", f"this daemon is {self.role}; only a replica is promoted")
        if self._is_promoting:
            raise CannotPromote("promoting", "it is under way", retryable=True)
        if self._log.notes.get("filter") is not None:
            raise CannotPromote("filtered", "this copy has only some streams or writers")
        if not replica.is_whole:
            raise CannotPromote("not_whole", "this copy was never whole", retryable=True)
        self._is_promoting = True
        try:
            old, followed = replica.primary, replica.upstream.where
            if not force:
                await self._take_over(old)
            async with self._changing:
                if self.replica is not replica and not force:
                    raise CannotPromote("moved", "another daemon became primary", retryable=True)
                return await self._begin_as_primary([old, followed])
        finally:
            # Not before: the old primary ends the hand-over for a replica that is no longer being promoted.
            self._is_promoting = self._is_asking_to_hand_over = False

    async def _promote_fenced(self, *, force: bool) -> EpochStart:
        if not force:
            raise CannotPromote("fenced", f"{self.why}; {WAYS_OUT}")
        async with self._changing:
            if self.role != FENCED:
                raise CannotPromote("promoting", f"this daemon is {self.role} meanwhile", retryable=True)
            return await self._begin_as_primary([self._primary])

    async def _begin_as_primary(self, before: Sequence[Address]) -> EpochStart:
        # From here on nothing more of the old history is taken.
        noted, was_fenced = self._noted(), self.role == FENCED
        if self.replica is not None:
            self.replica.stop()
        self.replica = None
        try:
            if noted is not None and not believable(noted.epoch):
                self._logger.warn("the noted epoch {epoch} cannot be; it is ignored", epoch=noted.epoch)
            epoch = self._seen_epoch + 1
            others = self._to_tell([*before, *self.untold, *self._known(), *self._others()])
            told = tuple(map(str, others))
            meant = RoleRecord(PRIMARY, epoch, self._log.uuid, "", told, self._knowing(others))
            at_ms = int(self._clock.seconds() * 1000)
            # First, or a kill between the two steps would leave an epoch that nobody is primary of.
            promoting = msgspec.json.encode(PromotionRecord(at_ms, meant)).decode()
            await self._log.note(promoting=promoting, handover=None)
            epoch_start = await self._log.next_epoch("promoted", epoch=epoch, at_ms=at_ms)
            await self._note(meant)
        except Exception:
            if not was_fenced:
                self._be_replica(self._moved_to())
            raise
        self._logger.info(
            "promoted: primary in epoch {epoch} from serial {serial}",
            epoch=epoch_start.epoch,
            serial=epoch_start.serial,
        )
        self._be_primary()
        self._must_tell(others)
        return epoch_start

    async def _take_over(self, old: Address) -> None:
        if not old:
            raise CannotPromote(
                "upstream_away",
                "where the primary is is not known; say force to do without it",
                retryable=True,
            )
        until = self._clock.seconds() + CATCH_UP_SECONDS
        self._is_asking_to_hand_over = True
        try:
            while not await self._has_all_of(old, until):
                pass
        except ReplicationError as error:
            # The primary checks that this daemon has given up.
            self._is_asking_to_hand_over = False
            # Not to keep it waiting for nothing; it may have heard also what it could not answer.
            with suppress(ReplicationError):
                await self._ask_to_hand_over(old, 0)
            if isinstance(error, CannotPromote):
                raise
            raise CannotPromote(
                "upstream_away", f"the primary cannot be asked: {error}; say force to do without it"
            ) from error

    async def _ask_to_hand_over(self, old: Address, seconds: float) -> LogPosition:
        asked = HandOver(seconds=seconds, uuid=self._log.uuid, address=str(self._address()))
        return await self._tell.hand_over(old, asked)

    async def _has_all_of(self, old: Address, until: float) -> bool:
        """Whether all that the old primary has is here, and it waits long enough for that to stay so; if not,
        it is to be asked again."""
        asked = self._clock.seconds()
        position = await self._ask_to_hand_over(old, HANDOVER_SECONDS)
        while self._log.position != position:
            now = self._clock.seconds()
            if now >= until:
                why = f"the primary stands at serial {position.serial}, this copy at {self._log.serial}"
                raise CannotPromote("behind", why, retryable=True)
            if now - asked >= AGAIN_SECONDS:
                return False
            await deferLater(self._clock, 0.05)  # type: ignore[arg-type]
        missing = [] if self._missing is None else await self._missing(self._log.serial)
        if missing:
            why = f"{len(missing)} files are not here; say force to leave them behind"
            raise CannotPromote("files_missing", why, missing=missing)
        now = self._clock.seconds()
        if now >= until:
            raise CannotPromote("behind", "it took too long to look for the files", retryable=True)
        # It may have begun anew meanwhile, and taken facts: that it hands over is not written down.
        return await self._ask_to_hand_over(old, HANDOVER_SECONDS) == self._log.position

    async def _tell_all(self) -> None:
        """Tell everybody who is primary now, until each has heard it."""
        while self.untold and (claim := self._claim()) is not None:
            # One of which only half of the address was known may have come meanwhile, and said the other.
            self.untold = self._to_tell_of(self.untold)
            for address in list(self.untold):
                try:
                    await self._tell.claim(address, claim)
                except ReplicationError as error:
                    code = getattr(error, "code", "")
                    if code == "other_history" or (code == "superseded" and self.role != PRIMARY):
                        # It holds another log by now, so that it cannot be primary of this one; or it knows
                        # a later primary than this daemon does.
                        self._forget_untold(address)
                    self._logger.info(
                        "{address} is not told of epoch {epoch} yet: {why}",
                        address=str(address),
                        epoch=claim.epoch,
                        why=str(error),
                    )
                    if code == "superseded" and self.role == PRIMARY:
                        await self._ask_who_superseded(address, str(error))
                else:
                    if claim == self._claim():
                        self._forget_untold(address)
            left = tuple(map(str, self.untold))
            noted = self._noted() or RoleRecord(PRIMARY, claim.epoch, claim.uuid)
            try:
                await self._note(msgspec.structs.replace(noted, told=left))
            except StorageError as error:
                # After a restart those are told again who were told already.
                self._logger.warn("who was told is not written down: {why}", why=str(error))
            self._changed()
            if self.untold:
                await self._pause_telling()

    async def _pause_telling(self) -> None:
        """Wait until it is time to tell again, or until there is news."""
        waiter = self._news = Deferred()
        timer = self._clock.callLater(self._tell_seconds, waiter.callback, None)
        self._tell_seconds = min(self._tell_seconds * 1.5, MAX_TELL_SECONDS)
        try:
            await waiter
        finally:
            self._news = None
            if timer.active():
                timer.cancel()

    def _forget_untold(self, address: Address) -> None:
        if address in self.untold:
            self.untold.remove(address)

    def _claim(self) -> Claim | None:
        """Who is primary, as far as it is known; None if nobody can be told where."""
        if self.role == PRIMARY:
            epoch, uuid, address = self._log.epoch, self._log.uuid, str(self._address())
        elif (noted := self._noted()) is not None and noted.role != PRIMARY and noted.uuid and noted.address:
            epoch, uuid, address = noted.epoch, noted.uuid, noted.address
        else:
            return None
        return Claim(epoch=epoch, uuid=uuid, address=address, history=self._log.history, name=self._name)

    def _to_tell(self, others: Sequence[Address], *, primary: Address | None = None) -> list[Address]:
        """These, but for this daemon and the primary, which know."""
        known = [self._address(), *([primary] if primary is not None else [])]
        fresh = dict.fromkeys(self._whole(address, others) for address in others if address)
        return [address for address in fresh if not any(address.is_same(one) for one in known)]

    @staticmethod
    def _whole(address: Address, known: Sequence[Address]) -> Address:
        """The address with its HTTP part, if that of the same daemon is among those known: daemons are told
        over HTTP."""
        if address.http:
            return address
        same = (one for one in known if one.http and one.native == address.native)
        return next(same, address)

    def _to_tell_of(self, others: Sequence[Address]) -> list[Address]:
        """These, each as it is known here by now."""
        known = [*others, *self._known(), *self._others()]
        return list(dict.fromkeys(self._whole(address, known) for address in others))

    def _known(self) -> list[Address]:
        noted = self._noted()
        return [] if noted is None else [Address.parse(text) for text in noted.knows]

    def _knowing(self, others: Sequence[Address]) -> tuple[str, ...]:
        """Everybody ever known, the newest first, within reason."""
        return tuple(map(str, self._to_tell([*others, *self._known()])))[:MAX_KNOWN]

    def _must_tell(self, others: Sequence[Address]) -> None:
        self.untold = list(others)
        self._tell_seconds = TELL_SECONDS
        if self._news is not None and not self._news.called:
            # What it waits with is old news by now.
            self._news.callback(None)
        if self.untold and not self._is_telling:
            self._is_telling = True
            self._tasks.start(self._tell_all(), "telling of the new epoch").addBoth(self._told)

    def _told(self, _: object) -> None:
        self._is_telling = False

    # -- hearing of another primary ------------------------------------------------------------------------

    def hand_over(self, asked: HandOver, *, trusted: bool = False) -> "Deferred[LogPosition]":
        """A replica is about to become primary: take no facts for a while, and say where this daemon stands
        once all that was taken is kept.

        Unless the peer that asks is `trusted`, the replica itself must answer that it is being promoted.
        Raises `CannotPromote` and `ClaimRefused`.
        """
        return Deferred.fromCoroutine(self._hand_over(asked, trusted=trusted))

    async def _hand_over(self, asked: HandOver, *, trusted: bool) -> LogPosition:
        self._check_hand_over(asked)
        if not trusted and (asked.seconds > 0 or self.is_handing_over):
            await self._verify_hand_over(asked)
            self._check_hand_over(asked)
        if asked.seconds > 0:
            if not trusted:
                self._budget.extend(asked.seconds)
            self._seal_for(asked.seconds, asked.uuid)
            # A restart is no reason to take facts: the other one may have begun its epoch already.
            await self._log.note(handover=f"{self._clock.seconds() + asked.seconds:.3f} {asked.uuid}")
        elif self.is_handing_over:
            self._handed_over()
            await self._log.note(handover=None)
        await self._log.flush()
        return self._log.position

    def _check_hand_over(self, asked: HandOver) -> None:
        if self.role != PRIMARY:
            raise CannotPromote("not_primary", f"this daemon is {self.role}")
        if self.is_handing_over and self._handover_to and asked.uuid and self._handover_to != asked.uuid:
            why = f"this daemon hands over to {printable(self._handover_to)} already"
            raise CannotPromote("handing_over", why, retryable=True)

    async def _verify_hand_over(self, asked: HandOver) -> None:
        """Raises `ClaimRefused` unless one of our replicas says that it is being promoted, or, if this is to
        end the hand-over, that it is not."""
        address = checked_address(asked.address)
        if not asked.uuid or not address:
            raise ClaimRefused("bad_request", "a hand-over names the uuid and the address of the replica")
        told = await self._verifier.describe(address, trusted=False)
        where = printable(asked.address)
        if told.uuid != asked.uuid:
            why = f"{where} is the daemon {printable(told.uuid)}, not {printable(asked.uuid)}"
        elif told.role != REPLICA:
            why = f"{where} is {printable(told.role)}, not a replica"
        elif told.promoting != (asked.seconds > 0):
            why = f"{where} is {'still' if told.promoting else 'not'} being promoted"
        elif self._is_leased(asked.uuid) or await self._holds(told.position):
            return
        else:
            # A replica of a replica has no lease here.
            raise ClaimRefused("unknown_replica", f"{where} holds no copy of this log")
        raise ClaimRefused("not_verified", why, retryable=True)

    async def _holds(self, position: LogPosition) -> bool:
        """Whether a daemon that stands there has a copy of this log."""
        mine = self._log.position
        here = mine.digest if position.serial == mine.serial else await self._log.digest_at(position.serial)
        return position.epoch <= mine.epoch and here is not None and here == position.digest

    def _seal_for(self, seconds: float, uuid: str) -> None:
        self._handover_to = uuid
        self._stop_handover_timer()
        self._handover_timer = self._clock.callLater(seconds, self._handed_over)
        self._seal_as_primary()
        self._changed()

    def _stop_handover_timer(self) -> None:
        if self._handover_timer is not None and self._handover_timer.active():
            self._handover_timer.cancel()

    def _handed_over(self) -> None:
        self._stop_handover_timer()
        self._budget.end()
        if self.role == PRIMARY:
            self._logger.warn("nobody took over; facts are taken again")
            self._seal_as_primary()
            self._changed()

    @property
    def is_handing_over(self) -> bool:
        """Whether facts are refused since another daemon may take over."""
        timer = self._handover_timer
        return self.role == PRIMARY and timer is not None and bool(timer.active())

    async def heard(self, claim: Claim, *, trusted: bool = False) -> None:
        """A peer says who is primary. A lower epoch means nothing; of two in the same epoch the one with the
        higher uuid stays.

        `trusted` says that the peer proved a key that may administer. Raises `ClaimRefused` if the claim does
        not count.
        """
        try:
            await self._hear(claim, trusted=trusted)
        except ClaimRefused as error:
            self._refused(claim, error)
            raise

    async def _hear(self, claim: Claim, *, trusted: bool) -> None:
        if not claim.history:
            raise ClaimRefused("bad_request", "a claim names the history of its log")
        if not (0 < len(claim.uuid) <= MAX_UUID and claim.uuid.isprintable()):
            raise ClaimRefused("bad_request", f"a uuid has 1 to {MAX_UUID} printable characters")
        if claim.uuid == self._log.uuid:
            return
        if claim.history != self._log.history:
            if self.replica is not None and not self.replica.is_whole:
                # The claimant asks again: this may be a copy of that history by then.
                raise ClaimRefused("not_whole", "there is no whole copy here yet", retryable=True)
            why = f"the claim is about the log {printable(claim.history)}, this daemon has another"
            raise ClaimRefused("other_history", why)
        if not believable(claim.epoch):
            raise ClaimRefused("epoch_too_far", "an epoch is a number from 1 to 2**53")
        address = checked_address(claim.address)
        is_far = claim.epoch > self._seen_epoch + 1
        is_known = self._is_leased(claim.uuid) or self._is_known(address)
        if is_far or not (trusted and is_known):
            claim = await self._verified(claim, address, trusted=trusted, is_far=is_far)
        # A daemon of this deployment that proved its key is believed unasked: an old primary must be fenced
        # also where it cannot reach the new one, as behind a NAT.
        async with self._changing:
            await self._judge(claim)

    async def _verified(self, claim: Claim, address: Address, *, trusted: bool, is_far: bool) -> Claim:
        """The claim, as the daemon that it names confirms it."""
        if not address:
            why = "the claim does not say where the primary is, so that it cannot be asked"
            raise ClaimRefused("not_verified", why, retryable=True)
        told = await self._verifier.verify(
            address, trusted=trusted, epoch=claim.epoch, uuid=claim.uuid, is_far=is_far
        )
        return msgspec.structs.replace(claim, epoch=told.position.epoch)

    @property
    def _seen_epoch(self) -> int:
        """The highest epoch that was seen here and can be."""
        noted = self._noted()
        return max(self._log.epoch, 0 if noted is None else believable(noted.epoch))

    def _is_known(self, address: Address) -> bool:
        """Whether this is the address of a daemon of this deployment, as far as it is known here."""
        # By the part that is asked: the other one may be true, and this one a stranger's.
        known = [*self._known(), *self.untold, self.primary, *self._others()]
        if address.http:
            return any(address.http == one.http for one in known)
        return bool(address) and any(address.native == one.native for one in known)

    def _refused(self, claim: Claim, error: ClaimRefused) -> None:
        self._count_refused(error.code)
        if error.code == "digest_differs" and self.role == PRIMARY:
            self._later_epochs.add(claim.uuid, f"two daemons are primary: {error}")
        self._warn_seldom(error.code, f"a claim is refused: {error.code}: {error}")

    def _warn_seldom(self, reason: str, text: str) -> None:
        """Log this, once a minute for each reason: strangers can cause it at will."""
        now = self._clock.seconds()
        if now - self._logged.get(reason, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[reason] = now
            self._logger.warn("{text}", text=text)

    async def _judge(self, claim: Claim) -> None:
        before = self._noted()
        if before is not None and not believable(before.epoch):
            before = msgspec.structs.replace(before, epoch=0, uuid="")
        mine = (self._log.epoch, self._log.uuid if self.role == PRIMARY else "")
        if self.role != PRIMARY and before is not None and before.role != PRIMARY:
            mine = max(mine, (before.epoch, before.uuid))
        if claim.uuid == self._log.uuid:
            return
        if (claim.epoch, claim.uuid) < mine:
            await self._answer(claim)
            if self.role != PRIMARY:
                why = (
                    f"this daemon is {self.role}; the primary it knows is {self.primary}, of epoch {mine[0]}"
                )
                raise ClaimRefused("superseded", why, retryable=True)
            return
        # Whoever was primary before, as far as this daemon knew, may be out of reach of the new one.
        followed = [] if self.replica is None else [self.replica.upstream.where]
        known = [*self.untold, self.primary, *followed, *self._known()]
        others = self._to_tell(known, primary=Address.parse(claim.address))
        told, knows = tuple(map(str, others)), self._knowing([*others, Address.parse(claim.address)])
        noted = RoleRecord(FENCED, claim.epoch, claim.uuid, claim.address, told, knows)
        if self.role == REPLICA:
            where = Address.parse(claim.address)
            if where and where != self.primary:
                self._logger.info(
                    "the primary is {where} since epoch {epoch}", where=str(where), epoch=claim.epoch
                )
                await self._note(msgspec.structs.replace(noted, role=REPLICA))
                self._be_replica(where)
                self._must_tell(others)
            return
        if (
            self.role == FENCED
            and before is not None
            and (before.epoch, before.uuid)
            >= (
                claim.epoch,
                claim.uuid,
            )
        ):
            if not before.address and claim.address:
                await self._note(noted)
                self._be_fenced(noted)
            return
        # Sealed first: not one more fact may be taken while this is written down.
        self._be_fenced(noted)
        await self._note(noted)
        self._must_tell(others)

    async def _answer(self, claim: Claim) -> None:
        """Another daemon takes itself for primary: it is told of the one that is, until it has heard it."""
        where, ours = Address.parse(claim.address), self._claim()
        if (
            not where
            or where in self.untold
            or ours is None
            or (ours.epoch, ours.uuid) < (claim.epoch, claim.uuid)
        ):
            return
        self._logger.warn(
            "{where} claims epoch {epoch}, but {primary} is primary",
            where=str(where),
            epoch=claim.epoch,
            primary=ours.address,
        )
        # Written down first: the other one takes a claim that was heard for one that holds.
        others = [*self.untold, where]
        noted = self._noted() or RoleRecord(PRIMARY, self._log.epoch, self._log.uuid)
        await self._note(msgspec.structs.replace(noted, told=tuple(map(str, others))))
        self._must_tell(others)

    def heard_epoch(self, epoch: int, name: str, address: str, trusted: bool = False) -> None:
        """A replica that asked to be served knows a later epoch, and names its own address.

        That proves nothing: it is reported, and the replica is asked who is primary. It is shown our secret
        only if it is `trusted`: if it proved a key that may administer.
        """
        if self.role != PRIMARY or epoch <= self._log.epoch:
            return
        self._count_later_epoch()
        if epoch > MAX_EPOCH:
            return
        self._warn_seldom(
            "later_epoch", self._later_epochs.add_replica(name, address, epoch, self._log.epoch)
        )
        with suppress(ClaimRefused):
            self._ask_about_epoch(checked_address(address), trusted=trusted)

    async def _ask_who_superseded(self, address: Address, why: str) -> None:
        """A daemon that was told of this primary knows a later one: ask it which, then ask that one."""
        text = f"two daemons are primary: {address} refuses this one: {why}; ask it: synrepl status"
        self._later_epochs.add(str(address), text)
        self._warn_seldom("superseded", text)
        await self._ask_who_is_primary(address, trusted=True, may_name_strangers=False)

    def _ask_about_epoch(self, address: Address, *, trusted: bool) -> None:
        """Ask one replica that is known here, and one that is not, at a time."""
        is_known = self._is_known(address)
        if address and is_known not in self._asking_about_epoch:
            self._asking_about_epoch.add(is_known)
            asking = self._tasks.start(
                self._ask_who_is_primary(address, trusted=trusted), "asking who is primary"
            )
            asking.addBoth(lambda _: self._asking_about_epoch.discard(is_known))

    async def _ask_who_is_primary(
        self, address: Address, *, trusted: bool, may_name_strangers: bool = True
    ) -> None:
        """Ask a replica where the primary is, then that daemon whether it is; fence this one if so.

        Unless it `may_name_strangers`, an address that is not known here is not shown our secret.
        """
        claim = Claim(epoch=0, uuid="", address="", history=self._log.history)
        try:
            told = await self._verifier.describe(address, trusted=trusted)
            where = address if told.role == PRIMARY else checked_address(told.primary)
            if not where or where.is_same(self._address()):
                return
            claim = msgspec.structs.replace(claim, uuid=told.uuid if told.role == PRIMARY else "")
            trusted = trusted and (may_name_strangers or self._is_known(where))
            told = await self._verifier.verify(where, trusted=trusted)
        except ClaimRefused as error:
            self._refused(claim, error)
            return
        claim = Claim(epoch=told.position.epoch, uuid=told.uuid, address=str(where), history=told.history)
        async with self._changing:
            if self.role == PRIMARY and (claim.epoch, claim.uuid) > (self._log.epoch, self._log.uuid):
                await self._judge(claim)

    async def _heard_at_start(self, address: Address, told: PeerStatus) -> None:
        """A daemon that this primary knows says what it is. If it knows a later epoch, its primary is asked,
        as after a claim."""
        ours = self._log.epoch
        if (
            told.history != self._log.history
            or believable(told.position.epoch) <= ours
            or self.role != PRIMARY
        ):
            return
        text = self._later_epochs.add_replica(told.uuid, str(address), told.position.epoch, ours)
        self._warn_seldom("later_epoch", text)
        await self._ask_who_is_primary(address, trusted=True, may_name_strangers=False)

    def _inquiry_ended(self) -> None:
        if self.role == PRIMARY:
            self._seal_as_primary()
            self._changed()

    def moved(self, address: str) -> None:
        """An upstream says that the primary is elsewhere."""
        where = Address.parse(address)
        if self.role == REPLICA and where and not where.is_same(self._address()):
            self._tasks.start(self._move(where), "following the primary")

    async def _move(self, where: Address) -> None:
        await deferLater(self._clock, 0)  # type: ignore[arg-type]
        replica = self.replica
        if self.role == REPLICA and replica is not None and not where.is_same(replica.upstream.where):
            self._logger.info("the upstream says that the primary is {where}", where=str(where))
            self._be_replica(where)

    async def resync(self) -> bool:
        """An operator gives up what only this copy has. A fenced daemon becomes a replica of the primary that
        it knows. False if there is nothing to give up."""
        if self.role == FENCED:
            noted = self._noted()
            where = self.primary
            if not where and not self._has_upstream:
                raise CannotPromote(
                    "primary_unknown", "nobody has said where the primary is; start again with --upstream"
                )
            # What was taken before it was fenced is among what only this copy has.
            await self._log.flush()
            if noted is not None:
                await self._note(msgspec.structs.replace(noted, role=REPLICA))
            self._be_replica(where or None).resync()
            return True
        return self.replica.resync() if self.replica is not None else False
