"""Feed: one reader's cursor in the log. It decides what the reader is sent next, and does no I/O.

A reader must get every fact once, in order, from wherever it is: from the log's database if it is far behind,
from the memory of the newest facts (the ring) if it is near. The change from one to the other is where facts
are lost or sent twice in systems that treat the two as two subscriptions. Here there is only one position. At
each step the cursor looks where its next serial is, and names that place: the ring if it still has the group
that follows the position, else a page of the log. There is no moment of change to get wrong, and a reader
that the ring has left behind while its connection was full needs no special care: its next step is a page.

What must not be crossed unseen are the starts of epochs, a trimmed part, and a log that another one has
replaced. They are checked before each step, because each of them can happen between any two.

Ephemeral facts have no serials and are not in the database, so that they cannot be caught up with. A reader
gets them when it reaches the head: all that are held, or those after the tokens that it had
(`EphemeralMode`). From then on it is *live*, and takes each group from the ring in turn. One that starts
otherwise, or whose next group has left the ring, gets kept facts alone until it is at the head again.

`Sender` owns the feed of a reader and loops over `Feed.next`: it carries out the step and reports back what
was sent. The steps:

=================  ========================================================================================
`RingGroup`        send this group from the ring (`Feed.lines`, `Feed.sent`); it may be the first of several
`PageStep`         read this page of the log and send it (`read_page`)
`EpochStart`       send this start of an epoch: every selected fact before it was handed out
`EphemeralStep`    send these ephemeral facts: the reader has reached the head
`TokenPage`        read this page of one stream by token and send it (`FollowerFeed`)
`PositionsStep`     send the positions of these streams (`FollowerFeed`)
`Stop.WAIT`       the reader is at the head: wait for a commit
`Stop.DONE`       the reader has everything that it requested
`Stop.TRIMMED`    facts that the reader lacks were trimmed: refuse it
`Stop.REPLACED`   another log has taken this one's place: refuse it
=================  ========================================================================================
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from synrepl.base.history import BEGINNING, AppendReceipt, EpochStart
from synrepl.replication.serving.ring import WRITE_BYTES, IEncoder, Ring, RingGroup
from synrepl.streams.facts import Fact
from synrepl.wire.filter import ALL, Filter

if TYPE_CHECKING:
    from synrepl.storage.log import Log

PAGE_ROWS: Final = 1_000
"""Rows per page: a few milliseconds of work, and at most 400 kB unless one fact is larger."""

SLICE_SERIALS: Final = 20_000
"""Serials examined per page for facts that pass a filter: other readers share the reading thread."""

MAX_SERIAL: Final = 2**63 - 1


class EphemeralMode(Enum):
    """The ephemeral facts that a reader is sent at the head, before the new ones."""

    NONE = "no ephemeral facts"
    HELD = "all held ephemeral facts, again after each pause in which new ones were committed"
    MISSED = "the ephemeral facts that were not handed out before"


class FeedPosition(msgspec.Struct, frozen=True):
    """Every selected fact up to this position was handed out. The digest can be unknown (None)."""

    epoch: int
    serial: int
    digest: str | None


class PageStep(msgspec.Struct, frozen=True):
    """Read facts with ``after < serial <= upto`` that pass the filter: a page.

    The last atomic append is read whole. `receipts`: the receipts of these facts are requested, and there may
    be some.
    """

    after: int
    upto: int
    filter: Filter
    receipts: bool


class EphemeralStep(msgspec.Struct, frozen=True):
    """Send these ephemeral facts. Writers of the streams in `resets` have restarted since the last step."""

    facts: Sequence[Fact]
    resets: Sequence[str] = ()


class TokenPage(msgspec.Struct, frozen=True):
    """Read facts of one stream with ``after < token <= upto``, among those up to this serial."""

    stream: str
    after: int
    upto: int
    serial: int


class PositionsStep(msgspec.Struct, frozen=True):
    """Send the positions of these streams (None: of all): every fact before them was handed out."""

    streams: frozenset[str] | None = None


class Stop(Enum):
    """Why there is nothing to send."""

    WAIT = "the reader is at the head of the log"
    DONE = "everything requested was handed out"
    TRIMMED = "facts that the reader lacks were trimmed"
    REPLACED = "another log has taken the place of this one"


Step = RingGroup | PageStep | TokenPage | EpochStart | EphemeralStep | PositionsStep | Stop


class IFeed(Protocol):
    """What a `Sender` asks what to send next."""

    @property
    def cursor(self) -> "Feed":
        """The cursor of the last step, to which is reported what was sent."""

    @property
    def is_reading(self) -> bool:
        """Whether nothing may be sent until what is being read was sent."""

    def next(self) -> Step:
        """What to send next."""

    def resumed(self) -> None:
        """The reader takes data again, after a pause."""


class Feed:
    """A cursor after the serial `after` of the log. Its epoch is at least `epoch` (None: the first).

    Facts that pass `filter` are selected, up to the serial `upto` and at most `limit` facts (None: no limit),
    or more, up to the end of an atomic append. Without a `ring` every fact is read from the log. With
    `epochs` the starts of epochs are handed out, with `receipts` the receipts of appends; both name only the
    streams `seen` (None: all). `compacted`: the reader accepts a trimmed log, in which facts that were
    replaced are missing. Unless `whole_groups`, a group larger than one write is read from the log by pages.
    A feed that `is_live` from the start gets only new ephemeral facts. `tokens` are the last tokens of
    ephemeral streams that its reader has (None: the ring's), for `EphemeralMode.MISSED`.
    """

    def __init__(
        self,
        log: "Log",
        ring: Ring | None,
        *,
        after: int,
        epoch: int | None = None,
        filter: Filter = ALL,
        upto: int = MAX_SERIAL,
        limit: int | None = None,
        epochs: bool = False,
        receipts: bool = False,
        seen: frozenset[str] | None = None,
        ephemeral: EphemeralMode = EphemeralMode.NONE,
        tokens: Mapping[str, int] | None = None,
        compacted: bool = False,
        whole_groups: bool = True,
        is_live: bool = False,
    ) -> None:
        self.serial = after
        self.is_reading = False
        """Whether a page for this cursor is being read: then `next` is not called."""
        self.streams: frozenset[str] | None = None
        """The streams of `filter` if the reader's encoder has others too, which must be left out."""
        earlier = [start.epoch for start in log.head.epoch_starts if start.serial < after]
        self.epoch = max([BEGINNING.epoch if epoch is None else epoch, *earlier])
        self.filter = filter
        self.seen = seen
        self.upto = upto
        self.left = limit
        self.is_live = is_live
        self._log = log
        self._ring = ring
        self._boots = log.boots
        self._epochs = epochs
        self._receipts = receipts
        self._ephemeral = ephemeral
        self._compacted = compacted
        self._whole_groups = whole_groups
        self.number = ring.newest if ring is not None and is_live else -1
        self._tokens = tokens if tokens is not None else ring.tokens if ring is not None else {}
        self._resets = ring.resets if ring is not None else {}
        self._bound = upto
        """The end of the query or the next start of an epoch: no group beyond it may be handed out now."""
        self._digest: tuple[int, str] | None = None
        self.last: RingGroup | None = None

    @property
    def cursor(self) -> "Feed":
        """Itself: this reader has one cursor."""
        return self

    @property
    def position(self) -> FeedPosition:
        """The position up to which every selected fact was handed out."""
        return FeedPosition(self.epoch, self.serial, self.digest)

    @property
    def digest(self) -> str | None:
        """The log's digest at `serial`; None if it is unknown here."""
        last = self.last
        if last is not None and last.serial == self.serial and last.digest is not None:
            return last.digest
        if self._digest is not None and self._digest[0] == self.serial:
            return self._digest[1]
        head = self._log.position
        return head.digest if head.serial == self.serial else None

    @property
    def head(self) -> int:
        """The last serial that can be handed out now."""
        return min(self._log.head.serial, self.upto)

    @property
    def is_done(self) -> bool:
        """Whether no more facts can follow."""
        return self.serial >= self.upto or self.left == 0

    @property
    def needs_receipts(self) -> bool:
        """Whether receipts are requested, and there may be some for the next facts."""
        return self._receipts and self._log.head.receipts_upto > self.serial

    def next(self) -> Step:
        """What to send next."""
        log, serial = self._log, self.serial
        if log.boots != self._boots or log.head.serial < serial:
            return Stop.REPLACED
        if serial < log.head.trimmed_upto.serial and not self._compacted:
            return Stop.TRIMMED
        upto, starts = self.upto, log.head.epoch_starts
        while starts and starts[-1].epoch > self.epoch:
            start = next(start for start in starts if start.epoch > self.epoch)
            if start.serial > serial:
                upto = min(upto, start.serial)
                break
            self.epoch = start.epoch
            self._digest = start.serial, start.digest
            if self._epochs:
                return start.seen_by(self.seen)
        if serial >= upto or self.left == 0:
            return Stop.DONE
        self._bound = upto
        group = self._next_group()
        if group is not None:
            is_whole = not group.is_kept or (
                group.serial_before <= serial < group.facts[0].serial
                and (self._whole_groups or group.size <= WRITE_BYTES)
            )
            return group if is_whole and group.serial <= upto else self._page(min(upto, group.serial))
        if serial < log.head.serial:
            return self._page(min(upto, log.head.serial))
        if not self.is_live:
            self.is_live = True
            if self._ephemeral is not EphemeralMode.NONE:
                return self._ephemeral_step()
        return Stop.WAIT

    def _next_group(self) -> RingGroup | None:
        """The next group of the ring; None if it is not there, or does not exist yet."""
        ring = self._ring
        if ring is None or self.left is not None:
            return None
        group = ring.get(self.number + 1)
        while group is not None and group.is_kept and group.serial <= self.serial:
            self.number = group.number  # a page contained this group
            group = ring.get(self.number + 1)
        if group is None and self.number < ring.newest:
            if self.is_live and self.last is not None:
                self._tokens, self._resets = self.last.tokens, self.last.resets
            self.is_live = False
            number = ring.first_after(self.serial)
            if number is not None:
                self.number = number - 1
                group = ring.get(number)
        return group

    def _page(self, upto: int) -> PageStep:
        return PageStep(self.serial, upto, self.filter, self.needs_receipts)

    def at_most(self, facts: int) -> int:
        """Return how many facts a page of so many may have: no more than the reader still wants."""
        return facts if self.left is None else min(facts, self.left)

    def _ephemeral_step(self) -> EphemeralStep:
        ring, log, passes = self._ring, self._log, self.filter.passes
        assert ring is not None
        if self._ephemeral is EphemeralMode.HELD:
            held = log.ephemeral.snapshot()
            return EphemeralStep([fact for fact in held if passes(fact.stream, fact.writer)])
        names = self.filter.streams
        streams = sorted(ring.tokens if names is None else names & ring.tokens.keys())
        resets = [name for name in streams if ring.resets.get(name) != self._resets.get(name)]
        facts: list[Fact] = []
        for name in streams:
            facts += log.ephemeral.after(name, 0 if name in resets else self._tokens.get(name, 0))
        self._tokens, self._resets, self.last = ring.tokens, ring.resets, None
        return EphemeralStep(facts, resets)

    def lines(self, group: RingGroup, encoder: IEncoder) -> tuple[bytes, RingGroup]:
        """Encode this group and perhaps some after it (`Ring.lines`); return the bytes and the last group."""
        assert self._ring is not None
        kept = not self.is_live or self._ephemeral is EphemeralMode.NONE
        return self._ring.lines(group, encoder, self.streams, kept=kept, upto=self._bound)

    def sent(self, last: RingGroup) -> None:
        """The groups up to this one were sent."""
        self.number = last.number
        self.last = last
        self.serial = max(self.serial, last.serial)

    def advance(self, upto: int, count: int, digest: str | None = None) -> bool:
        """Record that a page of `count` facts up to this serial was read. `digest`: the one there, if known.

        Returns False if the page cannot be sent, as the log was trimmed or replaced meanwhile.
        """
        log = self._log
        if log.boots != self._boots or (self.serial < log.head.trimmed_upto.serial and not self._compacted):
            return False
        self.serial = max(self.serial, upto)
        if self.left is not None:
            self.left = max(0, self.left - count)
        if digest is not None:
            self._digest = upto, digest
        return True

    def skip(self, before: RingGroup | None = None) -> None:
        """Skip to this group (None: to the head): the facts before it are not selected."""
        if before is None:
            self.serial = max(self.serial, self.head)
            if self._ring is not None and self.is_live:
                self.number = self._ring.newest
        else:
            self.serial = max(self.serial, min(before.facts[0].serial - 1, self.upto))
            self.number = max(self.number, before.number - 1)

    def resumed(self) -> None:
        """The reader takes data again, after a pause."""
        ring = self._ring
        if ring is None or self._ephemeral is not EphemeralMode.HELD:
            return
        if ring.newest_ephemeral > self.number:
            self.is_live = False


class LogPage(msgspec.Struct, frozen=True):
    """Facts, and the receipts of the appends that begin among them."""

    facts: Sequence[Fact]
    receipts: Sequence[AppendReceipt]


async def read_page(log: "Log", feed: Feed, step: PageStep) -> LogPage | None:
    """Read this page and advance the feed. None if the log was trimmed or replaced meanwhile."""
    facts, upto = await log.reads.facts(
        after=step.after,
        upto=step.upto,
        limit=feed.at_most(PAGE_ROWS),
        filter=step.filter,
        scanned=SLICE_SERIALS,
    )
    receipts = await log.reads.receipts(step.after, upto, feed.seen) if step.receipts else ()
    digest = facts[-1].digest if facts and facts[-1].serial == upto else None
    return LogPage(facts, receipts) if feed.advance(upto, len(facts), digest) else None
