"""Hand-over: the primary refuses facts while a replica catches up and becomes primary."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer, sleep
from synrepl.errors import ReplicationError
from synrepl.replicas.issued_keys import IssuedKeys
from synrepl.replicas.roles.asking import ask
from synrepl.replicas.roles.messages import (
    CannotPromote,
    ClaimRefused,
    HandOver,
    IPeerClient,
    parse_peer_address,
)
from synrepl.replicas.roles.role_states import Role
from synrepl.replication.addresses import Address
from synrepl.storage.log import Log
from synrepl.wire.position import LogPosition
from synrepl.wire.text import printable

HANDOVER_SECONDS: Final = 15.0
"""How long a candidate asks the primary to refuse writes. The candidate renews the request; if it dies, the
primary accepts writes again after this long."""

MAX_HANDOVER_SECONDS: Final = 30.0
"""The longest hand-over in seconds that one request can ask for."""

RENEW_SECONDS: Final = 5.0
"""A candidate renews its hand-over request after this long, and once more when it has caught up."""

HOLD_SECONDS: Final = 2.5
"""Then it renews it after this long each time, answered or not, until its epoch is committed."""

MAX_AGE_SECONDS: Final = 10.0
"""An epoch begins at most this long after the last answered request was sent, by the candidate's clock. The
rest of `HANDOVER_SECONDS` is for the commit of the epoch, and for clocks that differ."""

CATCH_UP_SECONDS: Final = 30.0
"""How long a promotion waits for the last facts of the old primary."""

MAX_SEALED_SECONDS: Final = 60.0
"""The longest hand-over to an unauthenticated peer in total, however often the peer extends it."""

REST_SHARE: Final = 3.0
"""After a hand-over to an unauthenticated peer, such peers wait for this many times its length."""


class HandOverRecord(msgspec.Struct, frozen=True):
    """The last hand-over, for the log: its end in Unix seconds, and the candidate's uuid.

    `address` is where the candidate has confirmed it; empty if it needed not.
    """

    until: float
    uuid: str
    address: str = ""


@dataclass(eq=False, repr=False)
class HandOverPrimary:
    """The primary's side: handles requests of replicas, and refuses facts during a hand-over.

    For unauthenticated peers, writes are stopped for at most a quarter of the time.
    `role` returns this daemon's role. `find_replica` returns where the replica with a uuid can be asked,
    which has told the given address; None if it has no lease here and is not listed. `on_change` is called
    when a hand-over begins, is renewed, or ends without a takeover.
    """

    _logger = Logger()
    log: Log
    clock: IClock
    peers: IPeerClient
    _: KW_ONLY
    role: Callable[[], str]
    find_replica: Callable[[str, Address], Address | None]
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        self._began: float | None = None
        """When the hand-over of an unauthenticated peer began; None without one."""
        self._not_before = 0.0
        self._timer = Timer(self.clock, self._end)
        self._candidate = ""
        self._confirmed_at = Address()

    @property
    def confirmed(self) -> tuple[str, Address] | None:
        """The uuid of the last candidate, and where it confirmed; None if it needed not, or without one.

        It counts until the candidate ends the hand-over itself: its epoch may have begun before that was
        over.
        """
        return (self._candidate, self._confirmed_at) if self._candidate and self._confirmed_at else None

    @property
    def is_active(self) -> bool:
        """Whether this primary refuses facts because another daemon may take over."""
        return self.role() == Role.PRIMARY and self._timer.is_active

    def resume(self) -> None:
        """Continue a hand-over from before a restart, if it is not over: its candidate may be primary now."""
        text = self.log.notes.get("handover")
        if text is None:
            return
        try:
            record = msgspec.json.decode(text, type=HandOverRecord)
        except msgspec.DecodeError:
            return  # of an earlier version, and so over: it lasts for seconds
        left = record.until - self.clock.seconds()
        self._candidate, self._confirmed_at = record.uuid, Address.parse(record.address)
        if self.role() == Role.PRIMARY and 0 < left <= MAX_HANDOVER_SECONDS:
            self._begin(left)

    def stop(self) -> None:
        """End the hand-over without calling `on_change`: another daemon is primary, or this one stops."""
        self._timer.stop()
        if self._began is not None:
            now = self.clock.seconds()
            self._not_before = now + REST_SHARE * (now - self._began)
            self._began = None

    async def handle(self, request: HandOver, *, trusted: bool = False) -> LogPosition:
        """Refuse facts for `request.seconds`; 0 ends that. Returns the log's position once it is durable.

        Unless the peer is `trusted`, the replica itself must confirm that it is being promoted, or with 0
        that it is not. Raises `CannotPromote`, `ClaimRefused` and `StorageError`.
        """
        self._check(request)
        where = Address()
        if not trusted and (request.seconds > 0 or self.is_active):
            where = await self._verify(request)
            self._check(request)
        if request.seconds > 0:
            if not trusted:
                self._check_budget(request.seconds)
            self._candidate, self._confirmed_at = request.uuid, where
            self._begin(request.seconds)
            # Saved, so that facts stay refused after a restart: the candidate may have started its epoch.
            until = round(self.clock.seconds() + request.seconds, 3)
            record = HandOverRecord(until, request.uuid, str(where) if where else "")
            await self.log.note(handover=msgspec.json.encode(record).decode())
        elif self.is_active:
            self._end()
            self._candidate = ""
            await self.log.note(handover=None)
        await self.log.flush()
        return self.log.position

    def _check(self, request: HandOver) -> None:
        if self.role() != Role.PRIMARY:
            raise CannotPromote("not_primary", f"this daemon is {self.role()}; only a primary can hand over")
        if self.is_active and self._candidate and request.uuid and self._candidate != request.uuid:
            why = f"this daemon is already handing over to the daemon {printable(self._candidate)}"
            raise CannotPromote("handing_over", why)

    def _check_budget(self, seconds: float) -> None:
        now = self.clock.seconds()
        if self._began is None:
            if now < self._not_before:
                left = self._not_before - now
                why = (
                    "the last hand-over of this daemon ended without a takeover;"
                    f" the next one may begin in {left:.0f} s: try again then"
                )
                raise CannotPromote("handed_over_lately", why)
            self._began = now
        elif now + seconds > self._began + MAX_SEALED_SECONDS:
            why = (
                f"a hand-over takes {MAX_SEALED_SECONDS:g} seconds at most, and this one would take longer:"
                " try again after it has ended"
            )
            raise CannotPromote("handed_over_lately", why)

    async def _verify(self, request: HandOver) -> Address:
        """Return where the replica confirms that it is being promoted. Raises `ClaimRefused`.

        To end the hand-over it must confirm that it is not being promoted. It is asked where its lease says
        that it can be reached, or where it is listed; a stranger is asked nothing.
        """
        address = parse_peer_address(request.address)
        if not request.uuid or not address:
            raise ClaimRefused("bad_request", "a hand-over needs the uuid and the address of the replica")
        where = self.find_replica(request.uuid, address)
        if not where:
            why = (
                f"{printable(request.address)} is not a replica of this daemon: it has no lease with an"
                " address here, and is not in --upstream; promote a replica of this daemon"
            )
            raise ClaimRefused("unknown_replica", why)
        try:
            status = await ask(self.peers, self.clock, where)
        except ReplicationError as error:
            raise _unconfirmed(printable(str(error), limit=500)) from error
        at = printable(str(where))
        if status.history != self.log.history:
            raise ClaimRefused("other_history", f"{at} has another log, {printable(status.history)}")
        if status.uuid != request.uuid:
            raise _unconfirmed(f"{at} is the daemon {printable(status.uuid)}, not {printable(request.uuid)}")
        if status.role != Role.REPLICA:
            raise _unconfirmed(f"{at} is {printable(status.role)}, not a replica")
        if status.promoting != (request.seconds > 0):
            raise _unconfirmed(f"{at} is {'still' if status.promoting else 'not'} being promoted")
        return where

    def _begin(self, seconds: float) -> None:
        self._timer.restart(seconds)
        self.on_change()

    def _end(self) -> None:
        self.stop()
        if self.role() == Role.PRIMARY:
            self._logger.warn("hand-over ended: no daemon took over; this primary accepts facts again")
            self.on_change()


def _unconfirmed(why: str) -> ClaimRefused:
    return ClaimRefused("not_verified", f"the replica does not confirm the hand-over: {why}")


@dataclass(eq=False, repr=False)
class HandOverCandidate:
    """The replica's side: requests a hand-over, and catches up with the primary while it refuses facts.

    `missing_files` returns the files that this daemon lacks up to a serial. `is_requesting`: the promotion
    under way needs the hand-over to continue. `steady` returns seconds of a clock that nobody sets.

    Once this log is that of the primary, the hand-over is renewed until `stop`, so that the primary refuses
    facts for as long as a slow disk takes to commit the epoch, and `check` refuses to begin it after a pause.
    What remains: a candidate that is paused, or cut off from the primary, after the last check and before the
    commit is durable, for longer than the hand-over lasts. (Without a key that is `MAX_SEALED_SECONDS` from
    its beginning, however often it is renewed.) The primary may have accepted facts then: they are on its
    disk alone, as after a promotion by force (`is_over`).
    """

    _logger = Logger()
    log: Log
    clock: IClock
    peers: IPeerClient
    _: KW_ONLY
    address: Callable[[], Address]
    missing_files: Callable[[int], Awaitable[Sequence[Any]]]
    issued: IssuedKeys
    steady: Callable[[], float]
    is_requesting: bool = False

    def __post_init__(self) -> None:
        self._tasks = Tasks(self._logger, "hand-over")
        self._asked_at = 0.0
        """When the last request was sent that was answered by: I am where you are."""
        self._is_lost = False

    @property
    def is_over(self) -> bool:
        """Whether the primary may accept facts again, or has done so."""
        return self._is_lost or self.steady() - self._asked_at > HANDOVER_SECONDS

    def check(self) -> None:
        """Raises `CannotPromote` unless the primary refuses facts for as long as an epoch takes to begin."""
        if self._is_lost:
            raise CannotPromote("behind", "the primary has accepted facts meanwhile: nothing has changed")
        age = self.steady() - self._asked_at
        if age > MAX_AGE_SECONDS:
            why = (
                f"this daemon was held up for {age:.0f} seconds after it had caught up, and the primary may"
                " accept facts again: nothing has changed; look at its disk, and promote it again"
            )
            raise CannotPromote("behind", why)

    def stop(self) -> None:
        """Renew the hand-over no more: the epoch has begun, or never will."""
        self._tasks.cancel_all()
        self.is_requesting = False

    async def hand_back(self, primary: Address) -> None:
        """Tell the primary that no epoch begins: it accepts facts again."""
        # It checks that this daemon is no longer being promoted.
        is_requesting = self.is_requesting
        self.stop()
        if is_requesting:
            # It may also have received a request whose answer was lost.
            with suppress(ReplicationError):
                await self._request(primary, 0)

    async def catch_up(self, primary: Address) -> None:
        """Return once this log equals that of the primary, which refuses facts, and no file is missing.

        The hand-over is renewed from then on, until `stop` or `hand_back`. Raises `CannotPromote`.
        """
        if not primary:
            raise CannotPromote(
                "upstream_away",
                "the primary's address is unknown; use force to promote without a hand-over",
                retryable=True,
            )
        until = self.clock.seconds() + CATCH_UP_SECONDS
        self.is_requesting = True
        try:
            while not await self._has_caught_up(primary, until):
                pass
            self._tasks.start(self._hold(primary, self.log.position), "renewing the hand-over")
        except ReplicationError as error:
            await self.hand_back(primary)
            if isinstance(error, CannotPromote):
                raise
            raise CannotPromote(
                "upstream_away",
                f"the primary did not hand over: {error}; use force to promote without a hand-over",
            ) from error

    async def _request(self, primary: Address, seconds: float) -> LogPosition:
        request = HandOver(seconds=seconds, uuid=self.log.uuid, address=str(self.address()))
        return await self.peers.hand_over(primary, request)

    async def _has_caught_up(self, primary: Address, until: float) -> bool:
        """Whether this log equals that of the primary; if not, the hand-over request must be renewed."""
        requested_at = self.clock.seconds()
        position = await self._request(primary, HANDOVER_SECONDS)
        while self.log.position != position:
            self._check_time(
                until, f"this copy is at serial {self.log.head.serial}, the primary at {position.serial}"
            )
            if self.clock.seconds() - requested_at >= RENEW_SECONDS:
                return False
            await sleep(self.clock, 0.05)
        if (await self.peers.describe(primary)).keys != self.issued.upstream_digest:
            # Sent before the hand-over, and on its way. The request is renewed until it is here.
            await sleep(self.clock, 0.05)
            return self._check_time(until, "the issued keys of the primary have not come")
        missing = await self.missing_files(self.log.head.serial)
        if missing:
            why = f"files missing from this copy: {len(missing)}; use force to leave them behind"
            raise CannotPromote("files_missing", why, missing=missing)
        self._check_time(until, "the files were looked through")
        # The hand-over may have ended meanwhile, and the primary accepted facts: compare again.
        asked_at = self.steady()
        if await self._request(primary, HANDOVER_SECONDS) != self.log.position:
            return False
        self._asked_at, self._is_lost = asked_at, False
        return True

    async def _hold(self, primary: Address, position: LogPosition) -> None:
        while True:
            await sleep(self.clock, HOLD_SECONDS)
            self._tasks.start(self._renew(primary, position), "renewing the hand-over")

    async def _renew(self, primary: Address, position: LogPosition) -> None:
        asked_at = self.steady()
        with suppress(ReplicationError):
            if await self._request(primary, HANDOVER_SECONDS) == position:
                self._asked_at = max(self._asked_at, asked_at)
            else:
                self._is_lost = True

    def _check_time(self, until: float, at: str) -> bool:
        """Raises `CannotPromote` once it is too late; `at` says what lasts. Else False: try again."""
        if self.clock.seconds() >= until:
            raise CannotPromote("behind", f"catching up took more than {CATCH_UP_SECONDS:g} seconds: {at}")
        return False
