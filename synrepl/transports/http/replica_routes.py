"""Routes for replicas that follow over HTTP, besides the changelog."""

from typing import Any, Final

import msgspec

from synrepl.ports.history import LogSnapshot
from synrepl.replication.relay import ReplicaRegistry
from synrepl.replication.relay.snapshot_codec import snapshot_lines
from synrepl.replication.relay.snapshot_start import make_welcome, start_snapshot
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import read_json
from synrepl.wire.native import JoinRequest, Refusal, Subscription, WelcomeBody
from synrepl.wire.position import LogPosition

__all__ = ["AckBody", "JoinAnswer", "JoinBody", "ReplicaRoutes", "SubscribeBody", "refusal_error"]

MAX_BODY: Final = 4 * 1024 * 1024

PRESENT_SECONDS: Final = 15.0
"""A replica without requests for this time counts as disconnected."""

READER: Final = "reader:"


class SubscribeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica's identity, position and filter."""

    name: str
    subscription: Subscription
    registered: bool = True
    address: str = ""


class JoinBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica's identity and its request for a snapshot."""

    name: str
    join: JoinRequest
    registered: bool = True
    address: str = ""


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a join: the reader fetches the facts after `after`, up to `position`, from the changelog.

    `snapshot` is the rest of the snapshot (lines of JSON, as in a block); None if the replica has it already.
    """

    join: str
    history: str
    position: LogPosition
    trimmed_upto: LogPosition
    after: int
    resumed: bool
    snapshot: str | None


class AckBody(msgspec.Struct, frozen=True):
    """A replica has stored everything up to this serial durably."""

    epoch: int
    serial: int


class ReplicaRoutes:
    """Handles the requests, with the admission, leases and list of native replicas."""

    def __init__(self, registry: ReplicaRegistry) -> None:
        self._registry = registry

    async def about(self, request: Any) -> bytes:
        """``GET /v1/replication``: return the history of this log, its epochs, oldest position and head."""
        registry = self._registry
        welcome: WelcomeBody = make_welcome(registry, proof="")
        # Besides the replicas' fields: the fields with which other daemons verify claims
        # (`roles.PeerStatus`).
        more = {"epoch_starts": registry.log.epoch_starts, "promoting": registry.is_promoting()}
        return msgspec.json.encode(msgspec.to_builtins(welcome) | more)

    async def subscribe(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>``: admit a replica, and make a lease for the facts that it lacks."""
        body = read_json(SubscribeBody, request, MAX_BODY)
        name = self._name(body, uuid)
        registry = self._registry
        refusal = await registry.admission(
            uuid,
            name,
            body.subscription,
            request.access,
            registered=body.registered,
            address=body.address,
        )
        refusal = refusal or registry.duplicate_refusal(uuid, name)
        if refusal is not None:
            raise refusal_error(refusal)
        serial = body.subscription.position.serial
        registry.leases.make(uuid, name, registered=body.registered, serial=serial, address=body.address)
        registry.note_http_reader(uuid, PRESENT_SECONDS)
        position = self._registry.log.position
        return msgspec.json.encode(
            {
                "position": position,
                "peers": registry.peers(excluding=uuid),
            }
        )

    async def join(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>/join``: start a snapshot for a replica."""
        body = read_json(JoinBody, request, MAX_BODY)
        name = self._name(body, uuid)
        registry = self._registry
        refusal = registry.join_refusal(
            uuid, name, body.join.filter, request.access, registered=body.registered
        )
        refusal = refusal or registry.duplicate_refusal(uuid, name)
        if refusal is not None:
            raise refusal_error(refusal)
        begins = await start_snapshot(
            registry, uuid, name, body.join, registered=body.registered, address=body.address
        )
        registry.note_http_reader(uuid, PRESENT_SECONDS)
        snapshot: LogSnapshot | None = begins.snapshot
        return msgspec.json.encode(
            JoinAnswer(
                join=begins.join,
                history=registry.log.history,
                position=begins.of,
                trimmed_upto=begins.trimmed_upto,
                after=begins.at.serial,
                resumed=begins.resumed,
                snapshot=None if snapshot is None else b"".join(snapshot_lines(snapshot)).decode(),
            )
        )

    def reads(self, reader: str, since: int, wait: float) -> None:
        """Renew the lease of a named changelog reader, which has everything up to `since`.

        Raises `ApiError` at the limit of leases.
        """
        uuid = f"{READER}{reader}"
        registry = self._registry
        lease = registry.leases[uuid]
        if lease is None or lease.ended_ms is not None or since < lease.serial:
            if (refusal := registry.lease_limit_refusal(uuid, registered=False)) is not None:
                raise refusal_error(refusal, status=429)
            registry.leases.make(uuid, reader, registered=False, serial=since)
        else:
            registry.leases.advance(uuid, since)
        registry.note_http_reader(uuid, wait + PRESENT_SECONDS)

    async def acknowledge(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>/ack``: record a replica's durable position."""
        body = read_json(AckBody, request, MAX_BODY)
        registry = self._registry
        lease = registry.leases[uuid]
        if lease is None or lease.ended_ms is not None:
            raise ApiError(409, "unknown", "this replica has no lease: subscribe again")
        if body.serial > registry.log.serial:
            why = f"acknowledged serial {body.serial} is beyond the end of this log, {registry.log.serial}"
            raise ApiError(409, "bad_ack", why)
        registry.note_http_reader(uuid, PRESENT_SECONDS)
        registry.leases.advance(uuid, body.serial)
        return msgspec.json.encode({"serial": registry.log.serial, "peers": registry.peers(excluding=uuid)})

    def _name(self, body: SubscribeBody | JoinBody, uuid: str) -> str:
        if (unfit := self._registry.identity_refusal(uuid, body.name, body.address)) is not None:
            raise refusal_error(unfit, status=400)
        return body.name or uuid


def refusal_error(refusal: Refusal, *, status: int = 409) -> ApiError:
    """Make the error response for a refused replica."""
    more = {name: value for name, value in msgspec.to_builtins(refusal).items() if name != "message"}
    return ApiError(status, refusal.code, refusal.message, more=more)
