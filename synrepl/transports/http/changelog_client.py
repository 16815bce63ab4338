"""Client of a daemon's changelog: by pages, or as an endless feed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import msgspec

from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import CHANGELOG, DIGESTS
from synrepl.transports.http.http_client import BodyLines, HttpClient, decode_json
from synrepl.transports.http.messages import DigestsAnswer

__all__ = ["ChangelogClient", "FirstAnswer"]


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
    ) -> int:
        """Call `on_line` with each fact (a line of JSON) after the serial `since`, up to the head.

        The server waits up to `wait` seconds for a first fact. An awaitable that `on_line` returns is
        awaited; meanwhile reading pauses. Returns the serial up to which all selected facts were delivered:
        continue from there. Raises `ReplicationError`; lines delivered before it are valid.
        """
        request = CHANGELOG.request(since=since, wait=wait, streams=streams, limit=limit)
        count = 0
        async with self._lines(request, wait=wait) as (head, lines):
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

    async def follow(
        self,
        since: int,
        on_lines: Callable[[list[bytes]], Awaitable[None] | None],
        *,
        heartbeat: float = 5.0,
        silence: float | None = None,
        on_begin: Callable[[FirstAnswer], None] | None = None,
        **query: Any,
    ) -> None:
        """Call `on_lines` with lines after the serial `since` as they arrive: facts, epoch starts, receipts,
        heartbeats.

        `query` has other parameters of the changelog. An awaitable that `on_lines` returns is awaited;
        meanwhile reading pauses. With `commands`, commands for all processes come too, except those of this
        origin. `epoch`, `digest` and `history` describe the reader's own log at `since`; the server refuses a
        diverged reader. Returns when the server has sent everything up to `upto`. Raises `NotConnected` after
        `silence` seconds (default: three heartbeats) without data, or another `ReplicationError`. `on_begin`
        is called before the first lines.
        """
        request = CHANGELOG.request(since=since, follow=True, heartbeat=heartbeat, **query)
        silence = 3 * heartbeat if silence is None else silence
        async with self._lines(request, silence=silence) as (head, lines):
            if on_begin is not None:
                on_begin(head)
            while batch := await lines.next():
                handled = on_lines(batch)
                if isawaitable(handled):
                    await handled

    async def digests(self, serials: Collection[int]) -> DigestsAnswer:
        """Fetch the digests at these serials, at most 1,000."""
        return await self.call(DIGESTS.request(serials=serials), DigestsAnswer)

    @asynccontextmanager
    async def _lines(
        self, request: HttpRequest, *, wait: float = 0.0, silence: float | None = None
    ) -> AsyncIterator[tuple[FirstAnswer, BodyLines]]:
        """Yield the head of a response, and its lines. `wait` adds to the timeout, in seconds."""
        url = request.url(self.base_url)
        response = await self._within(self.timeout + wait, self._open(request.method, url), url)
        lines = BodyLines.of(response, public_url(url), clock=self.reactor, silence=silence)
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
