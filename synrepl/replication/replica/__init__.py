"""A daemon that is a copy of another one: how it becomes one, stays one, and what it does when it cannot."""

from synrepl.replication.replica.conversation import (
    Beat,
    Ephemeral,
    Event,
    Facts,
    IConversation,
    IUpstream,
    JoinBegins,
    JoinEnds,
    Kept,
    Meta,
    Peers,
    RefusedByUpstream,
    Subscribed,
    TakenUpTo,
    ToldDown,
)
from synrepl.replication.replica.replica import Replica
from synrepl.replication.replica.states import STATES

__all__ = [
    "STATES",
    "Beat",
    "Ephemeral",
    "Event",
    "Facts",
    "IConversation",
    "IUpstream",
    "JoinBegins",
    "JoinEnds",
    "Kept",
    "Meta",
    "Peers",
    "RefusedByUpstream",
    "Replica",
    "Subscribed",
    "TakenUpTo",
    "ToldDown",
]
