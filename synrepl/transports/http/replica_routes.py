"""Routes for replicas that follow over HTTP alone: what they ask beside the changelog."""

from typing import Any, Final

import msgspec

from synrepl.ports.history import LogSnapshot
from synrepl.replication.relay import ReplicaRegistry
from synrepl.replication.relay.snapshot_codec import snapshot_lines
from synrepl.replication.relay.snapshot_start import make_welcome, start_snapshot
from synrepl.replication.wire_positions import standing
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import read_said
from synrepl.wire.native import JoinRequest, Refusal, Subscription, WelcomeBody, WirePosition

__all__ = ["AckBody", "JoinAnswer", "JoinBody", "ReplicaRoutes", "SubscribeBody", "refused_over_http"]

MAX_BODY: Final = 4 * 1024 * 1024

PRESENT_SECONDS: Final = 15.0
"""A replica that has said nothing for so long counts as gone."""

READER: Final = "reader:"


class SubscribeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica says who it is, where it stands, and what it wants from there on."""

    name: str
    subscription: Subscription
    registered: bool = True
    address: str = ""


class JoinBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica says who it is, and that it wants a copy."""

    name: str
    join: JoinRequest
    registered: bool = True
    address: str = ""


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The facts up to `place` are to be read from the changelog, those after `after`; beside them stands
    `snapshot` (lines of JSON, as in a block), unless it is there already."""

    join: str
    history: str
    position: WirePosition
    trimmed_upto: WirePosition
    after: int
    resumed: bool
    snapshot: str | None


class AckBody(msgspec.Struct, frozen=True):
    """A replica holds everything up to this serial, durably."""

    epoch: int
    serial: int


class ReplicaRoutes:
    """Answers them: the same judgement, leases and list as for those that speak natively."""

    def __init__(self, relays: ReplicaRegistry) -> None:
        self._relays = relays

    async def about(self, request: Any) -> bytes:
        """``GET /v1/replication``: which history this is, where it and its epochs began, where it stands."""
        relays = self._relays
        welcome: WelcomeBody = make_welcome(relays, proof="")
        # Beside what replicas need: what other daemons verify claims with (`roles.Described`).
        more = {"epoch_starts": relays.log.epoch_starts, "promoting": relays.is_promoting()}
        return msgspec.json.encode(msgspec.to_builtins(welcome) | more)

    async def subscribe(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>``: may this be served? From then on a lease holds what it lacks."""
        asked = read_said(SubscribeBody, request, MAX_BODY)
        name = self._name(asked, uuid)
        relays = self._relays
        refused = await relays.admission(
            uuid,
            name,
            asked.subscription,
            request.access,
            registered=asked.registered,
            address=asked.address,
        )
        refused = refused or relays.duplicate_refusal(uuid, name)
        if refused is not None:
            raise refused_over_http(refused)
        serial = asked.subscription.position.serial
        relays.leases.make(uuid, name, registered=asked.registered, serial=serial, address=asked.address)
        relays.note_http_reader(uuid, PRESENT_SECONDS)
        position = self._relays.log.position
        return msgspec.json.encode(
            {
                "position": standing(position),
                "peers": relays.peers(but=uuid),
            }
        )

    async def join(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>/join``: which facts a copy has, and what stands beside them."""
        asked = read_said(JoinBody, request, MAX_BODY)
        name = self._name(asked, uuid)
        relays = self._relays
        refused = relays.join_refusal(
            uuid, name, asked.join.filter, request.access, registered=asked.registered
        )
        refused = refused or relays.duplicate_refusal(uuid, name)
        if refused is not None:
            raise refused_over_http(refused)
        begins = await start_snapshot(
            relays, uuid, name, asked.join, registered=asked.registered, address=asked.address
        )
        relays.note_http_reader(uuid, PRESENT_SECONDS)
        snapshot: LogSnapshot | None = begins.snapshot
        return msgspec.json.encode(
            JoinAnswer(
                join=begins.join,
                history=relays.log.history,
                position=standing(begins.of),
                trimmed_upto=standing(begins.trimmed_upto),
                after=begins.at.serial,
                resumed=begins.resumed,
                snapshot=None if snapshot is None else b"".join(snapshot_lines(snapshot)).decode(),
            )
        )

    def reads(self, reader: str, since: int, wait: float) -> None:
        """Somebody who reads the changelog under a name holds everything up to `since`: what comes after it
        is kept for him, for a while. Raises `ApiError` where that is one lease too many."""
        uuid = f"{READER}{reader}"
        relays = self._relays
        lease = relays.leases[uuid]
        if lease is None or lease.ended_ms is not None or since < lease.serial:
            if (refused := relays.lease_limit_refusal(uuid, registered=False)) is not None:
                raise refused_over_http(refused, status=429)
            relays.leases.make(uuid, reader, registered=False, serial=since)
        else:
            relays.leases.advance(uuid, since)
        relays.note_http_reader(uuid, wait + PRESENT_SECONDS)

    async def acknowledge(self, request: Any, uuid: str) -> bytes:
        """``POST /v1/replicas/<uuid>/ack``: it is there, and holds everything up to a serial."""
        said = read_said(AckBody, request, MAX_BODY)
        relays = self._relays
        lease = relays.leases[uuid]
        if lease is None or lease.ended_ms is not None:
            raise ApiError(409, "unknown", "nothing is kept for this replica; it is to subscribe again")
        if said.serial > relays.log.serial:
            why = f"it acknowledged serial {said.serial}, this log ends at {relays.log.serial}"
            raise ApiError(409, "bad_ack", why)
        relays.note_http_reader(uuid, PRESENT_SECONDS)
        relays.leases.advance(uuid, said.serial)
        return msgspec.json.encode({"serial": relays.log.serial, "peers": relays.peers(but=uuid)})

    def _name(self, asked: SubscribeBody | JoinBody, uuid: str) -> str:
        if (unfit := self._relays.identity_refusal(uuid, asked.name, asked.address)) is not None:
            raise refused_over_http(unfit, status=400)
        return asked.name or uuid


def refused_over_http(refused: Refusal, *, status: int = 409) -> ApiError:
    """A refusal of a replica as the answer to its request."""
    more = {name: value for name, value in msgspec.to_builtins(refused).items() if name != "message"}
    return ApiError(status, refused.code, refused.message, more=more)
