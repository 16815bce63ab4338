"""HTTP clients of a daemon: catch-up, also from Synapse's processes, and the changelog."""

import random
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import ALLOCATED, CATCH_UP, CHANGELOG
from synrepl.ports.response_errors import ApiResponseError
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import BodyLines, HttpClient, decode_json
from synrepl.transports.http.python_json import split_page

MIB: Final = 1024 * 1024

UNAUTHORIZED_500: Final = "also the answer to a missing or wrong secret"
"""A meaning of 500 from Synapse, and a daemon, which answers alike (docs/reference/peers.md#http-catchup)."""


@dataclass(eq=False, repr=False)
class HttpCatchUp(HttpClient):
    """Fetches missed rows as Synapse's workers do; an `ICatchUp`, and with a synrepl daemon an `IAllocated`.

    `instance_map` has the URLs of writers by instance name; a homeserver's map works, where `main` stands for
    `master`. `base_url` is the URL for all other writers, unless it is empty. `secret`, if any, is sent as a
    bearer token. A request may take `timeout` seconds, and its response may have `max_bytes` bytes.
    """

    is_homeserver = True
    max_bytes: int = 256 * MIB
    instance_map: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self, secret: str | Credentials | None) -> None:
        super().__post_init__(secret)
        self._urls = dict(self.instance_map)
        if "main" in self._urls:
            self._urls.setdefault("master", self._urls["main"])
        self._has_allocated = True

    def use(self, base_url: str) -> None:
        """Fetch from another server from now on."""
        self.base_url = base_url.rstrip("/")
        self._has_allocated = True

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch the facts with ``after < token <= upto``, or the first of them.

        Raises `NowhereToFetch` if the writer has no URL; `NotConnected` without a complete response or for a
        retryable error, `RemoteProtocolError` for any other error or an invalid response.
        """
        mapped = self._urls.get(writer)
        base = mapped or self.base_url
        if not base:
            raise NowhereToFetch(f"no URL to fetch from: instance_map has none for the writer {writer}")
        # Synapse's workers name the writer in Host; a proxy in front of one URL would not know that name.
        headers = {"host": f"{writer}:80"} if mapped else {}
        # Synapse caches responses by this id, whatever the rest of the request.
        txn_id = "".join(random.choices(string.ascii_letters, k=10))
        request = CATCH_UP.request(stream, txn_id, from_token=after, upto_token=upto, writer=writer)
        url = request.url(base)
        try:
            body = await self.read(request.method, url, None, self.max_bytes, headers=headers)
        except ApiResponseError as error:
            error_type = NotConnected if error.retryable else RemoteProtocolError
            # Without the random id, so that a failure that lasts has one text.
            why = str(error).replace(f"/{txn_id}", "", 1)
            if error.status == 500 and error.code == "M_UNKNOWN":
                why = f"{why} ({UNAUTHORIZED_500})"
            raise error_type(why) from error
        return _missed_facts(body, public_url(url), after, upto)

    async def highest(self, stream: str) -> int | None:
        """Fetch the highest token of a stream from `base_url`; None without that URL, or if unknown there."""
        if not self._has_allocated or not self.base_url:
            return None
        try:
            found = await self.call(ALLOCATED.request(stream), _Allocated)
        except ApiResponseError as error:
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
            f"{url} answered that there are more rows after token {after}, but sent none"
        )
    rows = ((token, bytes(row)) for token, row in response.updates)
    lost = [(first, last) for first, last in response.lost if after <= first < last]
    return MissedFacts.of_rows(rows, response.upto_token, limited=response.limited, lost=lost)


class FirstAnswer(msgspec.Struct, frozen=True):
    """The server's log at the start of its response."""

    epoch: int
    serial: int
    history: str


class ChangelogClient(HttpClient):
    """Reads a daemon's log over HTTP."""

    async def pages(
        self,
        since: int,
        streams: Collection[str] | None,
        wait: float,
        on_line: Callable[[bytes], Awaitable[None] | None],
        *,
        limit: int | None = None,
        on_begin: Callable[[FirstAnswer], None] | None = None,
        **query: Any,
    ) -> int:
        """Call `on_line` with each fact (a line of JSON) after the serial `since`, up to the head.

        The server waits up to `wait` seconds for a first fact. An awaitable that `on_line` returns is
        awaited; meanwhile reading pauses. Returns the serial up to which all selected facts were delivered:
        continue from there. Raises `ReplicationError`; lines delivered before the error are complete.
        `on_begin` is called before the first line. `query` has other parameters of the changelog.
        """
        request = CHANGELOG.request(since=since, wait=wait, streams=streams, limit=limit, **query)
        count = 0
        async with self._lines(request, wait=wait) as (head, lines):
            if on_begin is not None:
                on_begin(head)
            while batch := await lines.next():
                for text in batch:
                    handled = on_line(text)
                    if isawaitable(handled):
                        await handled
                    since = decode_json(_Serial, text, lines.url).serial
                count += len(batch)
        if limit is not None and count >= limit:
            return since
        return max(since, head.serial)

    @asynccontextmanager
    async def _lines(
        self, request: HttpRequest, *, wait: float
    ) -> AsyncIterator[tuple[FirstAnswer, BodyLines]]:
        """Yield the head of a response, and its lines. `wait` adds to the timeout, in seconds."""
        url = request.url(self.base_url)
        response = await self._within(self.timeout + wait, self._open(request.method, url), url)
        lines = BodyLines.of(response, public_url(url))
        try:
            yield _response_head(response), lines
        finally:
            lines.stop()


class _Serial(msgspec.Struct):
    serial: int


def _response_head(response: Any) -> FirstAnswer:
    names = ("synrepl-epoch", "synrepl-serial", "synrepl-history")
    epoch, serial, history = ((response.headers.getRawHeaders(name) or [""])[0] for name in names)
    return FirstAnswer(_number(epoch), _number(serial), history)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
