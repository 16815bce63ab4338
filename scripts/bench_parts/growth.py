"""Benchmark of growth: the cost of a row with more followers, more streams, a longer log and longer rows.

One of them grows at a time. The others stay at the base: 10 followers by TCP, one stream, an empty log, and
rows of some 100 bytes. Facts are posted in groups of 20, each in one stream, at a rate that leaves the
daemon idle most of the time.
"""

import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import chain
from typing import Final

import msgspec

from scripts.bench_parts.appending import CONNECTIONS
from scripts.bench_parts.catching_up import changelog
from scripts.bench_parts.following import chunks_of, follow, made_up, subscribe_plainly
from scripts.bench_parts.growth_points import Axis, Point
from scripts.bench_parts.live_daemon import GROUP, Load, live
from scripts.bench_parts.measuring import (
    DaemonProcess,
    Options,
    Result,
    ask,
    best,
    daemon,
    part,
    resident_bytes,
)
from scripts.bench_parts.replicas import FOR_EVER, REPLICAS, join_seconds
from synrepl.http_api.routes import ROWS, STATUS
from synrepl.streams.catalog import Event
from synrepl.streams.stream import Stream
from synrepl.transports.limits import connection_limit
from synrepl.wire.codec import MAX_LENGTH

__all__ = ["growth"]

FOLLOWERS: Final = 10
MEASURABLE: Final = 1_000
"""The fewest followers whose memory is not lost in that of the daemon."""

FOLLOWED: Final = 50_000
READ: Final = 200_000
LOOKED_UP: Final = 200
SLICES: Final = 20

BYTES_A_FACT: Final = 200
"""The size of a log, rounded up: of the facts that `log_filler --mixed` makes, with their index."""

STORED_BYTES: Final = 200_000_000
"""The most that is stored for reads of rows of one size."""

PATIENCE_SECONDS: Final = 7_200


class Plan(msgspec.Struct, frozen=True):
    """The points of each axis, and how often and long each is measured. The log grows up to `longest`."""

    followers: Sequence[int] = (10, 50, 200, 1_000, 5_000)
    streams: Sequence[int] = (1, 10, 100)
    facts: Sequence[int] = (1_000_000, 10_000_000, 100_000_000)
    longest: int = 10_000_000
    row_bytes: Sequence[int] = (100, 1_000, 10_000, 100_000, 1_000_000)
    stored_rows: int = 300_000
    rounds: int = 5
    seconds: float = 2.0


QUICK: Final = Plan(
    followers=(10,),
    streams=(2,),
    facts=(20_000,),
    longest=20_000,
    row_bytes=(1_000,),
    stored_rows=5_000,
    rounds=1,
    seconds=0.5,
)


def growth(options: Options) -> Iterator[Result]:
    """Measure each axis in turn."""
    plan = QUICK if options.quick else Plan()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # for the processes, too
    axes = (_followers(plan), _streams(plan), _facts(plan, options.rows or plan.longest), _row_bytes(plan))
    try:
        for point in chain.from_iterable(axes):
            _say(str(point))
            yield point
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _say(what: str) -> None:
    print(f"growth: {what}", file=sys.stderr, flush=True)


def _followers(plan: Plan) -> Iterator[Point]:
    axis = Axis("followers")
    for count in plan.followers:
        if connection_limit(2, count) < count:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            yield axis.unmeasured(count, f"a process may have {limit:,} open files here")
            continue
        _say(f"{count:,} followers")
        found = live(Load(count), plan.seconds, plan.rounds)
        yield axis.point(count, "connecting, until all are live", found.live_ms, "ms a follower")
        yield axis.point(count, "sending: CPU of the reactor", found.send_us, "us a row x follower")
        yield axis.point(count, "append to reader, p50", found.p50_ms, "ms")
        yield axis.point(count, "append to reader, p99", found.p99_ms, "ms")
        figure, unit = "memory of the daemon", "KiB a follower"
        if count >= MEASURABLE:
            yield axis.point(count, figure, found.follower_kib, unit)
        else:
            yield axis.unmeasured(count, "so few fit into memory that the daemon has anyway", figure, unit)


def _streams(plan: Plan) -> Iterator[Point]:
    axis = Axis("streams")
    for count in plan.streams:
        _say(f"{count:,} streams")
        names = [f"growth{number}" for number in range(count)]
        found = live(Load(FOLLOWERS, names), plan.seconds, plan.rounds)
        yield axis.point(count, "appending: CPU of the daemon", found.append_us, "us a row")
        yield axis.point(count, "sending: CPU of the reactor", found.send_us, "us a row x follower")
        yield axis.point(count, "append to reader, p99", found.p99_ms, "ms")
        followed = [Stream(name, Event, key="event_id") for name in names]
        for run, what in ((GROUP, f"{GROUP} rows of a stream together"), (1, "each row of another stream")):
            chunks = chunks_of(made_up(FOLLOWED, names, run))
            (us,) = best(
                plan.rounds, partial(follow, chunks, FOLLOWED, partial(subscribe_plainly, streams=followed))
            )
            yield axis.point(count, f"following: CPU of the follower, {what}", us, "us a row")


def _facts(plan: Plan, longest: int) -> Iterator[Point]:
    axis = Axis("facts")
    stored = 0
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        for count in sorted({*plan.facts, longest}):
            needed, free = (count - stored) * BYTES_A_FACT, shutil.disk_usage(folder).free
            if count > longest:
                yield axis.unmeasured(count, f"--rows {count} measures it, and takes longer")
            elif needed > free / 2:
                why = f"the log needs {needed / 1e9:.0f} GB of disk, more than half of what is free"
                yield axis.unmeasured(count, why)
            else:
                yield from _log(axis, plan, folder, count)
                stored = count


def _log(axis: Axis, plan: Plan, folder: str, count: int) -> Iterator[Point]:
    """Fill the log in the folder up to so many facts, and measure it."""
    _say(f"filling a log with {count:,} facts")
    part("log_filler", folder, "--upto", count, "--mixed", patience=PATIENCE_SECONDS)
    _say(f"{count:,} facts")
    (seconds,) = best(plan.rounds, partial(_start_seconds, folder))
    yield axis.point(count, "start until ready", seconds, "s")
    with daemon(folder, *FOR_EVER) as running:
        yield axis.point(
            count, "memory of the daemon, once ready", resident_bytes(running.pid) / 2**20, "MiB"
        )
        rows = min(READ, count // 4)
        trimmed = ask(running.http, STATUS.request())["trimmed_upto"]
        for where, since in (("beginning", trimmed), ("middle", count // 2), ("end", count - rows)):
            (seconds,) = best(plan.rounds, partial(_changelog_seconds, running, rows, since))
            yield axis.point(count, f"changelog, from the {where}", rows / seconds, "rows/s")
        yield axis.point(count, "100 rows by token, p50", _look_up_ms(running, count), "ms")
    arguments = ("--folder", folder, "--writers", CONNECTIONS, "--seconds", plan.seconds)
    rate = part("log_writers", *arguments)["facts_per_second"]
    yield axis.point(count, f"appending, {CONNECTIONS} writers", rate, "facts/s")
    found = part("trim_slices", folder, "--slices", SLICES)
    yield axis.point(count, f"trimming {found['facts']:,} facts, p50", found["p50_ms"], "ms")


def _start_seconds(folder: str) -> float:
    started = time.monotonic()
    with daemon(folder, *FOR_EVER):
        return time.monotonic() - started


def _changelog_seconds(running: DaemonProcess, rows: int, since: int = 0) -> float:
    started = time.monotonic()
    found = changelog(running, rows, since)
    assert found == rows, f"{found} rows instead of {rows}"
    return time.monotonic() - started


def _look_up_ms(running: DaemonProcess, count: int) -> float:
    """Return the median time of a page from the middle of a stream that has a quarter of the facts."""
    times = []
    with closing(HTTPConnection("127.0.0.1", running.http)) as connection:
        for number in range(LOOKED_UP):
            after = count // 8 + number
            page = ROWS.request("events", writer="worker1", limit=100, **{"from": after})
            started = time.perf_counter()
            connection.request("GET", page.target)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def _row_bytes(plan: Plan) -> Iterator[Point]:
    axis = Axis("bytes a row")
    for size in plan.row_bytes:
        _say(f"rows of {size:,} bytes")
        arguments = ("--writers", CONNECTIONS, "--seconds", plan.seconds, "--row-bytes", size)
        rate = part("log_writers", *arguments)["facts_per_second"]
        yield axis.point(size, f"appending, {CONNECTIONS} writers", rate * size / 1e6, "MB/s")
        yield from _stored(axis, plan, size, min(plan.stored_rows, STORED_BYTES // size))
        figure, unit = "sending: CPU of the reactor", "us a kB x follower"
        if size <= MAX_LENGTH:
            us = live(Load(FOLLOWERS, (), size), plan.seconds, plan.rounds).send_us
            yield axis.point(size, figure, us / size * 1000, unit)
        else:
            why = f"a line has {MAX_LENGTH:,} bytes at most, and a follower fetches longer rows over HTTP"
            yield axis.unmeasured(size, why, figure, unit)


def _stored(axis: Axis, plan: Plan, size: int, rows: int) -> Iterator[Point]:
    """Measure reads of a log with so many rows of one size, and facts that are passed on to replicas."""
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        part("log_filler", folder, "--upto", rows, "--row-bytes", size)
        with daemon(folder, *FOR_EVER) as primary:
            (seconds,) = best(plan.rounds, partial(_changelog_seconds, primary, rows))
            yield axis.point(size, "changelog", rows * size / seconds / 1e6, "MB/s")
            with daemon("", "--upstream", f"tcp:127.0.0.1:{primary.follow}", *FOR_EVER) as replica:
                seconds = join_seconds(replica, rows)
            yield axis.point(size, "JOIN", rows * size / seconds / 1e6, "MB/s")
            live = min(50_000, rows // 4)
            arguments = ("--replicas", REPLICAS, "--live", live, "--row-bytes", size)
            found = part("relay_readers", "--port", primary.follow, "--http", primary.http, *arguments)
            sent = REPLICAS * live * size / found["seconds"] / 1e6
            yield axis.point(size, f"relaying to {REPLICAS} replicas, in total", sent, "MB/s")
