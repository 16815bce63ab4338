"""The handler of what a log is, and the leases of readers of the changelog."""

from typing import Any, Final

import msgspec

from synrepl.http_api.routes import MAX_NEWER, REPLICATION
from synrepl.ports.access import Access, Right
from synrepl.ports.history import READER_PREFIX
from synrepl.replicas.relay.handshake import make_welcome
from synrepl.replicas.relay.registry import ReplicaRegistry
from synrepl.replicas.roles.messages import NewerFact
from synrepl.streams.catalog import PROMISES
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.filter import Filter
from synrepl.wire.native import Refused

PRESENT_SECONDS: Final = 15.0
"""A reader over HTTP counts as connected for this time after a request and the `wait` of the request."""


@handles(REPLICATION)
async def about(call: Call) -> bytes:
    """Return the history of this log, its epochs, oldest position and head."""
    return await describe_log(call.registry, call.access, call.query["after"])


async def describe_log(registry: ReplicaRegistry, access: Access, after: int | None) -> bytes:
    """Encode the fields that replicas need (`Welcome`), and those that verify claims (`PeerStatus`).

    With `after`, name the first facts after this serial. Streams that the peer may not see are not named.
    """
    welcome = msgspec.to_builtins(make_welcome(registry, access))
    epoch_starts = [start.seen_by(access.streams) for start in registry.log.head.epoch_starts]
    more: dict[str, Any] = {"epoch_starts": epoch_starts, "promoting": registry.roles.candidate.is_requesting}
    if issued := registry.issued.digest:
        more["keys"] = issued
        if Right.ADMINISTER in access.rights:
            more["revoked"] = registry.issued.revoked()
    if after is not None:
        facts, _ = await registry.log.reads.facts(
            after=after, upto=registry.log.head.serial, limit=MAX_NEWER, filter=Filter(access.streams)
        )
        more["has_promise"] = bool(registry.log.linear_position(PROMISES.name))
        more["newer"] = [
            NewerFact(fact.serial, fact.stream, fact.writer, fact.token) for fact in facts[:MAX_NEWER]
        ]
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
