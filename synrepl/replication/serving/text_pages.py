"""Pages of the log as text that the database has written, for readers that are far behind.

The database writes lines in C, in the reading thread, while the reactor serves others. A page of facts would
become objects first and lines then, both with the interpreter's lock.
"""

from typing import Final

from synrepl.replication.serving.encoder import LogEncoder
from synrepl.replication.serving.feed import SLICE_SERIALS, Feed, PageStep
from synrepl.replication.serving.ring import WRITE_BYTES
from synrepl.storage.log import Log
from synrepl.storage.sql import TextForm
from synrepl.streams.facts import decode_facts

PAGE_FACTS: Final = 2_000
"""Facts per page: a few milliseconds in the reading thread, and one in the reactor's."""


async def read_text_page(
    log: Log,
    feed: Feed,
    step: PageStep,
    *,
    facts: int | None = None,
    form: TextForm = "json",
    size: int = WRITE_BYTES,
) -> bytes | None:
    """Read a page of so many `facts` (None: `PAGE_FACTS`) as text and advance the feed; None if the log was
    trimmed or replaced meanwhile. The rows of several facts have at most `size` bytes.
    """
    text, upto = await log.reads.text(
        after=step.after,
        upto=step.upto,
        limit=feed.at_most(facts or PAGE_FACTS),
        filter=step.filter,
        form=form,
        size=size,
        scanned=SLICE_SERIALS,
    )
    digest = None
    if text and form == "json":
        (last,) = decode_facts(text[text.rfind(b"\n", 0, -1) + 1 :])
        digest = last.digest if last.serial == upto else None
    return text if feed.advance(upto, text.count(b"\n"), digest) else None


class LineEncoder(LogEncoder):
    """An encoder for readers of lines of JSON: those of a page are the text of the database."""

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes | None:
        text = await read_text_page(log, feed, step)
        if text is None:
            return None
        receipts = await log.reads.receipts(step.after, feed.serial, feed.seen) if step.receipts else ()
        return self.receipts(receipts) + self.text(text)

    def text(self, lines: bytes) -> bytes:
        """Encode these lines of facts that the reader is sent."""
        raise NotImplementedError
