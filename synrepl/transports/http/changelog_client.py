"""Reads a daemon's log over HTTP."""

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Any

import msgspec

from synrepl.http_api.route import public_url
from synrepl.http_api.routes import CHANGELOG
from synrepl.transports.http.http_client import HttpClient, decode_json
from synrepl.transports.http.response_body import BodyLines


class FirstAnswer(msgspec.Struct, frozen=True):
    """The server's log at the start of its response."""

    epoch: int
    serial: int
    history: str


async def read_changelog(
    http: HttpClient,
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
    response = await http.open(request, wait=wait)
    lines, head, count = BodyLines.of(response, public_url(request.url(http.base_url))), _head(response), 0
    try:
        if on_begin is not None:
            on_begin(head)
        while batch := await lines.next():
            for text in batch:
                handled = on_line(text)
                if isawaitable(handled):
                    await handled
                since = decode_json(_Serial, text, lines.url).serial
            count += len(batch)
    finally:
        lines.stop()
    if limit is not None and count >= limit:
        return since
    return max(since, head.serial)


class _Serial(msgspec.Struct):
    serial: int


def _head(response: Any) -> FirstAnswer:
    names = ("synrepl-epoch", "synrepl-serial", "synrepl-history")
    epoch, serial, history = ((response.headers.getRawHeaders(name) or [""])[0] for name in names)
    return FirstAnswer(_number(epoch), _number(serial), history)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
