"""Judgement of a claim to be primary: a pure function of the claim and of this daemon's own state."""

from enum import Enum
from typing import NamedTuple

from synrepl.replicas.roles.messages import FENCED, PRIMARY, REPLICA, Claim, plausible_epoch
from synrepl.replicas.roles.record import RoleRecord
from synrepl.replication.addresses import Address


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
    """Return the effect of a claim that is believed (`trust.py`).

    Primaries are ordered by epoch, then by uuid; the highest one stays.
    """
    if claim.uuid == own.uuid:
        return ClaimVerdict.OWN
    claimed, known = (claim.epoch, claim.uuid), _known_primary(own)
    if claimed < max((own.epoch, own.uuid if own.role == PRIMARY else ""), known):
        return ClaimVerdict.SUPERSEDED
    if own.role == REPLICA:
        address = Address.parse(claim.address)
        return ClaimVerdict.FOLLOW if address and address != own.primary else ClaimVerdict.KNOWN
    if own.role == FENCED and own.record is not None and known >= claimed:
        return ClaimVerdict.ADDRESS if claim.address and not own.record.address else ClaimVerdict.KNOWN
    return ClaimVerdict.FENCE


def _known_primary(own: RoleState) -> tuple[int, str]:
    """The epoch and uuid of the other primary that the record names; the lowest values if it names none."""
    record = own.record
    if own.role == PRIMARY or record is None or record.role == PRIMARY or not plausible_epoch(record.epoch):
        return 0, ""
    return record.epoch, record.uuid
