"""Handlers for replicas that follow over HTTP, besides the changelog."""

from typing import Any, Final

import msgspec

from synrepl.ports.access import Access
from synrepl.replication.relay.handshake import make_welcome, start_snapshot
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.relay.snapshot_codec import snapshot_lines
from synrepl.transports.http import messages
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.wire.native import Hello, Refused

PRESENT_SECONDS: Final = 15.0
"""A reader over HTTP counts as connected for this time after a request and the `wait` of the request."""

READER_PREFIX: Final = "reader:"
REFUSED: Final = 409


async def about(call: Call) -> bytes:
    """Return the history of this log, its epochs, oldest position and head."""
    return describe_log(call.registry, call.access)


def describe_log(registry: ReplicaRegistry, access: Access) -> bytes:
    """Encode the fields that replicas need (`Welcome`), and those that verify claims (`PeerStatus`).

    Streams that the peer may not see are not named.
    """
    welcome = msgspec.to_builtins(make_welcome(registry, access, proof=""))
    epoch_starts = [start.seen_by(access.streams) for start in registry.log.epoch_starts]
    more = {"epoch_starts": epoch_starts, "promoting": registry.roles.candidate.is_requesting}
    return msgspec.json.encode(welcome | more)


async def subscribe(call: Call, body: messages.SubscribeBody) -> messages.SubscribeAnswer:
    """Admit a replica, and make or renew its lease for the facts that it lacks."""
    registry, replica = call.registry, _replica(call, body)
    if (refusal := await registry.admission(replica, body.subscription, call.access)) is not None:
        raise refusal_error(refusal)
    registry.retain(replica, body.subscription.position.serial, call.access)
    registry.note_http_reader(replica.uuid, PRESENT_SECONDS)
    return messages.SubscribeAnswer(registry.log.position, list(registry.peers(excluding=replica.uuid)))


async def join(call: Call, body: messages.JoinBody) -> messages.JoinAnswer:
    """Start a snapshot for a replica."""
    registry, replica = call.registry, _replica(call, body)
    if (refusal := registry.join_refusal(replica, body.join.filter, call.access)) is not None:
        raise refusal_error(refusal)
    start = await start_snapshot(registry, replica, body.join, call.access)
    registry.note_http_reader(replica.uuid, PRESENT_SECONDS)
    snapshot = None if start.snapshot is None else b"".join(snapshot_lines(start.snapshot)).decode()
    return messages.JoinAnswer(**msgspec.structs.asdict(start.joining), snapshot=snapshot)


async def acknowledge(call: Call, body: messages.AckBody) -> messages.AckAnswer:
    """Record a replica's durable position."""
    registry, uuid = call.registry, call.path["uuid"]
    lease = registry.leases[uuid]
    if lease is None or lease.ended_ms is not None:
        raise ApiError("unknown", "this replica has no lease: subscribe again")
    if (refused := registry.owner_refusal(uuid, call.access)) is not None:
        raise refusal_error(refused, status=None)
    if body.serial > registry.log.serial:
        why = f"acknowledged serial {body.serial} is beyond the end of this log, {registry.log.serial}"
        raise ApiError("bad_ack", why)
    registry.note_http_reader(uuid, PRESENT_SECONDS)
    registry.leases.advance(uuid, body.serial)
    return messages.AckAnswer(registry.log.serial, list(registry.peers(excluding=uuid)))


def renew_lease(registry: ReplicaRegistry, reader: str, since: int, wait: float, access: Access) -> None:
    """Make or renew the lease of a named changelog reader, which has everything up to `since`.

    Raises `ApiError` at the limit of leases, and if the lease is that of another key.
    """
    uuid = f"{READER_PREFIX}{reader}"
    lease = registry.leases[uuid]
    if (refused := registry.owner_refusal(uuid, access)) is not None:
        raise refusal_error(refused, status=None)
    if lease is None or lease.ended_ms is not None or since < lease.serial:
        if (refused := registry.lease_limit_refusal(uuid, registered=False, key=access.key)) is not None:
            raise refusal_error(refused, status=None)
        registry.leases.make(uuid, reader, registered=False, serial=since, key=access.key)
    else:
        registry.leases.advance(uuid, since)
    registry.note_http_reader(uuid, wait + PRESENT_SECONDS)


def _replica(call: Call, body: messages.ReplicaIdentity) -> Hello:
    uuid = call.path["uuid"]
    if (unfit := call.registry.identity_refusal(uuid, body.name, body.address)) is not None:
        raise refusal_error(unfit, status=None)
    return Hello(uuid=uuid, name=body.name, nonce="", registered=body.registered, address=body.address)


def refusal_error(refusal: Refused, *, status: int | None = REFUSED) -> ApiError:
    """Make the error response for a refused replica. Without a `status`, it has that of the code."""
    more: dict[str, Any] = msgspec.to_builtins(refusal)
    return ApiError(refusal.code, more.pop("message"), status=status, **more)
