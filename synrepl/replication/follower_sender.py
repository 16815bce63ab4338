"""FollowerSender: sends one follower its streams, as lines of its release."""

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.connection import Connection
from synrepl.replication.encoder import Encoder
from synrepl.replication.feed import (
    PAGE_ROWS,
    EphemeralMode,
    EphemeralStep,
    Feed,
    PageStep,
    Stop,
    read_page,
)
from synrepl.replication.ring import Ring, RingGroup
from synrepl.replication.sender import Sender
from synrepl.storage.log import Log
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire.commands import Position, Replicate
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command

MAX_COMMANDS: Final = 1_000
"""Broadcast commands buffered for a follower whose transport is full; the oldest are dropped."""


@dataclass(eq=False, repr=False)
class Backlog:
    """Streams on which a follower catches up. When their feed reaches the head, they join the live ones.

    `announce`: their positions are sent then.

    A request for facts after a token reads by token first (`after_token`). Where several writers share a
    stream, that token says nothing about other writers' facts, which may have lower tokens and a higher
    serial. There the sender first looks up the serial of the follower's last fact (`last_token`) and
    continues by serial; it reads by token only if the log lacks that fact.
    """

    feed: Feed
    _: KW_ONLY
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


@dataclass(eq=False, repr=False)
class LinearStream:
    """A stream in which writers may be ahead of others, for a follower that knows no writers.

    It is sent in the order of tokens, those up to `sent` already, and never beyond the linear position: the
    follower takes the last token that it has for the position of all. `announce`: then its position is sent.
    """

    name: str
    sent: int
    announce: bool = True


class FollowerSender(Sender):
    """Sends a follower (or a shared channel) its streams as fast as it takes them, without a queue of facts.

    A follower has several feeds: one of the streams that are *live*, which takes each group of facts from the
    ring, and a *backlog* for each request for earlier facts, which is read from the log until its streams go
    live. If the next group of the live feed has left the ring when the transport has room again, its streams
    become a backlog too. Commands go first, then live facts, then a page of each backlog in turn; positions
    that were requested follow the facts before them. A stream of the homeserver's tables is read from the log
    by token for a follower without writer names (`LinearStream`).

    `streams`: those that the `encoder` sends. `scope` describes what the daemon holds, if not everything.
    `positions` returns the position of each writer of a stream to announce. The owner calls `pump` after each
    commit.
    """

    def __init__(
        self,
        log: Log,
        ring: Ring,
        connection: Connection,
        encoder: Encoder,
        *,
        metrics: Metrics,
        tasks: Tasks,
        positions: Callable[[str], dict[str, int]],
        scope: str = "",
    ) -> None:
        super().__init__(log, None, encoder, connection)
        self._positions = positions
        self._scope = scope
        self._ring = ring
        self.connection = connection
        self.encoder: Encoder = encoder
        self._metrics = metrics
        self._tasks = tasks
        # Without writer names, all writers of a stream share one sequence of positions.
        self._linear = not encoder.strategy.pulls
        self.streams = frozenset(stream.name for stream in encoder.streams())
        self.live_streams: frozenset[str] | None = None
        """The streams of the live feed; None if it has all."""
        self._backlogs: deque[Backlog] = deque()
        self._reading_page_of: Backlog | None = None
        """The backlog that a page is being read for. Only one page is read at a time, even if its backlog is
        dropped.
        """
        self._linear_streams: dict[str, LinearStream] = {}
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._is_reading_linear = False
        self._positions_requested = False
        self._at_head: Callable[[], object] | None = None

    def replicate(self, command: Replicate) -> None:
        """Answer REPLICATE. Before 1.13, a request for an unknown stream ends the connection."""
        if not self._linear:
            self.send_positions()
            return
        asked = [stream for stream in self.encoder.streams() if command.stream in ("ALL", stream.name)]
        for stream in asked:
            self._push_from(stream, command.token)
        if not asked:
            hint = f": {self._scope}" if self._scope else ""
            self.connection.fail(f"unknown stream {command.stream or ''}{hint}")

    def serve(self, encoder: Encoder) -> None:
        """Serve the streams of this encoder from now on: the follower has named more."""
        self.encoder = encoder
        self.streams = frozenset(stream.name for stream in encoder.streams())
        if not self._linear:
            for feed in (self.feed, *(backlog.feed for backlog in self._backlogs)):
                if feed is not None:
                    feed.filter = Filter(self.streams)
        if self.feed is not None:
            self._set_live(self.feed)

    def push_everything(self) -> None:
        """Send every row from now on."""
        self._set_live(self._make_feed(self.streams, after=self._ring.serial, is_live=True))

    def push_since(self, serial: int) -> None:
        """Send every row after this serial of the log, then go live."""
        self._backlogs.append(Backlog(self._make_feed(self.streams, after=serial, tokens={})))
        self.pump()

    def _push_from(self, stream: Stream[Any], token: int | None) -> None:
        """Send this stream's facts after `token` (None: no facts), then its POSITION, then go live."""
        name = stream.name
        if self.feed is not None:
            self.feed.filter = _without(name, self.feed.filter)
            self._set_live(self.feed)
        for backlog in list(self._backlogs):
            backlog.feed.filter = _without(name, backlog.feed.filter)
            if not backlog.streams:
                self._backlogs.remove(backlog)
        head = self._log.linear_position(name)
        if name in self._log.table_streams:
            self._linear_streams[name] = LinearStream(name, head if token is None else min(token, head))
            self.pump()
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
        self._backlogs.append(Backlog(feed, after_token=after_token, last_token=last_token, announce=True))
        self.pump()

    def _make_feed(
        self,
        streams: frozenset[str],
        *,
        after: int,
        tokens: dict[str, int] | None = None,
        is_live: bool = False,
    ) -> Feed:
        log = self._log
        return Feed(
            log,
            self._ring,
            after=after,
            epoch=log.head.epoch,
            filter=Filter(streams),
            ephemeral=EphemeralMode.MISSED,
            tokens=tokens,
            compacted=True,
            is_live=is_live,
        )

    def send_positions(self) -> None:
        """Send all positions after the facts that come before them."""
        self._positions_requested = True
        self.pump()

    def send_command(self, command: Command) -> None:
        """Queue a broadcast command. A follower that does not read loses the oldest ones; each is counted."""
        if len(self._commands) == MAX_COMMANDS:
            self._metrics.commands_dropped.labels(self._commands[0].NAME).inc()
        self._commands.append(command)
        self.pump()

    def call_at_head(self, called: Callable[[], object]) -> None:
        """Call this once, when nothing is left to send."""
        self._at_head = called
        self.pump()

    def pump(self) -> None:
        self.is_waiting = False
        super().pump()

    def stop(self) -> None:
        """Send nothing more: the connection was lost."""
        super().stop()
        self._backlogs.clear()
        self._linear_streams.clear()

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
        if self.feed is not None:
            serials.append(self.feed.serial)
        return min(serials, default=self._ring.serial)

    def _step(self) -> bool:
        if self._commands:
            self.connection.send(self._commands.popleft())
            return True
        live = self.feed
        if live is not None and live.number < self._ring.newest:
            data = live.take(self.encoder, self.live_streams)
            if data is None:
                return self._step_live(live)
            self._write(data)
            return True
        if self._linear_streams and self._step_linear():
            return True
        if self._backlogs:
            return self._step_backlog(self._backlogs[0])
        if self._positions_requested:
            self._positions_requested = False
            self._write(self._position_lines(self.encoder.streams()))
            return True
        self.is_waiting = not self._linear_streams
        if self._at_head is not None and not self._is_reading_linear:
            called, self._at_head = self._at_head, None
            called()
        return False

    def _step_live(self, feed: Feed) -> bool:
        """Send what comes next if that is not simply the next group of the ring."""
        step = feed.next()
        if isinstance(step, PageStep) or (isinstance(step, RingGroup) and not feed.is_live):
            self.feed = None
            self._backlogs.appendleft(Backlog(feed))
            self._metrics.readers_demoted.inc()
            return True
        # At the head now: pages had contained those groups.
        return step is Stop.WAIT or self._carry_out(feed, step, self.live_streams)

    def _step_backlog(self, backlog: Backlog) -> bool:
        if backlog is self._reading_page_of:
            return False
        step = None if backlog.reads_tokens else backlog.feed.next()
        if step is None or isinstance(step, PageStep):
            if self._reading_page_of is not None:
                return False
            self._reading_page_of = backlog
            self._start_reading(self._read_page(backlog, step))
            return self._reading_page_of is None
        if step is Stop.WAIT:
            self._go_live(backlog)
            return True
        return self._carry_out(backlog.feed, step, backlog.streams)

    def _next_linear(self) -> LinearStream | None:
        """The next stream of which something may be sent; None if there is none."""
        position = self._log.linear_position
        waiting = (
            one for one in self._linear_streams.values() if one.announce or one.sent < position(one.name)
        )
        return next(waiting, None)

    def _step_linear(self) -> bool:
        if self._is_reading_linear or (stream := self._next_linear()) is None:
            return False
        self._is_reading_linear = True
        self._start_reading(self._read_linear(stream))
        return not self._is_reading_linear

    async def _read_linear(self, stream: LinearStream) -> None:
        """Send a page of a stream, in the order of tokens, and its position once that is reached."""
        log, upto = self._log, self._log.linear_position(stream.name)
        facts: Sequence[Fact] = ()
        try:
            if stream.sent < upto:
                facts, more = await log.reads.tokens(
                    stream=stream.name,
                    writer=None,
                    after=stream.sent,
                    upto=upto,
                    serial=log.head.serial,
                    limit=PAGE_ROWS,
                )
                upto = facts[-1].token if more else upto
        except Exception:
            self.connection.fail("the log cannot be read at the moment; reconnect later")
            raise
        finally:
            self._is_reading_linear = False
        if self._is_stopped or self._linear_streams.get(stream.name) is not stream:
            return
        stream.sent = upto
        self._write(self.encoder.lines(facts))
        if stream.announce and upto >= log.linear_position(stream.name):
            stream.announce = False
            self._write(
                self._position_lines([one for one in self.encoder.streams() if one.name == stream.name])
            )
        self.pump()

    def _encode_ephemeral(self, step: EphemeralStep) -> bytes:
        return b"".join(map(self._reset_lines, step.resets)) + self.encoder.lines(step.facts)

    def _write(self, data: bytes) -> None:
        if data:
            self.connection.write(data)

    def _start_reading(self, work: Coroutine[Any, Any, None]) -> None:
        # Live facts are sent meanwhile.
        self._tasks.start(work, "reading the log for a follower")

    def _reset_lines(self, stream: str) -> bytes:
        """POSITION lines that announce a restart of an ephemeral stream; empty if the release has none."""
        if self._linear:
            return b""
        return b"".join(
            self.encoder.command(Position(stream=stream, instance=writer, prev_token=0, token=0))
            for writer in sorted(self._positions(stream))
        )

    async def _read_page(self, backlog: Backlog, step: PageStep | None) -> None:
        """Read a page of a backlog, by serial or by token, or find the serial to continue from."""
        facts: Sequence[Fact] = ()
        try:
            if step is not None:
                page = await read_page(self._log, backlog.feed, step)
                facts = () if page is None else page.facts
            elif backlog.last_token is not None:
                await self._find_serial_of(backlog, backlog.last_token)
            else:
                facts = await self._read_tokens(backlog)
        except Exception:
            self.connection.fail("the log cannot be read at the moment; reconnect later")
            raise
        finally:
            self._reading_page_of = None
        if self._is_stopped:
            return
        if backlog in self._backlogs:
            self._write(self.encoder.lines(fact for fact in facts if fact.stream in backlog.streams))
            self._backlogs.rotate(-1)  # long backlogs must not block short ones
        self.pump()

    async def _read_tokens(self, backlog: Backlog) -> Sequence[Fact]:
        (stream,) = backlog.streams
        assert backlog.after_token is not None
        upto = self._log.linear_position(stream)
        facts, more = await self._read_between(backlog, backlog.after_token, upto)
        backlog.after_token = facts[-1].token if more else None
        return facts

    async def _read_between(self, backlog: Backlog, after: int, upto: int) -> tuple[Sequence[Fact], bool]:
        (stream,) = backlog.streams
        serial, log = backlog.feed.serial, self._log
        return await log.reads.tokens(
            stream=stream, writer=None, after=after, upto=upto, serial=serial, limit=PAGE_ROWS
        )

    async def _find_serial_of(self, backlog: Backlog, token: int) -> None:
        found, _ = await self._read_between(backlog, token - 1, token)
        backlog.last_token = None
        if found:
            backlog.feed = self._make_feed(backlog.streams, after=min(fact.serial for fact in found))
            backlog.after_token = None

    def _go_live(self, backlog: Backlog) -> None:
        self._backlogs.remove(backlog)
        feed, streams = backlog.feed, backlog.streams
        if self.feed is not None:
            feed.filter = Filter(streams | (self.feed.filter.streams or frozenset()))
        self._set_live(feed)
        if backlog.announce:
            self._write(
                self._position_lines([stream for stream in self.encoder.streams() if stream.name in streams])
            )
        else:
            self._metrics.readers_promoted.inc()

    def _set_live(self, feed: Feed) -> None:
        streams = feed.filter.streams
        self.feed = feed if streams else None
        self.live_streams = None if streams == self.streams else streams

    def _position_lines(self, streams: list[Stream[Any]]) -> bytes:
        """A POSITION for each stream, and for each of its writers if the release knows writers."""
        lines: list[bytes] = []
        for stream in streams:
            if self._linear:
                token = self._log.linear_position(stream.name)
                commands = [Position(stream=stream.name, token=token)]
            else:
                commands = [
                    Position(stream=stream.name, instance=writer, prev_token=token, token=token)
                    for writer, token in sorted(self._positions(stream.name).items())
                ]
            lines += [self.encoder.command(command) for command in commands]
        return b"".join(lines)


def pump_all(ring: Ring, senders: Iterable[FollowerSender]) -> None:
    """Send what was committed to all these followers.

    Most of them wait for it at the same place in the ring, and are sent the same. These form a group: what is
    next is looked up once, and each of them costs little more than its write.
    """
    place: tuple[int, int, Encoder, frozenset[str] | None] | None = None
    lines: tuple[bytes, RingGroup] | None = None
    for sender in senders:
        feed = sender.feed
        if feed is None or not sender.is_waiting or sender.is_paused:
            sender.pump()
            continue
        its_place = feed.number, feed.serial, sender.encoder, sender.live_streams
        if place != its_place:
            place, lines = its_place, ring.lines_after(*its_place)
        if lines is not None:
            data, last = lines
            feed.number, feed.serial, feed.last = last.number, last.serial, last
            if data:
                sender.connection.write(data)
        if feed.number < ring.newest:
            sender.pump()


def _without(name: str, query: Filter) -> Filter:
    assert query.streams is not None
    return Filter(query.streams - {name})
