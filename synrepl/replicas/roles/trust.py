"""Whom this daemon believes that another one is primary.

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

from synrepl.replicas.roles.messages import PRIMARY, Claim, ClaimRefused, PeerStatus, plausible_epoch
from synrepl.replication.addresses import Address


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
    if status.role != PRIMARY or status.history != history or not epoch:
        return None
    return Claim(epoch=epoch, uuid=status.uuid, address=str(where), history=history)


def claim_of_candidate(status: PeerStatus, where: Address, history: str) -> Claim | None:
    """Return what the candidate of a hand-over claims: of itself, or of the primary that it knows since."""
    own = claim_of(status, where, history)
    if own is not None or status.history != history:
        return own
    known = status.claim
    return known if known is not None and plausible_epoch(known.epoch) and known.history == history else None
