"""Primary, replica or fenced: what a daemon is, and how it becomes another thing."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import ReplicationError, StorageError
from synrepl.ports.history import Place, Turn
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.roles.asked import Claim, Following, ITellOthers, RoleLog
from synrepl.replication.roles.refusing import CannotPromote, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.remembering import Noted, Promoting

__all__ = ["FENCED", "HANDOVER_SECONDS", "PRIMARY", "REPLICA", "Roles"]

PRIMARY: Final = "primary"
REPLICA: Final = "replica"
FENCED: Final = "fenced"

HANDOVER_SECONDS: Final = 15.0
"""How long a primary that is asked to hand over takes no writes, unless it is asked again or another one
takes over: so long nobody can write if who asked has died."""

AGAIN_SECONDS: Final = 5.0
"""After so long it is asked again; the rest is the time for beginning the epoch."""

CATCH_UP_SECONDS: Final = 30.0
"""How long a promotion waits for the last facts of the primary that hands over."""

TELL_SECONDS: Final = 5.0
"""How soon somebody who could not be reached is told of a new epoch again; later and later."""

MAX_TELL_SECONDS: Final = 60.0


MAX_KNOWN: Final = 20


class Roles:
    """What this daemon is.

    `follow` makes a replica of whoever is at an address (None: of the upstream that was configured).
    `others` are the addresses of all daemons known here, who are told when this one becomes primary.
    `missing` gives the files that are not here. `changed` is called after every change.
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
        follow: Callable[[Address | None], Following],
        tell: ITellOthers,
        others: Callable[[], Sequence[Address]] = lambda: (),
        missing: Callable[[int], Awaitable[Sequence[Any]]] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.role = PRIMARY
        self.why = ""
        self.since = clock.seconds()
        self.replica: Following | None = None
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
        self._missing = missing
        self._changed = changed
        self._handover_timer: Any = None
        self._is_stopped = False
        self._is_promoting = False
        self._changing = DeferredLock()
        self._is_telling = False
        self._tell_seconds = TELL_SECONDS
        self._news: Deferred[None] | None = None
        self._tasks = Tasks(self._logger, "roles")

    @property
    def primary(self) -> Address:
        """Where the primary is, as far as that is known."""
        if self.role == PRIMARY:
            return self._address()
        told = self.replica.primary if self.replica is not None else None
        return told or self._primary

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Be what the settings say, or what happened since they were written."""
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
        left = float(self._log.notes.get("handover", "0")) - self._clock.seconds()
        if self.role == PRIMARY and 0 < left <= HANDOVER_SECONDS:
            self._seal_for(left)
        self._must_tell([Address.parse(text) for text in noted.told] if noted is not None else [])

    def stop(self) -> None:
        """Follow nobody, tell nobody."""
        self._is_stopped = True
        self._tasks.cancel_all()
        if self._handover_timer is not None and self._handover_timer.active():
            self._handover_timer.cancel()
        if self.replica is not None:
            self.replica.stop()
            self.replica = None

    def _moved_to(self) -> Address | None:
        """Where the upstream went, as far as it is remembered; None for the one in the settings."""
        noted = self._noted()
        known = noted is not None and noted.role != PRIMARY
        return (Address.parse(noted.address) or None) if noted is not None and known else None

    def _noted(self) -> Noted | None:
        begun = self._begun()
        if begun is not None:
            return begun
        text = self._log.notes.get("role")
        return None if text is None else msgspec.json.decode(text, type=Noted)

    def _begun(self) -> Noted | None:
        """What this daemon had just become when it was killed: its epoch had begun, and that was all."""
        text = self._log.notes.get("promoting")
        if text is None or not self._log.turns:
            return None
        meant, turn = msgspec.json.decode(text, type=Promoting), self._log.turns[-1]
        is_ours = (turn.epoch, turn.at_ms) == (meant.noted.epoch, meant.at_ms)
        return meant.noted if is_ours and self._log.epoch == turn.epoch else None

    async def _note(self, noted: Noted) -> None:
        await self._log.note(role=msgspec.json.encode(noted).decode(), promoting=None)

    def _be_primary(self) -> None:
        if self.replica is not None:
            self.replica.stop()
            self.replica = None
        self.role, self.why = PRIMARY, ""
        self._log.sealed = None
        self._changed()

    def _be_replica(self, where: Address | None) -> Following:
        if self.replica is not None:
            self.replica.stop()
        self.role, self.why = REPLICA, ""
        self._primary = where or Address()
        self._log.sealed = self._replica_refuses
        replica = self.replica = self._follow(where)
        if not self._is_stopped:
            replica.start()
        self._changed()
        return replica

    def _be_fenced(self, noted: Noted) -> None:
        if self.replica is not None:
            self.replica.stop()
            self.replica = None
        self.role = FENCED
        self._primary = Address.parse(noted.address)
        self.since = self._clock.seconds()
        self.why = f"another daemon is primary since epoch {noted.epoch}: {self.primary}"
        self._log.sealed = self._fenced_refuses
        self._logger.warn("fenced: {why}", why=self.why)
        self._changed()

    def _replica_refuses(self, stream: str) -> StorageError:
        why = "this daemon is a replica: facts are added at the primary"
        return ReadOnlyHere("replica", why, stream=stream, moved_to=str(self.primary))

    def _fenced_refuses(self, stream: str) -> StorageError:
        return Fenced("fenced", self.why, stream=stream, moved_to=str(self.primary), retryable=False)

    def _handing_over_refuses(self, stream: str) -> StorageError:
        return HandingOver("handing_over", "another daemon is about to become primary", stream=stream)

    # -- becoming primary ----------------------------------------------------------------------------------

    async def promote(self, *, force: bool = False) -> Turn:
        """Become primary, in a new epoch. Raises `CannotPromote`.

        In order, the primary first takes no more facts, and all it has must be here, files included. With
        `force` nobody is asked, and what is not here is left behind; it is named when the other one comes
        back (its tail is written to a file there).
        """
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
            self._is_promoting = False

    async def _begin_as_primary(self, before: Sequence[Address]) -> Turn:
        # From here on nothing more of the old history is taken.
        if self.replica is not None:
            self.replica.stop()
        self.replica = None
        try:
            noted = self._noted()
            epoch = max(self._log.epoch, noted.epoch if noted is not None else 0) + 1
            others = self._to_tell([*before, *self.untold, *self._known(), *self._others()])
            told = tuple(map(str, others))
            meant = Noted(PRIMARY, epoch, self._log.uuid, "", told, self._knowing(others))
            at_ms = int(self._clock.seconds() * 1000)
            # First, or a kill between the two steps would leave an epoch that nobody is primary of.
            promoting = msgspec.json.encode(Promoting(at_ms, meant)).decode()
            await self._log.note(promoting=promoting, handover=None)
            turn = await self._log.next_epoch("promoted", epoch=epoch, at_ms=at_ms)
            await self._note(meant)
        except Exception:
            self._be_replica(self._moved_to())
            raise
        self._logger.info(
            "promoted: primary in epoch {epoch} from serial {serial}", epoch=turn.epoch, serial=turn.serial
        )
        self._be_primary()
        self._must_tell(others)
        return turn

    async def _take_over(self, old: Address) -> None:
        if not old:
            raise CannotPromote(
                "upstream_away",
                "where the primary is is not known; say force to do without it",
                retryable=True,
            )
        until = self._clock.seconds() + CATCH_UP_SECONDS
        try:
            while not await self._has_all_of(old, until):
                pass
        except ReplicationError as error:
            # Not to keep it waiting for nothing; it may have heard also what it could not answer.
            with suppress(ReplicationError):
                await self._tell.hand_over(old, 0)
            if isinstance(error, CannotPromote):
                raise
            raise CannotPromote(
                "upstream_away", f"the primary cannot be asked: {error}; say force to do without it"
            ) from error

    async def _has_all_of(self, old: Address, until: float) -> bool:
        """Whether all that the old primary has is here, and it waits long enough for that to stay so; if not,
        it is to be asked again."""
        asked = self._clock.seconds()
        place = await self._tell.hand_over(old, HANDOVER_SECONDS)
        while self._log.place != place:
            now = self._clock.seconds()
            if now >= until:
                why = f"the primary stands at serial {place.serial}, this copy at {self._log.serial}"
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
        return await self._tell.hand_over(old, HANDOVER_SECONDS) == self._log.place

    async def _tell_all(self) -> None:
        """Tell everybody who is primary now, until each has heard it."""
        while self.untold and (claim := self._claim()) is not None:
            for address in list(self.untold):
                try:
                    await self._tell.claim(address, claim)
                except ReplicationError as error:
                    self._logger.info(
                        "{address} is not told of epoch {epoch} yet: {why}",
                        address=str(address),
                        epoch=claim.epoch,
                        why=str(error),
                    )
                else:
                    if claim == self._claim() and address in self.untold:
                        self.untold.remove(address)
            left = tuple(map(str, self.untold))
            noted = self._noted() or Noted(PRIMARY, claim.epoch, claim.uuid)
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
        fresh = dict.fromkeys(address for address in others if address)
        return [address for address in fresh if not any(address.is_same(one) for one in known)]

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

    def hand_over(self, seconds: float) -> "Deferred[Place]":
        """Another daemon is about to become primary: take no facts for so long, and say where this one stands
        once all that was taken is kept."""
        return Deferred.fromCoroutine(self._hand_over(seconds))

    async def _hand_over(self, seconds: float) -> Place:
        if self.role != PRIMARY:
            raise CannotPromote("not_primary", f"this daemon is {self.role}")
        self._seal_for(seconds)
        # A restart is no reason to take facts: the other one may have begun its epoch already.
        await self._log.note(handover=f"{self._clock.seconds() + seconds:.3f}")
        await self._log.settled()
        return self._log.place

    def _seal_for(self, seconds: float) -> None:
        self._log.sealed = self._handing_over_refuses
        if self._handover_timer is not None and self._handover_timer.active():
            self._handover_timer.cancel()
        self._handover_timer = self._clock.callLater(seconds, self._handed_over)
        self._changed()

    def _handed_over(self) -> None:
        if self.role == PRIMARY:
            self._logger.warn("nobody took over; facts are taken again")
            self._log.sealed = None
            self._changed()

    @property
    def is_handing_over(self) -> bool:
        """Whether facts are refused since another daemon may take over."""
        return self.role == PRIMARY and self._log.sealed is not None

    async def heard(self, claim: Claim) -> None:
        """Somebody says who is primary. A lower epoch means nothing; of two in the same epoch the one with
        the higher uuid stays."""
        if claim.history and claim.history != self._log.history:
            if self.replica is not None and not self.replica.is_whole:
                # Whoever claims asks again: it may be a copy of that history by then.
                raise CannotPromote("not_whole", "there is no whole copy here yet", retryable=True)
            return
        async with self._changing:
            await self._judge(claim)

    async def _judge(self, claim: Claim) -> None:
        before = self._noted()
        mine = (self._log.epoch, self._log.uuid if self.role == PRIMARY else "")
        if self.role == REPLICA and before is not None and before.role != PRIMARY:
            mine = max(mine, (before.epoch, before.uuid))
        if claim.uuid == self._log.uuid or (claim.epoch, claim.uuid) < mine:
            await self._answer(claim)
            return
        # Whoever was primary before, as far as this daemon knew, may be out of reach of the new one.
        followed = [] if self.replica is None else [self.replica.upstream.where]
        known = [*self.untold, self.primary, *followed, *self._known()]
        others = self._to_tell(known, primary=Address.parse(claim.address))
        told, knows = tuple(map(str, others)), self._knowing([*others, Address.parse(claim.address)])
        noted = Noted(FENCED, claim.epoch, claim.uuid, claim.address, told, knows)
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
        """Somebody else takes itself for primary who is not: it hears so, until it has heard it."""
        where = Address.parse(claim.address)
        if self.role != PRIMARY or claim.uuid == self._log.uuid or not where or where in self.untold:
            return
        self._logger.warn(
            "{where} claims epoch {epoch}; this daemon stays primary", where=str(where), epoch=claim.epoch
        )
        # Written down first: the other one takes a claim that was heard for one that holds.
        others = [*self.untold, where]
        noted = self._noted() or Noted(PRIMARY, self._log.epoch, self._log.uuid)
        await self._note(msgspec.structs.replace(noted, told=tuple(map(str, others))))
        self._must_tell(others)

    def heard_epoch(self, epoch: int, who: str) -> None:
        """A replica that asked to be served knows a later epoch."""
        if self.role == PRIMARY and epoch > self._log.epoch:
            self._logger.warn("{who} knows epoch {epoch}: another daemon is primary", who=who, epoch=epoch)
            noted = Noted(FENCED, epoch, knows=self._knowing([]))
            self._be_fenced(noted)
            self._tasks.start(self._note(noted), "remembering to be fenced")

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
            await self._log.settled()
            if noted is not None:
                await self._note(msgspec.structs.replace(noted, role=REPLICA))
            self._be_replica(where or None).resync()
            return True
        return self.replica.resync() if self.replica is not None else False
