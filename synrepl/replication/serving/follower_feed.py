"""FollowerFeed: the cursors of one follower in the log. It decides what comes next, and does no I/O.

A follower's streams need not be at the same place: it may ask for each by itself, and from a token. One
cursor (`Feed`) is for the streams that are *live*, and takes each group of facts from the ring. Each request
for earlier facts has a *backlog*, which is read from the log until its streams go live. If the next group of
the live cursor has left the ring when the transport has space again, its streams become a backlog too. Live
facts go first, then a page of each backlog in turn; positions that were requested follow the facts before
them.

A follower that knows no writers is sent a stream of the homeserver's tables in the order of tokens
(`LinearStream`).
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from synrepl.base.metrics import Metrics
from synrepl.replication.serving.feed import (
    PAGE_ROWS,
    EphemeralMode,
    Feed,
    PageStep,
    PositionsStep,
    Step,
    Stop,
    TokenPage,
)
from synrepl.replication.serving.ring import Ring, RingGroup
from synrepl.storage.log import Log
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire.filter import Filter


class Backlog(msgspec.Struct, eq=False):
    """Streams on which a follower catches up. When their cursor reaches the head, they join the live ones.

    `announce`: their positions are sent then.

    A request for facts after a token reads by token first (`after_token`). Where several writers share a
    stream, that token says nothing about other writers' facts, which may have lower tokens and a higher
    serial. There the serial of the follower's last fact (`last_token`) is looked up first, and reading goes
    on by serial; it is by token only if the log lacks that fact.
    """

    feed: Feed
    after_token: int | None = None
    last_token: int | None = None
    announce: bool = False

    @property
    def streams(self) -> frozenset[str]:
        """The streams that catch up."""
        assert self.feed.filter.streams is not None
        return self.feed.filter.streams

    @property
    def reads_tokens(self) -> bool:
        """Whether a token is still to be read or looked up: the feed's serial says nothing yet."""
        return self.after_token is not None or self.last_token is not None


class LinearStream(msgspec.Struct, eq=False):
    """A stream in which writers may be ahead of others, for a follower that knows no writers.

    It is sent in the order of tokens, those up to `sent` already, and never beyond the linear position: the
    follower takes the last token that it has for the position of all. `announce`: then its position is sent.
    """

    name: str
    feed: Feed
    sent: int
    announce: bool = True


class FollowerFeed:
    """What a follower of these `streams` is sent, in which order.

    `is_linear`: its release knows no writers, so that all writers of a stream share one sequence.
    `positions` returns the position of each writer of a stream.
    """

    is_reading: Final = False
    """Its cursors are read one at a time, and others go on meanwhile."""

    def __init__(
        self,
        log: Log,
        ring: Ring,
        *,
        streams: Collection[str],
        is_linear: bool,
        positions: Callable[[str], dict[str, int]],
        metrics: Metrics,
    ) -> None:
        self.streams = frozenset(streams)
        self.live: Feed | None = None
        """The cursor of the live streams; None if there are none."""
        self.is_at_head = False
        """Whether the last call of `next` found nothing to send, and nothing is being read."""
        self.is_waiting = False
        """Whether the next thing to send is the next group of the ring, whatever it is."""
        self._log = log
        self._ring = ring
        self._is_linear = is_linear
        self._positions = positions
        self._metrics = metrics
        self._backlogs: deque[Backlog] = deque()
        self._linear_streams: dict[str, LinearStream] = {}
        self._positions_requested = False
        self._page: Feed | None = None
        """The cursor for which the last page was read: only one is read at a time."""
        self._cursor = self._make_feed(frozenset(), after=ring.serial)

    @property
    def cursor(self) -> Feed:
        """The cursor of the last step."""
        return self._cursor

    @property
    def is_behind(self) -> bool:
        """Whether the reader still catches up on a stream."""
        return bool(self._backlogs) or self._next_linear() is not None

    @property
    def serial(self) -> int:
        """All of the reader's facts up to this serial were passed to its transport."""
        serials = [0 if backlog.reads_tokens else backlog.feed.serial for backlog in self._backlogs]
        if self._next_linear() is not None:
            serials.append(0)
        if self.live is not None:
            serials.append(self.live.serial)
        return min(serials, default=self._ring.serial)

    def has(self, cursor: Feed) -> bool:
        """Whether this is still a cursor of the follower, which may have asked anew meanwhile."""
        return cursor is self.live or any(
            cursor is feed
            for feed in (
                *(one.feed for one in self._backlogs),
                *(one.feed for one in self._linear_streams.values()),
            )
        )

    # -- what the follower asks for --------------------------------------------------------------------------

    def serve(self, streams: Collection[str]) -> None:
        """Send these streams from now on."""
        self.streams = frozenset(streams)
        for backlog in self._backlogs:
            self._select(backlog.feed, backlog.streams if self._is_linear else self.streams)
        if self.live is not None:
            assert self.live.filter.streams is not None
            self._set_live(self.live, self.live.filter.streams if self._is_linear else self.streams)

    def everything(self) -> None:
        """Send every row from now on."""
        self._set_live(self._make_feed(self.streams, after=self._ring.serial, is_live=True), self.streams)

    def since(self, serial: int) -> None:
        """Send every row after this serial of the log, then go live."""
        self._backlogs.append(Backlog(self._make_feed(self.streams, after=serial, tokens={})))

    def stream_from(self, stream: Stream[Any], token: int | None) -> None:
        """Send this stream's facts after `token` (None: no facts), then its POSITION, then go live."""
        name = stream.name
        if self.live is not None:
            self._set_live(self.live, (self.live.filter.streams or frozenset()) - {name})
        for backlog in list(self._backlogs):
            self._select(backlog.feed, backlog.streams - {name})
            if not backlog.streams:
                self._backlogs.remove(backlog)
        head = self._log.linear_position(name)
        if name in self._log.table_streams:
            feed = self._make_feed(frozenset({name}), after=self._ring.serial)
            self._linear_streams[name] = LinearStream(name, feed, head if token is None else min(token, head))
            return
        after_token: int | None = None
        last_token: int | None = None
        tokens: dict[str, int] = {}
        if stream.ephemeral:
            # A token above the head is from before a restart of the stream: send all facts since.
            tokens[name] = head if token is None else 0 if token > head else token
        elif token is not None:
            after_token = token if token < head else None
            if sum(at > 0 for at in self._positions(name).values()) > 1:
                last_token = token
        feed = self._make_feed(frozenset({name}), after=self._ring.serial, tokens=tokens)
        self._backlogs.append(Backlog(feed, after_token, last_token, announce=True))

    def ask_positions(self) -> None:
        """Send all positions after the facts that come before them."""
        self._positions_requested = True

    def resumed(self) -> None:
        """Nothing: each cursor finds out by itself that the ring has left it behind."""

    def clear(self) -> None:
        """Send nothing more."""
        self.live = None
        self._backlogs.clear()
        self._linear_streams.clear()
        self._positions_requested = False

    # -- what comes next -------------------------------------------------------------------------------------

    def next(self) -> Step:
        """What to send next, with `cursor`. `Stop.WAIT` also while a page is being read."""
        self.is_at_head = self.is_waiting = False
        if (step := self._next_live()) is not None or (step := self._linear_step()) is not None:
            return step
        while self._backlogs:
            if (step := self._backlog_step(self._backlogs[0])) is not None:
                return step
        if self._positions_requested:
            self._positions_requested = False
            return PositionsStep()
        self.is_at_head = not any(one.feed.is_reading for one in self._linear_streams.values())
        self.is_waiting = not self._linear_streams
        return Stop.WAIT

    def _next_live(self) -> Step | None:
        live = self.live
        if live is None or live.number >= self._ring.newest:
            return None
        step = live.next()
        if isinstance(step, PageStep) or (isinstance(step, RingGroup) and not live.is_live):
            self.live = None
            self._backlogs.appendleft(Backlog(live))
            self._metrics.readers_demoted.inc()
            return None
        self._cursor = live
        # At the head now: pages had contained those groups.
        return None if step is Stop.WAIT else step

    def _next_linear(self) -> LinearStream | None:
        """The next stream of which something may be sent; None if there is none."""
        position = self._log.linear_position
        waiting = (
            one for one in self._linear_streams.values() if one.announce or one.sent < position(one.name)
        )
        return next(waiting, None)

    def _linear_step(self) -> Step | None:
        if any(one.feed.is_reading for one in self._linear_streams.values()):
            return None
        if (stream := self._next_linear()) is None:
            return None
        self._cursor = stream.feed
        upto = self._log.linear_position(stream.name)
        if stream.sent < upto:
            return TokenPage(stream.name, stream.sent, upto, self._log.head.serial)
        stream.announce = False
        return PositionsStep(frozenset({stream.name}))

    def _backlog_step(self, backlog: Backlog) -> Step | None:
        """What comes next of the first backlog; None if it has gone live."""
        feed = self._cursor = backlog.feed
        if feed.is_reading:
            return Stop.WAIT
        step = self._token_step(backlog) if backlog.reads_tokens else feed.next()
        if step is Stop.WAIT:
            return self._go_live(backlog)
        if isinstance(step, PageStep | TokenPage):
            if self._page is not None and self._page.is_reading:
                return Stop.WAIT
            self._page = feed
            self._backlogs.rotate(-1)  # long backlogs must not block short ones
        return step

    def _token_step(self, backlog: Backlog) -> TokenPage:
        (name,) = backlog.streams
        if backlog.last_token is not None:
            return TokenPage(name, backlog.last_token - 1, backlog.last_token, backlog.feed.serial)
        assert backlog.after_token is not None
        return TokenPage(name, backlog.after_token, self._log.linear_position(name), backlog.feed.serial)

    def _go_live(self, backlog: Backlog) -> Step | None:
        self._backlogs.remove(backlog)
        streams = backlog.streams
        before = frozenset() if self.live is None else self.live.filter.streams or frozenset()
        self._set_live(backlog.feed, streams | before)
        if backlog.announce:
            return PositionsStep(streams)
        self._metrics.readers_promoted.inc()
        return None

    # -- reading by token ------------------------------------------------------------------------------------

    async def read_tokens(self, cursor: Feed, step: TokenPage) -> Sequence[Fact]:
        """Read a page by token, and advance. Raises `StorageError`."""
        facts, more = await self._log.reads.tokens(
            stream=step.stream,
            writer=None,
            after=step.after,
            upto=step.upto,
            serial=step.serial,
            limit=PAGE_ROWS,
        )
        for stream in self._linear_streams.values():
            if stream.feed is cursor:
                stream.sent = facts[-1].token if more else step.upto
                return facts
        for backlog in self._backlogs:
            if backlog.feed is not cursor:
                continue
            if backlog.last_token is None:
                backlog.after_token = facts[-1].token if more else None
                return facts
            backlog.last_token = None
            if facts:
                # From here on by serial: this cursor is done.
                after = min(fact.serial for fact in facts)
                backlog.feed = self._make_feed(backlog.streams, after=after)
                backlog.after_token = None
        return ()

    # -- cursors ---------------------------------------------------------------------------------------------

    def _make_feed(
        self,
        streams: frozenset[str],
        *,
        after: int,
        tokens: dict[str, int] | None = None,
        is_live: bool = False,
    ) -> Feed:
        log = self._log
        feed = Feed(
            log,
            self._ring,
            after=after,
            epoch=log.head.epoch,
            ephemeral=EphemeralMode.MISSED,
            tokens=tokens,
            compacted=True,
            is_live=is_live,
        )
        self._select(feed, streams)
        return feed

    def _select(self, feed: Feed, streams: frozenset[str]) -> None:
        feed.filter = Filter(streams)
        feed.streams = None if streams == self.streams else streams

    def _set_live(self, feed: Feed, streams: frozenset[str]) -> None:
        self._select(feed, streams)
        self.live = feed if streams else None
