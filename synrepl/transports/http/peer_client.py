"""Client for claims, handovers and the status of other daemons."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected
from synrepl.ports.history import LogPosition
from synrepl.ports.response_errors import ApiResponseError
from synrepl.replication.addresses import Address
from synrepl.replication.roles import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import HttpClient, decode_json, public_url

__all__ = ["PeerClient"]

MAX_RESPONSE_BYTES: Final = 1024 * 1024
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
        url = self._url(address, "/v1/handover")
        body = msgspec.json.encode(handover)
        try:
            response = await self._http.fetch("POST", url, body, MAX_RESPONSE_BYTES)
        except ApiResponseError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error
        return decode_json(LogPosition, response, public_url(url))

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        url = self._url(address, "/v1/claim")
        await self._http.fetch("POST", url, msgspec.json.encode(claim), MAX_RESPONSE_BYTES)

    async def describe(self, address: Address) -> PeerStatus:
        """Fetch the status of another daemon."""
        url = self._url(address, "/v1/replication")
        return decode_json(
            PeerStatus, await self._http.fetch("GET", url, None, MAX_RESPONSE_BYTES), public_url(url)
        )

    async def digest(self, address: Address, serial: int) -> str | None:
        """Fetch a daemon's digest at this serial; None if the daemon no longer has it."""
        url = self._url(address, f"/v1/digests?serials={serial}")
        response = decode_json(
            _Digests, await self._http.fetch("GET", url, None, MAX_RESPONSE_BYTES), public_url(url)
        )
        return response.digests.get(str(serial))

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()

    @staticmethod
    def _url(address: Address, path: str) -> str:
        if not address.http:
            raise NotConnected(f"the HTTP address of {address} is unknown")
        return address.http.rstrip("/") + path


class _Digests(msgspec.Struct):
    digests: dict[str, str | None]
