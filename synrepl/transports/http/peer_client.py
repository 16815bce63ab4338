"""Client for claims, handovers and the status of other daemons."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected
from synrepl.http_api.routes import CLAIM, DIGESTS, HANDOVER, REPLICATION
from synrepl.ports.history import LogPosition
from synrepl.ports.response_errors import ApiResponseError
from synrepl.replication.addresses import Address
from synrepl.replication.roles import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.messages import DigestsAnswer

__all__ = ["PeerClient"]

TIMEOUT_SECONDS: Final = 10.0
CONFLICT: Final = 409


class PeerClient:
    """Sends claims and handover requests to other daemons; see `roles.IPeerClient`."""

    def __init__(self, reactor: Any, secret: str | Credentials | None, *, client: Any = None) -> None:
        self._http = HttpClient(reactor, secret, TIMEOUT_SECONDS, client)

    async def hand_over(self, address: Address, handover: HandOver) -> LogPosition:
        """Request a handover: the primary refuses facts for a while. Returns its position.

        Raises `CannotPromote` if it refuses.
        """
        try:
            return await self._http.call(_url(address), HANDOVER.request(), LogPosition, body=handover)
        except ApiResponseError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        await self._http.call(_url(address), CLAIM.request(), msgspec.Raw, body=claim)

    async def describe(self, address: Address) -> PeerStatus:
        """Fetch the status of another daemon."""
        return await self._http.call(_url(address), REPLICATION.request(), PeerStatus)

    async def digest(self, address: Address, serial: int) -> str | None:
        """Fetch a daemon's digest at this serial; None if the daemon no longer has it."""
        found = await self._http.call(_url(address), DIGESTS.request(serials=[serial]), DigestsAnswer)
        return found.digests.get(serial)

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


def _url(address: Address) -> str:
    if not address.http:
        raise NotConnected(f"the HTTP address of {address} is unknown")
    return address.http
