"""Client for claims, handovers and the status of other daemons."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from synrepl.errors import NotConnected
from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import CLAIM, DIGESTS, HANDOVER, REPLICATION
from synrepl.ports.history import LogPosition
from synrepl.ports.response_errors import ApiResponseError
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.messages import DigestsAnswer

__all__ = ["PeerClient"]

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 10.0
CONFLICT: Final = 409


class PeerClient:
    """Sends claims and handover requests to other daemons; see `roles.IPeerClient`.

    `secret_of` returns the secret for a trusted daemon. HTTP clients are made on first use.
    """

    def __init__(
        self, reactor: Any, credentials: Credentials, secret_of: Callable[[Address], str | None]
    ) -> None:
        self._reactor = reactor
        self._credentials = credentials
        self._secret_of = secret_of
        self._clients: dict[str | None, HttpClient] = {}

    async def hand_over(self, address: Address, handover: HandOver) -> LogPosition:
        """Request a handover: the primary refuses facts for a while. Returns its position.

        Raises `CannotPromote` if it refuses.
        """
        try:
            return await self._call(address, HANDOVER.request(), LogPosition, body=handover)
        except ApiResponseError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        await self._call(address, CLAIM.request(), msgspec.Raw, body=claim)

    async def describe(self, address: Address, *, trusted: bool) -> PeerStatus:
        """Fetch the status of another daemon."""
        return await self._call(address, REPLICATION.request(), PeerStatus, trusted=trusted)

    async def digest(self, address: Address, serial: int, *, trusted: bool) -> str | None:
        """Fetch a daemon's digest at this serial; None if the daemon no longer has it."""
        found = await self._call(address, DIGESTS.request(serials=[serial]), DigestsAnswer, trusted=trusted)
        return found.digests.get(serial)

    async def stop(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            await client.stop()

    async def _call(
        self,
        address: Address,
        request: HttpRequest,
        answer: type[T],
        *,
        body: Any = None,
        trusted: bool = True,
    ) -> T:
        if not address.http:
            raise NotConnected(f"the HTTP address of {address} is unknown")
        secret = self._secret_of(address) if trusted else None
        if secret not in self._clients:
            credentials = self._credentials.with_secret(secret)
            self._clients[secret] = HttpClient(self._reactor, secret=credentials, timeout=TIMEOUT_SECONDS)
        return await self._clients[secret].call(request, answer, base_url=address.http, body=body)
