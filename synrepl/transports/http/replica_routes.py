"""The handler of what a log is, and the leases of readers of the changelog."""

from typing import Any, Final

import msgspec

from synrepl.ports.access import Access
from synrepl.replication.relay.handshake import make_welcome
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.wire.native import Refused

PRESENT_SECONDS: Final = 15.0
"""A reader over HTTP counts as connected for this time after a request and the `wait` of the request."""

READER_PREFIX: Final = "reader:"


async def about(call: Call) -> bytes:
    """Return the history of this log, its epochs, oldest position and head."""
    return describe_log(call.registry, call.access)


def describe_log(registry: ReplicaRegistry, access: Access) -> bytes:
    """Encode the fields that replicas need (`Welcome`), and those that verify claims (`PeerStatus`).

    Streams that the peer may not see are not named.
    """
    welcome = msgspec.to_builtins(make_welcome(registry, access, proof=""))
    epoch_starts = [start.seen_by(access.streams) for start in registry.log.head.epoch_starts]
    more = {"epoch_starts": epoch_starts, "promoting": registry.roles.candidate.is_requesting}
    return msgspec.json.encode(welcome | more)


def renew_lease(registry: ReplicaRegistry, reader: str, since: int, wait: float, access: Access) -> None:
    """Make or renew the lease of a named changelog reader, which has everything up to `since`.

    Raises `ApiError` at the limit of leases, and if the lease is that of another key.
    """
    uuid = f"{READER_PREFIX}{reader}"
    lease = registry.leases[uuid]
    if (refused := registry.owner_refusal(uuid, access)) is not None:
        raise refusal_error(refused)
    if lease is None or lease.ended_ms is not None or since < lease.serial:
        if (refused := registry.lease_limit_refusal(uuid, registered=False, key=access.key)) is not None:
            raise refusal_error(refused)
        registry.leases.make(uuid, reader, registered=False, serial=since, key=access.key)
    else:
        registry.leases.advance(uuid, since)
    registry.note_http_reader(uuid, wait + PRESENT_SECONDS)


def refusal_error(refusal: Refused) -> ApiError:
    """Make the error response for a refused reader."""
    more: dict[str, Any] = msgspec.to_builtins(refusal)
    return ApiError(refusal.code, more.pop("message"), **more)
