"""Divergence: the last serial that two histories share."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from synrepl.replication.replica.conversation import IConversation
from synrepl.storage.log import Log
from synrepl.streams.facts import Fact

__all__ = ["facts_after", "last_common"]

DIGESTS_PER_REQUEST: Final = 64
PAGE_ROWS: Final = 1_000


async def last_common(log: Log, conversation: IConversation) -> int:
    """Return the last serial at which this log and the upstream's are equal; 0 if there is none.

    Facts that cannot be compared, since they were trimmed, count as different: the result may be too low, but
    never too high.
    """
    # All facts up to `low` are equal or unknown; the fact at `high` differs.
    low, high = 0, min(log.serial, conversation.welcome.position.serial) + 1
    while high - low > 1:
        step = max(1, (high - low) // (DIGESTS_PER_REQUEST + 1))
        serials = list(range(low + step, high, step))[:DIGESTS_PER_REQUEST]
        theirs = await conversation.digests(serials)
        for serial in serials:
            ours = await log.digest_at(serial)
            if ours is not None and ours == theirs.get(serial):
                low = serial
            else:
                high = serial
                break
    return low


async def facts_after(log: Log, serial: int) -> AsyncIterator[Sequence[Fact]]:
    """Yield all facts of this log after a serial, page by page."""
    upto = log.serial
    while serial < upto:
        facts, serial = await log.read(after=serial, upto=upto, limit=PAGE_ROWS)
        yield facts
