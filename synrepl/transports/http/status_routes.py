"""Handlers of status, health and metrics."""

from collections.abc import Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

import msgspec

from synrepl.base.metrics import OTHERS, POSITION_WRITERS, Metrics
from synrepl.base.version import daemon_version
from synrepl.http_api.routes import LIVEZ, METRICS, READYZ, RECENT, ROOT, STATUS, STATUS_PAGE
from synrepl.replication.status import build_status, recent_facts
from synrepl.replication.status_parts import Lagging
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.headers import accepted_type
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire import jsontext


class Alive(msgspec.Struct, frozen=True):
    """The process runs."""

    alive: bool = True


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether this daemon is ready; if not, the reasons: of the log, of its role, then of its sources."""

    ready: bool
    reasons: list[str] = []


@handles(STATUS)
async def status(call: Call) -> bytes:
    """Return the status as JSON, with the streams that the peer may see."""
    return jsontext.dumps(_status(call)) + b"\n"


class RecentFact(msgspec.Struct, frozen=True):
    """A fact without its rows: `rows` is their number, `at` in Unix seconds. No serial: an ephemeral fact."""

    serial: int | None
    stream: str
    writer: str
    token: int
    rows: int
    at: float


class RecentAnswer(msgspec.Struct, frozen=True):
    """The newest facts in memory, newest first."""

    facts: list[RecentFact]


@handles(RECENT)
async def recent(call: Call) -> RecentAnswer:
    """List recent facts of the streams that the peer may see."""
    call.check_readable()
    streams = call.query["streams"]
    for name in sorted(streams or ()):
        _ = call.context.table[name]
    call.check_streams(*sorted(streams or ()))
    call.check_held(streams or ())
    found = recent_facts(call.context.publisher, call.access, call.query["limit"], streams)
    return RecentAnswer([RecentFact(**one) for one in found])


@handles(STATUS_PAGE)
async def page(call: Call) -> bytes:
    """Return the status as an HTML page."""
    call.request.setHeader(b"cache-control", b"no-store")

    async def make() -> bytes:
        now, found = call.context.clock.seconds(), msgspec.to_builtins(_status(call))  # a copy
        rendered: bytes = await call.context.thread.run(lambda: _status_page().page(found, now))
        return rendered

    # In a thread, as metrics: with a thousand writers it takes some ten milliseconds.
    rendered = await call.api.shared.run(("page", call.access), make)
    call.request.setHeader(b"content-security-policy", _status_page().POLICY)
    return rendered


def _status_page() -> ModuleType:
    """Import it on first use, in a thread: Jinja takes memory, and half a second."""
    from synrepl.transports.http import status_page

    return status_page


@handles(ROOT)
async def root(call: Call) -> bytes:
    """Redirect to the status page."""
    call.request.redirect(b"status")
    return b""


@handles(LIVEZ)
async def livez(call: Call) -> Alive:
    """Respond while the process runs."""
    return Alive()


@handles(READYZ)
async def readyz(call: Call) -> Ready:
    """Report readiness; 503 with the reasons if this daemon is not ready."""
    reasons = call.context.not_ready_reasons()
    if reasons:
        call.request.setResponseCode(503)
    return Ready(not reasons, reasons)


@handles(METRICS)
async def metrics(call: Call) -> bytes:
    """Return the metrics for Prometheus, on request in the form of OpenMetrics."""
    context = call.context
    kind = accepted_type(call.request, call.route.other_types)
    call.request.setHeader(b"vary", b"accept")
    if kind:
        call.request.setHeader(b"content-type", kind.encode())

    async def make() -> bytes:
        _collect(context)
        return await context.thread.run(lambda: _exposition(context.metrics, is_open=bool(kind)))

    # In a thread: with ten thousand writers it takes a tenth of a second.
    return await call.api.shared.run(("metrics", kind), make)


def _exposition(metrics: Metrics, *, is_open: bool) -> bytes:
    """Return the page of metrics, in the form of OpenMetrics if `is_open`."""
    # Imported on use, in a thread: a daemon without Prometheus has no use for its client's 1 MiB.
    from prometheus_client import exposition, openmetrics

    generate = openmetrics.exposition.generate_latest if is_open else exposition.generate_latest
    page: bytes = generate(metrics.registry)
    return page


def _status(call: Call) -> dict[str, Any]:
    context = call.context
    return build_status(
        log=context.log,
        publisher=context.publisher,
        table=context.table,
        ingest=context.ingest,
        hooks=context.hooks,
        refused=context.refused,
        rooms=context.rooms,
        clock=context.clock,
        instance=context.settings.instance_name,
        server_name=context.settings.server_name_of(context.log.notes),
        started_at=call.api.started_at,
        version=daemon_version(),
        access=call.access,
    )


def _collect(context: SiteContext) -> None:
    metrics, log, publisher = context.metrics, context.log, context.publisher
    for stream, positions in log.positions_by_stream().items():
        for writer, token in _limited(positions):
            metrics.position.labels(stream, writer).set(token)
    feeds = [follower.sender.feed for follower in publisher.followers if follower.sender is not None]
    parts: list[Lagging] = [context.hooks.role, context.ingest]
    rows = [part.lag_rows() for part in parts] + [publisher.lag.rows(feed.serial) for feed in feeds]
    seconds = [part.lag_seconds() for part in parts] + [publisher.lag.seconds(feed.serial) for feed in feeds]
    metrics.role.labels(context.hooks.role.role).set(1)
    metrics.lag_rows.set(max(rows, default=0))
    metrics.lag_seconds.set(max(seconds, default=0.0))
    metrics.readers_behind.set(sum(feed.is_behind for feed in feeds))
    metrics.epoch.set(log.head.epoch)
    metrics.serial.set(log.head.serial)
    metrics.begin_serial.set(log.head.trimmed_upto.serial)
    if (usage := log.disk_usage()) is not None:
        metrics.log_bytes.labels("wal").set(usage["wal_bytes"])
        metrics.log_bytes.labels("file").set(usage["log_bytes"] - usage["wal_bytes"])
        metrics.disk_free.set(usage["free_bytes"])
        metrics.wal_held.set(log.checkpoints.held_seconds)
    for part in context.rooms.values():
        part.collect()


def _limited(positions: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Return the positions of a stream's first writers, and the highest of all other writers as one series.

    The order is the log's, so that a series continues while this daemon runs.
    """
    own = [writer for writer in islice(positions, POSITION_WRITERS) if writer != OTHERS]
    for writer in own:
        yield writer, positions[writer]
    if len(own) < len(positions):
        shown = frozenset(own)
        yield OTHERS, max(token for writer, token in positions.items() if writer not in shown)
