"""One reader's way through the log, page by page, in the order of serials."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.ports.history import AppendReceipt, EpochStart
from synrepl.storage import Log
from synrepl.streams.facts import Fact
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import trimmed

__all__ = ["PAGE_ROWS", "ChangelogPage", "ChangelogCursor"]

PAGE_ROWS: Final = 1_000
"""Rows read at a time: some milliseconds of work, and a quarter of a megabyte at most beside one fact."""

SLICE_SERIALS: Final = 20_000
"""How much of the log is looked through at a time for what is wanted: others read in the same thread."""


class ChangelogPage(msgspec.Struct, frozen=True):
    """What comes next: the receipts of appends that begin here, and the turns at their places among the
    facts."""

    facts: Sequence[Fact] = ()
    epoch_starts: Sequence[EpochStart] = ()
    receipts: Sequence[AppendReceipt] = ()

    def __bool__(self) -> bool:
        return bool(self.facts or self.epoch_starts or self.receipts)


class ChangelogCursor:
    """Reads what is `wanted` from a log. All of that up to the serial `after` was given."""

    def __init__(self, log: Log, wanted: ChangelogQuery) -> None:
        self.after = wanted.since
        self.left = wanted.limit
        self._log = log
        self._wanted = wanted
        self._told = -1 if wanted.epoch is None else wanted.epoch
        self._boots = log.boots

    @property
    def head(self) -> int:
        """The last serial that there is to give."""
        return min(self._log.serial, self._wanted.upto)

    @property
    def is_full(self) -> bool:
        """Whether as many facts as are wanted were given."""
        return self.left is not None and self.left <= 0

    @property
    def is_done(self) -> bool:
        """Whether nothing more can come."""
        return self.is_full or self.after >= self._wanted.upto

    def check(self) -> None:
        """Raises `ApiError` when going on would leave out something, or show two histories as one."""
        log = self._log
        if log.boots != self._boots or log.serial < self.after:
            why = "this log was replaced by a copy of another one"
            raise ApiError(503, "replaced", why, more={"retryable": True}, retry_after=RETRY_SECONDS)
        if self.after < log.trimmed_upto.serial and not self._wanted.compacted:
            raise trimmed(log, self.after)

    async def page(self, upto: int) -> ChangelogPage:
        """The next page, of what is up to that serial. It may be empty although there is more after it."""
        facts: Sequence[Fact] = ()
        receipts: Sequence[AppendReceipt] = ()
        chosen = self._wanted.chosen
        if self.after < upto:
            looked = upto if chosen.is_open else min(upto, self.after + SLICE_SERIALS)
            facts, looked = await self._log.read(
                after=self.after,
                upto=looked,
                limit=PAGE_ROWS if self.left is None else min(PAGE_ROWS, self.left),
                filter=chosen,
            )
            receipts = await self._receipts(looked)
            self.check()
            self.after = looked
        return self._given(facts, receipts)

    async def text(self, upto: int, limit: int) -> bytes:
        """The next facts, of what is up to that serial, as lines (`IEngine.read_text`); at most so many."""
        text = b""
        if self.after < upto and limit > 0:
            text, looked = await self._log.read_text(
                after=self.after, upto=upto, limit=limit, filter=self._wanted.chosen
            )
            self.check()
            self.after = looked
        if self.left is not None:
            self.left -= text.count(b"\n") + 1 if text else 0
        return text

    async def pushed(self, group: Sequence[Fact]) -> ChangelogPage:
        """What is wanted of a group that was committed just now; nothing that is wanted came before it."""
        chosen = self._wanted.chosen
        facts = group
        if not chosen.is_open:
            facts = [fact for fact in group if chosen.passes(fact.stream, fact.writer)]
        receipts = await self._receipts(group[-1].serial)
        self.check()
        self.after = group[-1].serial
        return self._given(facts, receipts)

    def epoch_starts(self) -> list[EpochStart]:
        """The turns up to where it is that were not given yet; they count as given now."""
        log_turns = self._log.epoch_starts
        if not self._wanted.epoch_starts or not log_turns or log_turns[-1].epoch <= self._told:
            return []
        since, told = self._wanted.since, self._told
        new = [
            epoch_start
            for epoch_start in log_turns
            if epoch_start.epoch > told and since <= epoch_start.serial <= self.after
        ]
        if new:
            self._told = new[-1].epoch
        return new

    async def _receipts(self, upto: int) -> Sequence[AppendReceipt]:
        if not self._wanted.receipts or self._log.receipts_upto <= self.after:
            return ()
        return await self._log.receipts_between(self.after, upto)

    def _given(self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt]) -> ChangelogPage:
        if self.left is not None:
            self.left -= len(facts)
        return ChangelogPage(facts, self.epoch_starts(), receipts)
