"""Fetches missed rows over HTTP, from daemons and from Synapse's processes."""

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import public_url
from synrepl.http_api.routes import ALLOCATED, CATCH_UP
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.transports.http.http_client import HttpClient, decode_json
from synrepl.transports.http.python_json import split_page

MAX_BYTES: Final = 256 * 1024 * 1024
"""The longest response."""

UNAUTHORIZED_500: Final = "also the answer to a missing or wrong secret"
"""A meaning of 500 from Synapse, and a daemon, which answers alike (docs/reference/peers.md#http-catchup)."""


@dataclass(eq=False, repr=False)
class HttpCatchUp:
    """Fetches missed rows as Synapse's workers do; an `ICatchUp`, and with a synrepl daemon an `IAllocated`.

    `instance_map` has the URLs of writers by instance name; a homeserver's map works, where `main` stands for
    `master`. The `base_url` of `http` is the URL for all other writers, unless it is empty. `http` has
    `is_homeserver` set.
    """

    http: HttpClient
    instance_map: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        self._urls = dict(self.instance_map)
        if "main" in self._urls:
            self._urls.setdefault("master", self._urls["main"])
        self._has_allocated = True

    def use(self, base_url: str) -> None:
        """Fetch from another server from now on."""
        self.http.base_url = base_url
        self._has_allocated = True

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch the facts with ``after < token <= upto``, or the first of them.

        Raises `NowhereToFetch` if the writer has no URL; `NotConnected` without a complete response or for a
        retryable error, `RemoteProtocolError` for any other error or an invalid response.
        """
        mapped = self._urls.get(writer)
        base = mapped or self.http.base_url
        if not base:
            raise NowhereToFetch(f"no URL to fetch from: instance_map has none for the writer {writer}")
        # Synapse's workers name the writer in Host; a proxy in front of one URL would not know that name.
        headers = {"host": f"{writer}:80"} if mapped else {}
        # Synapse caches responses by this id, whatever the rest of the request.
        txn_id = "".join(random.choices(string.ascii_letters, k=10))
        request = CATCH_UP.request(stream, txn_id, from_token=after, upto_token=upto, writer=writer)
        try:
            body = await self.http.read(request, base_url=base, max_bytes=self.max_bytes, headers=headers)
        except HttpError as error:
            error_type = NotConnected if error.retryable else RemoteProtocolError
            # Without the random id, so that a failure that lasts has one text.
            why = str(error).replace(f"/{txn_id}", "", 1)
            if error.status == 500 and error.code == "M_UNKNOWN":
                why = f"{why} ({UNAUTHORIZED_500})"
            raise error_type(why) from error
        return _missed_facts(body, public_url(request.url(base)), after, upto)

    async def highest(self, stream: str) -> int | None:
        """Fetch the highest token of a stream from `base_url`; None without that URL, or if unknown there."""
        if not self._has_allocated or not self.http.base_url:
            return None
        try:
            found = await self.http.call(ALLOCATED.request(stream), _Allocated)
        except HttpError as error:
            if error.status == 404 and error.code != "unknown_stream":
                self._has_allocated = False  # not a synrepl daemon: do not request it again
                return None
            raise
        return found.allocated


class _UpdatesAnswer(msgspec.Struct):
    updates: list[tuple[int, msgspec.Raw]]
    upto_token: int
    limited: bool
    lost: list[tuple[int, int]] = []
    """Of a synrepl daemon only."""


class _Allocated(msgspec.Struct):
    allocated: int | None


def _decode_updates(body: bytes, url: str) -> _UpdatesAnswer:
    try:
        return decode_json(_UpdatesAnswer, body, url)
    except RemoteProtocolError as refused:
        try:
            members, rows = split_page(body, "updates")
            answer = msgspec.convert({**members, "updates": []}, _UpdatesAnswer)
            tokens = msgspec.convert([token for token, _ in rows], list[int])
        except (ValueError, msgspec.ValidationError):
            raise refused from None
        answer.updates = [(token, msgspec.Raw(row)) for token, (_, row) in zip(tokens, rows, strict=True)]
        return answer


def _missed_facts(body: bytes, url: str, after: int, upto: int) -> MissedFacts:
    response = _decode_updates(body, url)
    if response.limited and after <= upto and response.upto_token == after:
        raise RemoteProtocolError(
            f"{url} answered that there are more rows after token {after}, but sent none: it may be behind"
        )
    rows = ((token, bytes(row)) for token, row in response.updates)
    lost = [(first, last) for first, last in response.lost if after <= first < last]
    return MissedFacts.of_rows(rows, response.upto_token, limited=response.limited, lost=lost)
