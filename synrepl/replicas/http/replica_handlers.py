"""The handler that describes this log, and the leases of readers of the changelog."""

from typing import Any

import msgspec

from synrepl.base.access import Access, Right
from synrepl.replicas.http.served_replicas import replicas_of
from synrepl.replicas.relay.authenticator import make_welcome
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.messages import NewerFact
from synrepl.replicas.roles.promotion import Promotion
from synrepl.replicas.routes import MAX_NEWER, REPLICATION
from synrepl.streams.catalog import PROMISES
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.filter import Filter


@handles(REPLICATION)
async def about(call: Call) -> bytes:
    """Return the history of this log, its epochs, oldest position and head."""
    replicas = replicas_of(call)
    return await describe_log(replicas.registry, replicas.promotion, call.access, call.query["after"])


async def describe_log(
    registry: ReplicaRegistry, promotion: Promotion, access: Access, after: int | None
) -> bytes:
    """Encode the fields that replicas need (`Welcome`), and those that verify claims (`PeerStatus`).

    With `after`, name the first facts after this serial. Streams that the peer may not see are not named.
    """
    welcome = msgspec.to_builtins(make_welcome(registry, access))
    epoch_starts = [start.seen_by(access.streams) for start in registry.log.head.epoch_starts]
    more: dict[str, Any] = {"epoch_starts": epoch_starts, "promoting": promotion.candidate.is_requesting}
    if claim := registry.roles.claims.current():
        more["claim"] = claim
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
