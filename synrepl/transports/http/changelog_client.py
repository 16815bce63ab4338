"""Reads a daemon's log over HTTP."""

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Any, Final

import msgspec

from synrepl.errors import NotConnected
from synrepl.http_api.route import public_url
from synrepl.http_api.routes import CHANGELOG, END_HEADER, HEARTBEAT
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
    continue from there. Raises `ReplicationError`; lines delivered before the error are complete. It does so
    too if the last line is missing that says how far the answer went: a proxy may end an answer properly
    although the daemon has died. (Daemons up to 26.11.2 send no such line.)
    `on_begin` is called before the first line. `query` has other parameters of the changelog.
    """
    request = CHANGELOG.request(since=since, wait=wait, streams=streams, limit=limit, **query)
    response = await http.open(request, wait=wait, headers={END_HEADER: HEARTBEAT})
    lines, head, count = BodyLines.of(response, public_url(request.url(http.base_url))), _head(response), 0
    has_end = response.headers.hasHeader(END_HEADER)
    end: int | None = None
    try:
        if on_begin is not None:
            on_begin(head)
        while batch := await lines.next():
            for text in batch:
                if has_end and text.startswith(_END):
                    end = decode_json(_End, text, lines.url).heartbeat.serial
                    continue
                handled = on_line(text)
                if isawaitable(handled):
                    await handled
                since = decode_json(_Serial, text, lines.url).serial
                count += 1
    finally:
        lines.stop()
    if has_end:
        if end is None:
            raise NotConnected(f"{lines.url}: the response ended before its last line")
        return max(since, end)
    if limit is not None and count >= limit:
        return since
    return max(since, head.serial)


_END: Final = b'{"heartbeat":'


class _Serial(msgspec.Struct):
    serial: int


class _End(msgspec.Struct):
    heartbeat: _Serial


def _head(response: Any) -> FirstAnswer:
    names = ("synrepl-epoch", "synrepl-serial", "synrepl-history")
    epoch, serial, history = ((response.headers.getRawHeaders(name) or [""])[0] for name in names)
    return FirstAnswer(_number(epoch), _number(serial), history)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
