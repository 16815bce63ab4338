"""How handlers find the part of the room of replicas."""

from typing import Protocol, cast

from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.manager import RoleManager
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call


class IReplicas(Protocol):
    """What handlers need of the part (`ReplicasPart`)."""

    roles: RoleManager
    relays: ReplicaRegistry


def replicas_of(call: Call) -> IReplicas:
    """Return the part of this room in the daemon. Raises `ApiError` if it serves no replicas."""
    part = call.context.rooms.get("replicas")
    if part is None:
        raise ApiError("not_found", "this daemon serves no replicas")
    return cast(IReplicas, part)
