"""Primary, replica or fenced: what a daemon is, and how it becomes another thing."""

from synrepl.replication.roles.errors import CannotPromote, ClaimRefused, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.interfaces import Claim, HandOver, IPeerClient, PeerStatus
from synrepl.replication.roles.manager import (
    FENCED,
    HANDOVER_SECONDS,
    MAX_HANDOVER_SECONDS,
    PRIMARY,
    REPLICA,
    RoleManager,
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
