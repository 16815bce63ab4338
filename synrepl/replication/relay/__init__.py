"""The primary's side of replicas: who they are, what they may have, and what each is sent.

`relay` and `beginning` are imported when the first replica comes: most daemons have none.
"""

from synrepl.replication.relay.leases import Leases, LeaseTerms
from synrepl.replication.relay.refusals import REFUSALS
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.relay.states import RELAY_STATES, REPLICA_STATES

__all__ = [
    "REFUSALS",
    "RELAY_STATES",
    "REPLICA_STATES",
    "LeaseTerms",
    "Leases",
    "ReplicaRegistry",
]
