"""Routes of roles and leases, for operators and other daemons."""

from typing import Any, Final
from uuid import uuid4

import msgspec

from synrepl.replication.relay import Leases, ReplicaRegistry
from synrepl.replication.roles import (
    MAX_HANDOVER_SECONDS,
    CannotPromote,
    Claim,
    ClaimRefused,
    HandOver,
    RoleManager,
)
from synrepl.streams import jsontext
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError
from synrepl.transports.http.append_body import read_json
from synrepl.transports.http.replica_routes import refusal_error

__all__ = ["AdminRoutes"]

MAX_BODY: Final = 64 * 1024


class _Promote(msgspec.Struct, forbid_unknown_fields=True):
    force: bool = False


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    uuid: str = ""


class AdminRoutes:
    """Handles the requests."""

    def __init__(self, roles: RoleManager, registry: ReplicaRegistry) -> None:
        self._roles = roles
        self._registry = registry

    async def promote(self, request: Any) -> bytes:
        """``POST /v1/promote``: promote this replica to primary."""
        body = read_json(_Promote, request, MAX_BODY)
        try:
            epoch_start = await self._roles.promote(force=body.force)
        except CannotPromote as error:
            more: dict[str, Any] = {"retryable": error.retryable}
            if error.missing:
                more["missing"] = [list(one) for one in error.missing[:100]]
            raise ApiError(409, error.code, str(error), more=more) from error
        return jsontext.dumps({"role": "primary", "epoch": epoch_start.epoch, "serial": epoch_start.serial})

    async def resync(self, request: Any) -> bytes:
        """``POST /v1/resync``: save facts that only this copy has to a file, discard them, and join again."""
        try:
            done = await self._roles.resync()
        except CannotPromote as error:
            raise ApiError(409, error.code, str(error)) from error
        if not done:
            raise ApiError(409, "not_stopped", "nothing to resync: this daemon is not stopped")
        return jsontext.dumps({"role": self._roles.role, "resync": True})

    async def hand_over(self, request: Any) -> bytes:
        """``POST /v1/handover``: hand over to another daemon, which is being promoted."""
        body = read_json(HandOver, request, MAX_BODY)
        if not 0 <= body.seconds <= MAX_HANDOVER_SECONDS:
            raise ApiError(400, "bad_request", f"seconds must be from 0 to {MAX_HANDOVER_SECONDS:g}")
        try:
            position = await self._roles.hand_over(body, trusted=_is_trusted(request))
        except (CannotPromote, ClaimRefused) as error:
            raise _as_api_error(error) from error
        return msgspec.json.encode(position)

    async def claim(self, request: Any) -> bytes:
        """``POST /v1/claim``: handle another daemon's claim to be primary since an epoch."""
        try:
            await self._roles.on_claim(read_json(Claim, request, MAX_BODY), trusted=_is_trusted(request))
        except ClaimRefused as error:
            raise _as_api_error(error) from error
        return jsontext.dumps({"role": self._roles.role, "primary": str(self._roles.primary)})

    # -- leases --------------------------------------------------------------------------------------------

    async def list_leases(self, request: Any) -> bytes:
        """``GET /v1/leases``: list all leases, those that retain most first."""
        return jsontext.dumps({"leases": self._registry.describe_leases()})

    async def add_lease(self, request: Any) -> bytes:
        """``POST /v1/leases``: retain facts from now on for a replica that will come.

        A dropped replica is admitted again.
        """
        body = read_json(_Lease, request, MAX_BODY)
        leases, registry = self._leases, self._registry
        unfit = registry.identity_refusal(body.uuid or "expected", body.name)
        if unfit is not None or not body.name:
            raise ApiError(400, "bad_request", "a lease needs a name" if unfit is None else unfit.message)
        known = leases.find(body.uuid or body.name)
        if known is not None and known.ended_ms is None:
            raise ApiError(409, "known", f"{body.name} already has a lease")
        uuid = known.uuid if known is not None else body.uuid or f"expected-{uuid4()}"
        if (refusal := registry.lease_limit_refusal(uuid)) is not None:
            raise refusal_error(refusal, status=429)
        lease = leases.add(uuid, body.name)
        await leases.save()
        return jsontext.dumps({"uuid": lease.uuid, "name": lease.name, "serial": lease.serial})

    async def drop_lease(self, request: Any, name: str) -> bytes:
        """``DELETE /v1/leases/<uuid or name>``: drop a lease; its replica is disconnected and refused."""
        dropped = self._leases.drop(name)
        if dropped is None:
            why = f"no lease, or more than one, has the name {name[:100]!r}: give a uuid of GET /v1/leases"
            raise ApiError(404, "unknown_lease", why)
        self._registry.disconnect(dropped.uuid, "an operator dropped this replica's lease")
        await self._leases.save()
        return jsontext.dumps({"uuid": dropped.uuid, "name": dropped.name, "dropped": True})

    @property
    def _leases(self) -> Leases:
        return self._registry.leases


def _is_trusted(request: Any) -> bool:
    """Whether the peer is authenticated by a key. Its right to administer was checked before."""
    return bool(request.access.is_proven)


def _as_api_error(error: CannotPromote | ClaimRefused) -> ApiError:
    more = {"retryable": error.retryable}
    match error.code:
        case "bad_request":
            return ApiError(400, error.code, str(error), more=more)
        case "busy":
            return ApiError(503, error.code, str(error), more=more, retry_after=RETRY_SECONDS)
    return ApiError(409, error.code, str(error), more=more)
