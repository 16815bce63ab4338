"""Handlers of roles and leases, for operators and other daemons."""

from typing import Any
from uuid import uuid4

import msgspec

from synrepl.replicas.described import own_readers
from synrepl.replicas.http.served_replicas import replicas_of
from synrepl.replicas.relay.replica_registry import ReaderRefused
from synrepl.replicas.roles.handover import MAX_HANDOVER_SECONDS
from synrepl.replicas.roles.messages import Claim, HandOver
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.routes import ADD_LEASE, CLAIM, DROP_LEASE, HANDOVER, LEASES, PROMOTE, RESYNC
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.position import LogPosition


class PromoteBody(msgspec.Struct, forbid_unknown_fields=True):
    """With `force`, the old primary is not asked; with `lose_acknowledged`, neither are replicas.

    `believe` are the writers whose promises count, if the log has those of several (`promises_unproven`).
    """

    force: bool = False
    lose_acknowledged: bool = False
    believe: list[str] | None = None


class PromoteAnswer(msgspec.Struct, frozen=True):
    """This daemon is primary; its epoch begins after `serial`."""

    role: str
    epoch: int
    serial: int


class ResyncAnswer(msgspec.Struct, frozen=True):
    """This daemon joins again."""

    role: str
    resync: bool = True


class ClaimAnswer(msgspec.Struct, frozen=True):
    """The role of this daemon, and the primary's address as ``NATIVE HTTP``, as far as it is known."""

    role: str
    primary: str


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a replica that will join later, and its uuid (empty: unknown)."""

    name: str
    uuid: str = ""


class LeaseAnswer(msgspec.Struct, frozen=True):
    """A lease: the facts after `serial` are retained."""

    uuid: str
    name: str
    serial: int


class LeasesAnswer(msgspec.Struct, frozen=True):
    """All leases, also ended ones."""

    leases: list[dict[str, Any]]


class DroppedLease(msgspec.Struct, frozen=True):
    """The lease that was ended."""

    uuid: str
    name: str
    dropped: bool = True


@handles(PROMOTE)
async def promote(call: Call, body: PromoteBody) -> PromoteAnswer:
    """Promote this replica to primary."""
    epoch_start = await replicas_of(call).promotion.promote(
        force=body.force, lose_acknowledged=body.lose_acknowledged, believed=body.believe
    )
    return PromoteAnswer(Role.PRIMARY, epoch_start.epoch, epoch_start.serial)


@handles(RESYNC)
async def resync(call: Call) -> ResyncAnswer:
    """Join again; facts that no other copy has are saved to a file first, and then discarded."""
    if not await replicas_of(call).roles.resync():
        raise ApiError("not_stopped", "nothing to resync: this daemon is neither stopped nor fenced")
    return ResyncAnswer(replicas_of(call).roles.role)


@handles(HANDOVER)
async def hand_over(call: Call, body: HandOver) -> LogPosition:
    """Hand over to another daemon, which is being promoted. Returns the position of this log."""
    if not 0 <= body.seconds <= MAX_HANDOVER_SECONDS:
        raise ApiError("bad_request", f"seconds must be from 0 to {MAX_HANDOVER_SECONDS:g}")
    # A peer with the right to administer is trusted only if a key or certificate proves who it is.
    return await replicas_of(call).roles.handover.handle(body, trusted=call.access.is_proven)


@handles(CLAIM)
async def claim(call: Call, body: Claim) -> ClaimAnswer:
    """Handle another daemon's claim to be primary since an epoch."""
    await replicas_of(call).roles.claims.handle(body, trusted=call.access.is_proven)
    return ClaimAnswer(replicas_of(call).roles.role, str(replicas_of(call).roles.primary))


@handles(LEASES)
async def list_leases(call: Call) -> LeasesAnswer:
    """List the leases, also ended ones, those that retain most first; with a limited key only its own."""
    return LeasesAnswer(own_readers(replicas_of(call).registry.describe_leases(), call.access))


@handles(ADD_LEASE)
async def add_lease(call: Call, body: LeaseBody) -> LeaseAnswer:
    """Retain facts from now on for a replica that will join later.

    A dropped replica is admitted again.
    """
    registry = replicas_of(call).registry
    unfit = registry.identity_refusal(body.uuid or "expected", body.name)
    if unfit is not None or not body.name:
        raise ApiError("bad_request", "a lease needs a name" if unfit is None else unfit.message)
    known = registry.leases.find(body.uuid or body.name)
    if known is not None and known.ended_ms is None:
        raise ApiError("known", f"{body.name} already has a lease")
    uuid = known.uuid if known is not None else body.uuid or f"expected-{uuid4()}"
    if (refusal := registry.lease_limit_refusal(uuid)) is not None:
        raise ReaderRefused(refusal)
    lease = registry.leases.add(uuid, body.name)
    await registry.leases.save()
    return LeaseAnswer(lease.uuid, lease.name, lease.serial)


@handles(DROP_LEASE)
async def drop_lease(call: Call) -> DroppedLease:
    """End a lease. A replica is then refused; a changelog reader gets a new one with its next request."""
    registry, name = replicas_of(call).registry, call.path["name"]
    dropped = registry.leases.drop(name)
    if dropped is None:
        why = (
            f"no lease, or more than one, has the name {name[:100]!r}: synrepl leases shows the names, and"
            " synrepl leases -o json (GET /v1/leases) the uuids"
        )
        raise ApiError("unknown_lease", why)
    registry.disconnect(dropped.uuid, "an operator dropped this replica's lease")
    await registry.leases.save()
    return DroppedLease(dropped.uuid, dropped.name)
