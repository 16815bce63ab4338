"""Telling other daemons, over HTTP, who is primary."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected
from synrepl.ports.history import Place
from synrepl.replication.addresses import Address
from synrepl.replication.roles import Claim
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.requests import Http, decoded, public

__all__ = ["HttpTelling"]

MAX_ANSWER: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 10.0


class HttpTelling:
    """`roles.ITellOthers`, with the secret that all daemons of a deployment share."""

    def __init__(self, reactor: Any, secret: str | Credentials | None, *, client: Any = None) -> None:
        self._http = Http(reactor, secret, TIMEOUT_SECONDS, client)

    async def hand_over(self, address: Address, seconds: float) -> Place:
        """Ask a primary to take no more facts for so long; gives where it stands."""
        url = self._url(address, "/v1/handover")
        body = msgspec.json.encode({"seconds": seconds})
        return decoded(Place, await self._http.whole("POST", url, body, MAX_ANSWER), public(url))

    async def claim(self, address: Address, claim: Claim) -> None:
        """Tell somebody who is primary now."""
        url = self._url(address, "/v1/claim")
        await self._http.whole("POST", url, msgspec.json.encode(claim), MAX_ANSWER)

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()

    @staticmethod
    def _url(address: Address, path: str) -> str:
        if not address.http:
            raise NotConnected(f"nobody knows the HTTP address of {address}")
        return address.http.rstrip("/") + path
