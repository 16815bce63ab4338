"""Number and size of facts between two positions of the log, for planning reads."""

from typing import Any

from synrepl.ports.history import LogRange
from synrepl.storage import Log
from synrepl.streams.positions import VClock
from synrepl.transports.http.changelog_cursor import ChangelogCursor
from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["extent"]

MAX_FACTS = 2**62


async def extent(log: Log, query: ChangelogQuery) -> dict[str, Any]:
    """Measure the selected facts after `since`, up to `limit` facts, `upto` or the head.

    `clock` has the highest token of each writer among them; merged into a reader's positions, it gives those
    after the read. Raises `ApiError` if the log is replaced or trimmed meanwhile.
    """
    cursor = ChangelogCursor(log, query)
    head = cursor.head
    found = LogRange(serial=min(query.since, head))
    clock = VClock()
    while found.serial < head and (query.limit is None or found.facts < query.limit):
        more = await log.extent(
            after=found.serial,
            upto=head,
            limit=MAX_FACTS if query.limit is None else query.limit - found.facts,
            filter=query.filter,
        )
        for (stream, writer), token in more.tokens.items():
            clock = clock.advanced(stream, writer, token)
        found = LogRange(
            serial=more.serial,
            facts=found.facts + more.facts,
            bytes=found.bytes + more.bytes,
            at_ms=max(found.at_ms, more.at_ms),
        )
        cursor.check()
    return {
        "since": query.since,
        "serial": found.serial,
        "epoch": max(
            [1, *(epoch_start.epoch for epoch_start in log.epoch_starts if epoch_start.serial < found.serial)]
        ),
        "digest": await log.digest_at(found.serial),
        "history": log.history,
        "facts": found.facts,
        "bytes": found.bytes,
        "clock": clock.to_json(),
        "committed_at_ms": found.at_ms,
        "trimmed_upto": log.trimmed_upto.serial,
        "head": log.serial,
    }
