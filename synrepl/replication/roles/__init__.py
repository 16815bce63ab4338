"""Roles of a daemon: primary, replica or fenced, and the transitions between them."""

from synrepl.replication.roles.handover import HANDOVER_SECONDS, MAX_HANDOVER_SECONDS
from synrepl.replication.roles.manager import RoleManager
from synrepl.replication.roles.messages import (
    FENCED,
    PRIMARY,
    REPLICA,
    CannotPromote,
    Claim,
    ClaimRefused,
    Fenced,
    HandingOver,
    HandOver,
    IPeerClient,
    PeerStatus,
    ReadOnlyHere,
)

__all__ = [
    "FENCED",
    "HANDOVER_SECONDS",
    "MAX_HANDOVER_SECONDS",
    "PRIMARY",
    "REPLICA",
    "CannotPromote",
    "Claim",
    "ClaimRefused",
    "PeerStatus",
    "Fenced",
    "HandOver",
    "HandingOver",
    "IPeerClient",
    "ReadOnlyHere",
    "RoleManager",
]
