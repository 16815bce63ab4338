"""The judgement of a claim: a table of every state of a daemon and every claim."""

import pytest

from synrepl.replicas.roles.claims import ClaimVerdict, RoleState, judge
from synrepl.replicas.roles.messages import Claim
from synrepl.replicas.roles.record import RoleRecord
from synrepl.replicas.roles.role_states import Role
from synrepl.replication.addresses import Address

OWN, SUPERSEDED, KNOWN, FOLLOW, ADDRESS, FENCE = ClaimVerdict
HTTP = "- http://b:9093"
B = Address("", "http://b:9093")


def fenced_by(epoch: int, uuid: str, address: str = HTTP) -> RoleRecord:
    return RoleRecord(Role.FENCED, epoch, uuid, address)


OF_FOUR = RoleRecord(Role.REPLICA, 4, "m", "- http://c:9093")

TABLE: list[tuple[str, tuple[int, str, str], RoleState, ClaimVerdict]] = [
    ("own claim", (9, "a", HTTP), RoleState(Role.PRIMARY, 3, "a", Address(), None), OWN),
    # a primary in epoch 3, with the uuid m
    ("lower", (2, "z", HTTP), RoleState(Role.PRIMARY, 3, "m", Address(), None), SUPERSEDED),
    (
        "same, lower uuid",
        (3, "l", HTTP),
        RoleState(Role.PRIMARY, 3, "m", Address(), None),
        SUPERSEDED,
    ),
    ("same, higher uuid", (3, "n", HTTP), RoleState(Role.PRIMARY, 3, "m", Address(), None), FENCE),
    ("higher", (4, "a", HTTP), RoleState(Role.PRIMARY, 3, "m", Address(), None), FENCE),
    ("no address", (4, "a", ""), RoleState(Role.PRIMARY, 3, "m", Address(), None), FENCE),
    # its record tells of a time when it was no primary
    (
        "old record",
        (4, "a", HTTP),
        RoleState(Role.PRIMARY, 3, "m", Address(), fenced_by(9, "z")),
        FENCE,
    ),
    # a replica
    ("follow", (3, "a", HTTP), RoleState(Role.REPLICA, 3, "m", Address("c"), None), FOLLOW),
    ("followed already", (3, "a", HTTP), RoleState(Role.REPLICA, 3, "m", B, None), KNOWN),
    ("unknown address", (3, "a", ""), RoleState(Role.REPLICA, 3, "m", B, None), KNOWN),
    (
        "behind its log",
        (2, "z", HTTP),
        RoleState(Role.REPLICA, 3, "m", Address("c"), None),
        SUPERSEDED,
    ),
    ("later record", (3, "z", HTTP), RoleState(Role.REPLICA, 3, "x", B, OF_FOUR), SUPERSEDED),
    (
        "lower uuid",
        (4, "l", HTTP),
        RoleState(Role.REPLICA, 3, "x", Address("c"), OF_FOUR),
        SUPERSEDED,
    ),
    ("higher uuid", (4, "n", HTTP), RoleState(Role.REPLICA, 3, "x", Address("c"), OF_FOUR), FOLLOW),
    # a fenced daemon
    ("known", (4, "m", HTTP), RoleState(Role.FENCED, 3, "a", B, fenced_by(4, "m")), KNOWN),
    (
        "its address",
        (4, "m", HTTP),
        RoleState(Role.FENCED, 3, "a", B, fenced_by(4, "m", "")),
        ADDRESS,
    ),
    ("no address", (4, "m", ""), RoleState(Role.FENCED, 3, "a", B, fenced_by(4, "m", "")), KNOWN),
    ("lower", (4, "l", HTTP), RoleState(Role.FENCED, 3, "a", B, fenced_by(4, "m")), SUPERSEDED),
    ("higher", (5, "b", HTTP), RoleState(Role.FENCED, 3, "a", B, fenced_by(4, "m")), FENCE),
    # an epoch that no daemon can have reached was stored by an older release
    ("impossible", (4, "m", HTTP), RoleState(Role.FENCED, 3, "a", B, fenced_by(2**60, "z")), FENCE),
    (
        "impossible",
        (4, "m", HTTP),
        RoleState(Role.REPLICA, 3, "a", Address(), fenced_by(0, "z")),
        FOLLOW,
    ),
]


@pytest.mark.parametrize(("what", "claim", "own", "verdict"), TABLE)
def test_a_claim_has_one_effect(
    what: str, claim: tuple[int, str, str], own: RoleState, verdict: ClaimVerdict
) -> None:
    epoch, uuid, address = claim

    assert verdict is judge(Claim(epoch, uuid, address, "history"), own), what


def test_each_verdict_is_in_the_table() -> None:
    assert set(ClaimVerdict) == {verdict for *_, verdict in TABLE}
    roles = {own.role for _, _, own, _ in TABLE}
    assert {Role.PRIMARY, Role.REPLICA, Role.FENCED} == roles


def test_the_order_of_claims_does_not_matter() -> None:
    """Whichever of two claims arrives first, a primary ends with the same one."""
    claims = [Claim(epoch, uuid, HTTP, "h") for epoch in (3, 4) for uuid in ("b", "y")]
    last = []
    for order in (claims, claims[::-1]):
        own = RoleState(Role.PRIMARY, 3, "m", Address(), None)
        for claim in order:
            if judge(claim, own) is FENCE:
                own = own._replace(role=Role.FENCED, record=fenced_by(claim.epoch, claim.uuid))
        last.append(own.record)

    assert [fenced_by(4, "y")] * 2 == last
