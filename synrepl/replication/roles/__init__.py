"""Primary, replica or fenced: what a daemon is, and how it becomes another thing."""

from synrepl.replication.roles.asked import Claim, Described, HandOver, ITellOthers
from synrepl.replication.roles.refusing import CannotPromote, ClaimRefused, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.role import (
    FENCED,
    HANDOVER_SECONDS,
    MAX_HANDOVER_SECONDS,
    PRIMARY,
    REPLICA,
    Roles,
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
    "Described",
    "Fenced",
    "HandOver",
    "HandingOver",
    "ITellOthers",
    "ReadOnlyHere",
    "Roles",
]
