"""Pages of the log, read for a feed."""

from collections.abc import Sequence

import msgspec

from synrepl.ports.history import AppendReceipt
from synrepl.ports.interfaces import ILog
from synrepl.replication.feed import Feed, PageStep
from synrepl.streams.facts import Fact

__all__ = ["LogPage", "read_page"]


class LogPage(msgspec.Struct, frozen=True):
    """Facts, and the receipts of the appends that begin among them."""

    facts: Sequence[Fact]
    receipts: Sequence[AppendReceipt]


async def read_page(log: ILog, feed: Feed, step: PageStep) -> LogPage | None:
    """Read this page, and advance the feed. None if the log was trimmed or replaced meanwhile."""
    facts, upto = await log.read(after=step.after, upto=step.upto, limit=step.limit, filter=step.filter)
    receipts = await log.receipts_between(step.after, upto) if step.receipts else ()
    digest = facts[-1].digest if facts and facts[-1].serial == upto else None
    return LogPage(facts, receipts) if feed.advance(upto, len(facts), digest) else None
