"""Claims to be primary: which of them this daemon believes, what follows from one, and its own.

A daemon is believed in three cases, and nobody else ever changes a role:

* A claim shows a key or a certificate with the right `administer` for all streams, and names an epoch that is
  at most one above those known here. It counts at once, and nobody is asked back: the claimed primary may be
  behind a NAT. Who can promote a replica has such a key; a laptop that may only replicate has none.
* A daemon that the operator has listed (`--upstream`) says of itself, when this one asks it there, that it is
  primary of this history. The operator chose the address, so that any plausible epoch counts.
* Without keys: the replica to which this primary has agreed to hand over (`handover.py`) says so of itself,
  where it confirmed the hand-over, or names the primary to which it has given way since: the two need not
  know each other. Any plausible epoch counts: several may have begun there meanwhile, one with each loss of
  ephemeral facts.

Any other sign of another primary is reported to the operator, and makes this daemon ask those that are listed
(`rivals.py`). Addresses that peers have told are told who is primary (`notifier.py`), and never asked.
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.replicas.roles.messages import (
    Claim,
    ClaimRefused,
    PeerStatus,
    parse_peer_address,
    plausible_epoch,
)
from synrepl.replicas.roles.record import RoleRecord
from synrepl.replicas.roles.role_states import Role, RoleEvent
from synrepl.replication.addresses import Address
from synrepl.wire.text import identity_error, printable

if TYPE_CHECKING:
    from synrepl.replicas.roles.manager import RoleManager


def doubt_of_claim(claim: Claim, *, is_proven: bool, seen_epoch: int) -> ClaimRefused | None:
    """Return why a claim alone is not believed; None if it is.

    `is_proven` says that the peer proved a key or certificate with the right to send claims, `seen_epoch` is
    the highest epoch that this daemon knows.
    """
    listed = "and no daemon in --upstream confirms it"
    if not is_proven:
        why = f"the claim came without a key that may administer, {listed}"
        return ClaimRefused("not_verified", why)
    if claim.epoch > seen_epoch + 1:
        why = f"the claim names epoch {claim.epoch}, more than one above epoch {seen_epoch} here, {listed}"
        return ClaimRefused("epoch_too_far", why)
    return None


def claim_of(status: PeerStatus, where: Address, history: str) -> Claim | None:
    """Return what a daemon that was asked claims of itself; None if it is no primary of this history."""
    epoch = plausible_epoch(status.position.epoch)
    if status.role != Role.PRIMARY or status.history != history or not epoch:
        return None
    return Claim(epoch=epoch, uuid=status.uuid, address=str(where), history=history)


def claim_of_candidate(status: PeerStatus, where: Address, history: str) -> Claim | None:
    """Return what the candidate of a hand-over claims: of itself, or of the primary that it knows since."""
    own = claim_of(status, where, history)
    if own is not None or status.history != history:
        return own
    known = status.claim
    return known if known is not None and plausible_epoch(known.epoch) and known.history == history else None


class ClaimVerdict(Enum):
    """The effect of a claim."""

    OWN = "the claim names this daemon: nothing changes"
    SUPERSEDED = "a later primary is known: the claimant is notified of it"
    KNOWN = "this daemon already follows, or is fenced by, that primary: nothing changes"
    FOLLOW = "this replica follows the claimed primary"
    ADDRESS = "this fenced daemon stores the primary's address, which it did not know"
    FENCE = "this daemon is fenced"


class RoleState(NamedTuple):
    """This daemon's state for `judge`: its role, its log's epoch and uuid, the primary, the saved record."""

    role: str
    epoch: int
    uuid: str
    primary: Address
    record: RoleRecord | None


def judge(claim: Claim, own: RoleState) -> ClaimVerdict:
    """Return the effect of a claim that is believed.

    Primaries are ordered by epoch, then by uuid; the highest one stays. A log that was restored from a backup
    has a low uuid (`RESTORED_PREFIX`).
    """
    if claim.uuid == own.uuid:
        return ClaimVerdict.OWN
    claimed, known = (claim.epoch, claim.uuid), _known_primary(own)
    if claimed < max((own.epoch, own.uuid if own.role == Role.PRIMARY else ""), known):
        return ClaimVerdict.SUPERSEDED
    if own.role == Role.REPLICA:
        address = Address.parse(claim.address)
        return ClaimVerdict.FOLLOW if address and address != own.primary else ClaimVerdict.KNOWN
    if own.role == Role.FENCED and own.record is not None and known >= claimed:
        return ClaimVerdict.ADDRESS if claim.address and not own.record.address else ClaimVerdict.KNOWN
    return ClaimVerdict.FENCE


def _known_primary(own: RoleState) -> tuple[int, str]:
    """The epoch and uuid of the other primary that the record names; the lowest values if it names none."""
    record = own.record
    if (
        own.role == Role.PRIMARY
        or record is None
        or record.role == Role.PRIMARY
        or not plausible_epoch(record.epoch)
    ):
        return 0, ""
    return record.epoch, record.uuid


class Claims:
    """Handles the claims of others, and makes that of the primary which this daemon knows."""

    _logger = Logger()

    def __init__(self, roles: "RoleManager") -> None:
        self._roles = roles
        self._log = roles.log
        self._store = roles.store

    def current(self) -> Claim | None:
        """The claim of the primary that this daemon knows; None if its address is unknown."""
        roles = self._roles
        if roles.role == Role.PRIMARY:
            epoch, uuid, address = self._log.head.epoch, self._log.uuid, str(roles.address())
        elif (
            (record := self._store.load()) is not None
            and record.role != Role.PRIMARY
            and record.uuid
            and record.address
        ):
            epoch, uuid, address = record.epoch, record.uuid, record.address
        else:
            return None
        return Claim(epoch=epoch, uuid=uuid, address=address, history=self._log.history, name=roles.name)

    async def handle(self, claim: Claim, *, trusted: bool = False) -> None:
        """Handle a peer's claim that a daemon is primary.

        A lower epoch changes no role; of two primaries in the same epoch the one with the higher uuid stays.
        `trusted` says that the peer proved a key or certificate that may administer. Raises `ClaimRefused` if
        the claim is invalid or not believed, or if a later primary is known here.
        """
        try:
            await self._check(claim, trusted=trusted)
        except ClaimRefused as error:
            self._roles.rivals.claim_refused(claim, error)
            raise

    async def _check(self, claim: Claim, *, trusted: bool) -> None:
        if not claim.history:
            raise ClaimRefused("bad_request", "the claim names no history; it must name that of its log")
        if why := identity_error(claim.uuid, ""):
            raise ClaimRefused("bad_request", why)
        parse_peer_address(claim.address)
        if claim.uuid == self._log.uuid:
            return
        if claim.history != self._log.history:
            if not self._roles.is_whole:
                # The claimant retries: this log may be a copy of that history by then.
                raise ClaimRefused("not_whole", "this daemon has no complete copy yet")
            why = f"the claim is about the log {printable(claim.history)}, not about that of this daemon"
            raise ClaimRefused("other_history", why)
        if not plausible_epoch(claim.epoch):
            why = f"the claim names epoch {claim.epoch}; an epoch must be from 1 to 2**53"
            raise ClaimRefused("epoch_too_far", why)
        if self._is_followed(claim):
            return
        doubt = doubt_of_claim(claim, is_proven=trusted, seen_epoch=self._store.seen_epoch)
        if doubt is not None:
            await self._ask_about(claim)
            record = self._store.load()
            is_followed = record is not None and (record.epoch, record.uuid) == (claim.epoch, claim.uuid)
            if self._roles.role != Role.PRIMARY and is_followed:
                return  # it has confirmed this itself, or had done so before
            if judge(claim, self._state()) is ClaimVerdict.SUPERSEDED:
                raise self._superseded()
            raise doubt
        async with self._roles.changing:
            await self._apply(claim)

    async def _ask_about(self, claim: Claim) -> None:
        """Verify a claim that came from a third party: ask the daemons that are believed about themselves."""
        await self._roles.rivals.look(claim.uuid)
        candidate = self._roles.handover.confirmed
        if candidate is None or self._is_followed(claim):
            return
        uuid, where = candidate
        status = await self._roles.rivals.status_of(where)
        if status is None or status.uuid != uuid:
            return
        said = claim_of_candidate(status, where, self._log.history)
        if said is not None:
            await self.consider(said, about=claim.uuid)

    async def consider(self, claim: Claim, *, about: str) -> None:
        """Compare this daemon with a primary that is believed: of two primaries, the lower one is fenced.

        Only a primary considers others than the one with the uuid `about`.
        """
        async with self._roles.changing:
            if claim.uuid != self._log.uuid and (self._roles.role == Role.PRIMARY or claim.uuid == about):
                try:
                    await self._apply(claim)
                except ClaimRefused:
                    pass  # the later primary is known
                except StorageError as error:
                    self._logger.warn("cannot save who is primary: {why}", why=str(error))

    async def _apply(self, claim: Claim) -> None:
        """Change the role as the claim requires. Raises `ClaimRefused` if a later primary is known."""
        roles = self._roles
        match judge(claim, self._state()):
            case ClaimVerdict.OWN | ClaimVerdict.KNOWN:
                pass
            case ClaimVerdict.SUPERSEDED:
                await self._contest(claim)
                if roles.role != Role.PRIMARY:
                    raise self._superseded()
            case ClaimVerdict.FOLLOW:
                where, others = Address.parse(claim.address), self._previous_primaries(claim)
                self._logger.info(
                    "the primary is {where} since epoch {epoch}", where=str(where), epoch=claim.epoch
                )
                await self._store.save(self._record_of(claim, Role.REPLICA, others))
                roles.become_replica(RoleEvent.FOLLOW, where)
                roles.notifier.notify(others)
            case ClaimVerdict.ADDRESS:
                record = self._record_of(claim, Role.FENCED, self._previous_primaries(claim))
                await self._store.save(record)
                roles.become_fenced(RoleEvent.FENCE, record)
            case ClaimVerdict.FENCE:
                # Notify also its own replicas: one that joined just now is unknown to the new primary.
                previous = self._previous_primaries(claim)
                others = self._store.all(*previous, primary=Address.parse(claim.address))
                record = self._record_of(claim, Role.FENCED, others)
                # Fence first: no fact may be accepted while the record is being saved.
                roles.become_fenced(RoleEvent.FENCE, record)
                await self._store.save(record)
                roles.notifier.notify(others)

    async def _contest(self, claim: Claim) -> None:
        """Notify the claimant of the real primary, until it acknowledges that."""
        where, ours = Address.parse(claim.address), self.current()
        notifier = self._roles.notifier
        if (
            not where
            or where in notifier.unnotified
            or ours is None
            or (ours.epoch, ours.uuid) < (claim.epoch, claim.uuid)
        ):
            return
        self._logger.warn(
            "{where} claims to be primary in epoch {epoch}, but {primary} is a later one: notifying {where}",
            where=str(where),
            epoch=claim.epoch,
            primary=ours.address,
        )
        # Saved first: the claimant treats a claim without an objection as accepted.
        others = [*notifier.unnotified, where]
        await self._store.save_unnotified(others)
        notifier.notify(others)

    def _is_followed(self, claim: Claim) -> bool:
        """Whether a claim is no news: this daemon follows, or is fenced by, the primary that it names."""
        is_known = judge(claim, self._state()) is ClaimVerdict.KNOWN
        return is_known and (self._roles.role == Role.FENCED or bool(claim.address))

    def _state(self) -> RoleState:
        log, roles = self._log, self._roles
        return RoleState(roles.role, log.head.epoch, log.uuid, roles.primary, self._store.load())

    def _superseded(self) -> ClaimRefused:
        where, epoch = self._roles.primary or "address unknown", self._store.seen_epoch
        why = f"this {self._roles.role} daemon knows a later primary ({where}) of epoch {epoch}"
        return ClaimRefused("superseded", why)

    def _previous_primaries(self, claim: Claim) -> list[Address]:
        """The daemons that may have been primary: the claimed one may not reach them."""
        roles = self._roles
        followed = [] if roles.replica is None else [roles.replica.upstream.where]
        known = [*roles.notifier.unnotified, roles.primary, *followed, *self._store.remembered()]
        return self._store.others(known, primary=Address.parse(claim.address))

    def _record_of(self, claim: Claim, role: str, others: Sequence[Address]) -> RoleRecord:
        knows = self._store.to_remember([*others, Address.parse(claim.address)])
        return RoleRecord(role, claim.epoch, claim.uuid, claim.address, tuple(map(str, others)), knows)
