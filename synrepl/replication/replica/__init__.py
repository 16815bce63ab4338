"""Replication from an upstream: join, follow, detect divergence."""

from synrepl.replication.replica.conversation import (
    DownstreamCommand,
    Ephemeral,
    Event,
    Facts,
    IConversation,
    IUpstream,
    JoinFinished,
    JoinStarted,
    KnownPeers,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
    SubscriptionStarted,
    TakenUpTo,
    UpstreamHeartbeat,
)
from synrepl.replication.replica.replica import STATES, Replica

__all__ = [
    "STATES",
    "UpstreamHeartbeat",
    "Ephemeral",
    "Event",
    "Facts",
    "IConversation",
    "IUpstream",
    "JoinStarted",
    "JoinFinished",
    "SnapshotFacts",
    "SnapshotMeta",
    "KnownPeers",
    "RefusedByUpstream",
    "Replica",
    "SubscriptionStarted",
    "TakenUpTo",
    "DownstreamCommand",
]
