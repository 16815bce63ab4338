"""Handlers of the log: the changelog, its extent, and digests."""

from collections.abc import Mapping
from typing import Final

import msgspec

from synrepl.base.history import LogRange
from synrepl.http_api.routes import CHANGELOG, DIGESTS, EXTENT, READER_HEADER
from synrepl.replication.serving.feed import Stop
from synrepl.streams.positions import VClock
from synrepl.transports.http.arrow import arrow_encoder
from synrepl.transports.http.call import Call
from synrepl.transports.http.changelog_answer import serve_changelog
from synrepl.transports.http.changelog_query import (
    ChangelogQuery,
    check_position,
    query_feed,
    read_query,
    stop_error,
)
from synrepl.transports.http.endless_changelog import EndlessChangelog
from synrepl.transports.http.handlers import handles

MAX_FACTS: Final = 2**62


class DigestsAnswer(msgspec.Struct, frozen=True):
    """The digests of a log at some serials (None: unknown), and its head."""

    epoch: int
    serial: int
    history: str
    digests: Mapping[int, str | None]


class ExtentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `serial`: their number, the bytes of their rows, and their tokens.

    `clock` has the highest token of each stream and writer among them; a reader of these facts merges it into
    its positions. `committed_at_ms` is the latest commit time, 0 without facts. `epoch` and `digest` are
    those at `serial`; the digest can be unknown (None).
    """

    since: int
    serial: int
    epoch: int
    digest: str | None
    history: str
    facts: int
    bytes: int
    clock: dict[str, dict[str, int]]
    committed_at_ms: int
    trimmed_upto: int
    head: int


@handles(CHANGELOG)
async def read(call: Call) -> None:
    """Serve the log after a serial: up to the head, or with `follow` also what is committed later.

    Without `follow`, the head is fixed when the first fact is found, so that a response ends however fast
    the log grows. The header ``Synrepl-Serial`` is the head then, or with `follow` at the start; without a
    limit, the response has every selected fact up to that serial.
    """
    query = read_query(call)
    arrow = arrow_encoder(call.request, query, call.context.clock)
    await _prepare(call, query)
    if not query.follow:
        await serve_changelog(call, query, arrow)
        return
    if call.api.endless is None:
        endless = call.api.endless = EndlessChangelog(call.context)
        publisher = call.context.publisher
        publisher.broadcast_subscribers.append(endless.on_command)
        publisher.read_gate.subscribers.append(endless.retire)
    await call.api.endless.serve(call, query)


@handles(EXTENT)
async def extent(call: Call) -> ExtentAnswer:
    """Measure the facts after a serial, up to ``limit`` facts, ``upto`` or the head: for planning reads.

    Raises `ApiError` if the log is replaced meanwhile, or, unless `compacted`, trimmed beyond that serial.
    """
    query, log = read_query(call), call.context.log
    await _prepare(call, query)
    feed = query_feed(log, query)
    head = feed.head
    total = LogRange(serial=min(query.since, head))
    clock = VClock()
    while total.serial < head and (query.limit is None or total.facts < query.limit):
        step = await log.reads.extent(
            after=total.serial,
            upto=head,
            limit=MAX_FACTS if query.limit is None else query.limit - total.facts,
            filter=query.filter,
        )
        for (stream, writer), token in step.tokens.items():
            clock = clock.advanced(stream, writer, token)
        total = LogRange(
            serial=step.serial,
            facts=total.facts + step.facts,
            bytes=total.bytes + step.bytes,
            at_ms=max(total.at_ms, step.at_ms),
        )
        if (stop := feed.next()) in (Stop.TRIMMED, Stop.REPLACED):
            raise stop_error(log, feed, stop)
    starts = [start.epoch for start in log.head.epoch_starts if start.serial < total.serial]
    return ExtentAnswer(
        since=query.since,
        serial=total.serial,
        epoch=max([1, *starts]),
        digest=await log.reads.digest(total.serial),
        history=log.history,
        facts=total.facts,
        bytes=total.bytes,
        clock=clock.to_json(),
        committed_at_ms=total.at_ms,
        trimmed_upto=log.head.trimmed_upto.serial,
        head=log.head.serial,
    )


@handles(DIGESTS)
async def digests(call: Call) -> DigestsAnswer:
    """Return the digests at some serials (None: unknown), with which a client finds a fork by bisection."""
    log = call.context.log
    found = {serial: await log.reads.digest(serial) for serial in sorted(set(call.query["serials"]))}
    return DigestsAnswer(epoch=log.head.epoch, serial=log.head.serial, history=log.history, digests=found)


async def _prepare(call: Call, query: ChangelogQuery) -> None:
    """Wait for ``min_serial``, and check that the log has everything that the query selects.

    Makes or renews the lease of a named reader: it retains the facts that the reader has not read.
    """
    call.check_fresh()
    await call.read_your_writes()
    call.set_held_headers()
    await check_position(call.context.log, query)
    if (reader := call.query[READER_HEADER]) is not None:
        call.context.hooks.leases.renew(reader, query.since, query.wait, call.access)
