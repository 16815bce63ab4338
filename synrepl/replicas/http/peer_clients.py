"""Clients of other daemons: for claims, handovers and status.

Most daemons know no other one: what is needed to ask it is imported on use.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from synrepl.errors import NotConnected
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.peer_addresses import PeerAddresses
from synrepl.replicas.roles.messages import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.replication.addresses import Address
from synrepl.wire.position import LogPosition

if TYPE_CHECKING:
    from synrepl.transports.http.http_client import HttpClient

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 10.0
CONFLICT: Final = 409


@dataclass(eq=False, repr=False)
class PeerHttp:
    """Sends requests to other daemons, each with the credentials for its URL."""

    reactor: Any
    addresses: PeerAddresses

    def __post_init__(self) -> None:
        self._clients: dict[int, HttpClient] = {}
        """By the identities of their credentials, which live as long as this."""

    def client_for(self, url: str) -> "HttpClient":
        """Return the client for this URL. Raises `NeverSent` if it may not be used."""
        credentials = self.addresses.credentials_for(url)
        if id(credentials) not in self._clients:
            from synrepl.transports.http.http_client import HttpClient

            self._clients[id(credentials)] = HttpClient(self.reactor, secret=credentials)
        return self._clients[id(credentials)]

    async def call(self, request: HttpRequest, answer: type[T], *, base_url: str, **options: Any) -> T:
        """Send a request to the daemon at this URL; return its decoded answer.

        `options` and errors are those of `HttpClient.read` and `client_for`.
        """
        return await self.client_for(base_url).call(request, answer, base_url=base_url, **options)

    async def stop(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            await client.stop()


@dataclass(eq=False, repr=False)
class PeerClient:
    """Sends claims, handover requests and questions to other daemons; see `roles.IPeerClient`."""

    http: PeerHttp

    async def hand_over(self, address: Address, handover: HandOver) -> LogPosition:
        """Request a handover: the primary refuses facts for a while. Returns its position.

        Raises `CannotPromote` if the primary refuses, another `ReplicationError` if the request fails.
        """
        from synrepl.replicas.routes import HANDOVER

        try:
            return await self._call(address, HANDOVER.request(), LogPosition, body=handover)
        except HttpError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        from synrepl.replicas.routes import CLAIM

        await self._call(address, CLAIM.request(), msgspec.Raw, body=claim)

    async def describe(self, address: Address, *, after: int | None = None) -> PeerStatus:
        """Fetch the status of another daemon; with `after` also its first facts after this serial."""
        from synrepl.replicas.routes import REPLICATION

        return await self._call(address, REPLICATION.request(after=after), PeerStatus)

    async def _call(self, address: Address, request: HttpRequest, answer: type[T], **options: Any) -> T:
        if not address.http:
            raise NotConnected(f"cannot ask {address}: its HTTP address is unknown")
        return await self.http.call(
            request, answer, base_url=address.http, timeout=TIMEOUT_SECONDS, **options
        )
