"""What is asked over HTTP about who is primary, and about leases: for operators, and between daemons."""

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
from synrepl.transports.http.append_body import read_said
from synrepl.transports.http.replica_routes import refused_over_http

__all__ = ["AdminRoutes"]

MAX_BODY: Final = 64 * 1024


class _Promote(msgspec.Struct, forbid_unknown_fields=True):
    force: bool = False


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    uuid: str = ""


class AdminRoutes:
    """Answers them."""

    def __init__(self, roles: RoleManager, relays: ReplicaRegistry) -> None:
        self._roles = roles
        self._relays = relays

    async def promote(self, request: Any) -> bytes:
        """``POST /v1/promote``: this replica becomes primary."""
        asked = read_said(_Promote, request, MAX_BODY)
        try:
            epoch_start = await self._roles.promote(force=asked.force)
        except CannotPromote as error:
            more: dict[str, Any] = {"retryable": error.retryable}
            if error.missing:
                more["missing"] = [list(one) for one in error.missing[:100]]
            raise ApiError(409, error.code, str(error), more=more) from error
        return jsontext.dumps({"role": "primary", "epoch": epoch_start.epoch, "serial": epoch_start.serial})

    async def resync(self, request: Any) -> bytes:
        """``POST /v1/resync``: give up what only this copy has (a file keeps it), and join again."""
        try:
            done = await self._roles.resync()
        except CannotPromote as error:
            raise ApiError(409, error.code, str(error)) from error
        if not done:
            raise ApiError(409, "not_stopped", "there is nothing to give up: this daemon is not stopped")
        return jsontext.dumps({"role": self._roles.role, "resync": True})

    async def hand_over(self, request: Any) -> bytes:
        """``POST /v1/handover``: another daemon is about to become primary."""
        asked = read_said(HandOver, request, MAX_BODY)
        if not 0 <= asked.seconds <= MAX_HANDOVER_SECONDS:
            raise ApiError(400, "bad_request", f"seconds are from 0 to {MAX_HANDOVER_SECONDS:g}")
        try:
            position = await self._roles.hand_over(asked, trusted=_is_trusted(request))
        except (CannotPromote, ClaimRefused) as error:
            raise _refused(error) from error
        return msgspec.json.encode(position)

    async def claim(self, request: Any) -> bytes:
        """``POST /v1/claim``: another daemon says that it is primary, and since which epoch."""
        try:
            await self._roles.on_claim(read_said(Claim, request, MAX_BODY), trusted=_is_trusted(request))
        except ClaimRefused as error:
            raise _refused(error) from error
        return jsontext.dumps({"role": self._roles.role, "primary": str(self._roles.primary)})

    # -- leases --------------------------------------------------------------------------------------------

    async def list_leases(self, request: Any) -> bytes:
        """``GET /v1/leases``: all of them, those that hold most back first."""
        return jsontext.dumps({"leases": self._relays.describe_leases()})

    async def add_lease(self, request: Any) -> bytes:
        """``POST /v1/leases``: what comes from now on is kept for a replica that is yet to come.

        One that was dropped before is let in again.
        """
        asked = read_said(_Lease, request, MAX_BODY)
        leases, relays = self._leases, self._relays
        if (
            unfit := relays.identity_refusal(asked.uuid or "expected", asked.name)
        ) is not None or not asked.name:
            raise ApiError(400, "bad_request", "a name is wanted" if unfit is None else unfit.message)
        known = leases.find(asked.uuid or asked.name)
        if known is not None and known.ended_ms is None:
            raise ApiError(409, "known", f"{asked.name} has a lease already")
        uuid = known.uuid if known is not None else asked.uuid or f"expected-{uuid4()}"
        if (refused := relays.lease_limit_refusal(uuid)) is not None:
            raise refused_over_http(refused, status=429)
        lease = leases.add(uuid, asked.name)
        await leases.save()
        return jsontext.dumps({"uuid": lease.uuid, "name": lease.name, "serial": lease.serial})

    async def drop_lease(self, request: Any, name: str) -> bytes:
        """``DELETE /v1/leases/<uuid or name>``: a replica is not waited for, and not served, any more."""
        dropped = self._leases.drop(name)
        if dropped is None:
            why = f"there is no lease, or more than one, of the name {name[:100]!r}"
            raise ApiError(404, "unknown_lease", why)
        self._relays.disconnect(dropped.uuid, "this replica was dropped by an operator")
        await self._leases.save()
        return jsontext.dumps({"uuid": dropped.uuid, "name": dropped.name, "dropped": True})

    @property
    def _leases(self) -> Leases:
        return self._relays.leases


def _is_trusted(request: Any) -> bool:
    """Whether the peer proved a key. That it may administer was checked before."""
    return bool(request.access.is_proven)


def _refused(error: CannotPromote | ClaimRefused) -> ApiError:
    more = {"retryable": error.retryable}
    match error.code:
        case "bad_request":
            return ApiError(400, error.code, str(error), more=more)
        case "busy":
            return ApiError(503, error.code, str(error), more=more, retry_after=RETRY_SECONDS)
    return ApiError(409, error.code, str(error), more=more)
