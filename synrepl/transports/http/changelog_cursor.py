"""Cursor of one reader: reads the log page by page, in the order of serials."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.ports.history import AppendReceipt, EpochStart
from synrepl.storage import Log
from synrepl.streams.facts import Fact
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import trimmed_error

__all__ = ["PAGE_ROWS", "ChangelogPage", "ChangelogCursor"]

PAGE_ROWS: Final = 1_000
"""Rows per page: a few milliseconds of work, and at most 250 kB unless one fact is larger."""

SLICE_SERIALS: Final = 20_000
"""Serials scanned per step for facts that pass the filter: other readers share the thread."""


class ChangelogPage(msgspec.Struct, frozen=True):
    """The next facts, the receipts of appends that begin among them, and the epoch starts between them."""

    facts: Sequence[Fact] = ()
    epoch_starts: Sequence[EpochStart] = ()
    receipts: Sequence[AppendReceipt] = ()

    def __bool__(self) -> bool:
        return bool(self.facts or self.epoch_starts or self.receipts)


class ChangelogCursor:
    """Reads the facts that a query selects. `after` is the position: every selected fact up to it was
    returned.
    """

    def __init__(self, log: Log, query: ChangelogQuery) -> None:
        self.after = query.since
        self.left = query.limit
        self._log = log
        self._query = query
        self._sent_epoch = -1 if query.epoch is None else query.epoch
        self._boots = log.boots

    @property
    def head(self) -> int:
        """The last serial that can be returned now."""
        return min(self._log.serial, self._query.upto)

    @property
    def is_full(self) -> bool:
        """Whether the query's limit is reached."""
        return self.left is not None and self.left <= 0

    @property
    def is_done(self) -> bool:
        """Whether no more facts can follow."""
        return self.is_full or self.after >= self._query.upto

    def check(self) -> None:
        """Raises `ApiError` if the log was replaced or trimmed meanwhile: the reader would miss facts, or mix
        two histories.
        """
        log = self._log
        if log.boots != self._boots or log.serial < self.after:
            why = "the log was replaced by a snapshot meanwhile: send the request again"
            raise ApiError(503, "replaced", why, more={"retryable": True}, retry_after=RETRY_SECONDS)
        if self.after < log.trimmed_upto.serial and not self._query.compacted:
            raise trimmed_error(log, self.after)

    async def page(self, upto: int) -> ChangelogPage:
        """Read the next page, up to this serial. An empty page does not mean the end."""
        facts: Sequence[Fact] = ()
        receipts: Sequence[AppendReceipt] = ()
        facts_filter = self._query.filter
        if self.after < upto:
            read_upto = upto if facts_filter.is_open else min(upto, self.after + SLICE_SERIALS)
            facts, read_upto = await self._log.read(
                after=self.after,
                upto=read_upto,
                limit=PAGE_ROWS if self.left is None else min(PAGE_ROWS, self.left),
                filter=facts_filter,
            )
            receipts = await self._receipts(read_upto)
            self.check()
            self.after = read_upto
        return self._make_page(facts, receipts)

    async def text(self, upto: int, limit: int) -> bytes:
        """Read the next facts up to this serial, at most `limit`, as lines (`IEngine.read_text`)."""
        text = b""
        if self.after < upto and limit > 0:
            text, read_upto = await self._log.read_text(
                after=self.after, upto=upto, limit=limit, filter=self._query.filter
            )
            self.check()
            self.after = read_upto
        if self.left is not None:
            self.left -= text.count(b"\n") + 1 if text else 0
        return text

    async def page_of(self, group: Sequence[Fact]) -> ChangelogPage:
        """Make a page of a group that was just committed; no selected fact lies between the cursor and the
        group.
        """
        facts_filter = self._query.filter
        facts = group
        if not facts_filter.is_open:
            facts = [fact for fact in group if facts_filter.passes(fact.stream, fact.writer)]
        receipts = await self._receipts(group[-1].serial)
        self.check()
        self.after = group[-1].serial
        return self._make_page(facts, receipts)

    def epoch_starts(self) -> list[EpochStart]:
        """Return the epoch starts up to the cursor that were not returned before."""
        starts = self._log.epoch_starts
        if not self._query.epoch_starts or not starts or starts[-1].epoch <= self._sent_epoch:
            return []
        since, sent_epoch = self._query.since, self._sent_epoch
        new = [
            epoch_start
            for epoch_start in starts
            if epoch_start.epoch > sent_epoch and since <= epoch_start.serial <= self.after
        ]
        if new:
            self._sent_epoch = new[-1].epoch
        return new

    async def _receipts(self, upto: int) -> Sequence[AppendReceipt]:
        if not self._query.receipts or self._log.receipts_upto <= self.after:
            return ()
        return await self._log.receipts_between(self.after, upto)

    def _make_page(self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt]) -> ChangelogPage:
        if self.left is not None:
            self.left -= len(facts)
        return ChangelogPage(facts, self.epoch_starts(), receipts)
