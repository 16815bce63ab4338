"""Reader: sends one follower its streams, as lines of its release."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from synrepl.replication.connection import Connection
from synrepl.replication.encoder import Encoder
from synrepl.replication.feed import (
    PAGE_ROWS,
    EphemeralMode,
    EphemeralStep,
    Feed,
    PageStep,
    Step,
    Stop,
    read_page,
)
from synrepl.replication.ring import RingGroup
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire.commands import Position, Replicate
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command

if TYPE_CHECKING:
    from synrepl.replication.publisher import Publisher

MAX_COMMANDS: Final = 1_000
"""Broadcast commands buffered for a reader whose transport is full. The oldest are dropped: delivery is best
effort.
"""


@dataclass(eq=False, repr=False)
class Backlog:
    """Streams on which a reader catches up. When their feed reaches the head, they join the live ones.

    `announce`: their positions are sent then.

    A request for facts after a token reads by token first (`after_token`). Where several writers share a
    stream, that token says nothing about other writers' facts, which may have lower tokens and a higher
    serial. There the reader first looks up the serial of the follower's last fact (`last_token`) and
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


class Reader:
    """Sends a follower (or a shared channel) its streams as fast as it takes them, without a queue of facts.

    A live reader takes each group of facts from the ring. While its transport is full (`pause`) it takes
    nothing. If its next group has left the ring when it resumes, its streams become a backlog that is read
    from the log; they go live again after catching up. All decisions are made in `pump`, which runs after
    every change. `streams`: those that the `encoder` sends. `scope` describes what the daemon holds, if not
    everything. `positions` returns the position of each writer of a stream to announce, by default
    of all that are held.
    """

    _log = Logger()

    def __init__(
        self,
        source: "Publisher",
        connection: Connection,
        encoder: Encoder,
        *,
        scope: str = "",
        positions: Callable[[str], dict[str, int]] | None = None,
    ) -> None:
        self._source = source
        self._positions = positions if positions is not None else source.positions
        self._scope = scope
        self._ring = source.ring
        self._connection = connection
        self._encoder = encoder
        # Without writer names, all writers of a stream share one sequence of positions.
        self._linear = not encoder.strategy.pulls
        self.streams = frozenset(stream.name for stream in encoder.streams())
        self._live: Feed | None = None
        """The feed of the streams that are sent as they are committed."""
        self._live_streams: frozenset[str] | None = None
        """The streams of the live feed; None if it has all."""
        self._backlogs: deque[Backlog] = deque()
        self._reading_page_of: Backlog | None = None
        """The backlog that a page is being read for. Only one page is read at a time, even if its backlog is
        dropped.
        """
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._positions_requested = False
        self._paused = False
        self._pumping = False
        self._is_closed = False

    def replicate(self, command: Replicate) -> None:
        """Answer REPLICATE. Before 1.13, a request for an unknown stream ends the connection."""
        if not self._linear:
            self.send_positions()
            return
        asked = [stream for stream in self._encoder.streams() if command.stream in ("ALL", stream.name)]
        for stream in asked:
            self._push_from(stream, command.token)
        if not asked:
            hint = f": {self._scope}" if self._scope else ""
            self._connection.fail(f"unknown stream {command.stream or ''}{hint}")

    def serve(self, encoder: Encoder) -> None:
        """Serve the streams of this encoder from now on: the follower has named more."""
        self._encoder = encoder
        self.streams = frozenset(stream.name for stream in encoder.streams())
        if not self._linear:
            for feed in (self._live, *(backlog.feed for backlog in self._backlogs)):
                if feed is not None:
                    feed.filter = Filter(self.streams)
        if self._live is not None:
            self._set_live(self._live)

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
        if self._live is not None:
            self._live.filter = _without(name, self._live.filter)
            self._set_live(self._live)
        for backlog in list(self._backlogs):
            backlog.feed.filter = _without(name, backlog.feed.filter)
            if not backlog.streams:
                self._backlogs.remove(backlog)
        head = self._source.log.linear_position(name)
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
        log = self._source.log
        return Feed(
            log,
            self._ring,
            after=after,
            epoch=log.epoch,
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
        """Queue a broadcast command."""
        self._commands.append(command)
        self.pump()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """The transport's buffer has room again."""
        self._paused = False
        self.pump()

    def stop(self) -> None:
        """The connection was lost."""
        self._is_closed = True
        self._backlogs.clear()

    @property
    def is_behind(self) -> bool:
        """Whether the reader still catches up on a stream."""
        return bool(self._backlogs)

    @property
    def serial(self) -> int:
        """All of the reader's facts up to this serial were passed to its transport."""
        serials = [0 if backlog.reads_tokens else backlog.feed.serial for backlog in self._backlogs]
        if self._live is not None:
            serials.append(self._live.serial)
        return min(serials, default=self._ring.serial)

    def pump(self) -> None:
        """Send everything that can be sent now. Extra calls are harmless."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self._paused and not self._is_closed and self._step():
                pass
        finally:
            self._pumping = False

    def _step(self) -> bool:
        if self._commands:
            self._connection.send(self._commands.popleft())
            return True
        live = self._live
        if live is not None and live.number < self._ring.newest:
            data = live.take(self._encoder, self._live_streams)
            if data is None:
                self._step_live(live)
            elif data:
                self._connection.write(data)
            return True
        if self._backlogs:
            return self._step_backlog(self._backlogs[0])
        if self._positions_requested:
            self._positions_requested = False
            self._write(self._position_lines(self._encoder.streams()))
            return True
        return False

    def _step_live(self, feed: Feed) -> None:
        """Send what comes next if that is not simply the next group of the ring."""
        step = feed.next()
        if isinstance(step, PageStep) or (isinstance(step, RingGroup) and not feed.is_live):
            self._live = None
            self._backlogs.appendleft(Backlog(feed))
            self._source.metrics.readers_demoted.inc()
        else:
            self._carry_out(step, feed, self._live_streams)

    def _step_backlog(self, backlog: Backlog) -> bool:
        if backlog is self._reading_page_of:
            return False
        step = None if backlog.reads_tokens else backlog.feed.next()
        if step is None or isinstance(step, PageStep):
            if self._reading_page_of is not None:
                return False
            self._reading_page_of = backlog
            self._source.tasks.start(self._read_page(backlog, step), "reading the log for a follower")
            return self._reading_page_of is None
        if step is Stop.WAIT:
            self._go_live(backlog)
        # After a replaced log there is nothing to send: the daemon closes its followers.
        return step is not Stop.REPLACED and self._carry_out(step, backlog.feed, backlog.streams)

    def _carry_out(self, step: Step, feed: Feed, streams: frozenset[str] | None) -> bool:
        match step:
            case RingGroup():
                data, last = feed.lines(step, self._encoder, streams)
                feed.sent(last)
                self._write(data)
            case EphemeralStep():
                self._write(b"".join(map(self._reset_lines, step.resets)) + self._encoder.lines(step.facts))
        return True

    def _reset_lines(self, stream: str) -> bytes:
        """POSITION lines that announce a restart of an ephemeral stream; empty if the release has none."""
        if self._linear:
            return b""
        return b"".join(
            self._encoder.command(Position(stream=stream, instance=writer, prev_token=0, token=0))
            for writer in sorted(self._positions(stream))
        )

    async def _read_page(self, backlog: Backlog, step: PageStep | None) -> None:
        """Read a page of a backlog, by serial or by token, or find the serial to continue from."""
        facts: Sequence[Fact] = ()
        try:
            if step is not None:
                page = await read_page(self._source.log, backlog.feed, step)
                facts = () if page is None else page.facts
            elif backlog.last_token is not None:
                await self._find_serial_of(backlog, backlog.last_token)
            else:
                facts = await self._read_tokens(backlog)
        except Exception:
            self._connection.fail("the log cannot be read at the moment; reconnect later")
            raise
        finally:
            self._reading_page_of = None
        if self._is_closed:
            return
        if backlog in self._backlogs:
            self._write(self._encoder.lines(fact for fact in facts if fact.stream in backlog.streams))
            self._backlogs.rotate(-1)  # long backlogs must not block short ones
        self.pump()

    async def _read_tokens(self, backlog: Backlog) -> Sequence[Fact]:
        (stream,) = backlog.streams
        assert backlog.after_token is not None
        upto = self._source.log.linear_position(stream)
        facts, more = await self._read_between(backlog, backlog.after_token, upto)
        backlog.after_token = facts[-1].token if more else None
        return facts

    async def _read_between(self, backlog: Backlog, after: int, upto: int) -> tuple[Sequence[Fact], bool]:
        (stream,) = backlog.streams
        serial, log = backlog.feed.serial, self._source.log
        return await log.read_tokens(
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
        if self._live is not None:
            feed.filter = Filter(streams | (self._live.filter.streams or frozenset()))
        self._set_live(feed)
        if backlog.announce:
            self._write(
                self._position_lines([stream for stream in self._encoder.streams() if stream.name in streams])
            )
        else:
            self._source.metrics.readers_promoted.inc()

    def _set_live(self, feed: Feed) -> None:
        streams = feed.filter.streams
        self._live = feed if streams else None
        self._live_streams = None if streams == self.streams else streams

    def _position_lines(self, streams: list[Stream[Any]]) -> bytes:
        """A POSITION for each stream, and for each of its writers if the release knows writers."""
        lines: list[bytes] = []
        for stream in streams:
            if self._linear:
                token = self._source.log.linear_position(stream.name)
                commands = [Position(stream=stream.name, token=token)]
            else:
                commands = [
                    Position(stream=stream.name, instance=writer, prev_token=token, token=token)
                    for writer, token in sorted(self._positions(stream.name).items())
                ]
            lines += [self._encoder.command(command) for command in commands]
        return b"".join(lines)

    def _write(self, data: bytes) -> None:
        if data:
            self._connection.write(data)


def _without(name: str, query: Filter) -> Filter:
    assert query.streams is not None
    return Filter(query.streams - {name})
