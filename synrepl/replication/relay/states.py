"""The words for how relays and replicas are doing; operators see them as they are."""

from typing import Final

__all__ = ["RELAY_STATES", "REPLICA_STATES"]

RELAY_STATES: Final = {
    "greeting": "connected; it has not said who it is",
    "authenticating": "it was asked for a proof that it knows the secret",
    "ready": "known; it has not said what it wants",
    "snapshot": "joining: it is sent what there was when it began",
    "meanwhile": "joining: it is sent what came while the snapshot was under way",
    "joined": "it was sent all of the copy, and has not subscribed yet",
    "catching up": "subscribed: it is sent what it lacks, from the log",
    "live": "subscribed: it is sent what comes, as it comes",
    "refused": "it was told why it cannot be served",
    "gone": "its connection has ended",
}
"""The life of one relay, in this order."""

REPLICA_STATES: Final = {
    "live": "connected, and it holds what there is",
    "idle": "connected, it holds what there is, and nothing new was written for a while",
    "behind": "connected, and it lacks something, or is still joining",
    "lost": "not connected",
    "never seen": "a lease was made for it, and it never came",
    "ended": "its lease has ended: what it needs may be gone, and then it joins again",
}
"""How a replica on the list is doing."""
