"""How much lies between two places of the log, without it: what plans for reading it are made of."""

from typing import Any

from synrepl.ports.history import LogRange
from synrepl.storage import Log
from synrepl.streams.positions import VClock
from synrepl.transports.http.changelog_cursor import ChangelogCursor
from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["extent"]

MAX_FACTS = 2**62


async def extent(log: Log, wanted: ChangelogQuery) -> dict[str, Any]:
    """What is wanted after `since`, up to `limit` facts, `upto`, or the head: how much, and where that ends.

    `clock` has the highest token of each writer in it: on top of where a reader stands, that is where it will
    stand. Raises `Refused` when the log is replaced, or trimmed beyond what was looked at, meanwhile.
    """
    reading = ChangelogCursor(log, wanted)
    head = reading.head
    found = LogRange(serial=min(wanted.since, head))
    clock = VClock()
    while found.serial < head and (wanted.limit is None or found.facts < wanted.limit):
        more = await log.extent(
            after=found.serial,
            upto=head,
            limit=MAX_FACTS if wanted.limit is None else wanted.limit - found.facts,
            filter=wanted.filter,
        )
        for (stream, writer), token in more.tokens.items():
            clock = clock.advanced(stream, writer, token)
        found = LogRange(
            serial=more.serial,
            facts=found.facts + more.facts,
            bytes=found.bytes + more.bytes,
            at_ms=max(found.at_ms, more.at_ms),
        )
        reading.check()
    return {
        "since": wanted.since,
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
