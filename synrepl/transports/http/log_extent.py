"""Number and size of facts between two positions of the log, for planning reads."""

from typing import Any

from synrepl.ports.history import LogRange
from synrepl.replication.feed import Stop
from synrepl.storage import Log
from synrepl.streams.positions import VClock
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.query_feed import query_feed, stop_error

__all__ = ["measure_extent"]

MAX_FACTS = 2**62


async def measure_extent(log: Log, query: ChangelogQuery) -> dict[str, Any]:
    """Measure the selected facts after `since`, up to `limit` facts, `upto` or the head.

    `clock` has the highest token of each writer among them; merged into a reader's positions, it gives those
    after the read. Raises `ApiError` if the log is replaced or trimmed meanwhile.
    """
    feed = query_feed(log, query)
    head = feed.head
    total = LogRange(serial=min(query.since, head))
    clock = VClock()
    while total.serial < head and (query.limit is None or total.facts < query.limit):
        step = await log.extent(
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
    return {
        "since": query.since,
        "serial": total.serial,
        "epoch": max(
            [1, *(epoch_start.epoch for epoch_start in log.epoch_starts if epoch_start.serial < total.serial)]
        ),
        "digest": await log.digest_at(total.serial),
        "history": log.history,
        "facts": total.facts,
        "bytes": total.bytes,
        "clock": clock.to_json(),
        "committed_at_ms": total.at_ms,
        "trimmed_upto": log.trimmed_upto.serial,
        "head": log.serial,
    }
