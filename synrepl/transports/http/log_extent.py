"""Number and size of facts between two positions of the log, for planning reads."""

from typing import Final

import msgspec

from synrepl.ports.history import LogRange
from synrepl.replication.feed import Stop
from synrepl.storage import Log
from synrepl.streams.positions import VClock
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.query_feed import query_feed, stop_error

__all__ = ["ExtentAnswer", "measure_extent"]

MAX_FACTS: Final = 2**62


class ExtentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `serial`: their number, the bytes of their rows, and their tokens.

    `clock` has the highest token of each stream and writer among them; merged into a reader's positions, it
    gives those after the read. `epoch` and `digest` are those at `serial`.
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


async def measure_extent(log: Log, query: ChangelogQuery) -> ExtentAnswer:
    """Measure the selected facts after `since`, up to `limit` facts, `upto` or the head.

    Raises `ApiError` if the log is replaced or trimmed meanwhile.
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
    starts = [start.epoch for start in log.epoch_starts if start.serial < total.serial]
    return ExtentAnswer(
        since=query.since,
        serial=total.serial,
        epoch=max([1, *starts]),
        digest=await log.digest_at(total.serial),
        history=log.history,
        facts=total.facts,
        bytes=total.bytes,
        clock=clock.to_json(),
        committed_at_ms=total.at_ms,
        trimmed_upto=log.trimmed_upto.serial,
        head=log.serial,
    )
