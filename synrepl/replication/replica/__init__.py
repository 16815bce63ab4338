"""Replication from an upstream: join, follow, detect divergence."""

from synrepl.replication.replica.conversation import (
    Ephemeral,
    Event,
    Facts,
    IConversation,
    IUpstream,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
)
from synrepl.replication.replica.replica import STATES, Replica

__all__ = [
    "STATES",
    "Ephemeral",
    "Event",
    "Facts",
    "IConversation",
    "IUpstream",
    "SnapshotFacts",
    "SnapshotMeta",
    "RefusedByUpstream",
    "Replica",
]
