"""Telling other daemons, over HTTP, who is primary, and asking them."""

from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected
from synrepl.ports.history import LogPosition
from synrepl.replication.addresses import Address
from synrepl.replication.roles import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.client_errors import ApiResponseError
from synrepl.transports.http.http_client import HttpClient, decode_json, public_url

__all__ = ["PeerClient"]

MAX_ANSWER: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 10.0
REFUSED: Final = 409


class PeerClient:
    """What `roles.ITellOthers` does, showing one secret, or none."""

    def __init__(self, reactor: Any, secret: str | Credentials | None, *, client: Any = None) -> None:
        self._http = HttpClient(reactor, secret, TIMEOUT_SECONDS, client)

    async def hand_over(self, address: Address, asked: HandOver) -> LogPosition:
        """Ask a primary to take no more facts for a while; gives where it stands.

        Raises `CannotPromote` if it refuses.
        """
        url = self._url(address, "/v1/handover")
        body = msgspec.json.encode(asked)
        try:
            answer = await self._http.fetch("POST", url, body, MAX_ANSWER)
        except ApiResponseError as error:
            if error.status != REFUSED:
                raise
            why = f"the primary does not hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error
        return decode_json(LogPosition, answer, public_url(url))

    async def claim(self, address: Address, claim: Claim) -> None:
        """Tell somebody who is primary now."""
        url = self._url(address, "/v1/claim")
        await self._http.fetch("POST", url, msgspec.json.encode(claim), MAX_ANSWER)

    async def describe(self, address: Address) -> PeerStatus:
        """Ask a daemon what it is."""
        url = self._url(address, "/v1/replication")
        return decode_json(PeerStatus, await self._http.fetch("GET", url, None, MAX_ANSWER), public_url(url))

    async def digest(self, address: Address, serial: int) -> str | None:
        """Ask a daemon for the digest at this serial; None if it does not have it any more."""
        url = self._url(address, f"/v1/digests?serials={serial}")
        answer = decode_json(_Digests, await self._http.fetch("GET", url, None, MAX_ANSWER), public_url(url))
        return answer.digests.get(str(serial))

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()

    @staticmethod
    def _url(address: Address, path: str) -> str:
        if not address.http:
            raise NotConnected(f"nobody knows the HTTP address of {address}")
        return address.http.rstrip("/") + path


class _Digests(msgspec.Struct):
    digests: dict[str, str | None]
