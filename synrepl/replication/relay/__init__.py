"""The primary's side of replicas: admission, leases and the relays that send them the log.

`relay` and `handshake` are imported when the first replica connects: most daemons have none.
"""

from synrepl.replication.relay.leases import Leases
from synrepl.replication.relay.registry import RELAY_STATES, REPLICA_STATES, ReplicaRegistry

__all__ = [
    "RELAY_STATES",
    "REPLICA_STATES",
    "Leases",
    "ReplicaRegistry",
]
