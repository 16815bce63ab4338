"""How handlers find the part of the room of replicas."""

from typing import Protocol, cast

from synrepl.base.access import Access
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.promotion import Promotion
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call


class INativeTransport(Protocol):
    """The upstream's end of a native connection over HTTP, as requests with further bytes find it."""

    access: Access
    """That of the peer that opened the connection."""
    received: int
    """How many bytes were received so far."""

    async def receive(self, offset: int, data: bytes) -> None:
        """Take bytes from this offset on; return once they are handled."""


class IReplicas(Protocol):
    """What handlers need of the part (`ReplicasPart`)."""

    roles: RoleManager
    registry: ReplicaRegistry
    promotion: Promotion
    native_transports: dict[str, INativeTransport]
    """The open native connections over HTTP, by id."""


def replicas_of(call: Call) -> IReplicas:
    """Return the part of this room in the daemon. Raises `ApiError` if it serves no replicas."""
    part = call.context.rooms.get("replicas")
    if part is None:
        raise ApiError("not_found", "this daemon serves no replicas")
    return cast(IReplicas, part)
