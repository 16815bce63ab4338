"""Primary, replica or fenced: what a daemon is, and how it becomes another thing."""

from synrepl.replication.roles.asked import Claim, ITellOthers
from synrepl.replication.roles.refusing import CannotPromote, Fenced, HandingOver, ReadOnlyHere
from synrepl.replication.roles.role import FENCED, HANDOVER_SECONDS, PRIMARY, REPLICA, Roles

__all__ = [
    "FENCED",
    "HANDOVER_SECONDS",
    "PRIMARY",
    "REPLICA",
    "CannotPromote",
    "Claim",
    "Fenced",
    "HandingOver",
    "ITellOthers",
    "ReadOnlyHere",
    "Roles",
]
