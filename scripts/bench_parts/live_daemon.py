"""A daemon to which facts are posted at a steady rate, without followers and with them."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from typing import Final

import msgspec

from scripts.bench_parts.appending import stream_appends
from scripts.bench_parts.live_readers import WARM_UP_SECONDS, LiveReaders, stamped
from scripts.bench_parts.measuring import (
    DaemonProcess,
    ask,
    cpu_seconds,
    daemon,
    reactor_seconds,
    resident_bytes,
)
from synrepl.http_api.routes import DECLARE

__all__ = ["GROUP", "Live", "Load", "live"]

GROUP: Final = 20
"""Facts are posted in groups of so many, each group in one stream."""

GROUPS_PER_SECOND: Final = 250
"""The most groups that are posted: further apart than what the daemon sends together."""
SENT_PER_SECOND: Final = 200_000
"""The most rows that all followers together are sent, so that the daemon is idle most of the time."""
SENT_BYTES_PER_SECOND: Final = 50_000_000


class Load(msgspec.Struct, frozen=True):
    """The followers, the declared streams that they follow (without any: one of all followers), the rows."""

    followers: int
    streams: Sequence[str] = ()
    row_bytes: int = 0


class Live(msgspec.Struct, frozen=True):
    """What appends cost the daemon, what it costs to send them to followers, and how old the rows are then.

    The costs are CPU microseconds: of the daemon for a row, and of its reactor for a row and a follower.
    `live_ms` is how long it takes for a follower until all are live.
    """

    append_us: float
    send_us: float
    live_ms: float
    p50_ms: float
    p99_ms: float
    follower_kib: float


def live(load: Load, seconds: float, rounds: int) -> Live:
    """Post for so long without followers and with them, in turn; the best of all rounds counts."""
    with daemon() as running:
        for name in load.streams:
            _declare(running, name)
        poster = _Poster(running, load)
        # What the first rows and the first follower need is no cost of further ones.
        with closing(LiveReaders(running.follow, 1, load.streams)) as readers:
            readers.live_seconds()
            poster.post(seconds)
        found = [_round(running, poster, load, seconds) for _ in range(rounds)]
    # The threads that write to the disk vary by more than what is sent costs.
    sending = min(one.followed.reactor for one in found) - min(one.alone.reactor for one in found)
    return Live(
        append_us=min(one.alone.cpu for one in found) * 1e6,
        send_us=sending / load.followers * 1e6,
        live_ms=min(one.live_seconds for one in found) / load.followers * 1000,
        p50_ms=min(one.p50_ms for one in found),
        p99_ms=min(one.p99_ms for one in found),
        # Later followers get the memory of the first ones.
        follower_kib=found[0].grown / load.followers / 1024,
    )


class _Posted(msgspec.Struct, frozen=True):
    """The number of rows, and the CPU seconds for each: of the daemon, and of its reactor."""

    rows: int
    cpu: float
    reactor: float


class _Round(msgspec.Struct, frozen=True):
    """What was posted without followers and with them, the time until these were live, and their memory."""

    alone: _Posted
    followed: _Posted
    live_seconds: float
    grown: int
    p50_ms: float
    p99_ms: float


def _round(running: DaemonProcess, poster: "_Poster", load: Load, seconds: float) -> _Round:
    alone = poster.post(seconds)
    before = resident_bytes(running.pid)
    with closing(LiveReaders(running.follow, load.followers, load.streams)) as readers:
        live_seconds = readers.live_seconds()
        grown = resident_bytes(running.pid) - before
        followed = poster.post(WARM_UP_SECONDS + seconds)
        found = readers.finish()
    sent = followed.rows * load.followers
    assert found["rows"] == sent, f"the followers received {found['rows']} rows instead of {sent}"
    return _Round(alone, followed, live_seconds, grown, found["p50_ms"], found["p99_ms"])


class _Poster:
    """Posts groups of facts, each to the next stream."""

    def __init__(self, running: DaemonProcess, load: Load) -> None:
        self._running = running
        self._streams = cycle(load.streams or ("events",))
        self._row = stamped(load.row_bytes)
        sent = min(SENT_PER_SECOND, SENT_BYTES_PER_SECOND / len(self._row))
        self._per_second = min(GROUPS_PER_SECOND, sent / load.followers / GROUP)

    def post(self, seconds: float) -> _Posted:
        """Post for so long."""
        pid = self._running.pid
        cpu, reactor = cpu_seconds(pid), reactor_seconds(pid)
        groups = asyncio.run(stream_appends(self._running.http, seconds, self._group, self._per_second))
        rows = groups * GROUP
        return _Posted(rows, (cpu_seconds(pid) - cpu) / rows, (reactor_seconds(pid) - reactor) / rows)

    def _group(self) -> list[bytes]:
        facts = b",".join([b"[%b]" % (self._row % time.monotonic_ns())] * GROUP)
        return [b'{"stream":"%b","facts":[%b]}\n' % (next(self._streams).encode(), facts)]


def _declare(running: DaemonProcess, name: str) -> None:
    body = {"name": name, "columns": {"kind": "str", "event": "json"}}
    ask(running.http, DECLARE.request(), json.dumps(body).encode())
