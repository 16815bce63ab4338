"""The states of replicas as operators see them, on the list and in metrics."""

from typing import Final

REPLICA_STATES: Final = {
    "live": "connected and up to date",
    "idle": "connected and up to date; nothing was written for a while",
    "behind": "connected, but missing facts or still joining",
    "lost": "not connected",
    "moved": "not connected: it is the primary now, or a replica of the primary",
    "never seen": "a lease was made for it, but it never connected",
    "ended": "its lease has ended: it may have to join again, or it was dropped and is refused",
}
"""The states of a replica on the list. Operators see these words."""
