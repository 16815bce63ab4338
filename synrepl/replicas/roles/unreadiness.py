"""Why a daemon may lack facts that others have: it is fenced, or its copy is incomplete, stopped or late."""

from typing import TYPE_CHECKING, Final, NamedTuple

from synrepl.replicas.replica.replica_states import ReplicaState

if TYPE_CHECKING:
    from synrepl.replicas.replica.replica import Replica

STUCK: Final = (ReplicaState.DISCONNECTED, ReplicaState.REFUSED, ReplicaState.STOPPED)
"""States of a replica whose reason is reported while its copy is awaited."""


class Unreadiness(NamedTuple):
    """A state of the room (`ReplicasRoom.states`), an explanation, and since when in Unix seconds."""

    state: str
    why: str
    since: float


def replica_unreadiness(replica: "Replica", *, stale_seconds: float, now: float) -> Unreadiness | None:
    """Return why this copy may lack facts; None if it is complete, and not older than `stale_seconds`."""
    if not replica.is_whole:
        why = f": {replica.why}" if replica.state in STUCK and replica.why else ""
        return Unreadiness("joining", f"this replica has no complete copy yet{why}", replica.since)
    if replica.state is ReplicaState.STOPPED:
        return Unreadiness("stopped", replica.why, replica.since)
    if why := replica.staleness(stale_seconds):
        return Unreadiness("stale", why, now - replica.lag_seconds())
    return None
