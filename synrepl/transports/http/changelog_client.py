"""Client of a daemon's changelog: by pages, or as an endless feed."""

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Any, Final

import msgspec

from synrepl.http_api.routes import CHANGELOG, DIGESTS, STATUS
from synrepl.transports.http.http_client import (
    DaemonClient,
    decode_json,
    public_url,
)
from synrepl.transports.http.messages import DigestsAnswer
from synrepl.transports.http.response_body import BodyLines

__all__ = ["ChangelogClient", "FirstAnswer"]

MAX_STATUS_BYTES: Final = 64 * 1024 * 1024


class FirstAnswer(msgspec.Struct, frozen=True):
    """The server's log at the start of its response."""

    epoch: int
    serial: int
    history: str


class ChangelogClient(DaemonClient):
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
        continue from there. Raises `AheadOfLog` or another `ReplicationError`; lines delivered before it are
        valid.
        """
        url = CHANGELOG.request(since=since, wait=wait, streams=streams, limit=limit).url(self._base_url)
        response = await self._http.open("GET", url, None, extra_seconds=wait)
        lines = BodyLines.of(response, public_url(url))
        count = 0
        try:
            while batch := await lines.next():
                for text in batch:
                    handled = on_line(text)
                    if isawaitable(handled):
                        await handled
                    since = _serial(text, public_url(url))
                count += len(batch)
        finally:
            lines.stop()
        if limit is not None and count >= limit:
            return since
        return max(since, _response_head(response).serial)

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
        url = request.url(self._base_url)
        response = await self._http.open("GET", url, None, extra_seconds=0.0)
        silence = 3 * heartbeat if silence is None else silence
        lines = BodyLines.of(response, public_url(url), clock=self._reactor, silence=silence)
        try:
            if on_begin is not None:
                on_begin(_response_head(response))
            while batch := await lines.next():
                handled = on_lines(batch)
                if isawaitable(handled):
                    await handled
        finally:
            lines.stop()

    async def digests(self, serials: Collection[int]) -> DigestsAnswer:
        """Fetch the digests at these serials, at most 1,000."""
        return await self._http.call(self._base_url, DIGESTS.request(serials=serials), DigestsAnswer)

    async def status(self) -> dict[str, Any]:
        """Fetch the server's status."""
        return await self._http.call(
            self._base_url, STATUS.request(), dict[str, Any], max_bytes=MAX_STATUS_BYTES
        )


class _Serial(msgspec.Struct):
    serial: int


def _serial(text: bytes, url: str) -> int:
    return decode_json(_Serial, text, url).serial


def _response_head(response: Any) -> FirstAnswer:
    def value_of(name: str) -> str:
        values: list[str] = response.headers.getRawHeaders(name) or [""]
        return values[0]

    epoch, serial = (value_of(name) for name in ("synrepl-epoch", "synrepl-serial"))
    return FirstAnswer(
        int(epoch) if epoch.isdecimal() else 0,
        int(serial) if serial.isdecimal() else 0,
        value_of("synrepl-history"),
    )
