"""The other end: pulling missed rows, reading the changelog, adding facts.

Works against this daemon, and `HttpCatchUp` against Synapse's own processes too. What does HTTP is imported
when it is first needed, so that a worker that follows over TCP alone does not pay for it.
"""

import random
import string
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.replication.follower.catchup import MissedFacts, NowhereToFetch
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.append_client import HttpAppender
from synrepl.transports.http.changelog_client import ChangelogClient, DigestsAnswer, FirstAnswer
from synrepl.transports.http.client_errors import (
    AheadOfLog,
    ApiResponseError,
    Fork,
    NotHereYet,
    OtherEpoch,
    OtherHistory,
    Trimmed,
)
from synrepl.transports.http.http_client import HttpClient, NeverSent, decode_json, public_url

__all__ = [
    "AheadOfLog",
    "FirstAnswer",
    "DigestsAnswer",
    "Fork",
    "HttpAppender",
    "HttpCatchUp",
    "ChangelogClient",
    "NeverSent",
    "NotHereYet",
    "OtherEpoch",
    "OtherHistory",
    "ApiResponseError",
    "Trimmed",
]

MIB: Final = 1024 * 1024


class HttpCatchUp:
    """Pulls missed rows as Synapse's workers do; an `ICatchUp`. Of a daemon of ours also an `IAllocated`.

    `base_url` is asked for the rows of every writer that `instance_map` has no URL for; None: nobody is. The
    map may be that of a homeserver, where the writer `master` is called `main`. A request may take `timeout`
    seconds in all, its answer `max_bytes` bytes. `client` is a treq client, for tests.
    """

    def __init__(
        self,
        reactor: Any,
        base_url: str | None,
        *,
        secret: str | Credentials | None = None,
        instance_map: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        max_bytes: int = 256 * MIB,
        client: Any = None,
    ) -> None:
        self._base_url = base_url
        self._instance_map = dict(instance_map or {})
        if "main" in self._instance_map:
            self._instance_map.setdefault("master", self._instance_map["main"])
        self._max_bytes = max_bytes
        self._http = HttpClient(reactor, secret, timeout, client)
        self._tells_allocated = True

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """The facts with ``after < token <= upto``, or the first of them.

        Raises `NotConnected` when there is no (whole) answer, `RemoteProtocolError` when it is a wrong one,
        `NowhereToFetch` when nobody is known who could be asked.
        """
        mapped = self._instance_map.get(writer)
        base = mapped or self._base_url
        if base is None:
            raise NowhereToFetch(f"instance_map has no address of {writer}")
        base = base.rstrip("/")
        # Real workers name whom they ask; a proxy in front of a single address would not know that name.
        host = f"{writer}:80" if mapped else None
        # Synapse remembers answers by this, whatever else is asked.
        txn_id = "".join(random.choices(string.ascii_letters, k=10))
        query = urlencode({"from_token": after, "upto_token": upto, "writer": writer})
        path = f"/_synapse/replication/get_repl_stream_updates/{quote(stream, safe='')}/{txn_id}"
        url = f"{base}{path}?{query}"
        try:
            body = await self._http.fetch("GET", url, None, self._max_bytes, host=host)
        except ApiResponseError as error:
            kind = NotConnected if error.retryable else RemoteProtocolError
            raise kind(str(error)) from error
        return _missed(body, public_url(url), after, upto)

    async def highest(self, stream: str) -> int | None:
        """The highest token of a stream, as `base_url` has it; None from a server that does not tell."""
        if not self._tells_allocated or self._base_url is None:
            return None
        url = f"{self._base_url.rstrip('/')}/v1/streams/{quote(stream, safe='')}/allocated"
        try:
            body = await self._http.fetch("GET", url, None, MIB)
        except ApiResponseError as error:
            if error.status == 404 and error.code != "unknown_stream":
                self._tells_allocated = False  # no daemon of ours: not to be bothered again
                return None
            raise
        return decode_json(_Allocated, body, public_url(url)).allocated

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


class _UpdatesAnswer(msgspec.Struct):
    updates: list[tuple[int, msgspec.Raw]]
    upto_token: int
    limited: bool


class _Allocated(msgspec.Struct):
    allocated: int | None


def _missed(body: bytes, url: str, after: int, upto: int) -> MissedFacts:
    answer = decode_json(_UpdatesAnswer, body, url)
    if answer.limited and after <= upto and answer.upto_token == after:
        raise RemoteProtocolError(f"{url} says that more follows after {after}, and gave none of it")
    facts: list[tuple[int, list[bytes]]] = []
    for token, row in answer.updates:
        if facts and facts[-1][0] == token:
            facts[-1][1].append(bytes(row))
        else:
            facts.append((token, [bytes(row)]))
    return MissedFacts(facts=facts, upto=answer.upto_token, limited=answer.limited)
