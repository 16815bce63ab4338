"""Roles of a daemon: primary, replica or fenced, and the transitions between them."""

from synrepl.replication.roles.errors import CannotPromote, ClaimRefused, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.handover import HANDOVER_SECONDS, MAX_HANDOVER_SECONDS
from synrepl.replication.roles.interfaces import (
    FENCED,
    PRIMARY,
    REPLICA,
    Claim,
    HandOver,
    IPeerClient,
    PeerStatus,
)
from synrepl.replication.roles.manager import RoleManager

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
