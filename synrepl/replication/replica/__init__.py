"""A daemon that is a copy of another one: how it becomes one, stays one, and what it does when it cannot."""

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
from synrepl.replication.replica.replica import Replica
from synrepl.replication.replica.states import STATES

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
