"""Where two histories part."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from synrepl.ports.interfaces import ILog
from synrepl.replication.replica.conversation import IConversation
from synrepl.streams.facts import Fact

__all__ = ["facts_after", "last_common"]

ASKED_AT_ONCE: Final = 64
PAGE_ROWS: Final = 1_000


async def last_common(log: ILog, conversation: IConversation) -> int:
    """The last serial at which this log and the upstream's are the same; 0 if there is none.

    Where trimming has hidden it, the lowest serial that is still known to be different is taken for the
    first: rather too much counts as different than too little.
    """
    # Everything up to `low` is the same, or unknown; at `high` it is not the same.
    low, high = 0, min(log.serial, conversation.welcome.position.serial) + 1
    while high - low > 1:
        step = max(1, (high - low) // (ASKED_AT_ONCE + 1))
        serials = list(range(low + step, high, step))[:ASKED_AT_ONCE]
        theirs = await conversation.digests(serials)
        for serial in serials:
            ours = await log.digest_at(serial)
            if ours is not None and ours == theirs.get(serial):
                low = serial
            else:
                high = serial
                break
    return low


async def facts_after(log: ILog, serial: int) -> AsyncIterator[Sequence[Fact]]:
    """All facts of this log beyond a serial, page by page."""
    upto = log.serial
    while serial < upto:
        facts, serial = await log.read(after=serial, upto=upto, limit=PAGE_ROWS)
        yield facts
